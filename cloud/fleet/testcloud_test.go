// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// testCloud is a small cloud: an HTTP server in memory, which runs on the time of the test's
// bubble. It lacks what these tests do not need (bodies, images, prices). Its faults come on
// demand.
type testCloud struct {
	listener  *pipeListener
	server    *http.Server
	transport *http.Transport

	mu        sync.Mutex
	serving   int // calls
	rand      *rand.Rand
	resources map[string]*testResource
	made      map[string]*testResource // by token, never removed
	calls     []testCall
	nextID    int

	start, stop  time.Duration // how long a machine takes to run, and to end
	latency      time.Duration
	lag          time.Duration // how long reads may miss what changed
	dependants   int           // NICs of each machine, which outlive it
	noCapacity   map[string]bool
	failsLater   map[string]bool // zones that accept creates, and then have no capacity
	named        bool            // Named
	zonal        bool            // a token is valid in one zone only
	readLag      time.Duration   // ReadLag, where it is more than lag
	ending       time.Duration   // TerminationTime
	horizon      time.Duration   // CreateHorizon
	cascades     bool            // CascadesDelete: a machine leaves nothing behind
	inSteps      bool            // one call stops a machine, and the next removes it
	credential   string          // the only one that is accepted
	place        string          // what a probe answers
	buckets      map[cloud.Class]*plainBucket
	fault        func(op string) fault // nil: none
	poison       string                // a token that makes a describe invalid
	poisonCode   cloud.Code
	protected    string        // an instance that can't be deleted
	forgetsAfter time.Duration // when terminated instances disappear; 0: never
}

// fault is what goes wrong with one call.
type fault struct {
	code   string        // an error before any effect
	retry  time.Duration // with code Throttled
	cut    bool          // the call takes effect, but has no answer
	late   time.Duration // with cut: delay of the effect
	broken bool          // half an answer
}

type testCall struct {
	op   string
	at   time.Time
	size int
	zone string
	code string

	recorded bool // of a balancer
}

type testResource struct {
	Kind        cloud.Kind
	ID          string
	Token       string
	OwnershipID string
	Zone        string
	Targets     []string // a balancer's
	State       cloud.State
	Created     time.Time

	before   cloud.State // what a lagging read shows
	changed  time.Time
	becomes  cloud.State // at then
	Code     cloud.Code  // why it failed
	then     time.Time
	instance string // a NIC's
}

func newTestCloud(t *testing.T) *testCloud {
	c := &testCloud{
		listener:   &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})},
		resources:  map[string]*testResource{},
		made:       map[string]*testResource{},
		noCapacity: map[string]bool{},
		failsLater: map[string]bool{},
		rand:       rand.New(rand.NewPCG(1, 1)),
		start:      3 * time.Second,
		stop:       3 * time.Second,
		latency:    100 * time.Millisecond,
		credential: "right",
		place:      testPlace,
	}
	c.server = &http.Server{Handler: http.HandlerFunc(c.serve)}
	go c.server.Serve(c.listener) //nolint:errcheck // it ends with the test
	c.transport = &http.Transport{DialContext: c.listener.dial, MaxIdleConnsPerHost: 100}
	t.Cleanup(c.close)
	return c
}

func (c *testCloud) close() {
	c.transport.CloseIdleConnections()
	c.server.Close()
	synctest.Wait() // a call that was read just before the end counts as served from here on
	for busy := true; busy; time.Sleep(time.Second) {
		c.with(func() { busy = c.serving > 0 })
	}
}

// pipeListener connects clients and server without a network.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

type wireRequest struct {
	Token, OwnershipID, Zone string
	Tokens, IDs, Targets     []string
	Page                     int
	Recorded                 bool
}

type wireAnswer struct {
	Code, Message string
	RetryAfter    time.Duration
	Resources     []testResource
	Codes         []string // of a batch
	More          bool
	Place         string
}

var opClasses = map[string]cloud.Class{"run": cloud.ClassCreate, "balance": cloud.ClassCreate, "terminate": cloud.ClassDelete,
	"list": cloud.ClassRead, "describe": cloud.ClassRead, "find": cloud.ClassRead, "probe": cloud.ClassRead, "offering": cloud.ClassRead}

