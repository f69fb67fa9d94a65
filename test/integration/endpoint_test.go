// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

const endpointPort = 16443

// endpoint is a tenant whose cluster has a load balancer, and a control plane by hand.
type endpoint struct {
	*tenant
	infra   *infrav1.DroverCluster
	cluster *clusterv1.Cluster
}

// newEndpoint creates a cluster with a load balancer, changed by dress, and waits until Cluster API
// has its address.
func newEndpoint(t *testing.T, dress ...func(*infrav1.DroverCluster)) *endpoint {
	t.Helper()
	s := newTenant(t)
	s.Inventory = infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}
	e := &endpoint{tenant: s, infra: s.DroverCluster(), cluster: s.Cluster()}
	e.infra.Spec.Endpoint.LoadBalancer = infrav1.LoadBalancer{AccountRef: infrav1.LocalReference{Name: "prod"}, Port: endpointPort}
	for _, d := range dress {
		d(e.infra)
	}
	e.cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	kubeconfig := &corev1.Secret{ObjectMeta: e.meta(secret.Name("prod", secret.Kubeconfig)),
		Data: map[string][]byte{secret.KubeconfigDataName: e.Kubeconfig}}
	kubeconfig.Labels = map[string]string{clusterv1.ClusterNameLabel: "prod"}
	e.create(e.credentials(), e.Account(), kubeconfig, e.infra, e.cluster)
	e.says(e.infra, infrav1.EndpointReadyCondition, infrav1.NoTargetsReason, "No machine of the control plane")
	e.Eventually(func() clusterv1.APIEndpoint {
		return read(s,
			e.cluster).Spec.ControlPlaneEndpoint
	}).Should(Equal(e.infra.Spec.ControlPlaneEndpoint))
	e.Eventually(func() *bool { return read(s, e.infra).Status.Initialization.Provisioned }).Should(Equal(ptr.To(true)))
	return e
}

// machine creates a machine of the control plane, and returns it once it has a VM. Only the Machine
// has the control plane's label: a DroverMachine that somebody makes by hand need not have it.
func (e *endpoint) machine(name string) *clusterv1.Machine {
	e.t.Helper()
	vm := &infrav1.DroverMachine{ObjectMeta: e.meta(name), Spec: infrav1.DroverMachineSpec{DroverMachineFields: infrav1.DroverMachineFields{
		AccountRef: infrav1.LocalReference{Name: "prod"}, Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{}},
	}}}
	m := &clusterv1.Machine{ObjectMeta: e.meta(name), Spec: clusterv1.MachineSpec{
		ClusterName:       "prod",
		Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To(name)},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine", Name: name},
	}}
	m.Labels = map[string]string{clusterv1.ClusterNameLabel: "prod", clusterv1.MachineControlPlaneLabel: ""}
	e.create(&corev1.Secret{ObjectMeta: e.meta(name), Data: map[string][]byte{"value": []byte("#cloud-config\n")}}, vm, m)
	e.Eventually(func() []clusterv1.MachineAddress { return read(e.tenant, vm).Status.Addresses }).ShouldNot(BeEmpty())
	return m
}

// loseStatus has a machine be as a move leaves it: without a status. It stays paused.
func (e *endpoint) loseStatus(vm *infrav1.DroverMachine) {
	e.t.Helper()
	update(e.tenant, vm, func(m *infrav1.DroverMachine) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.PausedAnnotation, "")
	})
	e.says(vm, clusterv1.PausedCondition, clusterv1.PausedReason, "")
	before := vm.DeepCopy()
	vm.Status = infrav1.DroverMachineStatus{}
	e.Expect(env.client.Status().Patch(e.ctx, vm, client.MergeFrom(before))).To(Succeed())
}

// vm returns a machine's VM in the cloud.
func (e *endpoint) vm(name string) simulator.SnapshotResource {
	e.t.Helper()
	books, err := env.admin.Snapshot(e.ctx)
	e.Expect(err).NotTo(HaveOccurred())
	vm := read(e.tenant, &infrav1.DroverMachine{ObjectMeta: e.meta(name)})
	for _, r := range books.Resources {
		if r.Kind == wire.Instance && vm.Spec.ProviderID == "simulated:///"+r.Zone+"/"+r.ID {
			return r
		}
	}
	e.t.Fatalf("%s has no VM", name)
	return simulator.SnapshotResource{}
}

// answer has a machine answer connections.
func (e *endpoint) answer(name string) {
	e.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	e.Expect(err).NotTo(HaveOccurred())
	e.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	e.Expect(env.admin.Serve(e.ctx, e.vm(name).ID, l.Addr().String())).To(Succeed())
}

