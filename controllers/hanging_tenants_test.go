// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
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

// hangingCalls are calls that are not answered in time. It knows which targets hang.
type hangingCalls struct {
	mu       sync.Mutex
	now, all int
	hanging  map[types.NamespacedName]bool
}

// hang makes a call, which lasts until its deadline.
func (h *hangingCalls) hang(ctx context.Context, target types.NamespacedName) error {
	count := func(n int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.now += n
		h.all += max(n, 0)
	}
	count(1)
	<-ctx.Done()
	count(-1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hanging[target] = true
	return ctx.Err()
}

func (h *hangingCalls) hangs(target types.NamespacedName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hanging[target]
}

func (h *hangingCalls) counts() (now, all int) {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now, h.all
}

// hangingDriver is the driver of an account at a place of its own, whose cloud answers no create.
type hangingDriver struct {
	cloud.Driver
	namespace string
	calls     *hangingCalls
}

func (d hangingDriver) Probe(ctx context.Context) (cloud.Info, error) {
	info, err := d.Driver.Probe(ctx)
	info.Place += d.namespace
	return info, err
}

func (d hangingDriver) Ensure(ctx context.Context, _ cloud.Request) (cloud.Resource, error) {
	return cloud.Resource{}, d.calls.hang(ctx, types.NamespacedName{Namespace: d.namespace, Name: "main"})
}

// hangingClusters is a ClusterCache. The clusters of all namespaces but team-a hang.
type hangingClusters struct {
	clustercache.ClusterCache
	calls *hangingCalls
}

func (c hangingClusters) Watch(ctx context.Context, cluster client.ObjectKey, watcher clustercache.Watcher) error {
	if cluster.Namespace == "team-a" {
		return c.ClusterCache.Watch(ctx, cluster, watcher)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.calls.hang(ctx, cluster)
}

// TestHangingTenantsHoldUpNobody: thirty accounts and thirty clusters of other tenants hang. The
// machines of a tenant who comes last are all made and Ready with their Nodes, while the others
// still hang.
func TestHangingTenantsHoldUpNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const tenants, workers = 30, 8
		var objects []client.Object
		for i := range tenants {
			objects = append(objects, tenantFleet(fmt.Sprintf("account-%d", i), unmade, "m1", "m2")...)
			objects = append(objects, tenantFleet(fmt.Sprintf("cluster-%d", i), func(m *infrav1.DroverMachine) {
				m.Spec.ProviderID = "simulated:///sim-1a/" + m.Namespace + m.Name
			}, "m1", "m2")...)
		}
		last := tenantFleet("team-a", unmade, "m1", "m2", "m3", "m4", "m5")
		b := newBench(t, append(objects, last...)...)
		synctest.Wait() // its account has started
		accounts := &hangingCalls{hanging: map[types.NamespacedName]bool{}}
		clusters := &hangingCalls{hanging: map[types.NamespacedName]bool{}}
		b.r.Accounts = hangingAccounts(b, tenants, accounts)
		b.node.Accounts, b.node.ClusterCache = b.r.Accounts, hangingClusters{b.node.ClusterCache, clusters}

		var requests []reconcile.Request
		for _, o := range append(objects, last...) {
			if m, ok := o.(*infrav1.DroverMachine); ok {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
			}
		}
		target := func(name string) func(reconcile.Request) types.NamespacedName {
			return func(r reconcile.Request) types.NamespacedName {
				return types.NamespacedName{Namespace: r.Namespace, Name: name}
			}
		}
		fair := func(name string, r reconcile.Reconciler, events *EventQueue, rules fairqueue.Rules[reconcile.Request]) {
			rules.Workers = workers
			c, err := controller.NewUnmanaged(name, controller.Options{
				SkipNameValidation:      ptr.To(true),
				MaxConcurrentReconciles: workers, Reconciler: r, ReconciliationTimeout: time.Minute,
				NewQueue: func(
					name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
				) workqueue.TypedRateLimitingInterface[reconcile.Request] {
					return fairqueue.New(name, limiter, rules)
				},
			})
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(c.Watch(events.Source())).To(Succeed())
			b.Expect(c.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
				for _, r := range requests {
					queue.Add(r)
				}
				return nil
			}))).To(Succeed())
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- c.Start(ctx) }()
			t.Cleanup(func() { stop(); b.Expect(<-ended).To(Succeed()) })
		}
		fair("hanging-machines", b.r, b.r.Changed, fairqueue.Rules[reconcile.Request]{TargetOf: target("main"), Hangs: b.r.Accounts.Hangs})
		fair("hanging-nodes", b.node, b.r.Nodes.Nodes, fairqueue.Rules[reconcile.Request]{TargetOf: target("prod"), Hangs: clusters.hangs})

		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end) && !b.allJoin(last); {
			time.Sleep(time.Second)
		}
		b.Expect(b.allJoin(last)).To(BeTrue(), "the machines of the tenant whose cluster and account answer")
		time.Sleep(5 * time.Minute)
		for what, calls := range map[string]*hangingCalls{"accounts": accounts, "clusters": clusters} {
			now, all := calls.counts()
			b.Expect(now).To(BeNumerically("<=", workers/4), what)
			b.Expect(all).To(BeNumerically(">=", tenants), what)
		}
	})
}

