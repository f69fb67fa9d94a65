// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
)

const (
	// ownerGrace is how long a new config may lack its Machine before the status says so. Cluster
	// API creates the config first and the Machine a moment later.
	ownerGrace = 10 * time.Second
	// recheck is when to check again for changes that no watch reports, such as to a Secret.
	recheck = 30 * time.Second
)

// ConfigReconciler creates the user data of each DroverConfig, and maintains its bootstrap token
// until the machine has joined.
//
// A machine costs three writes until its user data is ready (the Secret with the user data, the
// token in the workload cluster, the status) and one when it has joined (the token's deletion).
// The webhook sets the finalizer when the config is created. If it is missing, setting it costs
// one more write.
type ConfigReconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads past the cache. Secrets are read only with it, so no Secret stays in memory.
	APIReader client.Reader
	// ClusterCache connects to workload clusters.
	ClusterCache clustercache.ClusterCache
	// Recorder writes Events.
	Recorder events.EventRecorder
	// WatchFilterValue, if set, restricts the controller to objects whose label
	// cluster.x-k8s.io/watch-filter has this value.
	WatchFilterValue string
	// Host returns what the infrastructure provider requires for a machine. If it returns an API
	// server's NotFound, the controller waits. nil: no requirements.
	Host func(context.Context, *clusterv1.Machine) (Host, error)

	tokens    token.Memory
	clientCAs clientCAs
}

// Host is what the user data must match.
type Host struct {
	// ProviderID is the provider ID that the kubelet must register with, in the form that user data
	// can know before boot (render.Input.ProviderID), or "".
	ProviderID string
	// Takes returns an error with the sizes if the user data is too large for the cloud. nil: no
	// limit.
	Takes func(userData []byte) error
}

// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=droverconfigs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=droverconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=droverconfigs/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller.
func (r *ConfigReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("droverconfig").
		For(&bootstrapv1.DroverConfig{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(configOfMachine), builder.WithPredicates(machineChanged())).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.configsOfCluster), builder.WithPredicates(clusterChanged())).
		Watches(&clusterv1.Cluster{}, handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent,
			_ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			r.tokens.ForgetCluster(e.Object.GetUID())
			r.clientCAs.forget(e.Object.GetUID())
		}}).
		WatchesRawSource(r.ClusterCache.GetClusterSource("droverconfig", r.configsOfCluster)).
		WithOptions(options).
		Complete(conflict.Retried(r))
	if err != nil {
		return fmt.Errorf("setting up the controller of DroverConfig: %w", err)
	}
	return nil
}

// scope holds what one reconcile has read.
type scope struct {
	config  *bootstrapv1.DroverConfig
	cluster *clusterv1.Cluster // nil when gone
	machine *clusterv1.Machine // nil when the config has none
}

// joined reports whether the machine no longer needs its token.
func (s *scope) joined() bool { return s.machine != nil && s.machine.Status.NodeRef.IsDefined() }

// waiting is an outcome that is not an error. It becomes the Ready condition.
type waiting struct {
	reason, message string
	after           time.Duration // 0: a watch triggers the next reconcile
}

func (w *waiting) Error() string { return w.reason + ": " + w.message }

// Reconcile advances one DroverConfig.
func (r *ConfigReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &scope{config: &bootstrapv1.DroverConfig{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.config); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !r.isWatched(s.config) {
		return ctrl.Result{}, nil
	}
	if err := r.read(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	paused := r.paused(s)
	deleting := !s.config.DeletionTimestamp.IsZero()
	if s.machine == nil && !deleting && !paused && time.Since(s.config.CreationTimestamp.Time) < ownerGrace {
		return ctrl.Result{RequeueAfter: ownerGrace}, nil
	}
	if !paused && !deleting && s.machine != nil {
		if err := r.claim(ctx, s.config); err != nil {
			return ctrl.Result{}, err
		}
	}

	before := s.config.DeepCopy()
	var result ctrl.Result
	var err error
	switch {
	case paused:
	case deleting:
		result, err = r.delete(ctx, s)
		if err == nil && !controllerutil.ContainsFinalizer(s.config, bootstrapv1.ConfigFinalizer) {
			return result, nil
		}
	default:
		result, err = r.step(ctx, s)
	}
	result, err = r.conclude(s, paused, result, err)
	if equality.Semantic.DeepEqual(before.Status, s.config.Status) {
		return result, err
	}
	if patchErr := r.Client.Status().Patch(ctx, s.config, client.MergeFrom(before)); client.IgnoreNotFound(patchErr) != nil {
		return ctrl.Result{}, errors.Join(err, fmt.Errorf("writing the status: %w", patchErr))
	}
	return result, err
}

// isWatched reports whether this manager handles the config. Every manager handles a config that
// has no watch-filter label and is being deleted, because its finalizer may block the deletion.
func (r *ConfigReconciler) isWatched(config *bootstrapv1.DroverConfig) bool {
	_, labeled := config.Labels[clusterv1.WatchLabel]
	return predicates.Watched(config, r.WatchFilterValue) || (!labeled && !config.DeletionTimestamp.IsZero())
}

// read fetches the config's Machine and Cluster. It is no error if one of them is gone.
func (r *ConfigReconciler) read(ctx context.Context, s *scope) error {
	machine, err := util.GetOwnerMachine(ctx, r.Client, s.config.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the owner Machine: %w", err)
	}
	s.machine = machine

	name := s.config.Labels[clusterv1.ClusterNameLabel]
	if machine != nil {
		name = machine.Spec.ClusterName
	}
	if name == "" {
		return nil
	}
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.config.Namespace, Name: name}, cluster); err == nil {
		s.cluster = cluster
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the Cluster: %w", err)
	}
	return nil
}