func (c *testCloud) serve(w http.ResponseWriter, req *http.Request) {
	var in wireRequest
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
		panic(http.ErrAbortHandler)
	}
	var latency time.Duration
	c.with(func() { c.serving, latency = c.serving+1, c.latency })
	defer c.with(func() { c.serving-- })
	time.Sleep(latency)
	op := strings.TrimPrefix(req.URL.Path, "/")
	c.mu.Lock()
	f := c.admit(op, req, in)
	call := testCall{op: op, at: time.Now(), size: len(in.Tokens) + len(in.IDs), zone: in.Zone, recorded: in.Recorded, code: f.code}
	if f.cut && f.late > 0 {
		c.calls = append(c.calls, call)
		c.mu.Unlock()
		time.AfterFunc(f.late, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.do(op, in)
		})
		panic(http.ErrAbortHandler)
	}
	out := wireAnswer{Code: f.code, Message: "refused", RetryAfter: f.retry}
	if f.code == "" {
		out = c.do(op, in)
		call.code = out.Code
	}
	c.calls = append(c.calls, call)
	c.mu.Unlock()
	if f.cut {
		panic(http.ErrAbortHandler)
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	if f.broken {
		text = text[:len(text)/2]
	}
	if out.Code != "" {
		w.WriteHeader(http.StatusBadRequest)
	}
	w.Write(text) //nolint:errcheck // the client's loss
}

func (c *testCloud) admit(op string, req *http.Request, in wireRequest) fault {
	if req.Header.Get("Authorization") != c.credential {
		return fault{code: string(cloud.Unauthorized)}
	}
	if b := c.buckets[opClasses[op]]; b != nil {
		if !b.take() {
			return fault{code: string(cloud.Throttled)}
		}
	}
	if c.fault != nil {
		return c.fault(op)
	}
	return fault{}
}

// do applies the call's effect. It needs the lock.
func (c *testCloud) do(op string, in wireRequest) wireAnswer {
	c.pass()
	switch op {
	case "run":
		return c.run(in)
	case "balance":
		return c.balance(in)
	case "list":
		const page = 100
		all := c.read(func(r *testResource) bool { return r.OwnershipID != "" })
		from := min(in.Page*page, len(all))
		to := min(from+page, len(all))
		return wireAnswer{Resources: all[from:to], More: to < len(all)}
	case "describe":
		if c.poison != "" && slices.Contains(in.Tokens, c.poison) {
			return wireAnswer{Code: string(c.poisonCode), Message: "malformed"}
		}
		return wireAnswer{Resources: c.read(func(r *testResource) bool { return slices.Contains(in.Tokens, r.Token) })}
	case "find":
		return wireAnswer{Resources: c.read(func(r *testResource) bool { return slices.Contains(in.IDs, r.ID) })}
	case "terminate":
		var a wireAnswer
		for _, id := range in.IDs {
			a.Codes = append(a.Codes, c.terminate(id))
		}
		return a
	default:
		return wireAnswer{Place: c.place}
	}
}

func (c *testCloud) run(in wireRequest) wireAnswer {
	for _, r := range c.resources {
		if r.Token == in.Token && r.Kind == cloud.KindInstance && (!c.zonal || r.Zone == in.Zone) {
			return wireAnswer{Resources: []testResource{*r}}
		}
	}
	if made := c.made[in.Token]; made != nil && !c.zonal { // the instance is forgotten, and its token is not
		return wireAnswer{Resources: []testResource{*made}}
	}
	if c.noCapacity[in.Zone] {
		return wireAnswer{Code: string(cloud.NoCapacity), Message: "none in " + in.Zone}
	}
	c.made[in.Token] = c.make(in.Token, in.OwnershipID, in.Zone)
	return wireAnswer{Resources: []testResource{*c.made[in.Token]}}
}

// balance makes a load balancer, or changes its targets.
func (c *testCloud) balance(in wireRequest) wireAnswer {
	id := "lb-" + in.Token
	b := c.resources[id]
	switch {
	case b == nil && (in.Recorded || c.made[in.Token] != nil):
		return wireAnswer{Code: string(cloud.NotFound), Message: "no such load balancer"}
	case b == nil:
		now := time.Now()
		b = &testResource{Kind: cloud.KindBalancer, ID: id, Token: in.Token, OwnershipID: in.OwnershipID, Created: now, changed: now,
			State: cloud.StateRunning}
		c.resources[id], c.made[in.Token] = b, b
	}
	b.Targets = in.Targets
	return wireAnswer{Resources: []testResource{*b}}
}

// make makes an instance and its dependants. It needs the lock.
func (c *testCloud) make(token, ownership, zone string) *testResource {
	now := time.Now()
	c.nextID++
	i := &testResource{Kind: cloud.KindInstance, ID: fmt.Sprintf("i-%04d", c.nextID), Token: token, OwnershipID: ownership, Zone: zone,
		State: cloud.StatePending, before: cloud.StatePending, Created: now, changed: now, becomes: cloud.StateRunning, then: now.Add(c.start)}
	if c.failsLater[zone] {
		i.becomes = cloud.StateFailed
	}
	c.resources[i.ID] = i
	for n := range c.dependants {
		nic := &testResource{Kind: cloud.KindNIC, ID: fmt.Sprintf("nic-%s-%d", i.ID, n), Token: token, OwnershipID: ownership, Created: now,
			changed: now, instance: i.ID}
		c.resources[nic.ID] = nic
	}
	return i
}

