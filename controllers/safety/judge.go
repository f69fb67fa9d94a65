// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// facts are what one pass over an account knows, in the order in which it was learned: what the
// cloud has, and only then whom it may belong to. A machine that was made in between is known to
// Kubernetes, so its VM is no orphan.
type facts struct {
	// listed is when the complete listing began, resources what it had. Within a process, times of
	// listings are compared by the monotonic clock: a wall clock that jumps confirms nothing.
	listed    time.Time
	resources []cloud.Resource
	// read is when Kubernetes had answered all that follows. The listing may be older by as much as
	// a period: what has lost its machine was without one at this time, and perhaps not before.
	read time.Time
	// identity is the beginning of each creation token of this management cluster.
	identity string
	// clusters are those of this namespace, and those that were here until they were deleted, by
	// ownership ID.
	clusters map[string]cluster
	// elsewhere are the ownership IDs of clusters in other namespaces, whose own accounts are
	// looked after there.
	elsewhere map[string]bool
	// machines are the namespace's CloudMachines: their recorded provider IDs, or "", by token.
	// claimed are the tokens of other namespaces' CloudMachines; they are read only where
	// something looks like an orphan.
	machines map[string]string
	claimed  map[string]bool
	// confined: the manager may not read all namespaces, so it may not know the owner.
	confined bool
	// recorded: one of them is of this account, and has recorded its VM.
	recorded bool
}

// cluster is whose resources may be orphans.
type cluster struct {
	// leave says why nothing of the cluster is judged now: it is paused, or on its way to or from
	// another management cluster. Empty: it is judged.
	leave string
	// former: the CloudCluster was deleted.
	former bool
}

// orphan is a resource of a cluster that is here, with a token that no CloudMachine here has; or an
// instance beside the one that its CloudMachine has recorded.
type orphan struct {
	cloud.Resource
	// since is when Kubernetes was asked for the first time from which on no pass found a machine
	// for it.
	since time.Time
	// confirmed: a listing that had it so began at least the grace after that.
	confirmed bool
}

// memory is what is kept from one pass over an account to the next. The zero value is that of a
// manager that has just begun: nothing is confirmed by it. It is lost with the process, which costs
// time and nothing else.
type memory struct {
	// passed is when the last full pass was, listed when the last listing that was judged began.
	passed, listed time.Time
	since          map[string]time.Time // of orphans, by name
	empty          map[string]time.Time // since when a former cluster has had nothing, by ownership ID
	// machines are the CloudMachines at the last pass that was not doubted. doubted: the orphans of
	// the last pass were not believed; and calm is when Kubernetes was asked in the first pass
	// after that in which they were.
	machines int
	doubted  bool
	calm     time.Time
	// begun is what was asked to go of machines of which something is left, and when, by token and
	// by name.
	begun map[string]map[string]time.Time
	// unread: a live read failed, and is to be tried again soon.
	unread bool
	// allowed are the orphans that a person has confirmed, by name.
	allowed map[string]bool
}

// report is what a pass found.
type report struct {
	// orphans in the order of their names, and the number of machines that they are parts of, by
	// token.
	orphans []orphan
	tokens  int
	// foreign are resources of a cluster that is here, and of none of its machines, which another
	// management cluster made: it has a copy of the CloudCluster, or had it before a move. They are
	// never touched.
	foreign []orphan
	// fleet is the number of machines, by token, of which the listing has anything, orphans
	// included.
	fleet int
	// strangers are resources with an ownership ID that no cluster here has, or none. They are
	// never touched.
	strangers int
	// machines are the CloudMachines here.
	machines int
	// confined: what was found may have an owner that this manager may not read.
	confined bool
	// twins are the tokens with more than one living instance of which none is recorded: a person
	// must choose.
	twins []string
	// read is when Kubernetes was asked.
	read time.Time
	// settled are former clusters that have had nothing for as long as the grace.
	settled []string
	// ended are the tokens that had been begun and of which nothing is left.
	ended []string
}

