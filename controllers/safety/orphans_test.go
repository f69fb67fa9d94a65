// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/fleet"
)

// driver is a cloud with these resources that records the deletions requested. The collector calls
// no other methods.
type driver struct {
	cloud.Driver
	resources []cloud.Resource
	deleted   []string
}

func (d *driver) Describe(_ context.Context, refs []cloud.Reference) (found []cloud.Resource, err error) {
	for _, ref := range refs {
		for _, x := range d.resources {
			if x.Token == ref.Token && x.OwnershipID == ref.OwnershipID {
				found = append(found, x)
			}
		}
	}
	return found, nil
}

func (d *driver) Probe(context.Context) (cloud.Info, error) {
	return cloud.Info{Place: "test:here"}, nil
}

func (d *driver) Delete(_ context.Context, resources []cloud.Resource) []error {
	for _, x := range resources {
		d.deleted = append(d.deleted, x.ID)
	}
	return make([]error, len(resources))
}

// accounts returns one account in that cloud, in namespace "big".
func (d *driver) accounts(t *testing.T) (*fleet.Accounts, *fleet.Account) {
	t.Helper()
	limit := cloud.Limit{PerSecond: 1000, Burst: 1000}
	all := fleet.NewAccounts(fleet.Options{Times: fleet.TimesFor(time.Second), Clouds: []cloud.Cloud{{
		Name: "test",
		Union: driverkit.Fields[infrav1.DroverAccountSpec, infrav1.DroverMachineFields]{
			Account: func(s *infrav1.DroverAccountSpec) *infrav1.DroverAccountSpec { return s },
		},
		New:    func(cloud.Config) (cloud.Driver, error) { return d, nil },
		Limits: cloud.Limits{Read: limit, Create: limit, Delete: limit},
		Batch:  cloud.Batch{Read: 100, Delete: 100},
	}}})
	account, err := all.Set(types.NamespacedName{Namespace: "big", Name: "cloud"}, fleet.AccountConfig{Place: "test:here"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := account.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	return all, account
}

// balancer returns the load balancer of a DroverCluster of newCluster.
func balancer() cloud.Resource {
	return cloud.Resource{Kind: cloud.KindBalancer, ID: "balancer", OwnershipID: "ours", Token: self + "balancer",
		Balancer: &cloud.BalancerState{}}
}

// newCluster returns a Cluster with its DroverCluster, whose ownership ID is "ours".
func newCluster(namespace, name string) []client.Object {
	infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	infra.Spec.Creation.OwnershipID, infra.Spec.Creation.LoadBalancerToken = "ours", self+"balancer"
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster", Name: name,
	}
	return []client.Object{infra, cluster}
}

// TestCopiedOwnership: namespace "big" has 24 machines. "small" has 4, which is below the share
// that is believed. Both have an account of the same cloud, with orphanPolicy Delete, and the
// ownership ID of one DroverCluster. The cloud has one more VM, "lost", without a machine. Whatever
// the collector of "big" can read, it deletes no VM of a machine. It deletes "lost" only if it can
// read every possible owner. It never deletes the DroverCluster's load balancer.
func TestCopiedOwnership(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		// confinedTo is the manager's --namespace. mayList is the only namespace that its role
		// covers. If empty, all.
		confinedTo, mayList string
		// inBig and inSmall are the DroverClusters of the namespaces.
		inBig, inSmall []string
		deleted        []string
		reason         string
	}{
		{what: "two managers, each with a namespace, and a copy", confinedTo: "big", mayList: "big",
			inBig: []string{"blue"}, inSmall: []string{"blue"}, reason: infrav1.OrphansReportOnlyReason},
		{what: "two managers, each with a namespace, and the original is lost", confinedTo: "big", mayList: "big",
			inBig: []string{"blue"}, reason: infrav1.OrphansReportOnlyReason},
		{what: "a manager with a namespace that may look further, and a copy", confinedTo: "big",
			inBig: []string{"blue"}, inSmall: []string{"blue"}, reason: infrav1.NoOrphansReason},
		{what: "a manager with a namespace that may look further, and the original is lost", confinedTo: "big",
			inBig: []string{"blue"}, deleted: []string{"lost"}, reason: infrav1.OrphansDeletingReason},
		{what: "one manager, and a copy", inBig: []string{"blue"}, inSmall: []string{"blue"}, reason: infrav1.NoOrphansReason},
		{what: "one manager, and two copies elsewhere", inSmall: []string{"blue", "green"}},
		{what: "one manager, and a copy in the same namespace", inBig: []string{"blue", "green"}, reason: infrav1.NoOrphansReason},
		{what: "one manager, and the original is lost", inBig: []string{"blue"}, deleted: []string{"lost"},
			reason: infrav1.OrphansDeletingReason},
	} {
		account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "big", Name: "cloud"}}
		account.Spec.OrphanPolicy = infrav1.OrphanPolicyDelete
		d := &driver{resources: []cloud.Resource{vm("lost", "ours", self+"lost"), balancer()}}
		objects := []client.Object{account}
		for namespace, n := range map[string]int{"big": 24, "small": 4} {
			for i := range n {
				x := vm(fmt.Sprint(namespace, i), "ours", fmt.Sprint(self, namespace, i))
				m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: x.ID}}
				m.Spec.AccountRef.Name, m.Spec.Creation.Token, m.Spec.ProviderID = "cloud", x.Token, x.ProviderID
				objects, d.resources = append(objects, m), append(d.resources, x)
			}
		}
		for _, name := range c.inBig {
			objects = append(objects, newCluster("big", name)...)
		}
		for _, name := range c.inSmall {
			objects = append(objects, newCluster("small", name)...)
		}
		served := &lists{only: c.mayList}
		api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...).WithStatusSubresource(account).
			WithInterceptorFuncs(served.intercept()).Build()
		all, live := d.accounts(t)
		r := &OrphanReconciler{
			Client: api, APIReader: api, Accounts: all, Recorder: events.NewFakeRecorder(10), Identity: self, Namespace: c.confinedTo,
			Period: time.Minute, Grace: grace, MaxDeletions: 10, MaxShare: 20, Metrics: NewMetrics(prometheus.NewRegistry()),
		}
		m := &memory{begun: map[string]map[string]time.Time{}}
		for i := range 3 {
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(account), account); err != nil {
				t.Fatal(err)
			}
			listed := time.Now().Add(time.Duration(i) * (grace + time.Minute))
			if _, err := r.pass(t.Context(), account, live, m, listed, d.resources); err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
		}
		if !slices.Equal(d.deleted, c.deleted) {
			t.Errorf("%s: %d VMs were deleted, want %v: %v", c.what, len(d.deleted), c.deleted, d.deleted)
		}
		if got := conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition); got != c.reason {
			t.Errorf("%s: the account says %q (%s), want %q", c.what, got, conditions.GetMessage(account, infrav1.AccountOrphansResolvedCondition),
				c.reason)
		}
		// All DroverMachines are read only if something looks like an orphan.
		if n := served.asked["*v1beta1.DroverMachineList "]; c.confinedTo == "" && (n > 0) != (c.deleted != nil) {
			t.Errorf("%s: the DroverMachines of all namespaces were read %d times", c.what, n)
		}
		if served.longest > pageSize {
			t.Errorf("%s: one answer had %d objects, want %d at most", c.what, served.longest, pageSize)
		}
	}
}

