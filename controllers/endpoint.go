// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
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
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

// defaultPort is the port of an API server whose endpoint names none: kubeadm's.
const defaultPort = 6443

// EndpointReconciler creates the load balancers of clusters whose DroverCluster asks for one, keeps
// the machines of the control plane as its targets, and deletes it when the last machine is gone.
// For those that ask for a virtual IP address, it reserves one.
type EndpointReconciler struct {
	Client    client.Client
	APIReader client.Reader
	Accounts  *fleet.Accounts
	Recorder  events.EventRecorder
	// Log gets one line for each step in the life of a load balancer, and for each hook that is set or
	// removed.
	Log logr.Logger
	// Namespace is the namespace that this manager works in; empty for all.
	Namespace string
	// Changed enqueues the clusters whose load balancer or account changed.
	Changed *EventQueue
	// Unsent holds the tokens that this process has recorded, until it asks a cloud for the load
	// balancer. For any other token, a create may have been sent before.
	Unsent           *sync.Map
	WatchFilterValue string

	retries retries
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddresses,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *EndpointReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverCluster{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusterToDroverCluster),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})). // a deletion changes it, too
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.toCluster),
			builder.WithPredicates(ofControlPlane(), predicate.Or[client.Object](onUpdate(targetMachineChanged), onlyDeleted()))).
		Watches(&infrav1.DroverMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineToCluster),
											builder.WithPredicates(predicate.Or[client.Object](onUpdate(targetChanged), onlyDeleted()))).
		Watches(&ipamv1.IPAddressClaim{}, &handler.EnqueueRequestForObject{}). // it has the DroverCluster's name, whoever made it
		Watches(&infrav1.DroverCluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterDeleted), builder.WithPredicates(onlyDeleted())).
		WatchesRawSource(r.Changed.Source()).
		WithOptions(options).
		Named("endpoint").
		Complete(conflict.Retried(r))
}

// endpointScope is what one reconcile of an endpoint has read.
type endpointScope struct {
	*infrav1.DroverCluster
	cluster *clusterv1.Cluster // nil if it does not exist
	account *fleet.Account     // nil while the DroverAccount is missing or refused
}

func (s *endpointScope) reference() cloud.Reference {
	return cloud.Reference{
		Token: s.Spec.Creation.LoadBalancerToken, OwnershipID: s.Spec.Creation.OwnershipID, Balancer: s.isRecorded(),
	}
}

// isRecorded reports whether the load balancer is known to have been created, or the virtual IP to
// be reserved.
func (s *endpointScope) isRecorded() bool { return s.Spec.ControlPlaneEndpoint.IsValid() }

// says reports whether the status already has a reason.
func (s *endpointScope) says(reason string) bool {
	return conditions.GetReason(s.DroverCluster, infrav1.EndpointReadyCondition) == reason
}

// recordBalancer writes a line about the load balancer. address is "" while it has none.
func (r *EndpointReconciler) recordBalancer(s *endpointScope, what, address string, more ...any) {
	r.Log.Info(what, append([]any{
		record.Cluster, record.Key(s.Namespace, s.Labels[clusterv1.ClusterNameLabel]),
		record.Account, record.Key(s.Namespace, s.Spec.Endpoint.LoadBalancer.AccountRef.Name),
		record.Resource, address,
		record.Token, s.Spec.Creation.LoadBalancerToken,
	}, more...)...)
}

// Reconcile brings the endpoint of one cluster up to date.
func (r *EndpointReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	infra := &infrav1.DroverCluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, infra); apierrors.IsNotFound(err) {
		r.retries.forget(req.NamespacedName)
		return reconcile.Result{}, r.releaseMachines(ctx, req.NamespacedName)
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the DroverCluster: %w", err)
	}
	if !infra.Spec.Endpoint.IsSet() || !predicates.Watched(infra, r.WatchFilterValue) {
		return reconcile.Result{}, nil
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, infra.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}
	if isPaused(infra, cluster) {
		return reconcile.Result{}, nil
	}
	s, before := &endpointScope{DroverCluster: infra, cluster: cluster}, infra.DeepCopy()
	var result reconcile.Result
	switch {
	case annotations.IsExternallyManaged(infra):
		return reconcile.Result{}, r.handOver(ctx, infra)
	case infra.Spec.Endpoint.HasVirtualIP():
		err = r.reserve(ctx, s)
	default:
		result, err = r.reconcile(ctx, s)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return result, patchSharedStatus(ctx, r.Client, before, infra)
}

