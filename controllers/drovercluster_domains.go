// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kcpv1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/predicates"
)

// A DroverCluster reports the zones of its accounts as failure domains. KubeadmControlPlane spreads
// its machines over those for control planes, so these are only zones to which its template lets a
// machine go.

// controlPlaneRecheck is how soon a DroverCluster looks again for a control plane that is missing.
const controlPlaneRecheck = 10 * time.Second

// accountsReport is the combined state of a cluster's accounts.
type accountsReport struct {
	domains []clusterv1.FailureDomain
	// notConnected says which account is missing or not connected yet, notReady which one does not
	// work.
	notConnected, notReady string
}

// accounts reads the cluster's accounts. template is that of the control plane's machines; nil if
// it is unknown.
func (r *DroverClusterReconciler) accounts(ctx context.Context, infra *infrav1.DroverCluster,
	template *infrav1.DroverMachineTemplate) (accountsReport, error) {
	var report accountsReport
	var zones, controlPlane []string
	for _, ref := range infra.Spec.AccountRefs {
		account, err := readAccount(ctx, r.Client, client.ObjectKey{Namespace: infra.Namespace, Name: ref.Name})
		if err != nil {
			return report, err
		}
		if account == nil {
			report.notConnected = accountProblem(ref.Name, nil)
			continue
		}
		ready := conditions.Get(account, clusterv1.ReadyCondition)
		switch {
		case ready == nil:
			report.notConnected = accountProblem(ref.Name, account)
		case ready.Status != "True":
			report.notReady = accountProblem(ref.Name, account)
		}
		zones = append(zones, account.Status.FailureDomains...)
		behindEndpoint := !infra.Spec.Endpoint.HasLoadBalancer() || infra.Spec.Endpoint.LoadBalancer.AccountRef == ref
		if behindEndpoint && (template == nil || template.Spec.Template.Spec.AccountRef == ref) {
			controlPlane = append(controlPlane, account.Status.FailureDomains...)
		}
	}
	if served := infra.Spec.Creation.LoadBalancerZones; len(served) > 0 {
		controlPlane = intersection(controlPlane, served)
	}
	if template != nil && len(template.Status.FailureDomains) > 0 {
		controlPlane = intersection(controlPlane, template.Status.FailureDomains)
	}
	slices.Sort(zones)
	zones = slices.Compact(zones)
	for _, zone := range zones[:min(len(zones), maxFailureDomains)] {
		report.domains = append(report.domains, clusterv1.FailureDomain{Name: zone, ControlPlane: ptr.To(slices.Contains(controlPlane, zone))})
	}
	return report, nil
}

func intersection(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}

// controlPlaneTemplate returns the template of a KubeadmControlPlane's machines, or nil if the
// control plane is of another kind or has another provider's machines, or says what it waits for.
// It asks the API server, once in a while, rather than to watch all control planes: a manager may
// not read more than it needs, and runs also where this kind does not exist.
func (r *DroverClusterReconciler) controlPlaneTemplate(ctx context.Context,
	cluster *clusterv1.Cluster) (template *infrav1.DroverMachineTemplate, pending string, err error) {
	ref := cluster.Spec.ControlPlaneRef
	if ref.APIGroup != kcpv1.GroupVersion.Group || ref.Kind != "KubeadmControlPlane" {
		return nil, "", nil
	}
	plane := &unstructured.Unstructured{}
	plane.SetGroupVersionKind(kcpv1.GroupVersion.WithKind(ref.Kind))
	err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}, plane)
	switch {
	case apierrors.IsForbidden(err), meta.IsNoMatchError(err):
		return nil, "", nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("Waiting for KubeadmControlPlane %q to exist", ref.Name), nil
	case err != nil:
		return nil, "", fmt.Errorf("reading KubeadmControlPlane %q: %w", ref.Name, err)
	}
	// The path is in Cluster API's contract for control planes.
	of, _, _ := unstructured.NestedStringMap(plane.Object, "spec", "machineTemplate", "spec", "infrastructureRef")
	if of["apiGroup"] != infrav1.GroupVersion.Group || of["kind"] != "DroverMachineTemplate" {
		return nil, "", nil
	}
	template = &infrav1.DroverMachineTemplate{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: of["name"]}, template)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("Waiting for DroverMachineTemplate %q of the control plane to exist", of["name"]), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading DroverMachineTemplate %q: %w", of["name"], err)
	}
	if isUndescribed(template) && predicates.Watched(template, r.WatchFilterValue) {
		return nil, fmt.Sprintf("Waiting for the zones of DroverMachineTemplate %q of the control plane", of["name"]), nil
	}
	return template, "", nil
}

// isUndescribed reports whether the cloud has not answered yet which zones the template allows. A
// cloud that refuses to answer has. One that answers later, or too many calls, is asked again soon.
func isUndescribed(template *infrav1.DroverMachineTemplate) bool {
	switch conditions.GetReason(template, clusterv1.ReadyCondition) {
	case "", infrav1.WaitingForAccountReason, infrav1.QueuedReason:
		return true
	case infrav1.ThrottledReason, infrav1.CloudUnavailableReason:
		return len(template.Status.FailureDomains) == 0
	}
	return false
}

// machineToCluster returns the DroverCluster of a new machine of the control plane: its template
// may be another one than that of the machines before.
func (r *DroverClusterReconciler) machineToCluster(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[clusterv1.ClusterNameLabel]
	return r.requests(ctx, o.GetNamespace(), func(c *infrav1.DroverCluster) bool {
		return name != "" && c.Labels[clusterv1.ClusterNameLabel] == name
	})
}

// templateToClusters returns the DroverClusters that wait for the zones of a template, or whose
// control plane may have it as its new one.
func (r *DroverClusterReconciler) templateToClusters(ctx context.Context, o client.Object) []reconcile.Request {
	template, ok := o.(*infrav1.DroverMachineTemplate)
	if !ok {
		return nil
	}
	return r.requests(ctx, o.GetNamespace(), func(c *infrav1.DroverCluster) bool {
		return !ptr.Deref(c.Status.Initialization.Provisioned, false) || !isUndescribed(template) && template.DeletionTimestamp.IsZero() &&
			slices.Contains(c.Spec.AccountRefs, template.Spec.Template.Spec.AccountRef)
	})
}

func templateReportChanged(before, after *infrav1.DroverMachineTemplate) bool {
	return isUndescribed(before) != isUndescribed(after) || !slices.Equal(before.Status.FailureDomains, after.Status.FailureDomains)
}
