// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/simulated"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/fairqueue"
)

// slowDriver is a driver whose cloud takes long to answer a create.
type slowDriver struct {
	cloud.Driver
	latency time.Duration
}

func (d slowDriver) FailureDomains(ctx context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	return d.Driver.(cloud.Placer).FailureDomains(ctx, fields)
}

func (d slowDriver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	time.Sleep(d.latency)
	return d.Driver.Ensure(ctx, req)
}

// steps counts, for each machine without a VM, its reconciles and the live reads of the API server.
type steps struct {
	client.Client
	reconcile.Reconciler
	mu         sync.Mutex
	lists      map[string]int // by token
	secrets    int
	reconciles map[types.NamespacedName]int
}

func (s *steps) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	s.mu.Lock()
	if o.FieldSelector != nil {
		s.lists[o.FieldSelector.String()]++
	}
	s.mu.Unlock()
	return s.Client.List(ctx, list, options...)
}

func (s *steps) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*corev1.Secret); ok {
		s.mu.Lock()
		s.secrets++
		s.mu.Unlock()
	}
	return s.Client.Get(ctx, key, o, options...)
}

func (s *steps) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	m := &infrav1.DroverMachine{}
	if s.Client.Get(ctx, r.NamespacedName, m) == nil && m.Spec.ProviderID == "" {
		s.mu.Lock()
		s.reconciles[r.NamespacedName]++
		s.mu.Unlock()
	}
	return s.Reconciler.Reconcile(ctx, r)
}

// TestWaitingMachinesCostLittle: many machines of one account are to be made, and each create takes
// seconds. Until it is made, each is reconciled at most three times, and is read once.
func TestWaitingMachinesCostLittle(t *testing.T) {
	for name, c := range map[string]struct {
		machines  int
		latency   time.Duration
		perSecond string
		burst     int32
		want      time.Duration
	}{
		"a slow cloud": {300, 3 * time.Second, "5", 150, 85 * time.Second},
		"a low rate":   {50, 100 * time.Millisecond, "2", 2, 35 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var names []string
				for i := range c.machines {
					names = append(names, fmt.Sprintf("m%d", i))
				}
				objects := fleetOf(names...)
				var requests []reconcile.Request
				for _, o := range objects {
					if m, ok := o.(*infrav1.DroverMachine); ok {
						unmade(m)
						requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
					}
				}
				b := newBench(t, objects...)
				synctest.Wait() // its account has started
				spec := infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "sim-1"}}}
				spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: c.perSecond, Burst: c.burst}}
				b.r.Accounts = b.accounts(spec, func(d cloud.Driver, _ string) cloud.Driver { return slowDriver{d, c.latency} }, "team-a")
				count := &steps{Client: b.management, Reconciler: b.r, lists: map[string]int{}, reconciles: map[types.NamespacedName]int{}}
				b.r.APIReader = count
				b.work(count, requests)
				made := func() (n int) {
					all := &infrav1.DroverMachineList{}
					b.Expect(b.management.List(t.Context(), all)).To(Succeed())
					for i := range all.Items {
						if all.Items[i].Spec.ProviderID != "" {
							n++
						}
					}
					return n
				}
				began := time.Now()
				for made() < c.machines && time.Since(began) < 10*time.Minute {
					time.Sleep(5 * time.Second)
				}
				b.Expect(made()).To(Equal(c.machines))
				b.Expect(time.Since(began)).To(BeNumerically("<", c.want))
				count.mu.Lock()
				defer count.mu.Unlock()
				most := 0
				for _, n := range count.reconciles {
					most = max(most, n)
				}
				b.Expect(most).To(BeNumerically("<=", 3), "reconciles of one machine")
				for of, n := range count.lists {
					b.Expect(n).To(Equal(1), "lists by token, %s", of)
				}
				b.Expect(count.secrets).To(Equal(c.machines), "reads of Secrets")
			})
		})
	}
}

// manyWorkers is how many workers the controller of machines has in these tests.
const manyWorkers = 50