// paused reports whether the config must not be changed. "clusterctl move" annotates the objects
// that it is about to delete in the source cluster. It pauses the Cluster first, but that change
// arrives by another watch, which may lag.
func (r *ConfigReconciler) paused(s *scope) bool {
	_, moved := s.config.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	return annotations.HasPaused(s.config) || (s.cluster != nil && ptr.Deref(s.cluster.Spec.Paused, false)) ||
		(moved && !s.config.DeletionTimestamp.IsZero())
}

// claim sets the finalizer before the controller creates anything that it guards.
func (r *ConfigReconciler) claim(ctx context.Context, config *bootstrapv1.DroverConfig) error {
	before := config.DeepCopy()
	if !controllerutil.AddFinalizer(config, bootstrapv1.ConfigFinalizer) {
		return nil
	}
	if err := r.Client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the finalizer: %w", err)
	}
	return nil
}

// step takes a config from new to joined. Each part is idempotent.
func (r *ConfigReconciler) step(ctx context.Context, s *scope) (ctrl.Result, error) {
	if err := ready(s); err != nil {
		return ctrl.Result{}, err
	}
	if s.joined() || !s.machine.DeletionTimestamp.IsZero() {
		return r.afterUse(ctx, s)
	}
	workload, err := r.workload(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	if joined, err := r.hasNode(ctx, s, workload); err != nil {
		return ctrl.Result{}, err
	} else if joined {
		return r.afterUse(ctx, s)
	}
	if err := r.ensureRights(ctx, s.config, s.cluster, workload); err != nil {
		return ctrl.Result{}, err
	}
	name, text, err := r.ensureData(ctx, s, workload)
	if err != nil {
		return ctrl.Result{}, err
	}
	refresh, err := r.ensureToken(ctx, s, workload, text)
	if errors.Is(err, token.ErrTaken) {
		return ctrl.Result{}, r.replaceData(ctx, s, workload)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.ensureFiles(ctx, s, workload, name); err != nil {
		return ctrl.Result{}, err
	}
	s.config.Status.DataSecretName = name
	s.config.Status.Initialization.DataSecretCreated = ptr.To(true)
	return ctrl.Result{RequeueAfter: refresh}, nil
}

// ready returns what the config waits for before anything can be created.
func ready(s *scope) error {
	switch {
	case s.machine == nil:
		return &waiting{reason: bootstrapv1.WaitingForOwnerReason, message: "Waiting for a Machine to own this config"}
	case util.IsControlPlaneMachine(s.machine):
		return &waiting{reason: bootstrapv1.InvalidSpecReason,
			message: "DroverConfig supports only worker Machines, but this Machine belongs to a control plane"}
	case s.cluster == nil:
		return &waiting{reason: bootstrapv1.WaitingForClusterReason,
			message: fmt.Sprintf("Waiting for Cluster %q to exist", s.machine.Spec.ClusterName)}
	case !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false):
		return &waiting{reason: bootstrapv1.WaitingForClusterReason, message: "Waiting for the Cluster's infrastructure to be provisioned"}
	case !ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false):
		return &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for the Cluster's control plane to be initialized"}
	case !s.cluster.Spec.ControlPlaneEndpoint.IsValid():
		return &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for the Cluster to get a control plane endpoint"}
	}
	return nil
}

// afterUse removes the token, which is no longer needed. If the status was lost, it is restored
// from the Machine.
func (r *ConfigReconciler) afterUse(ctx context.Context, s *scope) (ctrl.Result, error) {
	if name := ptr.Deref(s.machine.Spec.Bootstrap.DataSecretName, ""); name != "" && s.config.Status.DataSecretName == "" {
		s.config.Status.DataSecretName = name
		s.config.Status.Initialization.DataSecretCreated = ptr.To(true)
	}
	err := r.removeToken(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return ctrl.Result{RequeueAfter: recheck}, nil // the user data are ready anyway
	}
	return ctrl.Result{}, err
}