// TestLeftBalancer: the load balancer of a cluster that no longer exists is an orphan.
func TestLeftBalancer(t *testing.T) {
	t.Parallel()
	account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "big", Name: "cloud"}}
	account.Spec.OrphanPolicy = infrav1.OrphanPolicyDelete
	account.Status.FormerOwners = []infrav1.FormerOwner{{OwnershipID: "ours", Cluster: "blue"}}
	d := &driver{resources: []cloud.Resource{balancer()}}
	api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(account).WithStatusSubresource(account).Build()
	all, live := d.accounts(t)
	r := &OrphanReconciler{
		Client: api, APIReader: api, Accounts: all, Recorder: events.NewFakeRecorder(10), Identity: self,
		Period: time.Minute, Grace: grace, MaxDeletions: 10, MaxShare: 20, Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	m := &memory{begun: map[string]map[string]time.Time{}}
	for i := range 3 {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(account), account); err != nil {
			t.Fatal(err)
		}
		if _, err := r.pass(t.Context(), account, live, m, time.Now().Add(time.Duration(i)*(grace+time.Minute)), d.resources); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(d.deleted, []string{"balancer"}) {
		t.Errorf("%v were deleted", d.deleted)
	}
}

// TestOrphanStates: the status says how far the collector is with each orphan, and only as long as
// the grace period runs, when it ends. Nothing is in the state Deleting under the policy Report,
// even if a deletion began under the policy Delete.
func TestOrphanStates(t *testing.T) {
	t.Parallel()
	account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "big", Name: "cloud"}}
	d := &driver{resources: []cloud.Resource{vm("i-lost", "ours", self+"lost"), vm("i-other", "ours", "ffffffff-lost")}}
	api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(append(newCluster("big", "blue"),
		account)...).WithStatusSubresource(account).Build()
	all, live := d.accounts(t)
	r := &OrphanReconciler{
		Client: api, APIReader: api, Accounts: all, Recorder: events.NewFakeRecorder(10), Identity: self,
		Period: time.Minute, Grace: grace, MaxDeletions: 10, MaxShare: 20, Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	m := &memory{begun: map[string]map[string]time.Time{}}
	for i, c := range []struct {
		policy infrav1.OrphanPolicy
		want   infrav1.OrphanState
	}{
		{"", infrav1.OrphanObserved},
		{infrav1.OrphanPolicyReport, infrav1.OrphanConfirmed},
		{infrav1.OrphanPolicyDelete, infrav1.OrphanDeleting},
		{infrav1.OrphanPolicyReport, infrav1.OrphanConfirmed},
	} {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(account), account); err != nil {
			t.Fatal(err)
		}
		account.Spec.OrphanPolicy = c.policy
		if _, err := r.pass(t.Context(), account, live, m, time.Now().Add(time.Duration(i)*(grace+time.Minute)), d.resources); err != nil {
			t.Fatal(err)
		}
		shown := account.Status.Orphans.Observed
		if len(shown) != 2 || shown[0].ID != "i-lost" || shown[1].ID != "i-other" {
			t.Fatalf("pass %d: the status lists %+v", i, shown)
		}
		if shown[0].State != c.want || shown[1].State != infrav1.OrphanOtherManager {
			t.Errorf("pass %d: the states are %q and %q, want %q and %q", i, shown[0].State, shown[1].State, c.want, infrav1.OrphanOtherManager)
		}
		var due metav1.Time
		if c.want == infrav1.OrphanObserved {
			due = metav1.NewTime(shown[0].Since.Add(grace))
		}
		if !shown[0].DueTime.Equal(&due) || !shown[1].DueTime.IsZero() {
			t.Errorf("pass %d: the grace periods end at %s and %s, want %s and never", i, shown[0].DueTime, shown[1].DueTime, due)
		}
	}
}

