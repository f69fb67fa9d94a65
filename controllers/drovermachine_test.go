// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/simulated"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// indexes declares the fields of SetupIndexes on a fake client.
type indexes struct{ *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, o client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(o, field, values)
	return nil
}

// bench is the controllers of DroverMachines and their Nodes with a management cluster, a workload
// cluster, and an account of the simulated cloud. The cloud is reached without a network, so that
// all runs in the fake time of testing/synctest.
type bench struct {
	*WithT
	t          *testing.T
	management client.Client
	nodes      client.Client
	cloud      simulator.Admin
	transport  inMemory
	// zonal makes the cloud's idempotency zonal; set it before start.
	zonal bool
	// view changes what the account sees of its VMs; nil changes nothing.
	view atomic.Pointer[func([]cloud.Resource) []cloud.Resource]

	r        *DroverMachineReconciler
	node     *NodeReconciler
	recorder *events.FakeRecorder
	record   *recorded
	stop     context.CancelFunc
	// statusWrites counts the writes of DroverMachines' status.
	statusWrites atomic.Int64
}

const (
	testToken   = "0123456789abcdef01234567"
	placeholder = "simulated:///new/"
)

// inMemory carries requests to a handler.
type inMemory struct{ http.Handler }

func (h inMemory) RoundTrip(r *http.Request) (response *http.Response, err error) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			response, err = nil, io.ErrUnexpectedEOF
		} else if p != nil {
			panic(p)
		}
	}()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// viewed is a driver whose answers a test changes.
type viewed struct {
	cloud.Driver
	b *bench
}

func (d viewed) FailureDomains(ctx context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	return d.Driver.(cloud.Placer).FailureDomains(ctx, fields)
}

func (d viewed) List(ctx context.Context) ([]cloud.Resource, error) {
	all, err := d.Driver.List(ctx)
	return d.b.seen(all), err
}

func (d viewed) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	all, err := d.Driver.Describe(ctx, refs)
	return d.b.seen(all), err
}

func (b *bench) seen(all []cloud.Resource) []cloud.Resource {
	if view := b.view.Load(); view != nil {
		return (*view)(all)
	}
	return all
}

func (b *bench) show(view func([]cloud.Resource) []cloud.Resource) { b.view.Store(&view) }

func hidden([]cloud.Resource) []cloud.Resource { return nil }

func newManagement(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	management := fake.NewClientBuilder().WithScheme(testScheme(t)).WithStatusSubresource(&infrav1.DroverMachine{},
		&infrav1.DroverMachineTemplate{}).WithObjects(objects...)
	NewWithT(t).Expect(SetupIndexes(t.Context(), indexes{management})).To(Succeed())
	return management.Build()
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		NewWithT(t).Expect(add(scheme)).To(Succeed())
	}
	return scheme
}

// newBench must be called in a bubble of testing/synctest. It makes a VM for each of the machines
// whose provider ID is a placeholder, and waits until it runs.
func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	return newBenchWith(t, false, objects...)
}

func newBenchWith(t *testing.T, zonal bool, objects ...client.Object) *bench {
	t.Helper()
	b := &bench{WithT: NewWithT(t), t: t, zonal: zonal, record: &recorded{}}
	server, err := simulator.New(simulator.Options{AdminToken: "admin", Settings: simulator.Settings{Throttle: simulator.ThrottleNone}})
	b.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		b.Expect(<-ended).To(Succeed())
	})
	b.transport = inMemory{server.Handler()}
	b.cloud = simulator.Admin{URL: "http://cloud.invalid", Token: "admin", Client: &http.Client{Transport: b.transport}}
	made := map[string]string{} // by token
	for _, o := range objects {
		m, ok := o.(*infrav1.DroverMachine)
		if !ok || m.Spec.ProviderID != placeholder {
			continue
		}
		token := m.Spec.Creation.Token
		if made[token] == "" {
			made[token] = b.makeVM(m)
		}
		m.Spec.ProviderID = made[token]
	}
	b.management = interceptor.NewClient(newManagement(t, objects...).(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, subResource string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption) error {
			b.statusWrites.Add(1)
			return c.SubResource(subResource).Patch(ctx, o, p, options...)
		},
	})
	workload := fake.NewClientBuilder().WithScheme(testScheme(t))
	for _, i := range NodeIndexes() {
		workload.WithIndex(i.Object, i.Field, i.ExtractValue)
	}
	b.nodes = workload.Build()
	time.Sleep(5 * time.Second) // the VMs boot
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

