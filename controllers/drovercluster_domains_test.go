// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// zonedCluster returns a cluster with two accounts, whose KubeadmControlPlane has a template in the
// first one.
func zonedCluster() (
	*clusterv1.Cluster, *infrav1.DroverCluster, *unstructured.Unstructured, *infrav1.DroverMachineTemplate, []client.Object,
) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "prod"}}
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "controlplane.cluster.x-k8s.io",
		Kind: "KubeadmControlPlane", Name: "plane"}
	infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "prod", Finalizers: []string{infrav1.ClusterFinalizer},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: "prod"}},
	}}
	infra.Spec.Creation.OwnershipID = "owner-1"
	infra.Spec.AccountRefs = []infrav1.LocalReference{{Name: "main"}, {Name: "other"}}
	plane := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "plane"},
		"spec": map[string]any{"machineTemplate": map[string]any{"spec": map[string]any{"infrastructureRef": map[string]any{
			"apiGroup": infrav1.GroupVersion.Group, "kind": "DroverMachineTemplate", "name": "cp",
		}}}},
	}}
	plane.SetGroupVersionKind(schema.GroupVersionKind{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmControlPlane"})
	template := &infrav1.DroverMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "cp"}}
	template.Spec.Template.Spec.AccountRef.Name = "main"
	setReady(template)
	var accounts []client.Object
	for name, zones := range map[string][]string{"main": {"a", "b", "c"}, "other": {"x"}} {
		account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		account.Status.FailureDomains = zones
		setReady(account)
		accounts = append(accounts, account)
	}
	return cluster, infra, plane, template, accounts
}

