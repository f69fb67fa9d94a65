// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// bindingMemory is how long a client token is remembered: EC2's 24 hours.
const bindingMemory = 24 * time.Hour

// sweepEvery is the minimum interval between sweeps of invisible state.
const sweepEvery = time.Second

// event is a state change of an instance. Events may be in the future: the state at any time is
// that of the last event before it. So a state changes without a running process, and a lagging
// read is a read of the past.
type event struct {
	at     time.Time
	state  wire.State
	reason string
}

type instance struct {
	// res holds what never changes.
	res      wire.Resource
	lag      time.Duration
	timeline []event
	own      []*dependant
	data     []*dependant
	vcpus    int
	body     *body.Body
	// console is the output of a body other than the simulated one, or nil.
	console []byte
	// timers start and end the body, and take a spot instance back.
	timers []*time.Timer
}

// at returns the event in effect at t, or false before the instance was created.
func (i *instance) at(t time.Time) (event, bool) {
	for n := len(i.timeline) - 1; n >= 0; n-- {
		if !i.timeline[n].at.After(t) {
			return i.timeline[n], true
		}
	}
	return event{}, false
}

// alive reports whether the instance uses capacity and quota at t.
func (i *instance) alive(t time.Time) bool {
	e, ok := i.at(t)
	return ok && e.state != wire.Terminated
}

// terminating reports whether termination has begun. It can't be undone.
func (i *instance) terminating() bool {
	return i.timeline[len(i.timeline)-1].state == wire.Terminated
}

// plan replaces all events after now.
func (i *instance) plan(now time.Time, events ...event) {
	i.timeline = slices.DeleteFunc(i.timeline, func(e event) bool { return e.at.After(now) })
	i.timeline = append(i.timeline, events...)
}

func (i *instance) view(t time.Time) (wire.Resource, bool) {
	e, ok := i.at(t)
	if !ok {
		return wire.Resource{}, false
	}
	r := i.res
	r.State, r.StateReason = e.state, e.reason
	return r, true
}

// end plans the termination of the instance and its dependants. The caller stops the body.
func (i *instance) end(now time.Time, took time.Duration, reason string) {
	gone := now.Add(took)
	i.plan(now, event{now, wire.Stopping, reason}, event{gone, wire.Terminated, reason})
	i.release(gone)
}

// release deletes what is deleted with the instance, and detaches the rest.
func (i *instance) release(at time.Time) {
	for _, d := range i.own {
		d.gone = at
	}
	for _, d := range i.data {
		d.detached = at
	}
}

func (i *instance) stopTimers() {
	for _, t := range i.timers {
		t.Stop()
	}
	i.timers = nil
}

type dependant struct {
	res wire.Resource
	lag time.Duration
	// gone and detached are zero while the dependant exists and is attached.
	gone, detached time.Time
}

func (d *dependant) attached(t time.Time) bool {
	return d.res.AttachedTo != "" && (d.detached.IsZero() || t.Before(d.detached))
}

func (d *dependant) view(t time.Time) (wire.Resource, bool) {
	if t.Before(d.res.CreatedAt) || (!d.gone.IsZero() && !t.Before(d.gone)) {
		return wire.Resource{}, false
	}
	r := d.res
	if !d.attached(t) {
		r.AttachedTo = ""
	}
	return r, true
}

// binding is the request and the instance of a client token.
type binding struct {
	params [32]byte
	inst   *instance
	at     time.Time
}

// account is one customer. It has a place for each region.
type account struct {
	name     string
	id       string // random, independent of the seed
	tokens   map[string]bool
	quota    Quota
	throttle *throttle
	places   map[string]*place
}

func (a *account) place(region string) *place {
	p := a.places[region]
	if p == nil {
		p = &place{
			instances: map[string]*instance{}, dependants: map[string]*dependant{}, bindings: map[string]*binding{},
			balancers: map[string]*balancer{}, balancerTokens: map[string]*balancer{},
		}
		a.places[region] = p
	}
	return p
}

// place holds an account's resources in a region.
type place struct {
	instances  map[string]*instance
	dependants map[string]*dependant
	bindings   map[string]*binding
	// balancers are those that exist, by ID; balancerTokens are all, by client token.
	balancers, balancerTokens map[string]*balancer
	swept                     time.Time
}

// sweep drops what no read can see any more.
func (p *place) sweep(now time.Time, visible time.Duration) {
	if now.Sub(p.swept) < sweepEvery {
		return
	}
	p.swept = now
	for id, i := range p.instances {
		last := i.timeline[len(i.timeline)-1]
		if last.state == wire.Terminated && now.Sub(last.at) > visible+i.lag {
			p.forget(id, i)
		}
	}
	for id, d := range p.dependants {
		if !d.gone.IsZero() && now.Sub(d.gone) > d.lag {
			delete(p.dependants, id)
		}
	}
	for token, b := range p.bindings {
		if now.Sub(b.at) > bindingMemory && !b.inst.alive(now) {
			delete(p.bindings, token)
		}
	}
}

// forget drops an instance. A binding may still refer to it, so forget frees its large fields.
func (p *place) forget(id string, i *instance) {
	delete(p.instances, id)
	i.stopTimers()
	i.body, i.own, i.data = nil, nil, nil
}

// usage returns the account's usage in the place.
func (p *place) usage(now time.Time) Quota {
	var q Quota
	for _, i := range p.instances {
		if i.alive(now) {
			q.Instances++
			q.VCPUs += i.vcpus
		}
	}
	for _, d := range p.dependants {
		if r, ok := d.view(now); ok {
			q.DiskGiB += int(r.SizeGiB)
		}
	}
	return q
}

func newID(prefix string, r *rand.Rand) string {
	return fmt.Sprintf("%s-%016x%01x", prefix, r.Uint64(), r.Uint32N(16))
}

// pool allocates a network's addresses.
type pool struct {
	prefix netip.Prefix
	next   netip.Addr
}

// firstAddress reserves addresses for gateways and the like, as clouds do.
const firstAddress = 10

func newPool(cidr string) *pool {
	p := &pool{prefix: netip.MustParsePrefix(cidr).Masked()}
	p.rewind()
	return p
}

func (p *pool) rewind() {
	p.next = p.prefix.Addr()
	for range firstAddress {
		p.next = p.next.Next()
	}
}

// take returns the next address in turn. It assumes that a network is larger than the number of
// live machines.
func (p *pool) take() string {
	if !p.prefix.Contains(p.next) {
		p.rewind()
	}
	a := p.next
	p.next = a.Next()
	return a.String()
}

// sortKey is the sort key of listings, and the content of a NextToken.
func sortKey(r wire.Resource) string { return string(r.Kind) + "/" + r.ID }

func sortResources(list []wire.Resource) {
	slices.SortFunc(list, func(a, b wire.Resource) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.ID, b.ID))
	})
}
