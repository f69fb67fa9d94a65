// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/naming"
	"github.com/drover-io/drover/internal/predicates"
)

// maxFailureDomains is the maximum that the API accepts. If there are more, the first by name
// count.
const maxFailureDomains = 100

// DroverClusterReconciler gives each cluster its ownership ID and reports the zones of its
// accounts. It makes no cloud calls.
type DroverClusterReconciler struct {
	Client    client.Client
	APIReader client.Reader
	// Identity is the prefix of each creation token, as of DroverMachines.
	Identity string
	// Unsent gets the tokens of load balancers that this process records. The EndpointReconciler
	// has the same.
	Unsent           *sync.Map
	WatchFilterValue string
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts;drovermachines;drovermachinetemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts/status,verbs=patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=kubeadmcontrolplanes,verbs=get
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *DroverClusterReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverCluster{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusterToDroverCluster),
			builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, onUpdate(adoptionChanged)))).
		Watches(&infrav1.DroverAccount{}, handler.EnqueueRequestsFromMapFunc(r.accountToClusters),
			builder.WithPredicates(onUpdate(accountReportChanged))).
		Watches(&infrav1.DroverMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineToDeletedClusters),
			builder.WithPredicates(onlyDeleted())).
		Watches(&infrav1.DroverMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineToCluster),
			builder.WithPredicates(ofControlPlane(), onlyCreated())).
		Watches(&infrav1.DroverMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.templateToClusters),
			builder.WithPredicates(onUpdate(templateReportChanged))).
		WithOptions(options).
		Named("drovercluster").
		Complete(conflict.Retried(r))
}

// Reconcile brings one cluster up to date.
func (r *DroverClusterReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	infra := &infrav1.DroverCluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, infra); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !predicates.Watched(infra, r.WatchFilterValue) {
		return reconcile.Result{}, nil
	}
	if annotations.IsExternallyManaged(infra) {
		// Another controller manages it. Only a finalizer from before the handover may be ours.
		return reconcile.Result{}, releaseCluster(ctx, r.Client, infra, infrav1.ClusterFinalizer)
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, infra.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}

	before, result := infra.DeepCopy(), reconcile.Result{}
	switch {
	case setPaused(infra, cluster):
	case !infra.DeletionTimestamp.IsZero():
		if released, err := r.reconcileDelete(ctx, infra); released || err != nil {
			return reconcile.Result{}, err
		}
	case cluster == nil:
		setNotReady(infra, infrav1.WaitingForOwnerReason, "Waiting for a Cluster to refer to this object in spec.infrastructureRef")
	default:
		if claimed, err := r.claim(ctx, infra, cluster); claimed || err != nil {
			return reconcile.Result{}, err // the write comes back as an event
		}
		if result, err = r.report(ctx, infra, cluster); err != nil {
			return reconcile.Result{}, err
		}
	}
	setUnknown(infra, infrav1.NotCheckedReason, infrav1.ClusterReachableCondition)
	return result, patchSharedStatus(ctx, r.Client, before, infra)
}

// claim completes the spec: ownership ID, load balancer token and finalizers before anything may be
// made for this cluster, and an endpoint of somebody else's as soon as the Cluster has it (Cluster
// API copies it there from any control plane). It reports whether it wrote.
func (r *DroverClusterReconciler) claim(ctx context.Context, infra *infrav1.DroverCluster, cluster *clusterv1.Cluster) (bool, error) {
	claimed := infra.DeepCopy()
	controllerutil.AddFinalizer(claimed, infrav1.ClusterFinalizer)
	if claimed.Spec.Creation.OwnershipID == "" {
		claimed.Spec.Creation.OwnershipID = newOwnershipID()
	}
	if claimed.Spec.Endpoint.HasLoadBalancer() {
		if claimed.Spec.Creation.LoadBalancerToken == "" {
			claimed.Spec.Creation.LoadBalancerToken = naming.NewToken(r.Identity)
			r.Unsent.Store(claimed.Spec.Creation.LoadBalancerToken, nil) // before the write, whose event asks for it
		}
		controllerutil.AddFinalizer(claimed, infrav1.EndpointFinalizer)
	} else if !claimed.Spec.Endpoint.IsSet() && !claimed.Spec.ControlPlaneEndpoint.IsValid() &&
		isUsableEndpoint(cluster.Spec.ControlPlaneEndpoint) {
		claimed.Spec.ControlPlaneEndpoint = cluster.Spec.ControlPlaneEndpoint
	}
	if equality.Semantic.DeepEqual(infra.Spec, claimed.Spec) && equality.Semantic.DeepEqual(infra.Finalizers, claimed.Finalizers) {
		return false, nil
	}
	// The lock prevents a stale cache from giving a second ownership ID to a cluster that has one.
	patch := client.MergeFromWithOptions(infra.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, claimed, patch); err != nil {
		return false, fmt.Errorf("writing the ownership ID: %w", err)
	}
	return true, nil
}