// reconcile brings the load balancer up to date, once the DroverCluster's controller has completed
// the spec. The hooks come first: no deletion of a Machine waits for a load balancer that this
// controller does not change.
func (r *EndpointReconciler) reconcile(ctx context.Context, s *endpointScope) (reconcile.Result, error) {
	machines, err := r.machines(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	isOurs := s.Spec.Creation.LoadBalancerToken != "" && controllerutil.ContainsFinalizer(s, infrav1.EndpointFinalizer)
	isLeaving := !s.DeletionTimestamp.IsZero() || s.cluster == nil || !s.cluster.DeletionTimestamp.IsZero()
	if isLeaving || !isOurs {
		// Nothing may reconcile a DroverCluster that is being deleted when its Machines are
		// deleted.
		all := !s.DeletionTimestamp.IsZero()
		if err := r.removeHooks(ctx, machines, func(t *target) bool { return all || t.isDeleted() }); err != nil {
			return reconcile.Result{}, err
		}
	}
	if !isOurs {
		return reconcile.Result{}, nil
	}
	s.account = r.Accounts.Get(client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.Endpoint.LoadBalancer.AccountRef.Name})
	if copied, err := r.isCopied(ctx, s); err != nil {
		return reconcile.Result{}, err
	} else if copied {
		result, err := r.removeExpiredHooks(ctx, machines)
		return minRequeue(result, reconcile.Result{RequeueAfter: jitter(deletionRecheck)}), err
	}
	if isLeaving {
		return r.delete(ctx, s)
	}
	if s.account == nil { // its return comes as an event
		if !s.isRecorded() { // later, the last known state stays
			setEndpoint(s, metav1.ConditionFalse, infrav1.WaitingForAccountReason,
				fmt.Sprintf("DroverAccount %q is missing or not permitted", s.Spec.Endpoint.LoadBalancer.AccountRef.Name))
		}
		return r.removeExpiredHooks(ctx, machines)
	}
	return r.ensure(ctx, s, machines)
}

// isCopied reports whether another DroverCluster has the load balancer's token, and if so says it.
func (r *EndpointReconciler) isCopied(ctx context.Context, s *endpointScope) (bool, error) {
	list := &infrav1.DroverClusterList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace),
		client.MatchingFields{clusterByToken: s.Spec.Creation.LoadBalancerToken}); err != nil {
		return false, fmt.Errorf("listing the DroverClusters with this load balancer's token: %w", err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != s.UID && claimsBalancer(other, s.DroverCluster) {
			setEndpoint(s, metav1.ConditionFalse, infrav1.DuplicateTokenReason, fmt.Sprintf(
				"DroverCluster %s has the same load balancer token: one of the two is a copy, and the load balancer is changed for neither; remove the finalizer %s of the copy, and delete it",
				client.ObjectKeyFromObject(other), infrav1.EndpointFinalizer))
			return true, nil
		}
	}
	return false, nil
}

// claimsBalancer reports whether a DroverCluster with the load balancer token of another one claims
// its load balancer, too. claimsVM says the same of machines.
func claimsBalancer(other, o *infrav1.DroverCluster) bool {
	return other.Namespace == o.Namespace ||
		controllerutil.ContainsFinalizer(other, infrav1.EndpointFinalizer) && other.Spec.Creation.OwnershipID == o.Spec.Creation.OwnershipID
}

