// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// fleetOf makes n running machines, and observes them for a while.
func fleetOf(t *testing.T, a *Account, n int) (refs []cloud.Reference) {
	t.Helper()
	for i := range n {
		refs = append(refs, running(t, a, fmt.Sprintf("m-%02d", i)))
	}
	time.Sleep(2 * time.Minute)
	return refs
}

func goneOf(a *Account, refs []cloud.Reference) (n int) {
	for _, ref := range refs {
		if a.Observe(ref, true).Gone {
			n++
		}
	}
	return n
}

// elsewhere makes the cloud lead other credentials to an empty place. back undoes that.
func (c *testCloud) elsewhere() (back func()) {
	var kept map[string]*testResource
	c.with(func() {
		kept, c.resources, c.credential, c.place = c.resources, map[string]*testResource{}, "other", "test:elsewhere"
	})
	return func() {
		c.with(func() { c.resources, c.credential, c.place = kept, "right", testPlace })
	}
}

func otherCredentials(cfg *AccountConfig) {
	cfg.Credentials = map[string][]byte{"token": []byte("other")}
}

// set sets the account as session.account does, without the proof of its place.
func (s *session) set(t *testing.T, change ...func(*AccountConfig)) *Account {
	t.Helper()
	cfg := copyOf(s.Get(testKey).config)
	for _, f := range change {
		f(&cfg)
	}
	a, err := s.Set(testKey, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestElsewhere: with working credentials that lead to another place, nothing is listed, concluded,
// created or deleted. When the right credentials are back, everything continues.
func TestElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 10 * time.Second
		s := c.begin(t)
		refs := fleetOf(t, s.account(t), 20)
		back := c.elsewhere()
		a := s.set(t, otherCredentials)
		before := len(c.log())
		time.Sleep(time.Minute)
		if n := len(c.log()) - before; n != 0 {
			t.Errorf("%d calls before the place was proved: %v", n, c.log()[before:])
		}
		_, err := a.Probe(t.Context())
		if cloud.CodeOf(err) != cloud.Conflict || !strings.Contains(err.Error(), testPlace) || !strings.Contains(err.Error(), "test:elsewhere") {
			t.Errorf("a probe of another place: %v", err)
		}
		before = len(c.log())
		if d := a.Delete(refs[0], time.Now()); d.Gone {
			t.Error("deleted at once")
		}
		if _, err := a.Ensure(t.Context(), request("new"), nil); err == nil {
			t.Error("a machine was made in another place")
		}
		time.Sleep(time.Hour)
		if n := len(c.log()) - before; n != 0 {
			t.Errorf("%d calls to another place: %v", n, c.log()[before:])
		}
		if n := goneOf(a, refs[1:]); n != 0 || a.Delete(refs[0], time.Now()).Gone {
			t.Errorf("%d of %d running machines are called gone", n, len(refs))
		}
		back()
		a = s.account(t)
		time.Sleep(10 * time.Minute)
		if n := goneOf(a, refs[1:]); n != 0 || !a.Inventory().Fresh {
			t.Errorf("the right credentials are back, and %d are gone: %+v", n, a.Inventory())
		}
		until(t, time.Minute, "the deletion goes on", func() bool { return a.Delete(refs[0], time.Now()).Gone })
	})
}

// TestPin: an account without a recorded place does nothing but report its place. Once the place is
// recorded, it works without another call.
func TestPin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		unpinned := func(cfg *AccountConfig) { cfg.Place = "" }
		a := s.account(t, unpinned)
		info, err := a.Probe(t.Context())
		if err != nil || info.Place != testPlace {
			t.Fatalf("%+v, %v", info, err)
		}
		if _, err := a.Ensure(t.Context(), request("m"), nil); cloud.CodeOf(err) != cloud.Unavailable {
			t.Errorf("made before the place was recorded: %v", err)
		}
		pinned := s.set(t, func(cfg *AccountConfig) { cfg.Place = testPlace })
		if n := c.count("probe"); n != 1 {
			t.Errorf("%d probes", n)
		}
		running(t, pinned, "m")
		c.with(func() { c.place = "" })
		if _, err := s.set(t, otherCredentials).Probe(t.Context()); err == nil {
			t.Error("a driver that names no place is believed")
		}
	})
}