// TestZonesOfAControlPlane: a control plane is offered only the zones to which its template lets a
// machine go.
func TestZonesOfAControlPlane(t *testing.T) {
	t.Parallel()
	type objects struct {
		cluster  *clusterv1.Cluster
		infra    *infrav1.DroverCluster
		plane    *unstructured.Unstructured
		template *infrav1.DroverMachineTemplate
	}
	for name, c := range map[string]struct {
		edit func(o objects)
		get  error // of the control plane
		want []string
	}{
		"one zone": {edit: func(o objects) { o.template.Status.FailureDomains = []string{"b"} }, want: []string{"b"}},
		"two zones": {edit: func(o objects) { o.template.Status.FailureDomains = []string{"a", "c"} },
			want: []string{"a", "c"}},
		"all zones of its account":      {edit: func(objects) {}, want: []string{"a", "b", "c"}},
		"a zone that the account lacks": {edit: func(o objects) { o.template.Status.FailureDomains = []string{"z"} }},
		"a template of another provider": {edit: func(o objects) {
			_ = unstructured.SetNestedField(o.plane.Object, "AWSMachineTemplate", "spec", "machineTemplate", "spec", "infrastructureRef", "kind")
		}, want: []string{"a", "b", "c", "x"}},
		"a load balancer in one zone": {edit: func(o objects) {
			o.infra.Spec.Creation.LoadBalancerZones = []string{"a", "b"}
			o.template.Status.FailureDomains = []string{"b", "c"}
		}, want: []string{"b"}},
		"a cloud that does not say the zones": {edit: func(o objects) {
			setNotReady(o.template, infrav1.UnauthorizedReason, "it may not be asked")
		}, want: []string{"a", "b", "c"}},
		"another control plane": {edit: func(o objects) { o.cluster.Spec.ControlPlaneRef.Kind = "OtherControlPlane" },
			want: []string{"a", "b", "c", "x"}},
		"a control plane that may not be read": {edit: func(objects) {},
			get: apierrors.NewForbidden(schema.GroupResource{Resource: "kubeadmcontrolplanes"}, "plane", nil), want: []string{"a", "b", "c", "x"}},
		"a kind that is not installed": {edit: func(objects) {}, get: &meta.NoKindMatchError{}, want: []string{"a", "b", "c", "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			cluster, infra, plane, template, accounts := zonedCluster()
			c.edit(objects{cluster, infra, plane, template})
			api := zonedManagement(t, c.get, append(accounts, cluster, infra, plane, template)...)
			g.Expect(reconcileCluster(t, api, infra).RequeueAfter).To(BeZero())
			g.Expect(infra.Status.FailureDomains).To(HaveLen(4), "workers may be in all zones")
			g.Expect(controlPlaneZones(infra)).To(Equal(c.want))
			g.Expect(infra.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		})
	}
}

// TestZonesThatAreNotKnown: the control plane makes no machine before its zones are known. Later,
// the last known ones stay.
func TestZonesThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]string{"no control plane": "plane", "no template": "cp", "a template that is new": "",
		"a cloud that answers later": infrav1.CloudUnavailableReason} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			cluster, infra, plane, template, accounts := zonedCluster()
			template.Status.FailureDomains = []string{"b"}
			switch missing {
			case "":
				template.Status = infrav1.DroverMachineTemplateStatus{}
			case infrav1.CloudUnavailableReason:
				template.Status = infrav1.DroverMachineTemplateStatus{}
				setNotReady(template, missing, "HTTP 503")
			}
			objects := append(slices.Clone(accounts), cluster, infra)
			for _, o := range []client.Object{plane, template} {
				if o.GetName() != missing {
					objects = append(objects, o)
				}
			}
			api := zonedManagement(t, nil, objects...)
			g.Expect(reconcileCluster(t, api, infra).RequeueAfter).To(BeNumerically(">", 0))
			g.Expect(infra.Status.FailureDomains).To(BeEmpty())
			g.Expect(infra.Status.Initialization.Provisioned).To(BeNil())
			g.Expect(conditions.GetReason(infra, clusterv1.ReadyCondition)).To(Equal(infrav1.WaitingForControlPlaneReason))

			infra.Status.Initialization.Provisioned = ptr.To(true)
			infra.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "b", ControlPlane: ptr.To(true)}}
			g.Expect(api.Status().Update(t.Context(), infra)).To(Succeed())
			g.Expect(reconcileCluster(t, api, infra).RequeueAfter).To(BeZero())
			g.Expect(controlPlaneZones(infra)).To(Equal([]string{"b"}))
			g.Expect(conditions.GetReason(infra, clusterv1.ReadyCondition)).To(Equal(infrav1.ReadyReason))
			r := &DroverClusterReconciler{Client: api}
			g.Expect(r.templateToClusters(t.Context(), template)).To(HaveLen(map[bool]int{false: 1}[isUndescribed(template)]),
				"it may be the control plane's new template")
			setReady(template)
			g.Expect(r.templateToClusters(t.Context(), template)).To(HaveLen(1))
			template.Spec.Template.Spec.AccountRef.Name = "another"
			g.Expect(r.templateToClusters(t.Context(), template)).To(BeEmpty())
		})
	}
}

// zonedManagement is a management cluster in which reading a control plane fails with get.
func zonedManagement(t *testing.T, get error, objects ...client.Object) client.Client {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(testScheme(t)).WithStatusSubresource(&infrav1.DroverCluster{}).WithObjects(objects...).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption) error {
			if _, ok := o.(*unstructured.Unstructured); ok && get != nil {
				return get
			}
			return c.Get(ctx, key, o, options...)
		}}).Build()
}

func reconcileCluster(t *testing.T, api client.Client, infra *infrav1.DroverCluster) reconcile.Result {
	t.Helper()
	r := &DroverClusterReconciler{Client: api, APIReader: api, Unsent: &sync.Map{}}
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(infra)})
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(infra), infra)).To(Succeed())
	return result
}

func controlPlaneZones(infra *infrav1.DroverCluster) (zones []string) {
	for _, domain := range infra.Status.FailureDomains {
		if ptr.Deref(domain.ControlPlane, false) {
			zones = append(zones, domain.Name)
		}
	}
	return zones
}
