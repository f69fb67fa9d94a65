// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/fleet"
)

// fakeAccount returns what a test has set, and records its calls.
type fakeAccount struct {
	row     cloud.Cloud
	allowed []string
	// answers are the errors that Ensure returns, in order; the last one repeats.
	answers  []error
	made     cloud.Resource
	settled  bool
	seen     fleet.Observation
	deletion fleet.Deletion

	requests []cloud.Request
	domains  [][]string
	deleted  []time.Time
	forgot   []string
	recorded int
}

func (a *fakeAccount) Cloud() cloud.Cloud { return a.row }

func (a *fakeAccount) FailureDomains(context.Context, *infrav1.CloudMachineFields) ([]string, error) {
	return a.allowed, nil
}

func (a *fakeAccount) Domain(_ *infrav1.CloudMachineFields, domains []string) (string, error) {
	return domains[0], nil
}

func (a *fakeAccount) Ensure(_ context.Context, req cloud.Request, domains []string) (cloud.Resource, error) {
	a.settled = false // as in fleet.Account: the proof covered only earlier creates
	a.requests, a.domains = append(a.requests, req), append(a.domains, domains)
	if len(a.answers) == 0 {
		return a.made, nil
	}
	err := a.answers[0]
	if len(a.answers) > 1 {
		a.answers = a.answers[1:]
	}
	return a.made, err
}

func (a *fakeAccount) SettleCreate(cloud.Reference) bool               { return a.settled }
func (a *fakeAccount) Observe(cloud.Reference, bool) fleet.Observation { return a.seen }
func (a *fakeAccount) NodeJoined(string)                               {}
func (a *fakeAccount) AckEvent(string, *cloud.Resource)                { a.recorded++ }
func (a *fakeAccount) Forget(token string)                             { a.forgot = append(a.forgot, token) }

func (a *fakeAccount) Console(context.Context, cloud.Reference) ([]byte, error) { return nil, nil }

func (a *fakeAccount) Delete(_ cloud.Reference, asked time.Time) fleet.Deletion {
	a.deleted = append(a.deleted, asked)
	return a.deletion
}

// indexes declares the fields of SetupIndexes on a fake client.
type indexes struct{ *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, o client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(o, field, values)
	return nil
}

// bench is a reconciler with a management cluster, a workload cluster and a fake account.
type bench struct {
	*WithT
	t        *testing.T
	r        *CloudMachineReconciler
	account  *fakeAccount
	nodes    client.Client
	recorder *events.FakeRecorder
}

const (
	testToken = "0123456789abcdef01234567"
	testVM    = "test:///vm-1"
)

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	g := NewWithT(t)
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	management := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&infrav1.CloudMachine{}).WithObjects(objects...)
	g.Expect(SetupIndexes(t.Context(), indexes{management})).To(Succeed())
	workload := fake.NewClientBuilder().WithScheme(scheme)
	for _, i := range NodeIndexes() {
		workload.WithIndex(i.Object, i.Field, i.ExtractValue)
	}
	b := &bench{WithT: g, t: t, nodes: workload.Build(), recorder: events.NewFakeRecorder(1000)}
	b.account = &fakeAccount{
		row: cloud.Cloud{
			Name:          "simulated",
			Union:         driverkit.Fields[infrav1.SimulatedAccount, infrav1.SimulatedMachine]{Machine: func(f *infrav1.CloudMachineFields) *infrav1.SimulatedMachine { return f.Simulated }},
			CheckUserData: driverkit.MaxUserData(1000),
		},
		made: cloud.Resource{Kind: cloud.KindInstance, ID: "vm-1", ProviderID: testVM, State: cloud.StatePending},
	}
	c := management.Build()
	b.r = &CloudMachineReconciler{
		Client: c, APIReader: c, Accounts: fleet.NewAccounts(fleet.Options{}), Recorder: b.recorder, Identity: "01234567", Changed: &EventQueue{},
		ClusterCache: clustercache.NewFakeClusterCache(b.nodes, client.ObjectKey{Namespace: "team-a", Name: "prod"}, "cloudmachine-nodes"),
		LateAfter:    time.Hour,
	}
	return b
}