// TestMassAbsence: if many machines are missing at once, none is believed to be gone until a person
// confirms it.
func TestMassAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 10 * time.Second
		s := c.begin(t)
		a := s.account(t)
		refs := fleetOf(t, a, 50)
		var fleet map[string]*testResource
		c.with(func() { fleet, c.resources = c.resources, map[string]*testResource{} })
		time.Sleep(10 * time.Minute)
		state := a.Inventory()
		if n := goneOf(a, refs); n != 0 || state.MassAbsence == nil || state.MassAbsence.Missing != 50 || state.MassAbsence.Of != 50 ||
			len(state.MassAbsence.Tokens) != 50 {
			t.Fatalf("%d gone, %+v", n, state.MassAbsence)
		}
		if a.Delete(refs[0], time.Now()); true {
			time.Sleep(10 * time.Minute)
		}
		if d := a.Delete(refs[0], time.Now()); d.Gone {
			t.Error("a deletion believes what the inventory does not")
		}
		c.with(func() { c.resources = fleet })
		time.Sleep(10 * time.Minute)
		if n := goneOf(a, refs[1:]); n != 0 || a.Inventory().MassAbsence != nil {
			t.Errorf("all are back: %d gone, %+v", n, a.Inventory().MassAbsence)
		}
		until(t, time.Minute, "the deletion is done", func() bool { return a.Delete(refs[0], time.Now()).Gone })
		c.with(func() { c.resources = map[string]*testResource{} })
		time.Sleep(10 * time.Minute)
		doubt := a.Inventory().MassAbsence
		if doubt == nil || a.Confirm("another") || !a.Confirm(doubt.Digest) {
			t.Fatalf("%+v can't be confirmed", doubt)
		}
		until(t, 10*time.Minute, "all are gone", func() bool { return goneOf(a, refs[1:]) == 49 })
		if a.Inventory().MassAbsence != nil {
			t.Errorf("doubted still: %+v", a.Inventory().MassAbsence)
		}
	})
}

// TestFewAbsent: machines that vanish one by one are believed to be gone. So are any number of
// machines whose end the cloud records.
func TestFewAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		refs := fleetOf(t, a, 20)
		for i, ref := range refs[:12] {
			c.with(func() {
				for id, r := range c.resources {
					if r.Token == ref.Token {
						delete(c.resources, id)
					}
				}
			})
			if time.Sleep(6 * time.Minute); goneOf(a, refs) != i+1 {
				t.Fatalf("%d gone instead of %d: %+v", goneOf(a, refs), i+1, a.Inventory().MassAbsence)
			}
		}
		c.with(func() {
			for _, r := range c.resources {
				r.State = cloud.StateTerminated
			}
		})
		until(t, 5*time.Minute, "all are gone", func() bool { return goneOf(a, refs) == len(refs) })
	})
}

// TestGoneIsUndone: a machine that was Gone by mistake is seen again.
func TestGoneIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		refs := fleetOf(t, a, 2)
		var kept map[string]*testResource
		c.with(func() { kept, c.resources = c.resources, map[string]*testResource{} })
		until(t, 5*time.Minute, "gone", func() bool { return goneOf(a, refs) == 2 })
		told := s.count("m-00")
		c.with(func() { c.resources = kept })
		until(t, 5*time.Minute, "seen again", func() bool { return goneOf(a, refs) == 0 })
		if s.count("m-00") == told || a.Observe(refs[0], true).Instance == nil {
			t.Error("nobody was told")
		}
	})
}

// TestNeverSeen: a recorded VM without Drover's tags was never seen, and is not Gone.
func TestNeverSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		ref := cloud.Reference{Token: "by-hand", OwnershipID: "own", ProviderID: "test:///i-1"}
		until(t, 5*time.Minute, "never seen", func() bool { return a.Observe(ref, false).NeverSeen })
		time.Sleep(10 * time.Minute)
		if o := a.Observe(ref, false); o.Gone {
			t.Error("what was never seen is called gone")
		}
		until(t, 10*time.Minute, "gone, for it was seen by an earlier process", func() bool { return a.Observe(ref, true).Gone })
	})
}

// TestLateCreate: a create without an answer takes effect as late as the cloud allows.
func TestLateCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.horizon = 4 * time.Minute
		a := c.begin(t).account(t)
		c.with(func() {
			c.fault = func(op string) fault {
				if op == "run" {
					return fault{cut: true, late: 150 * time.Second}
				}
				return fault{}
			}
		})
		if _, err := a.Ensure(t.Context(), request("late"), nil); err == nil {
			t.Fatal("answered")
		}
		ref := cloud.Reference{Token: "late", OwnershipID: "own"}
		until(t, 10*time.Minute, "gone", func() bool {
			d := a.Delete(ref, time.Now())
			if d.Instance != nil {
				ref.ProviderID = d.Instance.ProviderID
			}
			return d.Gone
		})
		a.Forget("late")
		time.Sleep(10 * time.Minute)
		c.with(func() {
			for _, r := range c.resources {
				if r.State != cloud.StateTerminated {
					t.Errorf("left: %+v", r)
				}
			}
		})
	})
}