func name(r cloud.Resource) string { return string(r.Kind) + "/" + r.ID }

func alive(r cloud.Resource) bool {
	return r.Kind == cloud.KindInstance && r.State != cloud.StateTerminated
}

// judge says what the facts mean, and notes them for the next pass. Facts that are no newer than
// the last are ignored: two looks at one listing confirm nothing. So is a listing with nothing of
// any cluster here, although machines have recorded their VMs: credentials that have lost their
// rights are answered so. Nothing is gone by its word, and no sighting outlives it.
func (m *memory) judge(f facts, grace time.Duration) (r report, ok bool) {
	if !f.listed.After(m.listed) {
		return report{}, false
	}
	known := func(x cloud.Resource) bool { _, here := f.clusters[x.OwnershipID]; return here }
	if f.recorded && !slices.ContainsFunc(f.resources, known) {
		m.listed, m.since, m.empty = f.listed, nil, nil
		return report{}, false
	}
	r.machines, r.read, r.confined = len(f.machines), f.read, f.confined
	since := map[string]time.Time{}
	fleet, lost, owners := map[string]bool{}, map[string]bool{}, map[string]bool{}
	living := instances(f)
	for _, x := range f.resources {
		if x.Kind == cloud.KindInstance && !alive(x) {
			continue
		}
		c, here := f.clusters[x.OwnershipID]
		if !here {
			if !f.elsewhere[x.OwnershipID] {
				r.strangers++
			}
			continue
		}
		fleet[x.Token], owners[x.OwnershipID] = true, true
		if c.leave != "" || !f.unowned(x, living) {
			continue
		}
		first := m.since[name(x)]
		if first.IsZero() {
			first = f.read
		}
		since[name(x)] = first
		// The cloud's clock may differ from ours; it can only make the wait longer.
		old := x.CreatedAt.IsZero() || f.listed.Sub(x.CreatedAt) >= grace
		o := orphan{Resource: x, since: first, confirmed: old && f.listed.Sub(first) >= grace}
		if !strings.HasPrefix(x.Token, f.identity) {
			r.foreign = append(r.foreign, o)
			continue
		}
		lost[x.Token] = true
		r.orphans = append(r.orphans, o)
	}
	byName := func(a, b orphan) int { return strings.Compare(name(a.Resource), name(b.Resource)) }
	slices.SortFunc(r.orphans, byName)
	slices.SortFunc(r.foreign, byName)
	r.fleet, r.tokens = len(fleet), len(lost)
	r.twins = twins(f, living)
	r.settled = m.settle(f, owners, grace)
	for token := range m.begun {
		if !lost[token] {
			r.ended = append(r.ended, token)
			delete(m.begun, token)
		}
	}
	slices.Sort(r.ended)
	m.listed, m.since = f.listed, since
	return r, true
}

// instances are the living ones of the clusters here, by token.
func instances(f facts) map[string][]cloud.Resource {
	living := map[string][]cloud.Resource{}
	for _, x := range f.resources {
		if _, here := f.clusters[x.OwnershipID]; here && alive(x) {
			living[x.Token] = append(living[x.Token], x)
		}
	}
	return living
}

// suspects tells whether something looks like an orphan of this management cluster's.
func (f *facts) suspects() bool {
	living := instances(*f)
	return slices.ContainsFunc(f.resources, func(x cloud.Resource) bool {
		c, here := f.clusters[x.OwnershipID]
		return here && c.leave == "" && strings.HasPrefix(x.Token, f.identity) && f.unowned(x, living)
	})
}

// unowned tells whether no CloudMachine has the resource's token; or has it, and has recorded
// another instance, which lives.
func (f *facts) unowned(x cloud.Resource, living map[string][]cloud.Resource) bool {
	recorded, known := f.machines[x.Token]
	if f.claimed[x.Token] {
		return false
	}
	if !known {
		return true
	}
	return recorded != "" && x.Kind == cloud.KindInstance && x.ProviderID != recorded &&
		slices.ContainsFunc(living[x.Token], func(o cloud.Resource) bool { return o.ProviderID == recorded })
}