// ensure makes the load balancer what it should be, and keeps the hooks of its targets.
func (r *EndpointReconciler) ensure(ctx context.Context, s *endpointScope, machines []target) (reconcile.Result, error) {
	current := s.account.Observe(s.reference(), s.isRecorded()).Balancer
	if s.isRecorded() && current == nil && anyUnknown(machines) { // a call would take all targets away
		result, err := r.removeExpiredHooks(ctx, machines)
		return minRequeue(result, reconcile.Result{RequeueAfter: jitter(deletionRecheck)}), err
	}
	addresses := chooseTargets(machines, current)
	if err := r.addHooks(ctx, machines, addresses); err != nil {
		return reconcile.Result{}, err
	}
	_, unsent := r.Unsent.LoadAndDelete(s.Spec.Creation.LoadBalancerToken)
	if unsent {
		r.recordBalancer(s, "Creating the load balancer", "")
	} else if !s.isRecorded() && (current == nil || current.State == cloud.StateFailed) {
		// A driver may replace a load balancer that failed, as long as its address is recorded nowhere.
		live := &infrav1.DroverCluster{}
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s), live); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if live.Spec.ControlPlaneEndpoint.IsValid() {
			return reconcile.Result{}, nil // the cache lags behind: the record comes as an event
		}
	}
	// A create in progress continues when the manager is asked to stop, to get its answer.
	balancer, err := s.account.EnsureBalancer(context.WithoutCancel(ctx), cloud.BalancerRequest{
		Token: s.Spec.Creation.LoadBalancerToken, OwnershipID: s.Spec.Creation.OwnershipID, Recorded: s.isRecorded(), MaybeSent: !unsent,
		Namespace: s.Namespace, Name: s.Name, Port: cmp.Or(s.Spec.Endpoint.LoadBalancer.Port, defaultPort), Targets: addresses,
		Spec: &s.Spec.Endpoint.LoadBalancer.Cloud,
	})
	if s.isRecorded() && cloud.CodeOf(err) == cloud.NotFound {
		if !s.says(infrav1.LoadBalancerLostReason) {
			r.recordBalancer(s, "The load balancer is gone", s.Spec.ControlPlaneEndpoint.Host, record.By, record.Cloud)
		}
		setEndpoint(s, metav1.ConditionFalse, infrav1.LoadBalancerLostReason, fmt.Sprintf(
			"The load balancer at %s no longer exists. It is not created again, because machines and kubeconfigs have its address: create a new cluster", s.Spec.ControlPlaneEndpoint.Host))
		return r.requeueAfter(s, err), r.removeHooks(ctx, machines, (*target).isDeleted)
	}
	if err != nil {
		setEndpoint(s, metav1.ConditionFalse, endpointReason(err), err.Error())
		result, hookErr := r.removeExpiredHooks(ctx, machines)
		return minRequeue(result, r.requeueAfter(s, err)), hookErr
	}
	if s.isRecorded() || balancer.State == cloud.StateRunning { // until then, it may fail again
		r.retries.forget(client.ObjectKeyFromObject(s))
	}
	if !s.isRecorded() {
		if balancer.State == cloud.StateFailed {
			setEndpoint(s, metav1.ConditionFalse, infrav1.LoadBalancerFailedReason,
				"The cloud failed to create the load balancer, so its address is not recorded: "+balancer.Reason)
			result, err := r.removeExpiredHooks(ctx, machines)
			return minRequeue(result, reconcile.Result{RequeueAfter: jitter(deletionRecheck)}), err
		}
		if balancer.Balancer.Address == "" || balancer.State == cloud.StatePending {
			setEndpoint(s, metav1.ConditionFalse, infrav1.StartingReason, cmp.Or(balancer.Reason, "The load balancer is being created"))
			return r.removeExpiredHooks(ctx, machines) // the load balancer's progress comes as an event
		}
		b := balancer.Balancer
		err := r.record(ctx, s, clusterv1.APIEndpoint{Host: b.Address, Port: b.Port}, b.Zones) // it comes back as an event
		if err == nil {
			r.recordBalancer(s, "Recorded the load balancer", b.Address)
		}
		return reconcile.Result{}, err
	}
	if address := balancer.Balancer.Address; address != "" && address != s.Spec.ControlPlaneEndpoint.Host {
		setEndpoint(s, metav1.ConditionFalse, infrav1.LoadBalancerLostReason, fmt.Sprintf(
			"The load balancer has the address %s now, and machines and kubeconfigs have %s: give it that address again, or create a new cluster",
			address, s.Spec.ControlPlaneEndpoint.Host))
	} else {
		reportTargets(s, balancer.Balancer)
	}
	isLast := !slices.ContainsFunc(machines, func(t target) bool { return !t.isDeleted() }) // nothing would take over
	err = r.removeHooks(ctx, machines, func(t *target) bool {
		return t.isDeleted() && (isLast || !t.isUnknown && !isTarget(balancer.Balancer, t.address))
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.removeExpiredHooks(ctx, machines)
}

// record writes the endpoint and its zones into the spec, where Cluster API and a move find them.
func (r *EndpointReconciler) record(ctx context.Context, s *endpointScope, endpoint clusterv1.APIEndpoint, zones []string) error {
	recorded := s.DeepCopy()
	recorded.Spec.ControlPlaneEndpoint = endpoint
	recorded.Spec.Creation.LoadBalancerZones = zones
	if err := r.Client.Patch(ctx, recorded, client.MergeFromWithOptions(s.DeepCopy(), client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("recording the endpoint: %w", err)
	}
	return nil
}

// requeueAfter returns when to try again after an error of the cloud.
func (r *EndpointReconciler) requeueAfter(s *endpointScope, err error) reconcile.Result {
	after, _ := r.retries.after(client.ObjectKeyFromObject(s), err)
	return reconcile.Result{RequeueAfter: after}
}

// delete deletes the load balancer when no machine of the cluster is left.
func (r *EndpointReconciler) delete(ctx context.Context, s *endpointScope) (reconcile.Result, error) {
	if s.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // Cluster API deletes the machines first, and then this object
	}
	if s.Annotations[infrav1.AbandonAnnotation] == s.Name {
		r.Recorder.Eventf(s.DroverCluster, nil, corev1.EventTypeWarning, "Abandoned", "Delete",
			"The load balancer at %q (token %s) was abandoned by annotation: it may keep running and cost money until someone deletes it",
			s.Spec.ControlPlaneEndpoint.Host, s.Spec.Creation.LoadBalancerToken)
		r.recordBalancer(s, "Leaving the load balancer", s.Spec.ControlPlaneEndpoint.Host, record.By, record.Abandoned)
		r.forget(s.DroverCluster) // a deletion that waits must not go on
		return reconcile.Result{}, releaseCluster(ctx, r.Client, s.DroverCluster, infrav1.EndpointFinalizer)
	}
	left, err := machinesThatRemain(ctx, r.Client, r.APIReader,
		client.InNamespace(s.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.Labels[clusterv1.ClusterNameLabel]})
	if err != nil {
		return reconcile.Result{}, err
	}
	hint := fmt.Sprintf("to remove this object and leave the load balancer, annotate it with %s=%s", infrav1.AbandonAnnotation, s.Name)
	if n := len(left); n > 0 {
		setEndpoint(s, metav1.ConditionFalse, infrav1.InUseReason,
			fmt.Sprintf("Waiting for %d DroverMachines to be deleted before the load balancer", n))
		return reconcile.Result{}, nil
	}
	if s.account == nil { // its return comes as an event
		key := client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.Endpoint.LoadBalancer.AccountRef.Name}
		problem, err := missingAccount(ctx, r.Client, key)
		if err == nil && problem != "" {
			setEndpoint(s, metav1.ConditionFalse, infrav1.WaitingForAccountReason,
				fmt.Sprintf("The load balancer can't be deleted: %s; fix the account, or %s", problem, hint))
		}
		return reconcile.Result{RequeueAfter: jitter(deletionRecheck)}, err
	}
	deletion := s.account.DeleteBalancer(s.reference(), s.DeletionTimestamp.Time)
	switch {
	case deletion.Gone:
		r.forget(s.DroverCluster)
		if err := releaseCluster(ctx, r.Client, s.DroverCluster, infrav1.EndpointFinalizer); err != nil {
			return reconcile.Result{}, err
		}
		r.recordBalancer(s, "The load balancer is deleted", s.Spec.ControlPlaneEndpoint.Host, record.By, record.ClusterDeleted)
		return reconcile.Result{}, nil
	case deletion.Err != nil:
		setEndpoint(s, metav1.ConditionFalse, endpointReason(deletion.Err),
			fmt.Sprintf("Deleting the load balancer failed and will be retried: %v; %s", deletion.Err, hint))
	default:
		if !s.says(infrav1.DeletingReason) {
			r.recordBalancer(s, "Deleting the load balancer", s.Spec.ControlPlaneEndpoint.Host, record.By, record.ClusterDeleted)
		}
		setEndpoint(s, metav1.ConditionFalse, infrav1.DeletingReason, "Waiting for the cloud to delete the load balancer")
	}
	return reconcile.Result{RequeueAfter: jitter(deletionRecheck)}, nil
}