// serve has the control plane's controller say that a machine's API server works.
func (e *endpoint) serve(m *clusterv1.Machine) {
	e.t.Helper()
	before := read(e.tenant, m).DeepCopy()
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
		Type: kubeadmv1.KubeadmControlPlaneMachineAPIServerPodHealthyCondition, Status: metav1.ConditionTrue, Reason: "Healthy",
		LastTransitionTime: metav1.Now(),
	})
	e.Expect(env.client.Status().Patch(e.ctx, m, client.MergeFrom(before))).To(Succeed())
}

// balancers returns the load balancers of this cluster in the cloud.
func (e *endpoint) balancers() (all []simulator.SnapshotResource) {
	e.t.Helper()
	books, err := env.admin.Snapshot(e.ctx)
	e.Expect(err).NotTo(HaveOccurred())
	for _, r := range books.Resources {
		if r.Kind == wire.Balancer && r.PrivateIP == e.infra.Spec.ControlPlaneEndpoint.Host {
			all = append(all, r)
		}
	}
	return all
}

// targets returns the load balancer's targets, with "!" after those that are healthy.
func (e *endpoint) targets() (targets []string) {
	for _, b := range e.balancers() {
		for _, t := range b.Targets {
			name := t.IP
			if t.Healthy {
				name += "!"
			}
			targets = append(targets, name)
		}
	}
	return targets
}

func (e *endpoint) calls() int {
	e.t.Helper()
	audit, err := env.admin.Audit(e.ctx)
	e.Expect(err).NotTo(HaveOccurred())
	return audit.Calls(wire.PutLoadBalancer)
}

// TestEndpoint tests the life of a cluster's load balancer: one call makes it, one call for each
// change of its targets, and none while nothing changes. A machine is out before Cluster API may
// end it, and the load balancer goes after the last machine, and before its account.
func TestEndpoint(t *testing.T) {
	before, err := env.admin.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := newEndpoint(t)
	calls := func() int { return e.calls() - before.Calls(wire.PutLoadBalancer) }
	e.Expect(calls()).To(Equal(1))
	e.Expect(e.infra.Spec.ControlPlaneEndpoint.Port).To(BeEquivalentTo(endpointPort))
	e.Expect(e.infra.Finalizers).To(ConsistOf(infrav1.ClusterFinalizer, infrav1.EndpointFinalizer))
	for _, domain := range e.infra.Status.FailureDomains {
		e.Expect(domain.ControlPlane).To(Equal(ptr.To(true)))
	}

	one := e.machine("one")
	e.says(e.infra, infrav1.EndpointReadyCondition, infrav1.NoTargetAnswersReason, "None of 1 machines answers on port 16443")
	e.Expect(read(e.tenant, one).Annotations).To(HaveKey(infrav1.EndpointHook))
	e.answer("one")
	e.says(e.infra, infrav1.EndpointReadyCondition, infrav1.ReadyReason, "")
	first := e.vm("one").PrivateIP
	e.Expect(e.targets()).To(Equal([]string{first + "!"}))
	e.Expect(calls()).To(Equal(2))

	// A machine that only starts gets no connections.
	two := e.machine("two")
	e.answer("two")
	e.Consistently(e.targets, 3*time.Second).Should(HaveLen(1))
	e.Expect(read(e.tenant, two).Annotations).NotTo(HaveKey(infrav1.EndpointHook))
	e.serve(two)
	second := e.vm("two").PrivateIP
	e.Eventually(e.targets).Should(ConsistOf(first+"!", second+"!"))
	e.Expect(calls()).To(Equal(3))
	e.atRest(e.infra, 3*time.Second)
	e.Expect(calls()).To(Equal(3), "nothing changes")

	// The hook stays until the load balancer shows that the machine is out, which takes a while.
	// Another hook, as KubeadmControlPlane's, keeps the machine then.
	settings, err := env.admin.Settings(e.ctx)
	e.Expect(err).NotTo(HaveOccurred())
	lagging := settings
	lagging.TargetLag.Duration = 3 * time.Second
	e.Expect(env.admin.SetSettings(e.ctx, lagging)).To(Succeed())
	t.Cleanup(func() { e.Expect(env.admin.SetSettings(context.Background(), settings)).To(Succeed()) })
	const other = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/other"
	update(e.tenant, one, func(m *clusterv1.Machine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, other, "") })
	e.Expect(env.client.Delete(e.ctx, one)).To(Succeed())
	e.Eventually(func() map[string]string { return read(e.tenant, one).Annotations }).ShouldNot(HaveKey(infrav1.EndpointHook))
	e.Expect(e.targets()).To(Equal([]string{second + "!"}))
	e.Expect(calls()).To(Equal(4))
	update(e.tenant, one, func(m *clusterv1.Machine) { delete(m.Annotations, other) })
	e.isGone(one)

	// The last machine goes, although nothing takes over.
	e.Expect(env.client.Delete(e.ctx, two)).To(Succeed())
	e.isGone(two)
	e.says(e.infra, infrav1.EndpointReadyCondition, infrav1.NoTargetsReason, "")

	account := e.Account()
	e.Expect(env.client.Delete(e.ctx, account)).To(Succeed())
	e.says(account, clusterv1.ReadyCondition, infrav1.InUseReason, `DroverCluster "prod"`)
	e.Expect(env.client.Delete(e.ctx, e.cluster)).To(Succeed())
	e.isGone(e.infra)
	e.isGone(account)
	e.Expect(e.balancers()).To(BeEmpty())
}

