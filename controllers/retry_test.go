// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/conflict"
)

func TestRetryDelays(t *testing.T) {
	key := types.NamespacedName{Name: "m"}
	for _, test := range []struct {
		name   string
		err    error
		nth    int // index of the failure in a row, from 0
		least  time.Duration
		byTime bool
	}{
		{"first throttle", cloud.Errorf(cloud.Throttled, "x"), 0, time.Second, true},
		{"fourth throttle", cloud.Errorf(cloud.Throttled, "x"), 3, 8 * time.Second, true},
		{"hundredth throttle is capped", cloud.Errorf(cloud.Throttled, "x"), 99, time.Minute, true},
		{"the cloud's own wish wins", &cloud.Error{Code: cloud.Throttled, RetryAfter: 5 * time.Minute}, 0, 5 * time.Minute, true},
		{"quota", cloud.Errorf(cloud.QuotaExceeded, "x"), 0, 30 * time.Second, true},
		{"quota is capped", cloud.Errorf(cloud.QuotaExceeded, "x"), 50, 10 * time.Minute, true},
		{"a wrapped error keeps its code", fmt.Errorf("creating: %w", cloud.Errorf(cloud.Unauthorized, "x")), 0, 30 * time.Second, true},
		{"an ended context is Unavailable", context.DeadlineExceeded, 0, time.Second, true},
		{"a foreign error is Unknown", errors.New("x"), 0, time.Second, true},
		{"a spec that the cloud refuses", cloud.Errorf(cloud.InvalidSpec, "x"), 0, 10 * time.Minute, true},
		{"a spec that the cloud refuses again", cloud.Errorf(cloud.InvalidSpec, "x"), 30, 10 * time.Minute, true},
		{"a spec that Drover refuses waits for a change", cloud.Invalid("x"), 0, 0, false},
		{"a wrapped one, too", fmt.Errorf("creating: %w", cloud.Invalid("x")), 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &retries{}
			for range test.nth {
				r.after(key, test.err)
			}
			got, byTime := r.after(key, test.err)
			if byTime != test.byTime {
				t.Fatalf("retried by time: %v, want %v", byTime, test.byTime)
			}
			if got < test.least || got > test.least+test.least/4+1 {
				t.Errorf("waits %s, want %s to %s", got, test.least, test.least+test.least/4)
			}
		})
	}
}

func TestRetryForgetsAfterSuccess(t *testing.T) {
	r, key := &retries{}, types.NamespacedName{Name: "m"}
	for range 10 {
		r.after(key, cloud.Errorf(cloud.Unavailable, "x"))
	}
	r.forget(key)
	if got, _ := r.after(key, cloud.Errorf(cloud.Unavailable, "x")); got > 2*time.Second {
		t.Errorf("after a success the first delay is %s, want about a second", got)
	}
}

func TestQueuedTurnIsKeptExactly(t *testing.T) {
	r, key := &retries{}, types.NamespacedName{Name: "m"}
	for range 3 {
		if got, ok := r.after(key, &cloud.Queued{After: 7 * time.Second}); !ok || got != 7*time.Second {
			t.Fatalf("waits %s, want exactly 7s: a turn is not a failure", got)
		}
	}
}

func TestCutKeepsMessagesValid(t *testing.T) {
	for _, in := range []string{"", "short", strings.Repeat("x", 5000), strings.Repeat("é", 5000), "bad \xff\xfe bytes",
		strings.Repeat("\xf0\x9f", 4000)} {
		got := truncate(in)
		if len(got) > maxMessage || !utf8.ValidString(got) {
			t.Errorf("cut(%d bytes) has %d bytes, valid %v", len(in), len(got), utf8.ValidString(got))
		}
		if len(in) <= maxMessage && utf8.ValidString(in) && got != in {
			t.Errorf("cut changed %q, which fits", in)
		}
	}
}

