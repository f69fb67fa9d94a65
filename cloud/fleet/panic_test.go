// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// panicDriver can do everything, and panics in the methods that are set.
type panicDriver struct {
	*testDriver

	mu     sync.Mutex
	panics map[string]bool
	calls  map[string]int
}

func (d *panicDriver) set(panics bool, methods ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, method := range methods {
		d.panics[method] = panics
	}
}

func (d *panicDriver) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[method]
}

func (d *panicDriver) begin(method string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[method]++
	if d.panics[method] {
		panic(method + " saw a secret")
	}
}

func (d *panicDriver) Probe(ctx context.Context) (cloud.Info, error) {
	d.begin("Probe")
	return d.testDriver.Probe(ctx)
}

func (d *panicDriver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	d.begin("Ensure")
	return d.testDriver.Ensure(ctx, req)
}

func (d *panicDriver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	d.begin("EnsureBalancer")
	return d.testDriver.EnsureBalancer(ctx, req)
}

func (d *panicDriver) List(ctx context.Context) ([]cloud.Resource, error) {
	d.begin("List")
	return d.testDriver.List(ctx)
}

func (d *panicDriver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	d.begin("Describe")
	return d.testDriver.Describe(ctx, refs)
}

func (d *panicDriver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	d.begin("Delete")
	return d.testDriver.Delete(ctx, resources)
}

func (d *panicDriver) Offering(ctx context.Context, spec *infrav1.DroverMachineFields) (cloud.Offering, error) {
	d.begin("Offering")
	return d.testDriver.Offering(ctx, spec)
}

func (d *panicDriver) FailureDomains(context.Context, *infrav1.DroverMachineFields) ([]string, error) {
	d.begin("FailureDomains")
	return nil, nil
}

func (d *panicDriver) DryRun(context.Context, cloud.Request) error {
	d.begin("DryRun")
	return nil
}

func (d *panicDriver) Console(context.Context, cloud.Resource) ([]byte, error) {
	d.begin("Console")
	return nil, nil
}

func (d *panicDriver) Tagged(context.Context, []string) ([]tagging.Instance, error) {
	d.begin("Tagged")
	return nil, nil
}

func (d *panicDriver) Tag(context.Context, string, map[string]string, []string) error {
	d.begin("Tag")
	return nil
}

func (d *panicDriver) Untag(context.Context, []string, []string) error {
	d.begin("Untag")
	return nil
}

func (d *panicDriver) Receive(context.Context) ([]cloud.Event, error) {
	d.begin("Receive")
	return []cloud.Event{{Receipt: "r"}}, nil
}

func (d *panicDriver) Ack(context.Context, []cloud.Event) error {
	d.begin("Ack")
	time.Sleep(time.Second) // a queue that is never empty
	return nil
}

func (d *panicDriver) Watch(ctx context.Context, report func(cloud.Update)) error {
	d.begin("Watch")
	began := time.Now()
	all, err := d.testDriver.List(ctx)
	if err != nil {
		return err
	}
	report(cloud.Update{At: began, All: true, Resources: all})
	<-ctx.Done()
	return ctx.Err()
}

var badKey = types.NamespacedName{Namespace: "other", Name: "account"}

// beginPanicking begins Accounts with two accounts: badKey's driver is the returned one.
func beginPanicking(t *testing.T, c *testCloud, change ...func(*Options)) (s *session, bad, good *Account, d *panicDriver) {
	d = &panicDriver{panics: map[string]bool{}, calls: map[string]int{}}
	s = c.begin(t, append(change, func(o *Options) {
		connect := o.Clouds[0].New
		o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
			made, err := connect(cfg)
			if err != nil || cfg.Account.Cloud.Simulated.Region != "bad" {
				return made, err
			}
			d.begin("New") // before the write: loops may use the driver meanwhile
			d.testDriver = made.(*testDriver)
			return d, nil
		}
	})...)
	good = s.account(t)
	bad = s.setBad(t)
	return s, bad, good, d
}

