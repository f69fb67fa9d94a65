// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"net/http"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestEndpoint tests the life of a cluster's load balancer, a Service of the type LoadBalancer: the
// cluster gets its address, machines of the control plane become its targets and stop being ones,
// a new address of a VM replaces the old one, and with the cluster all of it goes.
func TestEndpoint(t *testing.T) {
	g := NewWithT(t)
	c, kubeconfig := startManagement(t)
	proxy, secret := between(t)
	cluster := scenario.Adopted{Namespace: "team-b", Name: "green", Kubeconfig: kubeconfig}
	objects := onKubeVirt(cluster.Objects())
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Secret:
			if o.Labels[infrav1.CredentialsLabel] != "" {
				o.Data = secret
			}
		case *infrav1.DroverCluster:
			o.Spec.Endpoint.LoadBalancer.AccountRef = o.Spec.AccountRefs[0]
		}
	}
	g.Expect(scenario.Create(t.Context(), c, objects...)).To(Succeed())
	for _, wrong := range []infrav1.KubeVirtLoadBalancer{{Type: "NodePort"}, {Host: "nodes.example.com"},
		{Annotations: map[string]string{"drover-machine": "x"}}} {
		bad := cluster.DroverCluster()
		bad.Name = "bad"
		bad.Spec.Endpoint.LoadBalancer.AccountRef = bad.Spec.AccountRefs[0]
		bad.Spec.Endpoint.LoadBalancer.Cloud.KubeVirt = &wrong
		g.Expect(c.Create(t.Context(), bad)).To(MatchError(ContainSubstring("spec.endpoint.loadBalancer.cloud.kubevirt")), "%+v", wrong)
	}
	own := &infrav1.DroverCluster{}
	is := func(reason string) func() bool {
		return func() bool {
			g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "team-b", Name: "green"}, own)).To(Succeed())
			ready := conditions.Get(own, infrav1.EndpointReadyCondition)
			return ready != nil && ready.Reason == reason
		}
	}
	until(t, "the Service waits for an address", is(infrav1.StartingReason))
	of := client.ObjectKey{Namespace: namespace, Name: "lb-" + own.Spec.Creation.LoadBalancerToken}
	infra.giveAddress(t, of, corev1.LoadBalancerIngress{IP: "192.0.2.10"})
	until(t, "the endpoint waits for machines", is(infrav1.NoTargetsReason))
	g.Expect(own.Spec.ControlPlaneEndpoint).To(Equal(clusterv1.APIEndpoint{Host: "192.0.2.10", Port: 6443}))

	targets := func(want ...string) func() bool {
		return func() bool {
			slice := &discoveryv1.EndpointSlice{}
			g.Expect(infra.Admin.Get(t.Context(), of, slice)).To(Succeed())
			var now []string
			for _, e := range slice.Endpoints {
				now = append(now, e.Addresses...)
			}
			slices.Sort(now)
			return slices.Equal(now, slices.Sorted(slices.Values(want)))
		}
	}
	first, a, _ := controlPlaneMachine(t, c, "cp-0")
	until(t, "the first machine is a target", targets(a))
	until(t, "it runs", is(infrav1.ReadyReason))
	second, b, vm := controlPlaneMachine(t, c, "cp-1")
	g.Consistently(targets(a), "2s").Should(BeTrue(), "the second one's API server does not work yet")
	before := second.DeepCopy()
	second.Status.Conditions = append(second.Status.Conditions, metav1.Condition{
		Type: kubeadmv1.KubeadmControlPlaneMachineAPIServerPodHealthyCondition, Status: metav1.ConditionTrue, Reason: "Healthy",
		LastTransitionTime: metav1.Now(),
	})
	g.Expect(c.Status().Patch(t.Context(), second, client.MergeFrom(before))).To(Succeed())
	until(t, "both machines are targets", targets(a, b))
	infra.change(t, vm, func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Status.Interfaces[0].IP, vmi.Status.Interfaces[0].IPs = "10.63.0.1", []string{"10.63.0.1"}
	})
	until(t, "the new address is the target", targets(a, "10.63.0.1"))
	g.Expect(scenario.Delete(t.Context(), c, first)).To(Succeed())
	until(t, "the machine is no target any more", targets("10.63.0.1"))
	until(t, "the machine is gone", func() bool { return gone(t, c, first) })

	n := map[string]int{}
	for _, call := range proxy.Calls() {
		if call.Verb != "watch" && call.Status < http.StatusBadRequest && (call.Resource == "services" || call.Resource == "endpointslices") {
			n[call.Verb+" "+call.Resource]++
		}
	}
	t.Logf("calls for the load balancer: %v", n)
	g.Expect(n["create services"]).To(Equal(1))
	g.Expect(n["create endpointslices"]).To(Equal(1))
	g.Expect(n["patch endpointslices"]).To(BeNumerically("<=", 5), "one for each change, and one while the Service has no address")

	g.Expect(scenario.Delete(t.Context(), c, second)).To(Succeed())
	until(t, "the last machine is gone", func() bool { return gone(t, c, second) })
	g.Expect(scenario.Delete(t.Context(), c, cluster.Cluster())).To(Succeed())
	until(t, "the cluster is gone", func() bool { return gone(t, c, own) })
	g.Expect(infra.left(t, own.Spec.Creation.OwnershipID)).To(BeEmpty())
}

func gone(t testing.TB, c client.Client, o client.Object) bool {
	err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o)
	NewWithT(t).Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err != nil
}

// controlPlaneMachine creates a machine of the control plane, and returns it with the address and
// the name of its VM.
func controlPlaneMachine(t *testing.T, c client.Client, name string) (_ *clusterv1.Machine, address, vm string) {
	t.Helper()
	g := NewWithT(t)
	meta := metav1.ObjectMeta{Namespace: "team-b", Name: name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: "green", clusterv1.MachineControlPlaneLabel: ""}}
	made := &infrav1.DroverMachine{ObjectMeta: meta, Spec: infrav1.DroverMachineSpec{DroverMachineFields: *machine(nil)}}
	made.Spec.AccountRef = infrav1.LocalReference{Name: "green"}
	m := &clusterv1.Machine{ObjectMeta: meta, Spec: clusterv1.MachineSpec{
		ClusterName: "green", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name)},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine", Name: name},
	}}
	g.Expect(scenario.Create(t.Context(), c, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"value": []byte("#cloud-config\n")}},
		made, m)).To(Succeed())
	until(t, name+" has an address", func() bool {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(made), made)).To(Succeed())
		return len(made.Status.Addresses) > 0
	})
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	i := slices.IndexFunc(made.Status.Addresses, func(a clusterv1.MachineAddress) bool { return a.Type == clusterv1.MachineInternalIP })
	return m, made.Status.Addresses[i].Address, made.Spec.Creation.Token
}