// accounts returns an account for each of the namespaces. wrap changes its driver.
func (b *bench) accounts(spec infrav1.DroverAccountSpec, wrap func(d cloud.Driver, namespace string) cloud.Driver,
	namespaces ...string) *fleet.Accounts {
	row := simulated.Cloud(b.cloud.URL)
	newDriver := row.New
	row.New = func(c cloud.Config) (cloud.Driver, error) {
		d, err := newDriver(c)
		return wrap(d, c.Namespace), err
	}
	accounts := fleet.NewAccounts(fleet.Options{
		Clouds: []cloud.Cloud{row}, Times: fleet.TimesFor(fleet.DefaultCall), Transport: b.transport, Workers: manyWorkers,
		OnMachines: func(account types.NamespacedName, tokens []string) {
			b.r.InstancesChanged(b.t.Context(), account.Namespace, tokens)
		},
	})
	for _, namespace := range namespaces {
		config := fleet.AccountConfig{Spec: spec, Credentials: map[string][]byte{"token": []byte(simulator.DefaultToken)}}
		for range 2 { // the second probe proves the place
			account, err := accounts.Set(client.ObjectKey{Namespace: namespace, Name: "main"}, config)
			b.Expect(err).NotTo(HaveOccurred())
			info, err := account.Probe(b.t.Context())
			b.Expect(err).NotTo(HaveOccurred())
			config.Place = info.Place
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- accounts.Start(ctx) }()
	b.t.Cleanup(func() { stop(); b.Expect(<-ended).To(Succeed()) })
	return accounts
}

// work starts a controller of machines.
func (b *bench) work(r reconcile.Reconciler, requests []reconcile.Request) {
	c, err := controller.NewUnmanaged("machines", controller.Options{
		SkipNameValidation: ptr.To(true), MaxConcurrentReconciles: manyWorkers, Reconciler: r, ReconciliationTimeout: time.Minute,
		NewQueue: func(
			name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
		) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return fairqueue.New(name, limiter, fairqueue.Rules[reconcile.Request]{Workers: manyWorkers, Hangs: b.r.Accounts.Hangs,
				TargetOf: func(r reconcile.Request) types.NamespacedName {
					return types.NamespacedName{Namespace: r.Namespace, Name: "main"}
				}})
		},
	})
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(c.Watch(b.r.Changed.Source())).To(Succeed())
	b.Expect(c.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		for _, r := range requests {
			queue.Add(r)
		}
		return nil
	}))).To(Succeed())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	b.t.Cleanup(func() { stop(); b.Expect(<-ended).To(Succeed()) })
}

// TestSilentAccountsLeaveWorkers: the machines of accounts whose clouds do not answer come first,
// and are more than there are workers. Those of an account whose cloud answers are all made before
// the first call of the others ends, and while the others still hang.
func TestSilentAccountsLeaveWorkers(t *testing.T) {
	for name, late := range map[string]time.Duration{"at once": 0, "later": 5 * time.Second, "after the first timeouts": 40 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const silent, each = 5, 20
				var objects []client.Object
				var namespaces, names []string
				for i := range each {
					names = append(names, fmt.Sprintf("m%d", i))
				}
				for i := range silent {
					namespaces = append(namespaces, fmt.Sprintf("silent-%d", i))
					objects = append(objects, tenantFleet(namespaces[i], unmade, names...)...)
				}
				answering := tenantFleet("team-a", unmade, names[:4]...)
				b := newBench(t, append(objects, answering...)...)
				synctest.Wait() // its account has started
				calls := &hangingCalls{hanging: map[types.NamespacedName]bool{}}
				spec := infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "sim-1"}}}
				spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "100", Burst: 100}}
				b.r.Accounts = b.accounts(spec, func(d cloud.Driver, namespace string) cloud.Driver {
					if namespace == "team-a" {
						return slowDriver{d, time.Second}
					}
					return hangingDriver{d, namespace, calls}
				}, append(namespaces, "team-a")...)
				requests := func(objects []client.Object) (all []reconcile.Request) {
					for _, o := range objects {
						if m, ok := o.(*infrav1.DroverMachine); ok {
							all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
						}
					}
					return all
				}
				b.work(b.r, requests(objects))
				time.Sleep(late)
				synctest.Wait()
				b.r.Changed.Add(requests(answering)...)
				time.Sleep(8 * time.Second)
				for _, r := range requests(answering) {
					m := &infrav1.DroverMachine{}
					b.Expect(b.management.Get(t.Context(), r.NamespacedName, m)).To(Succeed())
					b.Expect(m.Spec.ProviderID).NotTo(BeEmpty(), m.Name)
				}
				now, _ := calls.counts()
				b.Expect(now).To(BeNumerically(">", 0), "calls that hang")
				// An account that holds no worker may take one, even if half of them are held.
				b.Expect(now).To(BeNumerically("<=", manyWorkers/2+silent), "calls that hang")
			})
		})
	}
}