// makeVM makes a machine's VM, and returns its provider ID.
func (b *bench) makeVM(m *infrav1.DroverMachine) string {
	b.t.Helper()
	vm, err := b.cloud.Run(b.t.Context(), "default", wire.RunInstancesRequest{
		Region: "sim-1", Name: m.Name, InstanceType: "small", Image: "node-image", Zone: "sim-1a",
		Tags: map[string]string{cloud.TagToken: m.Spec.Creation.Token, cloud.TagOwnership: "owner-1"},
	})
	b.Expect(err).NotTo(HaveOccurred())
	return "simulated:///" + vm.Zone + "/" + vm.ID
}

// start starts the controllers and the account, as a new process does.
func (b *bench) start() {
	b.t.Helper()
	if b.stop != nil {
		b.stop()
	}
	row := simulated.Cloud(b.cloud.URL)
	row.Traits.ZonalIdempotency = b.zonal
	newDriver := row.New
	row.New = func(c cloud.Config) (cloud.Driver, error) {
		d, err := newDriver(c)
		return viewed{d, b}, err
	}
	b.recorder = events.NewFakeRecorder(1000)
	ctx, cancel := context.WithCancel(context.Background())
	r := &DroverMachineReconciler{
		Client: b.management, APIReader: b.management, Recorder: b.recorder, Identity: "01234567", Changed: &EventQueue{},
		Log: b.record.logger(),
	}
	r.Nodes = &NodeHandover{Machines: r.Changed, Nodes: &EventQueue{}}
	r.Accounts = fleet.NewAccounts(fleet.Options{
		Clouds: []cloud.Cloud{row}, Times: fleet.TimesFor(fleet.DefaultCall), Transport: b.transport,
		OnMachines: func(account types.NamespacedName, tokens []string) {
			r.InstancesChanged(ctx, account.Namespace, tokens)
		},
	})
	b.r = r
	b.node = &NodeReconciler{
		Client: b.management, Accounts: r.Accounts, Recorder: b.recorder, Handover: r.Nodes, LateAfter: time.Hour,
		ClusterCache: clustercache.NewFakeClusterCache(b.nodes, client.ObjectKey{Namespace: "team-a", Name: "prod"}, "nodes"),
		Progress: func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (string, string, error) {
			return "", "", nil
		},
	}
	key := client.ObjectKey{Namespace: "team-a", Name: "main"}
	config := fleet.AccountConfig{
		Spec:        infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "sim-1"}}},
		Credentials: map[string][]byte{"token": []byte(simulator.DefaultToken)},
	}
	account, err := r.Accounts.Set(key, config)
	b.Expect(err).NotTo(HaveOccurred())
	info, err := account.Probe(ctx)
	b.Expect(err).NotTo(HaveOccurred())
	config.Place = info.Place
	account, err = r.Accounts.Set(key, config)
	b.Expect(err).NotTo(HaveOccurred())
	_, err = account.Probe(ctx)
	b.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() { ended <- r.Accounts.Start(ctx) }()
	b.stop = func() {
		cancel()
		b.Expect(<-ended).To(Succeed())
	}
}

// reconcile takes the next step of a machine and of its Node, and all steps that these cause.
func (b *bench) reconcile(name string) reconcile.Result {
	b.t.Helper()
	request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team-a", Name: name}}
	result, err := b.r.Reconcile(b.t.Context(), request)
	b.Expect(err).NotTo(HaveOccurred())
	b.reconcileNode(request)
	b.settle()
	return result
}

func (b *bench) reconcileNode(request reconcile.Request) reconcile.Result {
	b.t.Helper()
	result, err := b.node.Reconcile(b.t.Context(), request)
	b.Expect(err).NotTo(HaveOccurred())
	return result
}

// settle takes the steps that are enqueued, until none is left.
func (b *bench) settle() {
	b.t.Helper()
	for {
		synctest.Wait()
		machines, nodes := b.r.Changed.take(), b.r.Nodes.Nodes.take()
		if len(machines)+len(nodes) == 0 {
			return
		}
		for _, request := range machines {
			_, err := b.r.Reconcile(b.t.Context(), request)
			b.Expect(err).NotTo(HaveOccurred())
		}
		for _, request := range nodes {
			b.reconcileNode(request)
		}
	}
}