// delete removes the finalizer once the token is gone. A token is useful only for its time to live.
// If the workload cluster is unreachable for that long, or is itself being deleted, the config does
// not wait for the token's removal.
func (r *ConfigReconciler) delete(ctx context.Context, s *scope) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(s.config, bootstrapv1.ConfigFinalizer) {
		return ctrl.Result{}, nil
	}
	if s.cluster != nil {
		expiry := s.config.DeletionTimestamp.Add(ttl(s.config))
		err := r.removeToken(ctx, s)
		if err != nil && s.cluster.DeletionTimestamp.IsZero() && time.Now().Before(expiry) {
			return ctrl.Result{}, &waiting{
				reason: bootstrapv1.DeletingReason, after: min(recheck, time.Until(expiry)),
				message: "The bootstrap token can't be removed from the workload cluster; it expires by " +
					expiry.UTC().Format(time.RFC3339) + ", and then this config is removed",
			}
		}
	}
	before := s.config.DeepCopy()
	controllerutil.RemoveFinalizer(s.config, bootstrapv1.ConfigFinalizer)
	err := r.Client.Patch(ctx, s.config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		controllerutil.AddFinalizer(s.config, bootstrapv1.ConfigFinalizer)
		return ctrl.Result{}, fmt.Errorf("removing the finalizer: %w", err)
	}
	r.tokens.Forget(s.config.UID)
	return ctrl.Result{}, nil
}

// workload returns a client for the workload cluster that reads past its cache.
func (r *ConfigReconciler) workload(ctx context.Context, s *scope) (client.Client, error) {
	c, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(s.cluster))
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil, &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for a connection to the workload cluster",
			after: recheck}
	}
	return c, err
}

// conclude sets the conditions from the outcome, and returns when to requeue.
func (r *ConfigReconciler) conclude(s *scope, paused bool, result ctrl.Result, err error) (ctrl.Result, error) {
	set := func(kind, reason, message string, status metav1.ConditionStatus) {
		conditions.Set(s.config, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: s.config.Generation,
		})
	}
	if paused {
		set(clusterv1.PausedCondition, clusterv1.PausedReason, "The Cluster or this object is paused", metav1.ConditionTrue)
		return result, err
	}
	set(clusterv1.PausedCondition, clusterv1.NotPausedReason, "", metav1.ConditionFalse)

	var w *waiting
	done := ptr.Deref(s.config.Status.Initialization.DataSecretCreated, false)
	switch {
	case errors.As(err, &w) && done && (w.reason == bootstrapv1.WaitingForControlPlaneReason ||
		w.reason == bootstrapv1.WaitingForClusterReason):
		// The user data are ready. A temporary loss of the cluster does not change that.
		return ctrl.Result{RequeueAfter: w.after}, nil
	case errors.As(err, &w):
		set(clusterv1.ReadyCondition, w.reason, w.message, metav1.ConditionFalse)
		return ctrl.Result{RequeueAfter: w.after}, nil
	case apierrors.IsConflict(err): // another writer was first, which is no failure
		return ctrl.Result{}, err
	case err != nil:
		if !done {
			set(clusterv1.ReadyCondition, bootstrapv1.InternalErrorReason, "An internal error occurred and will be retried; see the manager's log",
				metav1.ConditionFalse)
		}
		return ctrl.Result{}, err
	case done:
		set(clusterv1.ReadyCondition, bootstrapv1.ReadyReason, "", metav1.ConditionTrue)
	}
	return result, nil
}

// configsOfCluster maps a Cluster to the configs that belong to it.
func (r *ConfigReconciler) configsOfCluster(ctx context.Context, o client.Object) []ctrl.Request {
	list := &bootstrapv1.DroverConfigList{}
	err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetName()})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the DroverConfigs of a Cluster failed")
		return nil
	}
	var out []ctrl.Request
	for i := range list.Items {
		out = append(out, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

func configOfMachine(_ context.Context, o client.Object) []ctrl.Request {
	machine, ok := o.(*clusterv1.Machine)
	if !ok {
		return nil
	}
	ref := machine.Spec.Bootstrap.ConfigRef
	if ref.Kind != "DroverConfig" || ref.APIGroup != bootstrapv1.GroupVersion.Group {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}}}
}

// machineChanged passes updates that matter to the token: the machine joins, or its deletion
// begins.
func machineChanged() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			a, aOK := e.ObjectOld.(*clusterv1.Machine)
			b, bOK := e.ObjectNew.(*clusterv1.Machine)
			return !aOK || !bOK || a.Status.NodeRef != b.Status.NodeRef ||
				a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero()
		},
	}
}

// clusterChanged passes changes that a config waits for.
func clusterChanged() predicate.Predicate {
	relevant := func(c *clusterv1.Cluster) [5]any {
		return [5]any{
			ptr.Deref(c.Spec.Paused, false), c.Spec.ControlPlaneEndpoint, c.DeletionTimestamp.IsZero(),
			ptr.Deref(c.Status.Initialization.InfrastructureProvisioned, false),
			ptr.Deref(c.Status.Initialization.ControlPlaneInitialized, false),
		}
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		a, aOK := e.ObjectOld.(*clusterv1.Cluster)
		b, bOK := e.ObjectNew.(*clusterv1.Cluster)
		return !aOK || !bOK || relevant(a) != relevant(b)
	}}
}