// clusterDeleted ends the account's interest in the load balancer of a deleted DroverCluster, which
// also ends when a user removes its finalizer. Another one with its token keeps it.
func (r *EndpointReconciler) clusterDeleted(ctx context.Context, o client.Object) []reconcile.Request {
	infra, ok := o.(*infrav1.DroverCluster)
	if !ok || !infra.Spec.Endpoint.HasLoadBalancer() || infra.Spec.Creation.LoadBalancerToken == "" ||
		!predicates.Watched(infra, r.WatchFilterValue) {
		return nil
	}
	copies := r.clusters(ctx, client.InNamespace(infra.Namespace),
		client.MatchingFields{clusterByToken: infra.Spec.Creation.LoadBalancerToken})
	if len(copies) == 0 {
		r.forget(infra)
	}
	return copies
}

// forget ends the account's interest in a load balancer.
func (r *EndpointReconciler) forget(infra *infrav1.DroverCluster) {
	account := r.Accounts.Get(client.ObjectKey{Namespace: infra.Namespace, Name: infra.Spec.Endpoint.LoadBalancer.AccountRef.Name})
	if account != nil {
		account.Forget(infra.Spec.Creation.LoadBalancerToken)
	}
}

// reportTargets sets EndpointReady for a load balancer that exists.
func reportTargets(s *endpointScope, b *cloud.BalancerState) {
	healthy := 0
	for _, t := range b.Targets {
		if t.Healthy {
			healthy++
		}
	}
	switch {
	case healthy > 0:
		setEndpoint(s, metav1.ConditionTrue, infrav1.ReadyReason, "")
	case len(b.Targets) > 0:
		setEndpoint(s, metav1.ConditionFalse, infrav1.NoTargetAnswersReason, fmt.Sprintf(
			"None of %d machines answers on port %d: see their consoles, and whether the network lets the load balancer reach them", len(b.Targets),
			b.Port))
	default:
		setEndpoint(s, metav1.ConditionFalse, infrav1.NoTargetsReason, "No machine of the control plane has an address yet")
	}
}