// TestConfirmNothingCreated: live reads confirm that a create of an earlier process made nothing,
// once its horizon has passed.
func TestConfirmNothingCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 10 * time.Second
		s := c.begin(t)
		a := s.account(t)
		open := cloud.Reference{Token: "open", OwnershipID: "own"}
		if a.ConfirmNothingCreated(open) {
			t.Error("confirmed without a look")
		}
		took := until(t, 5*time.Minute, "confirmed", func() bool { return a.ConfirmNothingCreated(open) })
		if took < 2*DefaultCall || s.count("open") == 0 {
			t.Errorf("confirmed after %s, told %d times", took, s.count("open"))
		}
		c.with(func() { c.made["there"] = c.make("there", "own", "a") })
		there := cloud.Reference{Token: "there", OwnershipID: "own"}
		for range 600 {
			if a.ConfirmNothingCreated(there) {
				t.Fatal("what exists is called not created")
			}
			time.Sleep(time.Second)
		}
	})
}

// TestCreatesAreCapped: a cloud that answers slowly holds only some of the workers.
func TestCreatesAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.latency = 25 * time.Second
		a := c.begin(t).account(t, func(cfg *AccountConfig) {
			cfg.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "100", Burst: 200}}
		})
		var under, most atomic.Int32
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if n := under.Add(1); n > most.Load() {
					most.Store(n)
				}
				began := time.Now()
				_, err := a.Ensure(t.Context(), request(fmt.Sprint(i)), nil)
				under.Add(-1)
				var queued *cloud.Queued
				if err != nil && (!errors.As(err, &queued) || time.Since(began) > time.Second) {
					t.Errorf("%v after %s", err, time.Since(began))
				}
			})
		}
		time.Sleep(10 * time.Second)
		if n := under.Load(); n > maxConcurrentCreates {
			t.Errorf("%d creates hold a worker each", n)
		}
		all.Wait()
	})
}

// TestRetryAfterIsCapped: a RetryAfter of a day, as from a maintenance page, is capped.
func TestRetryAfterIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		ref := ensure(t, a, "one")
		once := true
		c.with(func() {
			c.fault = func(op string) fault {
				if op == "list" && once {
					once = false
					return fault{code: string(cloud.Unavailable), retry: 24 * time.Hour}
				}
				return fault{}
			}
		})
		a.Observe(ref, true)
		time.Sleep(maxRetryAfter + 2*time.Minute)
		if n := c.count("list"); n < 2 || !a.Inventory().Fresh {
			t.Errorf("%d listings, %+v", n, a.Inventory())
		}
	})
}

// TestLimitsOfAnother: an account that has not proved its place does not affect the limits of one
// that has. An account that has proved it can't slow another one.
func TestLimitsOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		slow := &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "0.01", Burst: 1}, Read: infrav1.RateLimit{PerSecond: "0.01", Burst: 1}}
		other := func(name, place string) *Account {
			a, err := s.Set(types.NamespacedName{Namespace: "other", Name: name}, AccountConfig{
				Spec: infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "r"}},
					RateLimits: slow},
				Credentials: map[string][]byte{"token": []byte("worthless")}, Place: place,
			})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		other("unproven", testPlace)
		_ = other("proven", testPlace).recordPlace(testPlace)
		a := s.account(t)
		time.Sleep(5 * time.Second) // until the burst is available
		for i := range 5 {
			if _, err := a.Ensure(t.Context(), request(fmt.Sprint(i)), nil); err != nil && i < 4 {
				t.Errorf("create %d of a burst of 4: %v", i, err)
			}
		}
	})
}

// TestSeriesEnd: a removed account's series are deleted, even if a call is under way.
func TestSeriesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		registry := prometheus.NewRegistry()
		s := c.begin(t, func(o *Options) { o.Metrics = registry })
		a := s.account(t)
		ensure(t, a, "one")
		c.with(func() { c.latency = 5 * time.Second })
		go a.Probe(context.Background()) //nolint:errcheck // its account goes
		time.Sleep(time.Second)
		s.Remove(testKey)
		time.Sleep(time.Minute)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "account" {
						t.Errorf("left: %s %v", f.GetName(), m.GetLabel())
					}
				}
			}
		}
	})
}