// TestEndpointIsLost tests that a load balancer that somebody deleted is not created again, and
// that the cluster can still be deleted.
func TestEndpointIsLost(t *testing.T) {
	e := newEndpoint(t)
	lost := e.balancers()[0]
	body, err := json.Marshal(wire.BatchRequest{Region: lost.Region, IDs: []string{lost.ID}})
	e.Expect(err).NotTo(HaveOccurred())
	req, err := http.NewRequestWithContext(e.ctx, http.MethodPost, env.cloud.URL+wire.Prefix+wire.DeleteResources, bytes.NewReader(body))
	e.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Authorization", "Bearer "+env.cloud.Token)
	resp, err := http.DefaultClient.Do(req)
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(resp.Body.Close()).To(Succeed())
	e.Expect(resp.StatusCode).To(Equal(http.StatusOK))

	e.machine("one")
	e.says(e.infra, infrav1.EndpointReadyCondition, infrav1.LoadBalancerLostReason, lost.PrivateIP)
	e.Expect(e.balancers()).To(BeEmpty())
	e.Expect(env.client.Delete(e.ctx, e.cluster)).To(Succeed())
	e.isGone(e.infra)
}

// TestEndpointIsAbandoned tests that a load balancer can be let go, and stays. The user has given
// the cluster's ownership ID.
func TestEndpointIsAbandoned(t *testing.T) {
	e := newEndpoint(t, func(c *infrav1.DroverCluster) { c.Spec.Creation.OwnershipID = "given-by-the-user" })
	e.Expect(read(e.tenant, e.infra).Spec.Creation.OwnershipID).To(Equal("given-by-the-user"))
	update(e.tenant, e.infra, func(c *infrav1.DroverCluster) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, infrav1.AbandonAnnotation, c.Name)
	})
	e.Expect(env.client.Delete(e.ctx, e.cluster)).To(Succeed())
	e.isGone(e.infra)
	e.Expect(e.balancers()).To(HaveLen(1))
	e.Eventually(func() string {
		list := &corev1.EventList{}
		e.Expect(env.client.List(e.ctx, list, client.InNamespace(e.Namespace))).To(Succeed())
		var text string
		for _, event := range list.Items {
			text += fmt.Sprintln(event.Reason, event.Message)
		}
		return text
	}).Should(ContainSubstring("was abandoned by annotation"))
}

// TestEndpointIsMoved tests that a moved cluster keeps its load balancer and its targets. Until
// the original is gone, which only another management cluster has, a copy is refused.
func TestEndpointIsMoved(t *testing.T) {
	e := newEndpoint(t)
	e.machine("one")
	e.answer("one")
	e.says(e.infra, infrav1.EndpointReadyCondition, infrav1.ReadyReason, "")
	moved := e.DroverCluster()
	moved.Spec = *read(e.tenant, e.infra).Spec.DeepCopy()
	moved.Name = "copy"
	e.Expect(env.client.Create(e.ctx, moved)).To(MatchError(ContainSubstring("a copy would claim its load balancer")))

	before, targets := e.calls(), e.targets()
	update(e.tenant, e.cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	e.says(e.infra, clusterv1.PausedCondition, clusterv1.PausedReason, "")
	update(e.tenant, e.infra, func(c *infrav1.DroverCluster) { c.Finalizers = nil }) // as "clusterctl move" does
	e.Expect(env.client.Delete(e.ctx, e.infra)).To(Succeed())
	e.isGone(e.infra)
	vm := &infrav1.DroverMachine{ObjectMeta: e.meta("one")}
	e.loseStatus(vm)
	moved.Name = "prod"
	moved.ResourceVersion = ""
	e.create(moved)
	update(e.tenant, e.cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	e.says(moved, infrav1.EndpointReadyCondition, infrav1.ReadyReason, "") // while the machine has no address
	update(e.tenant, vm, func(m *infrav1.DroverMachine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
	e.Eventually(func() []clusterv1.MachineAddress { return read(e.tenant, vm).Status.Addresses }).ShouldNot(BeEmpty())
	e.Consistently(e.targets, "2s").Should(Equal(targets))
	e.Expect(e.calls()).To(Equal(before))
	e.Expect(env.client.Delete(e.ctx, e.cluster)).To(Succeed())
	e.isGone(moved)
	e.Expect(e.balancers()).To(BeEmpty())
}