func setEndpoint(s *endpointScope, status metav1.ConditionStatus, reason, message string) {
	setCondition(s.DroverCluster, infrav1.EndpointReadyCondition, status, reason, message)
}

// endpointReason returns the reason for an error of the cloud.
func endpointReason(err error) string {
	if code := cloud.CodeOf(err); code != "" {
		return cloudReason(code)
	}
	return infrav1.QueuedReason
}

func minRequeue(a, b reconcile.Result) reconcile.Result {
	if a.RequeueAfter > 0 && (b.RequeueAfter == 0 || a.RequeueAfter < b.RequeueAfter) {
		return a
	}
	return b
}

// target is a machine of the control plane that can be a target.
type target struct {
	machine *clusterv1.Machine
	address string // "" if the VM has none yet
	// isUnknown is true if the VM may have an address that is not known: "clusterctl move" moves no
	// status. Any target may then be this machine.
	isUnknown bool
	// ready is true if the control plane's controller says that its API server works.
	ready bool
}

func (t *target) isDeleted() bool { return !t.machine.DeletionTimestamp.IsZero() }

func (t *target) mayBeTarget() bool { return t.address != "" || t.isUnknown }

// controlPlane returns the Machines of the control plane of a Cluster.
func (r *EndpointReconciler) controlPlane(ctx context.Context, namespace, cluster string) ([]clusterv1.Machine, error) {
	if cluster == "" {
		return nil, nil
	}
	machines := &clusterv1.MachineList{}
	err := r.Client.List(ctx, machines,
		client.InNamespace(namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster},
		client.HasLabels{clusterv1.MachineControlPlaneLabel})
	if err != nil {
		return nil, fmt.Errorf("listing the Machines of the control plane: %w", err)
	}
	return machines.Items, nil
}

// machines returns the machines of the control plane in the endpoint's account.
func (r *EndpointReconciler) machines(ctx context.Context, s *endpointScope) ([]target, error) {
	machines, err := r.controlPlane(ctx, s.Namespace, s.Labels[clusterv1.ClusterNameLabel])
	if err != nil {
		return nil, err
	}
	var all []target
	for i := range machines {
		t, m := target{machine: &machines[i], ready: isServing(&machines[i])}, &infrav1.DroverMachine{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: t.machine.Spec.InfrastructureRef.Name}, m)
		switch {
		case apierrors.IsNotFound(err):
			t.isUnknown = !t.isDeleted() // the cache may be behind
		case err != nil:
			return nil, fmt.Errorf("reading the DroverMachine of Machine %q: %w", t.machine.Name, err)
		case m.Spec.AccountRef == s.Spec.Endpoint.LoadBalancer.AccountRef:
			t.address = addressOf(m)
			t.isUnknown = t.address == "" && m.Spec.ProviderID != ""
		}
		all = append(all, t)
	}
	return all, nil
}

// addressOf returns the internal IP address of a VM that exists, or "".
func addressOf(m *infrav1.DroverMachine) string {
	if m.Spec.ProviderID == "" {
		return ""
	}
	for _, a := range m.Status.Addresses {
		if _, err := netip.ParseAddr(a.Address); err == nil && a.Type == clusterv1.MachineInternalIP {
			return a.Address
		}
	}
	return ""
}