// take returns and removes the pending requests of a queue that has no reconciler.
func (t *EventQueue) take() []reconcile.Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	pending := t.pending
	t.pending = nil
	return pending
}

// wait lets time pass, while the controllers work.
func (b *bench) wait(d time.Duration) {
	b.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second)
		b.settle()
	}
}

// calls returns how many calls of an operation the cloud has seen.
func (b *bench) calls(operation string) int {
	b.t.Helper()
	audit, err := b.cloud.Audit(b.t.Context())
	b.Expect(err).NotTo(HaveOccurred())
	return audit.Calls(operation)
}

// vms returns the VMs that exist.
func (b *bench) vms() []simulator.SnapshotResource {
	b.t.Helper()
	all, err := b.cloud.Snapshot(b.t.Context())
	b.Expect(err).NotTo(HaveOccurred())
	return all.Instances()
}

func (b *bench) act(action simulator.InstanceAction) {
	b.t.Helper()
	for _, vm := range b.vms() {
		b.Expect(b.cloud.Act(b.t.Context(), vm.ID, action)).To(Succeed())
	}
}

func (b *bench) addFault(f simulator.Fault) {
	b.t.Helper()
	_, err := b.cloud.AddFault(b.t.Context(), f)
	b.Expect(err).NotTo(HaveOccurred())
}

// machine reads a machine from the API.
func (b *bench) machine(name string) *infrav1.DroverMachine {
	b.t.Helper()
	m := &infrav1.DroverMachine{}
	b.Expect(b.r.Client.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, m)).To(Succeed())
	return m
}

func (b *bench) remove(o client.Object) {
	b.t.Helper()
	b.Expect(b.r.Client.Delete(b.t.Context(), o)).To(Succeed())
}

// createNode makes the Node of a machine.
func (b *bench) createNode(name string) {
	b.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: b.machine(name).Spec.ProviderID}}
	b.Expect(b.nodes.Create(b.t.Context(), node)).To(Succeed())
}

func (b *bench) countNodes() int {
	b.t.Helper()
	list := &corev1.NodeList{}
	b.Expect(b.nodes.List(b.t.Context(), list)).To(Succeed())
	return len(list.Items)
}

// fleetOf returns a provisioned cluster and, for each name, a DroverMachine with a VM and a
// Machine.
func fleetOf(names ...string) []client.Object {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "prod"}}
	}
	all := []client.Object{
		&clusterv1.Cluster{
			ObjectMeta: meta("prod"),
			Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster", Name: "prod",
			}},
			Status: clusterv1.ClusterStatus{Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true)}},
		},
		&infrav1.DroverCluster{ObjectMeta: meta("prod"),
			Spec: infrav1.DroverClusterSpec{Creation: infrav1.DroverClusterCreation{OwnershipID: "owner-1"}}},
		&infrav1.DroverAccount{ObjectMeta: meta("main")},
		&corev1.Secret{ObjectMeta: meta("data"), Data: map[string][]byte{"value": []byte("#cloud-config")}},
	}
	for i, name := range names {
		machine := &clusterv1.Machine{ObjectMeta: meta(name), Spec: clusterv1.MachineSpec{
			ClusterName: "prod", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("data")},
		}}
		machine.UID = uid("machine", name)
		infra := &infrav1.DroverMachine{ObjectMeta: meta(name), Spec: infrav1.DroverMachineSpec{
			DroverMachineFields: infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "main"},
				Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{InstanceType: "small", Image: "node-image"}}},
			ProviderID: placeholder,
			Creation:   infrav1.DroverMachineCreation{Token: fmt.Sprintf("%s%d", testToken, i)},
		}}
		infra.UID = uid("infra", name)
		infra.Finalizers = []string{infrav1.MachineFinalizer}
		infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name,
			UID: machine.UID}}
		all = append(all, machine, infra)
	}
	return all
}

// edit changes the DroverMachine of that name in objects.
func edit(objects []client.Object, name string, change func(*infrav1.DroverMachine)) []client.Object {
	for _, o := range objects {
		if m, ok := o.(*infrav1.DroverMachine); ok && m.Name == name {
			change(m)
		}
	}
	return objects
}

func unmade(m *infrav1.DroverMachine) { m.Spec.ProviderID = "" }

func uid(kind, name string) types.UID { return types.UID(kind + "-" + name) }

// inBubble runs a test with a bench in fake time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}