func TestTriggerKeepsWhatComesBeforeTheReconciler(t *testing.T) {
	trigger := &EventQueue{}
	early := reconcile.Request{NamespacedName: types.NamespacedName{Name: "early"}}
	trigger.Add(early)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := trigger.Source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	late := reconcile.Request{NamespacedName: types.NamespacedName{Name: "late"}}
	trigger.Add(late, late)
	for _, want := range []reconcile.Request{early, late} {
		got, _ := queue.Get()
		if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if queue.Len() != 0 {
		t.Errorf("%d requests are left, want none: equal ones are one", queue.Len())
	}
}

// follow reconciles a machine for a while, each time that its result asks for it or that its spec
// has changed, as events do.
func (b *bench) follow(name string, d time.Duration) {
	b.t.Helper()
	for end := time.Now().Add(d); ; {
		before := b.machine(name).Spec
		result := b.reconcile(name)
		if !equality.Semantic.DeepEqual(before, b.machine(name).Spec) {
			continue
		}
		if result.RequeueAfter == 0 || time.Now().Add(result.RequeueAfter).After(end) {
			b.wait(time.Until(end))
			return
		}
		b.wait(result.RequeueAfter)
	}
}

// TestRefusedSpecIsTriedAgain: a machine that the cloud refuses as invalid costs the cloud about
// five creates an hour, and no status write after the first. What was put right is picked up
// without anybody's hand.
func TestRefusedSpecIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *bench{
		"zonal":    func(t *testing.T) *bench { return zonalBench(t, "sim-1a") },
		"regional": func(t *testing.T) *bench { return newBench(t, edit(fleetOf("m"), "m", unmade)...) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := start(t)
				fault, err := b.cloud.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.RunInstances,
					Code: wire.InvalidParameterValue})
				b.Expect(err).NotTo(HaveOccurred())
				b.follow("m", 30*time.Minute) // an earlier process may have sent a create
				before, writes := b.calls(wire.RunInstances), b.statusWrites.Load()
				b.follow("m", 4*time.Hour)
				b.Expect(b.calls(wire.RunInstances) - before).To(And(BeNumerically(">=", 4*60/13), BeNumerically("<=", 4*60/10+1)))
				b.Expect(b.statusWrites.Load()).To(Equal(writes), "the condition stands")
				b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InvalidSpecReason))
				b.Expect(b.vms()).To(BeEmpty())

				b.Expect(b.cloud.RemoveFault(t.Context(), fault)).To(Succeed())
				b.follow("m", 13*time.Minute)
				b.Expect(b.vms()).To(HaveLen(1))
				b.Expect(b.machine("m").Spec.ProviderID).To(HaveSuffix(b.vms()[0].ID))
			})
		})
	}
}

// TestConflictIsNoFailure: if another writer was first, a reconcile returns nothing but a Conflict,
// so the object is reconciled again soon, and no error is logged.
func TestConflictIsNoFailure(t *testing.T) {
	t.Run("DroverAccount", func(t *testing.T) {
		x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
		quiet := x.Client
		x.Client = othersFirst(quiet)
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(x.account)}
		again := reconcile.Result{RequeueAfter: conflict.RetryAfter}
		reconciler := conflict.Retried(x.DroverAccountReconciler)
		x.Expect(reconciler.Reconcile(t.Context(), request)).To(Equal(again), "the Secret gets its finalizer")
		x.Client = quiet
		x.reconcile()
		x.Expect(x.account.Spec.Place).NotTo(BeEmpty())
		x.Client = othersFirst(quiet)
		x.Expect(reconciler.Reconcile(t.Context(), request)).To(Equal(again), "the status is written")
	})
	t.Run("DroverMachine", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			b := newBench(t, edit(fleetOf("a"), "a", func(m *infrav1.DroverMachine) { m.Spec.ProviderID, m.Spec.Creation.Token = "", "" })...)
			b.r.Client = othersFirst(b.management)
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(b.machine("a"))}
			b.Expect(conflict.Retried(b.r).Reconcile(t.Context(), request)).To(Equal(reconcile.Result{RequeueAfter: conflict.RetryAfter}))
			b.Expect(b.machine("a").Spec.Creation.Token).To(BeEmpty())
			b.r.Client = b.management
			b.reconcile("a")
			b.Expect(b.machine("a").Spec.Creation.Token).NotTo(BeEmpty())
		})
	})
}

// othersFirst returns a client before each of whose patches another one writes to the object.
func othersFirst(c client.Client) client.Client {
	touch := func(ctx context.Context, c client.Client, o client.Object) error {
		other := o.DeepCopyObject().(client.Object)
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), other); err != nil {
			return err
		}
		other.SetAnnotations(map[string]string{"another": other.GetResourceVersion()})
		return c.Update(ctx, other)
	}
	return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			return errors.Join(touch(ctx, c, o), c.Patch(ctx, o, p, options...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, subResource string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption) error {
			return errors.Join(touch(ctx, c, o), c.SubResource(subResource).Patch(ctx, o, p, options...))
		},
	})
}