// tenantFleet is fleetOf in another namespace.
func tenantFleet(namespace string, change func(*infrav1.DroverMachine), names ...string) []client.Object {
	objects := fleetOf(names...)
	for _, o := range objects {
		o.SetNamespace(namespace)
		if m, ok := o.(*infrav1.DroverMachine); ok {
			digest := sha256.Sum256([]byte(namespace + m.Name))
			m.Spec.Creation.Token = hex.EncodeToString(digest[:12])
			change(m)
		}
	}
	return objects
}

// hangingAccounts returns the account of team-a, and those of the others, which hang when machines
// are created.
func hangingAccounts(b *bench, tenants int, calls *hangingCalls) *fleet.Accounts {
	row := simulated.Cloud(b.cloud.URL)
	newDriver := row.New
	row.New = func(c cloud.Config) (cloud.Driver, error) {
		d, err := newDriver(c)
		if namespace := string(c.Credentials["namespace"]); namespace != "" {
			d = hangingDriver{d, namespace, calls}
		}
		return d, err
	}
	accounts := fleet.NewAccounts(fleet.Options{
		Clouds: []cloud.Cloud{row}, Times: fleet.TimesFor(fleet.DefaultCall), Transport: b.transport,
		OnMachines: func(account types.NamespacedName, tokens []string) {
			b.r.InstancesChanged(b.t.Context(), account.Namespace, tokens)
		},
	})
	set := func(namespace string, credentials map[string][]byte) {
		key := client.ObjectKey{Namespace: namespace, Name: "main"}
		config := fleet.AccountConfig{Spec: infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "sim-1"}}}, Credentials: credentials}
		for range 2 { // the second probe proves the place
			account, err := accounts.Set(key, config)
			b.Expect(err).NotTo(HaveOccurred())
			info, err := account.Probe(b.t.Context())
			b.Expect(err).NotTo(HaveOccurred())
			config.Place = info.Place
		}
	}
	token := []byte(simulator.DefaultToken)
	for i := range tenants {
		name := fmt.Sprintf("account-%d", i)
		set(name, map[string][]byte{"token": token, "namespace": []byte(name)})
	}
	set("team-a", map[string][]byte{"token": token})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- accounts.Start(ctx) }()
	b.t.Cleanup(func() { stop(); b.Expect(<-ended).To(Succeed()) })
	return accounts
}

// allJoin makes the Nodes of machines that have a VM, and reports whether all machines are Ready
// with their Nodes.
func (b *bench) allJoin(objects []client.Object) bool {
	all := true
	for _, o := range objects {
		if _, ok := o.(*infrav1.DroverMachine); !ok {
			continue
		}
		m := b.machine(o.GetName())
		all = all && conditions.IsTrue(m, clusterv1.ReadyCondition) && conditions.IsTrue(m, infrav1.MachineNodeJoinedCondition)
		if m.Spec.ProviderID == "" {
			continue
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}, Spec: corev1.NodeSpec{ProviderID: m.Spec.ProviderID}}
		if b.nodes.Create(b.t.Context(), node) == nil {
			b.r.Nodes.Nodes.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return all
}