func (c *testCloud) terminate(id string) string {
	r := c.resources[id]
	switch {
	case r == nil:
	case r.ID == c.protected:
		return string(cloud.InvalidSpec)
	case r.Kind == cloud.KindBalancer:
		delete(c.resources, id)
	case r.Kind == cloud.KindNIC:
		if i := c.resources[r.instance]; i != nil && i.State != cloud.StateTerminated {
			return string(cloud.Conflict)
		}
		delete(c.resources, id)
	case c.inSteps && r.State != cloud.StateStopped:
		r.becomes, r.then = cloud.StateStopped, time.Now().Add(c.stop)
	case c.inSteps:
		r.becomes, r.then = cloud.StateTerminated, time.Now().Add(c.stop)
	case r.State != cloud.StateTerminated && r.State != cloud.StateStopping:
		c.change(r, cloud.StateStopping)
		r.becomes, r.then = cloud.StateTerminated, time.Now().Add(c.stop)
	}
	return ""
}

func (c *testCloud) change(r *testResource, to cloud.State) {
	r.before, r.State, r.changed = r.State, to, time.Now()
}

// pass applies what is due by now.
func (c *testCloud) pass() {
	now := time.Now()
	for id, r := range c.resources {
		if r.becomes != "" && !now.Before(r.then) {
			c.change(r, r.becomes)
			if r.Code = ""; r.State == cloud.StateFailed {
				r.Code = cloud.NoCapacity
			}
			r.becomes, r.changed = "", r.then
		}
		if c.forgetsAfter > 0 && r.State == cloud.StateTerminated && now.Sub(r.changed) > c.forgetsAfter {
			delete(c.resources, id)
		}
	}
}

// read returns what a read shows: it may miss resources newer than the lag, and show old states.
func (c *testCloud) read(want func(*testResource) bool) (all []testResource) {
	now := time.Now()
	for _, r := range c.resources {
		if !want(r) || (now.Sub(r.Created) < c.lag && c.rand.IntN(2) == 0) {
			continue
		}
		shown := *r
		if now.Sub(r.changed) < c.lag && c.rand.IntN(2) == 0 {
			shown.State = r.before
		}
		all = append(all, shown)
	}
	slices.SortFunc(all, func(a, b testResource) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// with runs do while nothing else happens in the cloud.
func (c *testCloud) with(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass()
	do()
}

func (c *testCloud) setFault(f func(op string) fault) { c.with(func() { c.fault = f }) }

// log returns the calls until now.
func (c *testCloud) log() (calls []testCall) {
	c.with(func() { calls = slices.Clone(c.calls) })
	return calls
}

// count returns the number of calls of these operations.
func (c *testCloud) count(ops ...string) (n int) {
	c.with(func() {
		for _, call := range c.calls {
			if slices.Contains(ops, call.op) {
				n++
			}
		}
	})
	return n
}

// liveInstances returns the IDs of the token's resources that are not terminated.
func (c *testCloud) alive(token string) (ids []string) {
	c.with(func() {
		for id, r := range c.resources {
			if r.Token == token && r.State != cloud.StateTerminated {
				ids = append(ids, id)
			}
		}
	})
	slices.Sort(ids)
	return ids
}

// vanish ends a token's instance from outside; if forgotten, the cloud does not show it any more.
func (c *testCloud) vanish(token string, forgotten bool) {
	c.with(func() {
		for id, r := range c.resources {
			if r.Token == token && r.OwnershipID == "own" && r.Kind == cloud.KindInstance {
				c.change(r, cloud.StateTerminated)
				r.becomes = ""
				if forgotten {
					delete(c.resources, id)
				}
			}
		}
	})
}

// plainBucket is a token bucket as clouds have it: it has no queue, and throttles.
type plainBucket struct {
	cloud.Limit
	tokens float64
	at     time.Time
}

func newPlainBucket(l cloud.Limit) *plainBucket { return &plainBucket{l, float64(l.Burst), time.Now()} }

func (b *plainBucket) take() bool {
	now := time.Now()
	b.tokens = min(float64(b.Burst), b.tokens+now.Sub(b.at).Seconds()*b.PerSecond)
	b.at = now
	if b.tokens < 0.999 {
		return false
	}
	b.tokens--
	return true
}