// isServing reports whether the API server of a machine works: KubeadmControlPlane says so of its
// machines. Of others it is enough that they have a Node.
func isServing(m *clusterv1.Machine) bool {
	if conditions.Has(m, controlplanev1.KubeadmControlPlaneMachineAPIServerPodHealthyCondition) {
		return conditions.IsTrue(m, controlplanev1.KubeadmControlPlaneMachineAPIServerPodHealthyCondition)
	}
	owner := metav1.GetControllerOf(m)
	return m.Status.NodeRef.IsDefined() && (owner == nil || owner.Kind != "KubeadmControlPlane")
}

// chooseTargets returns the addresses that get connections, sorted. While no target answers, each
// machine is one. Once one answers, a new one must serve first: a client would otherwise meet a
// machine that only starts. A machine that is being deleted stays a target only while none of the
// others answers. A target whose health check fails stays one, because that is the load balancer's
// own business. While a machine's address is unknown, a target that is no known machine's stays
// one, too.
func chooseTargets(machines []target, current *cloud.Resource) []string {
	var b *cloud.BalancerState
	if current != nil {
		b = current.Balancer
	}
	isUnknown := anyUnknown(machines)
	var addresses []string
	answers := false
	if b != nil {
		for _, t := range b.Targets {
			at := slices.IndexFunc(machines, func(m target) bool { return m.address == t.Address })
			answers = answers || t.Healthy && (at < 0 && isUnknown || at >= 0 && !machines[at].isDeleted())
			if at < 0 && isUnknown {
				addresses = append(addresses, t.Address)
			}
		}
	}
	for i := range machines {
		m := &machines[i]
		isOne := isTarget(b, m.address)
		switch {
		case m.address == "":
		case m.isDeleted() && isOne && !answers, !m.isDeleted() && (isOne || m.ready || !answers):
			addresses = append(addresses, m.address)
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}

func anyUnknown(machines []target) bool {
	return slices.ContainsFunc(machines, func(t target) bool { return t.isUnknown })
}

// isTarget reports whether an address is a target.
func isTarget(b *cloud.BalancerState, address string) bool {
	return b != nil && slices.ContainsFunc(b.Targets, func(t cloud.BalancerTarget) bool { return t.Address == address })
}

// BalancersChanged enqueues the clusters with these tokens. fleet.Options.OnMachines calls it.
func (r *EndpointReconciler) BalancersChanged(ctx context.Context, namespace string, tokens []string) {
	for _, token := range tokens {
		r.Changed.Add(r.clusters(ctx, client.InNamespace(namespace), client.MatchingFields{clusterByToken: token})...)
	}
}

// machineToCluster returns nothing for a worker, which is no target, until its deletion, for which
// the load balancer's may wait. The Machine decides, because a DroverMachine that a user made may
// lack the label.
func (r *EndpointReconciler) machineToCluster(ctx context.Context, o client.Object) []reconcile.Request {
	owner, err := util.GetOwnerMachine(ctx, r.Client, metav1.ObjectMeta{Namespace: o.GetNamespace(), OwnerReferences: o.GetOwnerReferences()})
	if err == nil && owner != nil && !util.IsControlPlaneMachine(owner) && o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return r.toCluster(ctx, o)
}

func (r *EndpointReconciler) toCluster(ctx context.Context, o client.Object) []reconcile.Request {
	return r.clusters(ctx, client.InNamespace(o.GetNamespace()),
		client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetLabels()[clusterv1.ClusterNameLabel]})
}

// clusters returns the listed DroverClusters with a load balancer.
func (r *EndpointReconciler) clusters(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	hasLoadBalancer := func(c *infrav1.DroverCluster) bool { return c.Spec.Endpoint.HasLoadBalancer() }
	return listRequests(ctx, r.Client, &infrav1.DroverClusterList{}, hasLoadBalancer, options...)
}

// ofControlPlane passes objects of a control plane.
func ofControlPlane() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		_, ok := o.GetLabels()[clusterv1.MachineControlPlaneLabel]
		return ok
	})
}

// targetMachineChanged passes the changes of a Machine on which its being a target depends.
func targetMachineChanged(before, after *clusterv1.Machine) bool {
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || isServing(before) != isServing(after)
}

// targetChanged passes the changes of a DroverMachine on which its being a target depends.
func targetChanged(before, after *infrav1.DroverMachine) bool {
	return addressOf(before) != addressOf(after)
}