// TestWhoDeletedTheOrphan: one grep for an orphan's ID in the log says that the collector deleted
// it, once, and when it was gone.
func TestWhoDeletedTheOrphan(t *testing.T) {
	t.Parallel()
	account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "big", Name: "cloud"}}
	account.Spec.OrphanPolicy = infrav1.OrphanPolicyDelete
	account.Status.FormerOwners = []infrav1.FormerOwner{{OwnershipID: "ours", Cluster: "blue"}}
	d := &driver{resources: []cloud.Resource{vm("i-3e91", "ours", self+"lost")}}
	api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(account).WithStatusSubresource(account).Build()
	all, live := d.accounts(t)
	var log []string
	r := &OrphanReconciler{
		Client: api, APIReader: api, Accounts: all, Recorder: events.NewFakeRecorder(10), Identity: self,
		Period: time.Minute, Grace: grace, MaxDeletions: 10, MaxShare: 20, Metrics: NewMetrics(prometheus.NewRegistry()),
		Log: funcr.New(func(_, line string) { log = append(log, line) }, funcr.Options{}),
	}
	m := &memory{begun: map[string]map[string]time.Time{}}
	for i := range 6 {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(account), account); err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			d.resources = nil
		}
		if _, err := r.pass(t.Context(), account, live, m, time.Now().Add(time.Duration(i)*(grace+time.Minute)), d.resources); err != nil {
			t.Fatal(err)
		}
	}
	if len(log) != 2 || !strings.Contains(log[0], `"Deleting the orphan"`) || !strings.Contains(log[1], `"The orphan is deleted"`) {
		t.Fatalf("the log says %q", log)
	}
	for _, line := range log {
		for _, want := range []string{`"account"="big/cloud"`, "i-3e91", `"token"="` + self + `lost"`, `"by"="Orphan"`} {
			if !strings.Contains(line, want) {
				t.Errorf("%s is not in %s", want, line)
			}
		}
	}
}