func (s *session) setBad(t *testing.T) *Account {
	t.Helper()
	cfg := copyOf(s.Get(testKey).config)
	cfg.Spec.Cloud.Simulated.Region = "bad"
	a, err := s.Set(badKey, cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.recordPlace(testPlace)
	return a
}

// wantPanic checks the error of a call that has panicked.
func wantPanic(t *testing.T, method string, err error) {
	t.Helper()
	if _, panicked := errors.AsType[*cloud.PanicError](err); !panicked || cloud.CodeOf(err) != cloud.Unknown {
		t.Errorf("%s: got %v, want its panic as Unknown", method, err)
	} else if text := err.Error(); !strings.Contains(text, method) || strings.Contains(text, "secret") {
		t.Errorf("%s: it says %q", method, text)
	}
}

// TestDriverThatPanics: whichever method panics, the process lives, the caller gets Unknown, the
// panic is counted, and another account's machines go on.
func TestDriverThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s, bad, good, d := beginPanicking(t, c)
		ref := ensure(t, bad, "m")
		ctx, spec := t.Context(), request("m").Spec
		balancer := cloud.BalancerRequest{Token: "lb", OwnershipID: "own", Name: "lb", Port: 6443}
		until(t, time.Minute, "the machine is listed", func() bool { return bad.Observe(ref, true).Instance != nil })
		for method, call := range map[string]func() error{
			"Probe": func() error { return second(bad.Probe(ctx)) },
			"Ensure": func() error {
				for {
					_, err := bad.Ensure(ctx, request("n"), nil)
					queued, waits := errors.AsType[*cloud.Queued](err)
					if !waits {
						return err
					}
					time.Sleep(queued.After)
				}
			},
			"EnsureBalancer": func() error { return second(bad.EnsureBalancer(ctx, balancer)) },
			"List":           func() error { return second(bad.List(ctx, time.Minute)) },
			"Describe": func() error {
				_, failed := bad.Read(ctx, []cloud.Reference{ref})
				return failed[ref.Token]
			},
			"Delete": func() error {
				return bad.Remove(ctx, []cloud.Resource{{Kind: cloud.KindInstance, ID: "x", Token: "m"}})[0]
			},
			"Offering":       func() error { return second(bad.Offering(ctx, spec)) },
			"FailureDomains": func() error { return second(bad.FailureDomains(ctx, spec)) },
			"DryRun":         func() error { return second(bad.DryRun(ctx, request("n"))) },
			"Console":        func() error { return second(bad.Console(ctx, ref)) },
			"Tagged":         func() error { return second(bad.Tagged(ctx, nil)) },
			"Tag":            func() error { return bad.Tag(ctx, "x", nil, nil) },
			"Untag":          func() error { return bad.Untag(ctx, nil, nil) },
			"Receive":        func() error { return bad.inventory.receiveEvents(ctx, bad, d) },
			"Ack":            func() error { return bad.inventory.receiveEvents(ctx, bad, d) },
			"Watch":          func() error { return bad.watch.watch(ctx, bad, d) },
			"New": func() error {
				cfg := copyOf(bad.config)
				cfg.Credentials["more"] = []byte("x")
				return second(s.Set(badKey, cfg))
			},
		} {
			d.set(true, method)
			before := testutil.ToFloat64(s.metrics.panics.WithLabelValues("test", badKey.String(), method))
			wantPanic(t, method, call())
			if after := testutil.ToFloat64(s.metrics.panics.WithLabelValues("test", badKey.String(), method)); after <= before {
				t.Errorf("%s: its panic was not counted", method)
			}
			ensure(t, good, "good-"+method)
			d.set(false, method)
		}
	})
}

// TestLoopsOfADriverThatPanics: an account whose driver panics backs off, reports why, and works
// again later. Another one's machines are made, seen and deleted meanwhile.
func TestLoopsOfADriverThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		_, bad, good, d := beginPanicking(t, c)
		all := []string{"List", "Describe", "Delete", "Receive", "Ack", "Watch"}
		d.set(true, all...) // before anything needs the Watcher: one that reports does not end
		ref := ensure(t, bad, "bad")
		bad.Observe(ref, true)
		gone := ensure(t, bad, "gone")
		bad.Delete(gone, time.Now())
		time.Sleep(10 * time.Minute)
		wantPanic(t, "List", bad.Inventory().Err)
		if err := bad.Inventory().ReceiveErr; cloud.CodeOf(err) != cloud.Unknown {
			t.Errorf("it does not say that nothing is received: %v", err)
		}
		if err := bad.Delete(gone, time.Now()).Err; cloud.CodeOf(err) != cloud.Unknown {
			t.Errorf("it does not say why the deletion does not go on: %v", err)
		}
		for _, method := range []string{"List", "Describe", "Receive", "Watch"} {
			if n := d.count(method); n < 5 || n > 30 {
				t.Errorf("%s: %d calls within ten minutes, want a backoff to one a minute", method, n)
			}
		}
		fine := ensure(t, good, "good")
		until(t, time.Minute, "the other account's machine runs", func() bool {
			i := good.Observe(fine, true).Instance
			return i != nil && i.State == cloud.StateRunning
		})
		until(t, time.Minute, "the other account's machine is deleted", func() bool { return good.Delete(fine, time.Now()).Gone })
		d.set(false, all...)
		until(t, 3*time.Minute, "the account works again", func() bool {
			s := bad.Inventory()
			return s.Err == nil && s.Fresh && bad.Delete(gone, time.Now()).Gone
		})
	})
}