// twins are the tokens of CloudMachines that have recorded none of several living instances.
func twins(f facts, living map[string][]cloud.Resource) (tokens []string) {
	for token, all := range living {
		recorded, known := f.machines[token]
		if known && len(all) > 1 && !slices.ContainsFunc(all, func(o cloud.Resource) bool { return o.ProviderID == recorded }) {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	return tokens
}

// settle returns the former clusters that no listing has had anything of for as long as the grace,
// counted from when they were known to be former: a create that their last machine did not wait for
// may show until then.
func (m *memory) settle(f facts, owners map[string]bool, grace time.Duration) (settled []string) {
	empty := map[string]time.Time{}
	for id, c := range f.clusters {
		if !c.former || owners[id] {
			continue
		}
		first := m.empty[id]
		if first.IsZero() {
			first = f.read
		}
		if empty[id] = first; f.listed.Sub(first) >= grace {
			settled = append(settled, id)
		}
	}
	m.empty = empty
	slices.Sort(settled)
	return settled
}

// limits say when orphans are too many to be orphans.
type limits struct {
	// share of the fleet, in percent, and least is how many machines it takes at least.
	share, least int
}

// doubt says why the orphans of a report are not believed to be any: a lost or old store of
// Kubernetes' objects looks like that. Empty: they are believed.
func (m *memory) doubt(r report, l limits) string {
	switch {
	case r.tokens == 0:
	case tooMany(r.tokens, r.fleet, l.least, l.share):
		return fmt.Sprintf("that is more than %d %% of the fleet", l.share)
	case m.machines > 0 && r.machines*2 <= m.machines:
		return fmt.Sprintf("there were %d CloudMachines, and now there are %d", m.machines, r.machines)
	}
	m.machines = r.machines
	return ""
}

// allow notes a person's word, given by the digest of the set as it is, and tells whether it covers
// all orphans: then, or in an earlier pass, when they were more.
func (m *memory) allow(r report, word string) bool {
	if word != "" && word == r.digest() {
		m.allowed = map[string]bool{}
		for _, o := range r.orphans {
			m.allowed[name(o.Resource)] = true
		}
	}
	return !slices.ContainsFunc(r.orphans, func(o orphan) bool { return !m.allowed[name(o.Resource)] })
}

// digest names the set of orphans.
func (r report) digest() string {
	names := make([]string, 0, len(r.orphans))
	for _, o := range r.orphans {
		names = append(names, name(o.Resource)+" "+cmp.Or(o.Token, "-"))
	}
	return fleet.Digest(names)
}

// due are the machines whose remains may go, by token: of which every orphan is confirmed; those
// that were begun, and up to n further ones, in the order of their tokens. Doubts that have passed
// without a person's word may have passed because lost objects are being brought back one by one:
// those that are left have the grace once more, counted from the first look without doubts, for the
// last one with doubts may be long ago.
func (m *memory) due(r report, n int, grace time.Duration) map[string][]orphan {
	waits, of := map[string]bool{}, map[string][]orphan{}
	if m.doubted {
		m.doubted, m.calm = false, r.read
	}
	recovering := !m.calm.IsZero() && m.listed.Sub(m.calm) < grace
	for _, o := range r.orphans {
		waits[o.Token] = waits[o.Token] || !o.confirmed || recovering && !m.allowed[name(o.Resource)]
		of[o.Token] = append(of[o.Token], o)
	}
	for _, token := range slices.Sorted(maps.Keys(of)) {
		switch {
		case waits[token]:
			delete(of, token)
		case m.begun[token] != nil:
		case n > 0:
			n--
		default:
			delete(of, token)
		}
	}
	return of
}