// TestDeleteAfterRestart: a deletion requested before this process began is sent at once.
func TestDeleteAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		refs := fleetOf(t, s.account(t), 10)
		asked := time.Now()
		s.end()
		time.Sleep(time.Second)
		a := c.begin(t).account(t)
		for _, ref := range refs {
			a.Delete(ref, asked)
		}
		time.Sleep(500 * time.Millisecond)
		if c.count("terminate") == 0 {
			t.Errorf("no delete was sent within half a second: %v", c.log())
		}
	})
}

// TestNoAnswerEndsAStep: many batches to a cloud that does not answer take the time of one call.
func TestNoAnswerEndsAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		c.with(func() { c.latency = time.Hour })
		var refs []cloud.Reference
		for i := range 1000 {
			refs = append(refs, cloud.Reference{Token: fmt.Sprint(i), OwnershipID: "own"})
		}
		began := time.Now()
		_, failed := a.Read(t.Context(), refs)
		if took := time.Since(began); took > 2*DefaultCall || len(failed) != len(refs) {
			t.Errorf("%d of %d failed after %s", len(failed), len(refs), took)
		}
		c.with(func() { c.latency = 0 })
	})
}

// frozenProxy forwards bytes until it is frozen. Then its open connections swallow everything.
func frozenProxy(t *testing.T, to string) (addr string, freeze func()) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []net.Conn
	var frozen []*atomic.Bool
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			c.Close()
		}
	})
	pass := func(dst, src net.Conn, f *atomic.Bool) {
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			if !f.Load() {
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
		}
	}
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				return
			}
			f := &atomic.Bool{}
			mu.Lock()
			all, frozen = append(all, client, server), append(frozen, f)
			mu.Unlock()
			go pass(server, client, f)
			go pass(client, server, f)
		}
	}()
	return ln.Addr().String(), func() {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range frozen {
			f.Store(true)
		}
	}
}

// TestDeadConnection: pings detect an HTTP/2 connection that swallows everything, and the transport
// replaces it.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	addr, freeze := frozenProxy(t, server.Listener.Addr().String())
	transport := NewTransport(nil)
	if transport.HTTP2 == nil || transport.HTTP2.SendPingTimeout > DefaultCall || transport.HTTP2.PingTimeout > DefaultCall {
		t.Fatal("no pings")
	}
	transport.HTTP2.SendPingTimeout, transport.HTTP2.PingTimeout = 100*time.Millisecond, 100*time.Millisecond
	transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	transport.TLSClientConfig.ServerName = "example.com"
	transport.TLSClientConfig.NextProtos = nil
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	get := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		proto, err := io.ReadAll(resp.Body)
		if string(proto) != "HTTP/2.0" {
			t.Errorf("%s", proto)
		}
		return err
	}
	if err := get(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	freeze()
	if err := get(30 * time.Second); err == nil {
		t.Log("the transport has replaced the connection within the call")
	}
	if err := get(30 * time.Second); err != nil {
		t.Errorf("the call after the one that found the connection dead: %v", err)
	}
}

// TestHeartbeat: a heartbeat costs only the machines with sightings since the listing, not all
// machines.
func TestHeartbeat(t *testing.T) {
	o := Options{Clouds: []cloud.Cloud{{Name: "x", Union: driverkit.Fields[infrav1.SimulatedAccount, infrav1.SimulatedMachine]{
		Account: func(s *infrav1.DroverAccountSpec) *infrav1.SimulatedAccount { return s.Cloud.Simulated }},
		New: func(cloud.Config) (cloud.Driver, error) {
			return watchDriver{testDriver: &testDriver{region: "r"}, stream: &stream{}}, nil
		}}}, Times: TimesFor(DefaultCall)}
	a, err := NewAccounts(o).Set(testKey, AccountConfig{
		Spec: infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{}}}})
	if err != nil {
		t.Fatal(err)
	}
	var all []cloud.Resource
	for i := range 10_000 {
		token := fmt.Sprintf("%032d", i)
		all = append(all, cloud.Resource{Kind: cloud.KindInstance, ID: "i-" + token, Token: token, OwnershipID: "own", ProviderID: "p://" + token,
			State: cloud.StateRunning})
		a.Observe(cloud.Reference{Token: token, OwnershipID: "own", ProviderID: "p://" + token}, true)
	}
	a.inventory.applyUpdate(cloud.Update{At: time.Now(), All: true, Resources: slices.Clone(all)})
	if n := testing.AllocsPerRun(5, func() { a.inventory.applyUpdate(cloud.Update{At: time.Now()}) }); n > 50 {
		t.Errorf("%v allocations for a sign of life", n)
	}
}