// TestLoopThatPanics: each of the engine's own loops starts again after a panic, later each time,
// and is counted.
func TestLoopThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		registry := prometheus.NewPedanticRegistry()
		s := c.begin(t, func(o *Options) { o.Metrics = registry })
		a := s.account(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var began []time.Time
		start := time.Now()
		s.keep(ctx, a.accountState, "deletions", func(ctx context.Context) {
			began = append(began, time.Now())
			if len(began) == 4 {
				time.Sleep(time.Hour) // it has worked
			}
			if len(began) == 6 {
				return
			}
			panic("broken")
		})
		if len(began) != 6 || time.Since(start) > time.Hour+time.Minute {
			t.Fatalf("began at %v", began)
		}
		for i, least := range []time.Duration{time.Second / 2, time.Second, 2 * time.Second, time.Hour + time.Second/2, time.Second} {
			if wait := began[i+1].Sub(began[i]); wait < least || wait > 2*least+time.Second {
				t.Errorf("start %d came %s after the one before", i+1, wait)
			}
		}
		if got := testutil.ToFloat64(s.metrics.panics.WithLabelValues("test", testKey.String(), "deletions")); got != 5 {
			t.Errorf("%v panics were counted", got)
		}
		s.Remove(testKey)
		if n, err := testutil.GatherAndCount(registry, "drover_cloud_panics_total"); n != 0 || err != nil {
			t.Errorf("%d series are left (%v)", n, err)
		}
	})
}

// TestCallbackThatPanics: what panics while the engine reports a change neither ends the loop nor
// keeps its lock.
func TestCallbackThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		var mu sync.Mutex
		broken := 0
		s := c.begin(t, func(o *Options) {
			report := o.OnMachines
			o.OnMachines = func(account types.NamespacedName, tokens []string) {
				report(account, tokens)
				mu.Lock()
				defer mu.Unlock()
				if broken++; broken%2 == 1 {
					panic("broken")
				}
			}
		})
		a := s.account(t)
		ref := ensure(t, a, "m")
		until(t, 5*time.Minute, "the machine runs", func() bool {
			i := a.Observe(ref, true).Instance
			return i != nil && i.State == cloud.StateRunning
		})
		until(t, 5*time.Minute, "the machine is deleted", func() bool { return a.Delete(ref, time.Now()).Gone })
		n := testutil.ToFloat64(s.metrics.panics.WithLabelValues("test", testKey.String(), "listings")) +
			testutil.ToFloat64(s.metrics.panics.WithLabelValues("test", testKey.String(), "deletions"))
		if n == 0 {
			t.Error("no loop has panicked")
		}
	})
}

// TestPartOfADeletionThatPanics: a driver that deletes in parallel returns a panic of one deletion.
// It is counted, and the others have their own results.
func TestPartOfADeletionThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t, func(o *Options) {
			connect := o.Clouds[0].New
			o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
				made, err := connect(cfg)
				return partDriver{made}, err
			}
		})
		errs := s.account(t).Remove(t.Context(), []cloud.Resource{{ID: "refused", Token: "a"}, {ID: "panics", Token: "b"},
			{ID: "gone", Token: "c"}})
		if len(errs) != 3 || cloud.CodeOf(errs[0]) != cloud.Conflict || cloud.CodeOf(errs[1]) != cloud.Unknown || errs[2] != nil {
			t.Errorf("got %v", errs)
		}
		if got := testutil.ToFloat64(s.metrics.panics.WithLabelValues("test", testKey.String(), "Delete")); got != 1 {
			t.Errorf("%v panics were counted", got)
		}
	})
}

type partDriver struct{ cloud.Driver }

func (partDriver) Delete(_ context.Context, resources []cloud.Resource) []error {
	errs := make([]error, len(resources))
	for i, r := range resources {
		errs[i] = cloud.Recover(func() error {
			switch r.ID {
			case "refused":
				return cloud.Errorf(cloud.Conflict, "in use")
			case "panics":
				panic("bad answer")
			}
			return nil
		})
	}
	return errs
}
