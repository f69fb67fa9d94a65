// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"crypto/subtle"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// adminPrefix is the path of the admin API. The API is not part of a cloud: tests use it to control
// the cloud.
const adminPrefix = "/admin/"

// SnapshotResource is a resource's true state, without lag.
type SnapshotResource struct {
	wire.Resource
	Account string `json:"account"`
	// Body is set for an instance.
	Body *body.Report `json:"body,omitempty"`
}

// Snapshot is everything that exists, including terminated instances while they are visible.
type Snapshot struct {
	Resources []SnapshotResource `json:"resources"`
}

// Instances returns the instances that are not terminated, of all accounts.
func (s Snapshot) Instances() []SnapshotResource {
	return slices.DeleteFunc(slices.Clone(s.Resources), func(r SnapshotResource) bool {
		return r.Kind != wire.Instance || r.State == wire.Terminated
	})
}

// Live returns everything except terminated instances: what would be billed.
func (s Snapshot) Live() []SnapshotResource {
	return slices.DeleteFunc(slices.Clone(s.Resources), func(r SnapshotResource) bool { return r.State == wire.Terminated })
}

// InstanceAction is a change to an instance outside the wire API.
type InstanceAction string

// The actions.
const (
	ActTerminate InstanceAction = "Terminate"
	// ActVanish removes an instance without trace: it is not even shown as terminated.
	ActVanish InstanceAction = "Vanish"
	// ActStop and ActStart switch an instance off and on. ActStart also restarts a hung one.
	ActStop  InstanceAction = "Stop"
	ActStart InstanceAction = "Start"
	// ActReclaim takes a spot instance back.
	ActReclaim InstanceAction = "Reclaim"
	// ActHang stops only the body: the cloud still reports the instance as running.
	ActHang InstanceAction = "Hang"
)

type instanceActionRequest struct {
	ID     string         `json:"id"`
	Action InstanceAction `json:"action"`
}

// CapacityChange limits a zone. Instances -1 removes the limit. InstanceType "*" applies to all
// types without a limit of their own.
type CapacityChange struct {
	Region       string `json:"region"`
	Zone         string `json:"zone"`
	InstanceType string `json:"instanceType"`
	Instances    int    `json:"instances"`
}

type foreignRequest struct {
	Account string                   `json:"account"`
	Run     wire.RunInstancesRequest `json:"run"`
}

type downRequest struct {
	Mode DownMode `json:"mode"`
}

type idRequest struct {
	ID string `json:"id"`
}

type consoleRequest struct {
	ID     string `json:"id"`
	Output []byte `json:"output"`
}

type nothing struct{}

func (s *Server) serveAdmin(mux *http.ServeMux) {
	handle(s, mux, "snapshot", func(nothing) (Snapshot, *wire.ErrorResponse) { return s.snapshot(), nil })
	handle(s, mux, "audit", func(nothing) (Audit, *wire.ErrorResponse) { return s.audit.dump(), nil })
	handle(s, mux, "audit/reset", func(nothing) (nothing, *wire.ErrorResponse) { s.audit.reset(); return nothing{}, nil })
	handle(s, mux, "faults", func(nothing) ([]Fault, *wire.ErrorResponse) { return s.faults.all(), nil })
	handle(s, mux, "faults/add", func(f Fault) (idRequest, *wire.ErrorResponse) {
		if err := f.validate(); err != nil {
			return idRequest{}, refuse(wire.InvalidParameterValue, "%v", err)
		}
		return idRequest{s.faults.add(f)}, nil
	})
	handle(s, mux, "faults/remove", func(r idRequest) (nothing, *wire.ErrorResponse) { s.faults.remove(r.ID); return nothing{}, nil })
	handle(s, mux, "settings", func(nothing) (Settings, *wire.ErrorResponse) { return s.getSettings(), nil })
	handle(s, mux, "settings/set", s.setSettings)
	handle(s, mux, "account/set", func(a AccountOptions) (nothing, *wire.ErrorResponse) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.setAccount(a)
		return nothing{}, nil
	})
	handle(s, mux, "account/tokens", s.setTokens)
	handle(s, mux, "account/quota", s.setQuota)
	handle(s, mux, "capacity/set", s.setCapacity)
	handle(s, mux, "down", func(r downRequest) (nothing, *wire.ErrorResponse) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.down = r.Mode
		return nothing{}, nil
	})
	handle(s, mux, "instance/act", s.act)
	handle(s, mux, "instance/body", s.bodyOf)
	handle(s, mux, "instance/machine", s.machineOf)
	handle(s, mux, "instance/console", s.setConsole)
	handle(s, mux, "instance/run", s.runForeign)
	handle(s, mux, "instance/serve", s.setServed)
}

