// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// newScheme returns a scheme with the kinds that this package uses in the management cluster.
func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// template returns a reference to a provider's kind in the API group that all infrastructure
// providers share.
func template(kind string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: kind, Name: "pool"}
}

// controlled returns an owner reference to a controller of the given kind.
func controlled(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: name, Controller: ptr.To(true)}}
}

// newPool returns a MachineDeployment with 3 desired replicas, its MachineSet, and the given number
// of Machines.
func newPool(templateKind, machineKind string, machines int) (*clusterv1.MachineDeployment, *clusterv1.MachineSet, []client.Object) {
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	d.Spec.ClusterName, d.Spec.Replicas = "blue", ptr.To[int32](3)
	d.Spec.Template.Spec.InfrastructureRef = template(templateKind)
	s := &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool-1", OwnerReferences: controlled(deployment, d.Name)}}
	s.Spec.ClusterName, s.Spec.Replicas = "blue", ptr.To[int32](3)
	s.Spec.Template.Spec.InfrastructureRef = template(templateKind)
	objects := []client.Object{d, s}
	for i := range machines {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("m", i),
			OwnerReferences: controlled(set, s.Name)}}
		m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: machineKind,
			Name: m.Name}
		objects = append(objects, m)
	}
	return d, s, objects
}

// TestOtherProvidersPools: pools of other providers, whose kinds are in the same API group, are
// never frozen.
func TestOtherProvidersPools(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, machine string
		frozen            bool
	}{
		{"DroverMachineTemplate", "DroverMachine", true},
		{"AWSMachineTemplate", "AWSMachine", false},
	} {
		d, s, objects := newPool(c.template, c.machine, 8)
		api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...).WithStatusSubresource(d, s).Build()
		r := &OvershootReconciler{
			Client: api, Accounts: fleet.NewAccounts(fleet.Options{}), Recorder: events.NewFakeRecorder(10),
			Period: time.Nanosecond, Up: 2, Down: 1, Metrics: NewMetrics(prometheus.NewRegistry()),
		}
		for range 2 {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "ns"}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, o := range []client.Object{d, s} {
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			if marked := len(o.GetLabels())+len(o.GetAnnotations()) > 0; marked != c.frozen {
				t.Errorf("%T of %s: labels %v, annotations %v", o, c.template, o.GetLabels(), o.GetAnnotations())
			}
		}
	}
}

// TestOtherProvidersPoolsInOutage: an outage of a workload cluster's API server pauses only
// Drover's pools. Pools that an earlier version has paused are unfrozen.
func TestOtherProvidersPoolsInOutage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, before, want string
	}{
		{"DroverMachineTemplate", "", pausedByReachability},
		{"DroverMachineTemplate", "mine", "mine"},
		{"AWSMachineTemplate", "", ""},
		{"AWSMachineTemplate", "mine", "mine"},
		{"AWSMachineTemplate", pausedByReachability, ""},
	} {
		d, s, objects := newPool(c.template, "", 0)
		if c.before != "" {
			d.Annotations = map[string]string{clusterv1.PausedAnnotation: c.before}
			s.Annotations = map[string]string{clusterv1.PausedAnnotation: c.before}
		}
		api := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...).Build()
		r := &ReachabilityReconciler{Client: api}
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blue"}}
		if err := r.pause(t.Context(), cluster, true); err != nil {
			t.Fatal(err)
		}
		for _, o := range []client.Object{d, s} {
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				t.Fatal(err)
			}
			if got := o.GetAnnotations()[clusterv1.PausedAnnotation]; got != c.want {
				t.Errorf("%T of %s with the pause %q: %q, want %q", o, c.template, c.before, got, c.want)
			}
		}
	}
}