// isUsableEndpoint reports whether an endpoint of the Cluster, which validates it less strictly,
// would pass our own webhook. A refused write would leave the cluster without its ownership ID.
func isUsableEndpoint(endpoint clusterv1.APIEndpoint) bool {
	return endpoint.IsValid() && kubeconfig.IsHost(endpoint.Host)
}

// report sets the status: failure domains, provisioned, Ready.
func (r *DroverClusterReconciler) report(ctx context.Context, infra *infrav1.DroverCluster,
	cluster *clusterv1.Cluster) (result reconcile.Result, err error) {
	template, pending, err := r.controlPlaneTemplate(ctx, cluster)
	if err != nil {
		return result, err
	}
	accounts, err := r.accounts(ctx, infra, template)
	if err != nil {
		return result, err
	}
	provisioned := ptr.Deref(infra.Status.Initialization.Provisioned, false)
	if accounts.notConnected == "" && pending == "" {
		infra.Status.FailureDomains = accounts.domains
	}
	if pending != "" && !provisioned {
		result.RequeueAfter = jitter(controlPlaneRecheck) // control planes are not watched
	}
	// Until the zones are known, a control plane would place its first machines in any zone. Later,
	// an account with problems stops only its own machines.
	adoptionPending := isAdoptionPending(cluster)
	endpointPending := infra.Spec.Endpoint.IsSet() && !infra.Spec.ControlPlaneEndpoint.IsValid()
	if accounts.notConnected == "" && pending == "" && !adoptionPending && !endpointPending || provisioned {
		infra.Status.Initialization.Provisioned = ptr.To(true)
	}
	problem := cmp.Or(accounts.notConnected, accounts.notReady)
	switch {
	case adoptionPending && !provisioned:
		setNotReady(infra, infrav1.WaitingForAPIServerReason, fmt.Sprintf(
			"Waiting for AdoptedControlPlane %q to reach its API server", cluster.Spec.ControlPlaneRef.Name))
	case problem != "" && !conditions.IsTrue(infra, clusterv1.ReadyCondition):
		setNotReady(infra, infrav1.WaitingForAccountReason, problem)
	case endpointPending && !provisioned:
		setNotReady(infra, infrav1.WaitingForEndpointReason, "Waiting for spec.endpoint to have an address")
	case pending != "" && !provisioned:
		setNotReady(infra, infrav1.WaitingForControlPlaneReason, pending)
	default:
		// Once Ready is True, it stays True. While a cluster's infrastructure is not ready, Cluster
		// API's MachineHealthChecks remediate none of its machines, including those of working
		// accounts. A check that runs in that time does not run again when the infrastructure is
		// ready (v1.14.2, machinehealthcheck_targets.go, needsRemediation).
		setCondition(infra, clusterv1.ReadyCondition, metav1.ConditionTrue, infrav1.ReadyReason, problem)
	}
	return result, nil
}

// isAdoptionPending reports whether the cluster's API server is to be adopted and is not adopted
// yet. Cluster API connects to it as soon as the infrastructure is provisioned. If there is no
// kubeconfig by then, Cluster API retries only half a minute later (clustercache,
// ConnectionCreationRetryInterval) and sees no Node in the meantime.
func isAdoptionPending(cluster *clusterv1.Cluster) bool {
	return adoptedControlPlaneOf(cluster) != "" && !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false)
}

// reconcileDelete removes the finalizer once no machine needs the ownership ID for its deletion,
// and reports whether it did.
func (r *DroverClusterReconciler) reconcileDelete(ctx context.Context, infra *infrav1.DroverCluster) (bool, error) {
	var machines []infrav1.DroverMachine
	if name := infra.Labels[clusterv1.ClusterNameLabel]; name != "" {
		var err error
		if machines, err = machinesThatRemain(ctx, r.Client, r.APIReader,
			client.InNamespace(infra.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: name}); err != nil {
			return false, err
		}
	}
	if len(machines) == 0 {
		if err := r.recordFormerOwner(ctx, infra); err != nil {
			return false, err
		}
		return true, releaseCluster(ctx, r.Client, infra, infrav1.ClusterFinalizer)
	}
	setNotReady(infra, infrav1.InUseReason, fmt.Sprintf(
		"Waiting for %d DroverMachines to be deleted: they need the ownership ID of this object", len(machines)))
	return false, nil
}