// handle serves one admin operation: POST, with JSON in and out.
func handle[In, Out any](s *Server, mux *http.ServeMux, path string, f func(In) (Out, *wire.ErrorResponse)) {
	mux.HandleFunc("POST "+adminPrefix+path, func(w http.ResponseWriter, r *http.Request) {
		if !s.mayAdminister(r) {
			write(w, http.StatusForbidden, refuse(wire.AuthFailure, "not for you"), 0)
			return
		}
		var in In
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&in); err != nil {
			write(w, http.StatusBadRequest, refuse(wire.InvalidParameterValue, "the request is not JSON"), 0)
			return
		}
		out, refusal := f(in)
		if refusal != nil {
			write(w, http.StatusBadRequest, refusal, 0)
			return
		}
		write(w, http.StatusOK, out, 0)
	})
}

// mayAdminister admits callers with the token, or without a token programs on the same machine. It
// refuses web pages in a browser on that machine: browsers send their origin.
func (s *Server) mayAdminister(r *http.Request) bool {
	if r.Header.Get("Origin") != "" {
		return false
	}
	if s.adminToken != "" {
		return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+s.adminToken)) == 1
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return err == nil && ip != nil && ip.IsLoopback()
}

func (s *Server) snapshot() Snapshot {
	out := Snapshot{Resources: []SnapshotResource{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(s.accounts)) {
		a := s.accounts[name]
		for _, region := range slices.Sorted(maps.Keys(a.places)) {
			out.Resources = append(out.Resources, s.snapshotOf(name, a.places[region], now)...)
		}
	}
	return out
}

func (s *Server) snapshotOf(account string, p *place, now time.Time) []SnapshotResource {
	var list []wire.Resource
	p.sweep(now, s.settings.TerminatedVisible.Duration)
	for _, i := range p.instances {
		if r, ok := i.view(now); ok {
			list = append(list, r)
		}
	}
	for _, d := range p.dependants {
		if r, ok := d.view(now); ok {
			list = append(list, r)
		}
	}
	for _, b := range p.balancers {
		if r, ok := b.view(now); ok {
			list = append(list, r)
		}
	}
	sortResources(list)
	out := make([]SnapshotResource, len(list))
	for n, r := range list {
		out[n] = SnapshotResource{Resource: r, Account: account}
		if i := p.instances[r.ID]; i != nil {
			report := i.body.Report()
			report.Console = nil
			out[n].Body = &report
		}
	}
	return out
}

func (s *Server) getSettings() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

func (s *Server) setSettings(n Settings) (nothing, *wire.ErrorResponse) {
	n = n.withDefaults()
	if err := n.validate(); err != nil {
		return nothing{}, refuse(wire.InvalidParameterValue, "%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.Throttle != s.settings.Throttle {
		p, _ := throttlePreset(n.Throttle)
		for _, a := range s.accounts {
			a.throttle = newThrottle(p)
		}
	}
	s.settings = n
	return nothing{}, nil
}

func (s *Server) setTokens(o AccountOptions) (nothing, *wire.ErrorResponse) {
	return s.changeAccount(o.Name, func(a *account) AccountOptions { return AccountOptions{o.Name, o.Tokens, a.quota} })
}

func (s *Server) setQuota(o AccountOptions) (nothing, *wire.ErrorResponse) {
	return s.changeAccount(o.Name, func(a *account) AccountOptions {
		return AccountOptions{o.Name, slices.Collect(maps.Keys(a.tokens)), o.Quota}
	})
}

func (s *Server) changeAccount(name string, change func(*account) AccountOptions) (nothing, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[name]
	if a == nil {
		return nothing{}, refuse(wire.InvalidParameterValue, "there is no account %q", name)
	}
	s.setAccount(change(a))
	return nothing{}, nil
}

func (s *Server) setCapacity(c CapacityChange) (nothing, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.region(c.Region)
	if r == nil || !slices.Contains(r.Zones, c.Zone) {
		return nothing{}, refuse(wire.InvalidParameterValue, "there is no zone %q in region %q", c.Zone, c.Region)
	}
	if r.Capacity == nil {
		r.Capacity = map[string]map[string]int{}
	}
	if r.Capacity[c.Zone] == nil {
		r.Capacity[c.Zone] = map[string]int{}
	}
	if c.Instances < 0 {
		delete(r.Capacity[c.Zone], c.InstanceType)
		return nothing{}, nil
	}
	r.Capacity[c.Zone][c.InstanceType] = c.Instances
	return nothing{}, nil
}

// locate finds an instance in any account. The caller holds s.mu.
func (s *Server) locate(id string) (*place, *instance) {
	for _, a := range s.accounts {
		for _, p := range a.places {
			if i := p.instances[id]; i != nil {
				return p, i
			}
		}
	}
	return nil, nil
}

func (s *Server) act(r instanceActionRequest) (nothing, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, i := s.locate(r.ID)
	if i == nil {
		return nothing{}, refuse(wire.InstanceNotFound, "there is no instance %q", r.ID)
	}
	now, took := time.Now(), s.settings.Stop.Duration
	switch r.Action {
	case ActTerminate:
		s.end(i, "Server.Terminated: somebody terminated it")
	case ActReclaim:
		if !i.res.Spot {
			return nothing{}, refuse(wire.InvalidParameterValue, "%s is not a spot instance", r.ID)
		}
		s.end(i, reclaimed)
	case ActVanish:
		s.vanish(p, i, now)
	case ActHang:
		i.stopTimers()
		i.body.Stop()
	case ActStop, ActStart:
		return nothing{}, s.switchPower(i, r.Action, now, took)
	default:
		return nothing{}, refuse(wire.InvalidParameterValue, "unknown action %q", r.Action)
	}
	return nothing{}, nil
}

// vanish removes an instance and its dependants, except data disks.
func (s *Server) vanish(p *place, i *instance, now time.Time) {
	i.body.Stop()
	i.plan(now, event{now, wire.Terminated, "Server.Vanished"})
	i.release(now)
	for _, d := range i.own {
		delete(p.dependants, d.res.ID)
	}
	p.forget(i.res.ID, i)
}

func (s *Server) switchPower(i *instance, action InstanceAction, now time.Time, took time.Duration) *wire.ErrorResponse {
	e, _ := i.at(now)
	switch {
	case action == ActStop && (e.state == wire.Running || e.state == wire.Pending) && !i.terminating():
		i.stopTimers()
		i.body.Stop()
		i.plan(now, event{now, wire.Stopping, ""}, event{now.Add(took), wire.Stopped, "Server.Stopped: somebody stopped it"})
	case action == ActStart && e.state == wire.Stopped:
		boot := s.settings.BootMin.Duration
		i.plan(now, event{now, wire.Pending, ""}, event{now.Add(boot), wire.Running, ""})
		i.timers = append(i.timers, time.AfterFunc(boot, i.body.Start))
	case action == ActStart && e.state == wire.Running:
		i.body.Start()
	default:
		return refuse(wire.InvalidParameterValue, "%s is %s", i.res.ID, e.state)
	}
	return nil
}

func (s *Server) bodyOf(r idRequest) (body.Report, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, i := s.locate(r.ID)
	if i == nil {
		return body.Report{}, refuse(wire.InstanceNotFound, "there is no instance %q", r.ID)
	}
	return i.body.Report(), nil
}

func (s *Server) machineOf(r idRequest) (body.Machine, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, i := s.locate(r.ID)
	if i == nil {
		return body.Machine{}, refuse(wire.InstanceNotFound, "there is no instance %q", r.ID)
	}
	return i.body.Machine(), nil
}

func (s *Server) setConsole(r consoleRequest) (nothing, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, i := s.locate(r.ID)
	if i == nil {
		return nothing{}, refuse(wire.InstanceNotFound, "there is no instance %q", r.ID)
	}
	i.console = r.Output
	return nothing{}, nil
}

// runForeign creates an instance without throttling, faults and audit.
func (s *Server) runForeign(r foreignRequest) (wire.Resource, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[r.Account]
	if a == nil {
		return wire.Resource{}, refuse(wire.InvalidParameterValue, "there is no account %q", r.Account)
	}
	out, refusal := s.run(a, r.Run, "")
	if refusal != nil {
		return wire.Resource{}, refusal
	}
	return out.Instance, nil
}