// reconcile takes the machine's next step with the test's account.
func (b *bench) reconcile(name string) reconcile.Result {
	b.t.Helper()
	key := client.ObjectKey{Namespace: "team-a", Name: name}
	b.r.startOnce.Do(func() { b.r.started = time.Now() })
	scope, err := b.r.read(b.t.Context(), reconcile.Request{NamespacedName: key})
	b.Expect(err).NotTo(HaveOccurred())
	if scope == nil {
		return reconcile.Result{}
	}
	scope.account = b.account
	result, err := b.r.advance(b.t.Context(), scope)
	b.Expect(err).NotTo(HaveOccurred())
	return result
}

// machine reads a machine from the API.
func (b *bench) machine(name string) *infrav1.CloudMachine {
	b.t.Helper()
	m := &infrav1.CloudMachine{}
	b.Expect(b.r.Client.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, m)).To(Succeed())
	return m
}

func (b *bench) remove(o client.Object) {
	b.t.Helper()
	b.Expect(b.r.Client.Delete(b.t.Context(), o)).To(Succeed())
}

func (b *bench) createNode(name, providerID string) {
	b.t.Helper()
	b.Expect(b.nodes.Create(b.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}})).To(Succeed())
}

func (b *bench) countNodes() int {
	b.t.Helper()
	list := &corev1.NodeList{}
	b.Expect(b.nodes.List(b.t.Context(), list)).To(Succeed())
	return len(list.Items)
}

// fleetOf returns a provisioned cluster and, for each name, a CloudMachine with a VM and a Machine.
func fleetOf(names ...string) []client.Object {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "prod"}}
	}
	all := []client.Object{
		&clusterv1.Cluster{
			ObjectMeta: meta("prod"),
			Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrav1.GroupVersion.Group, Kind: "CloudCluster", Name: "prod",
			}},
			Status: clusterv1.ClusterStatus{Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true)}},
		},
		&infrav1.CloudCluster{ObjectMeta: meta("prod"), Spec: infrav1.CloudClusterSpec{Creation: infrav1.CloudClusterCreation{OwnershipID: "owner-1"}}},
		&infrav1.CloudAccount{ObjectMeta: meta("main")},
		&corev1.Secret{ObjectMeta: meta("data"), Data: map[string][]byte{"value": []byte("#cloud-config")}},
	}
	for i, name := range names {
		machine := &clusterv1.Machine{ObjectMeta: meta(name), Spec: clusterv1.MachineSpec{
			ClusterName: "prod", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("data")},
		}}
		machine.UID = uid("machine", name)
		infra := &infrav1.CloudMachine{ObjectMeta: meta(name), Spec: infrav1.CloudMachineSpec{
			CloudMachineFields: infrav1.CloudMachineFields{AccountRef: infrav1.LocalReference{Name: "main"}, Simulated: &infrav1.SimulatedMachine{}},
			ProviderID:         fmt.Sprintf("test:///vm-%d", i+1),
			Creation:           infrav1.CloudMachineCreation{Token: fmt.Sprintf("%s%d", testToken, i)},
		}}
		infra.UID = uid("infra", name)
		infra.Finalizers = []string{infrav1.MachineFinalizer}
		infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: machine.UID}}
		all = append(all, machine, infra)
	}
	return all
}

// edit changes the CloudMachine of that name in objects.
func edit(objects []client.Object, name string, change func(*infrav1.CloudMachine)) []client.Object {
	for _, o := range objects {
		if m, ok := o.(*infrav1.CloudMachine); ok && m.Name == name {
			change(m)
		}
	}
	return objects
}

func unmade(m *infrav1.CloudMachine) { m.Spec.ProviderID = "" }

func uid(kind, name string) types.UID { return types.UID(kind + "-" + name) }