// maxFormerOwners is how many deleted clusters an account remembers. The oldest are dropped first.
const maxFormerOwners = 100

// recordFormerOwner records the cluster's ownership ID on the accounts of its namespace before the
// cluster goes. The orphan collector needs the ID to know the owner of anything that is left in the
// cloud.
func (r *DroverClusterReconciler) recordFormerOwner(ctx context.Context, infra *infrav1.DroverCluster) error {
	if infra.Spec.Creation.OwnershipID == "" || !controllerutil.ContainsFinalizer(infra, infrav1.ClusterFinalizer) {
		return nil
	}
	accounts := &infrav1.DroverAccountList{}
	if err := r.Client.List(ctx, accounts, client.InNamespace(infra.Namespace)); err != nil {
		return fmt.Errorf("listing the DroverAccounts: %w", err)
	}
	for i := range accounts.Items {
		account := &accounts.Items[i]
		known := func(o infrav1.FormerOwner) bool { return o.OwnershipID == infra.Spec.Creation.OwnershipID }
		if !account.DeletionTimestamp.IsZero() || slices.ContainsFunc(account.Status.FormerOwners, known) {
			continue
		}
		before := account.DeepCopy()
		all := append(slices.Clone(account.Status.FormerOwners),
			infrav1.FormerOwner{OwnershipID: infra.Spec.Creation.OwnershipID, Cluster: infra.Name})
		account.Status.FormerOwners = all[max(len(all)-maxFormerOwners, 0):]
		if err := patchSharedStatus(ctx, r.Client, before, account); err != nil {
			return fmt.Errorf("recording the deleted cluster on DroverAccount %q: %w", account.Name, err)
		}
	}
	return nil
}

// releaseCluster removes a finalizer of ours, if it is present.
func releaseCluster(ctx context.Context, c client.Client, infra *infrav1.DroverCluster, finalizer string) error {
	before := infra.DeepCopy()
	if !controllerutil.RemoveFinalizer(infra, finalizer) {
		return nil
	}
	err := c.Patch(ctx, infra, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	return nil
}

func adoptionChanged(before, after *clusterv1.Cluster) bool {
	return isAdoptionPending(before) != isAdoptionPending(after)
}

func clusterToDroverCluster(_ context.Context, o client.Object) []reconcile.Request {
	cluster, ok := o.(*clusterv1.Cluster)
	if !ok {
		return nil
	}
	ref := cluster.Spec.InfrastructureRef
	if ref.GroupKind() != infrav1.DroverClusterKind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}}}
}

func (r *DroverClusterReconciler) accountToClusters(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requests(ctx, o.GetNamespace(), func(c *infrav1.DroverCluster) bool {
		return slices.Contains(c.Spec.AccountRefs, infrav1.LocalReference{Name: o.GetName()})
	})
}

func (r *DroverClusterReconciler) machineToDeletedClusters(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requests(ctx, o.GetNamespace(), func(c *infrav1.DroverCluster) bool {
		return !c.DeletionTimestamp.IsZero() && c.Labels[clusterv1.ClusterNameLabel] == o.GetLabels()[clusterv1.ClusterNameLabel]
	})
}

// requests returns the namespace's DroverClusters for which keep returns true.
func (r *DroverClusterReconciler) requests(ctx context.Context, namespace string,
	keep func(*infrav1.DroverCluster) bool) []reconcile.Request {
	return listRequests(ctx, r.Client, &infrav1.DroverClusterList{}, keep, client.InNamespace(namespace))
}

// accountReportChanged reports whether an account's failure domains or its Ready condition changed.
func accountReportChanged(before, after *infrav1.DroverAccount) bool {
	return !slices.Equal(before.Status.FailureDomains, after.Status.FailureDomains) ||
		!equality.Semantic.DeepEqual(conditions.Get(before, clusterv1.ReadyCondition), conditions.Get(after, clusterv1.ReadyCondition))
}

// newOwnershipID returns 130 random bits, in letters and digits that every cloud accepts in a tag.
func newOwnershipID() string {
	return strings.ToLower(rand.Text())
}
