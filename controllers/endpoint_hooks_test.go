// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// clusterWithTarget returns a cluster with a load balancer, and a machine of its control plane that
// has the hook.
func clusterWithTarget() (*clusterv1.Cluster, *infrav1.DroverCluster, *clusterv1.Machine, *infrav1.DroverMachine) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "prod"}}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster",
		Name: "prod-1"}
	infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "prod-1", UID: "infra", Labels: map[string]string{clusterv1.ClusterNameLabel: "prod"},
		Finalizers:      []string{infrav1.ClusterFinalizer, infrav1.EndpointFinalizer},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: "prod"}},
	}}
	infra.Spec.Endpoint.LoadBalancer.AccountRef.Name, infra.Spec.Endpoint.LoadBalancer.Port = "main", 6443
	infra.Spec.Creation.LoadBalancerToken, infra.Spec.Creation.OwnershipID = testToken, "owner-1"
	infra.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "192.0.2.1", Port: 6443}
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "cp-1", Finalizers: []string{clusterv1.MachineFinalizer},
		Labels:      map[string]string{clusterv1.ClusterNameLabel: "prod", clusterv1.MachineControlPlaneLabel: ""},
		Annotations: map[string]string{infrav1.EndpointHook: ""},
	}}
	machine.Spec.InfrastructureRef.Name = "cp-1"
	vm := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "cp-1", Labels: machine.Labels,
		Finalizers: []string{infrav1.MachineFinalizer}}}
	vm.Spec.AccountRef.Name, vm.Spec.ProviderID = "main", "simulated:///sim-1a/i-1"
	vm.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}
	return cluster, infra, machine, vm
}

// TestMachinesAreReleased: a Machine that is deleted does not wait for ever for a load balancer
// that Drover does not change any more, whatever the reason is.
func TestMachinesAreReleased(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(g *WithT, api client.Client, infra *infrav1.DroverCluster)
		later bool // the Machine is kept for hookTimeout
	}{
		"abandoned": {end: func(g *WithT, api client.Client, infra *infrav1.DroverCluster) {
			infra.Annotations = map[string]string{infrav1.AbandonAnnotation: infra.Name}
			g.Expect(api.Update(t.Context(), infra)).To(Succeed())
			g.Expect(api.Delete(t.Context(), infra)).To(Succeed())
		}},
		"being deleted before its Cluster": {end: func(g *WithT, api client.Client, infra *infrav1.DroverCluster) {
			g.Expect(api.Delete(t.Context(), infra)).To(Succeed())
		}},
		"being deleted, without the finalizer": {end: func(g *WithT, api client.Client, infra *infrav1.DroverCluster) {
			controllerutil.RemoveFinalizer(infra, infrav1.EndpointFinalizer)
			g.Expect(api.Update(t.Context(), infra)).To(Succeed())
			g.Expect(api.Delete(t.Context(), infra)).To(Succeed())
		}},
		"gone": {end: func(g *WithT, api client.Client, infra *infrav1.DroverCluster) {
			infra.Finalizers = nil
			g.Expect(api.Update(t.Context(), infra)).To(Succeed())
			g.Expect(api.Delete(t.Context(), infra)).To(Succeed())
		}},
		"handed over": {end: func(g *WithT, api client.Client, infra *infrav1.DroverCluster) {
			infra.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "their-terraform"}
			g.Expect(api.Update(t.Context(), infra)).To(Succeed())
		}},
		"copied": {later: true, end: func(g *WithT, api client.Client, infra *infrav1.DroverCluster) {
			other := infra.DeepCopy()
			other.Name, other.UID, other.ResourceVersion = "copy", "copy", ""
			g.Expect(api.Create(t.Context(), other)).To(Succeed())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				cluster, infra, machine, vm := clusterWithTarget()
				api := newManagement(t, cluster, infra, machine, vm)
				r := &EndpointReconciler{Client: api, APIReader: api, Recorder: events.NewFakeRecorder(10), Changed: &EventQueue{},
					Accounts: fleet.NewAccounts(fleet.Options{})}
				request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(infra)}
				c.end(g, api, infra)
				_, err := r.Reconcile(t.Context(), request)
				g.Expect(err).NotTo(HaveOccurred())

				g.Expect(api.Delete(t.Context(), machine)).To(Succeed())
				if c.later {
					result, err := r.Reconcile(t.Context(), request)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
					g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
					g.Expect(machine.Annotations).To(HaveKey(infrav1.EndpointHook))
					time.Sleep(hookTimeout)
					_, err = r.Reconcile(t.Context(), request)
					g.Expect(err).NotTo(HaveOccurred())
				}
				g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
				g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.EndpointHook))
			})
		})
	}
}

// TestWorkersDoNotWakeTheEndpoint: the address of a worker concerns no load balancer. Its deletion
// does, because the load balancer is deleted last.
func TestWorkersDoNotWakeTheEndpoint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(machine *clusterv1.Machine, vm *infrav1.DroverMachine)
		want int
	}{
		"control plane": {func(*clusterv1.Machine, *infrav1.DroverMachine) {}, 1},
		"control plane, without the label of its DroverMachine": {func(_ *clusterv1.Machine, vm *infrav1.DroverMachine) {
			delete(vm.Labels, clusterv1.MachineControlPlaneLabel)
		}, 1},
		"worker": {func(m *clusterv1.Machine, _ *infrav1.DroverMachine) {
			delete(m.Labels, clusterv1.MachineControlPlaneLabel)
		}, 0},
		"worker that is deleted": {func(m *clusterv1.Machine, vm *infrav1.DroverMachine) {
			delete(m.Labels, clusterv1.MachineControlPlaneLabel)
			now := metav1.Now()
			vm.DeletionTimestamp = &now
		}, 1},
		"without an owner": {func(_ *clusterv1.Machine, vm *infrav1.DroverMachine) { vm.OwnerReferences = nil }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, infra, machine, vm := clusterWithTarget()
			vm.Labels = map[string]string{clusterv1.ClusterNameLabel: "prod", clusterv1.MachineControlPlaneLabel: ""}
			vm.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name}}
			c.edit(machine, vm)
			r := &EndpointReconciler{Client: newManagement(t, cluster, infra, machine)}
			NewWithT(t).Expect(r.machineToCluster(t.Context(), vm)).To(HaveLen(c.want))
		})
	}
}
