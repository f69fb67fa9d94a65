// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	"github.com/drover-io/drover/bootstrap/token"
)

const (
	// ownerGrace is how long a new config may be without its Machine before that is worth a write:
	// Cluster API makes the config first, and the Machine a moment later.
	ownerGrace = 10 * time.Second
	// recheck is how soon something is looked at again that no watch tells of, such as a Secret.
	recheck = 30 * time.Second
)

// ConfigReconciler makes each CloudInitConfig's user data and keeps its bootstrap token, until the
// machine has joined.
//
// A machine costs three writes until its user data is there (the Secret with the user data, the
// token in the workload cluster, the status) and one when it has joined (the token's deletion). The
// finalizer is set by ConfigWebhook while the config is created; where it is missing, it costs one
// more.
type ConfigReconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads past the cache. Secrets are only read with it: no Secret is held in memory.
	APIReader client.Reader
	// ClusterCache connects to workload clusters.
	ClusterCache clustercache.ClusterCache
	// Recorder writes Events.
	Recorder events.EventRecorder
	// WatchFilterValue, where set, leaves alone all objects without the label
	// cluster.x-k8s.io/watch-filter of this value.
	WatchFilterValue string
	// Host tells what the infrastructure provider says of a machine. An API server's NotFound is
	// waited for. nil: it says nothing.
	Host func(context.Context, *clusterv1.Machine) (Host, error)

	tokens token.Memory
}

// Host is what user data must go by.
type Host struct {
	// ProviderID is what the kubelet is to register with, as user data can know it before boot
	// (render.Input.ProviderID), or "".
	ProviderID string
	// Takes is an error, with the numbers, where the cloud does not take user data as large as
	// these. nil: it takes all.
	Takes func(userData []byte) error
}

// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=cloudinitconfigs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=cloudinitconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=cloudinitconfigs/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller.
func (r *ConfigReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("cloudinitconfig").
		For(&bootstrapv1.CloudInitConfig{}, builder.WithPredicates(beyondStatus())).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(configOfMachine), builder.WithPredicates(machineMoved())).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.configsOfCluster), builder.WithPredicates(clusterMoved())).
		Watches(&clusterv1.Cluster{}, handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			r.tokens.ForgetCluster(e.Object.GetUID())
		}}).
		WatchesRawSource(r.ClusterCache.GetClusterSource("cloudinitconfig", r.configsOfCluster)).
		WithOptions(options).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up the controller of CloudInitConfig: %w", err)
	}
	return nil
}

// scope holds what one reconcile has read.
type scope struct {
	config  *bootstrapv1.CloudInitConfig
	cluster *clusterv1.Cluster // nil when gone
	machine *clusterv1.Machine // nil when the config has none
}

// joined tells whether the machine has no more use for its token.
func (s *scope) joined() bool { return s.machine != nil && s.machine.Status.NodeRef.IsDefined() }

// waiting is an outcome that is not an error: it becomes the Ready condition.
type waiting struct {
	reason, message string
	after           time.Duration // 0: a watch will tell
}

func (w *waiting) Error() string { return w.reason + ": " + w.message }

// Reconcile moves one CloudInitConfig on.
func (r *ConfigReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &scope{config: &bootstrapv1.CloudInitConfig{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.config); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !r.watches(s.config) {
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

// watches tells whether the config is this manager's. One under deletion that nobody's label is on
// is anyone's: it may have the finalizer and could not go.
func (r *ConfigReconciler) watches(config *bootstrapv1.CloudInitConfig) bool {
	label, ok := config.Labels[clusterv1.WatchLabel]
	return r.WatchFilterValue == "" || label == r.WatchFilterValue || (!ok && !config.DeletionTimestamp.IsZero())
}

// read fetches what the config hangs on. That one of them is gone is not an error.
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

// paused tells whether nothing may be done. "clusterctl move" marks what it is about to delete at
// the old place; it pauses the Cluster before, but that comes by another watch, which may be
// behind.
func (r *ConfigReconciler) paused(s *scope) bool {
	_, moved := s.config.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	return annotations.HasPaused(s.config) || (s.cluster != nil && ptr.Deref(s.cluster.Spec.Paused, false)) ||
		(moved && !s.config.DeletionTimestamp.IsZero())
}

// claim sets the finalizer before anything is made that it guards.
func (r *ConfigReconciler) claim(ctx context.Context, config *bootstrapv1.CloudInitConfig) error {
	before := config.DeepCopy()
	if !controllerutil.AddFinalizer(config, bootstrapv1.ConfigFinalizer) {
		return nil
	}
	if err := r.Client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the finalizer: %w", err)
	}
	return nil
}

// step is the way of a config from new to joined. Each part finds its own work done when it is
// repeated.
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
	name, text, err := r.ensureData(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	refresh, err := r.ensureToken(ctx, s, workload, text)
	if errors.Is(err, token.ErrTaken) {
		return ctrl.Result{}, r.replaceData(ctx, s)
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

// ready tells what the config waits for before anything can be made.
func ready(s *scope) error {
	switch {
	case s.machine == nil:
		return &waiting{reason: bootstrapv1.WaitingForOwnerReason, message: "Waiting for a Machine to own this config"}
	case util.IsControlPlaneMachine(s.machine):
		return &waiting{reason: bootstrapv1.InvalidSpecReason, message: "A CloudInitConfig makes workers; this Machine belongs to a control plane"}
	case s.cluster == nil:
		return &waiting{reason: bootstrapv1.WaitingForClusterReason, message: fmt.Sprintf("Waiting for the Cluster %q to be there", s.machine.Spec.ClusterName)}
	case !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false):
		return &waiting{reason: bootstrapv1.WaitingForClusterReason, message: "Waiting for the Cluster's infrastructure to be provisioned"}
	case !ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false):
		return &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for the Cluster's control plane to be initialized"}
	case !s.cluster.Spec.ControlPlaneEndpoint.IsValid():
		return &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for the Cluster's control plane endpoint"}
	}
	return nil
}

// afterUse removes the token, which has no more use. Where the status was lost, it is found again
// from the Machine.
func (r *ConfigReconciler) afterUse(ctx context.Context, s *scope) (ctrl.Result, error) {
	if name := ptr.Deref(s.machine.Spec.Bootstrap.DataSecretName, ""); name != "" && s.config.Status.DataSecretName == "" {
		s.config.Status.DataSecretName = name
		s.config.Status.Initialization.DataSecretCreated = ptr.To(true)
	}
	err := r.removeToken(ctx, s)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return ctrl.Result{RequeueAfter: recheck}, nil // the data are there all the same
	}
	return ctrl.Result{}, err
}

// delete lets a config go once its token is gone. The token is worth no more than its time to live:
// where the workload cluster can't be reached any more, or is itself being deleted, the config is
// not held for it.
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
					expiry.UTC().Format(time.RFC3339) + ", and then this config goes",
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

// workload returns a client of the workload cluster that reads past its cache.
func (r *ConfigReconciler) workload(ctx context.Context, s *scope) (client.Client, error) {
	c, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(s.cluster))
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil, &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for a connection to the workload cluster", after: recheck}
	}
	return c, err
}

// conclude writes the outcome into the conditions, and tells the queue what to do.
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
	case errors.As(err, &w) && done && (w.reason == bootstrapv1.WaitingForControlPlaneReason || w.reason == bootstrapv1.WaitingForClusterReason):
		// The user data are there: that the cluster is away for a while takes nothing back.
		return ctrl.Result{RequeueAfter: w.after}, nil
	case errors.As(err, &w):
		set(clusterv1.ReadyCondition, w.reason, w.message, metav1.ConditionFalse)
		return ctrl.Result{RequeueAfter: w.after}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		if !done {
			set(clusterv1.ReadyCondition, bootstrapv1.InternalErrorReason, "Trying again; the manager's log says more", metav1.ConditionFalse)
		}
		return ctrl.Result{}, err
	case done:
		set(clusterv1.ReadyCondition, bootstrapv1.ReadyReason, "", metav1.ConditionTrue)
	}
	return result, nil
}

// configsOfCluster maps a Cluster to the configs that belong to it.
func (r *ConfigReconciler) configsOfCluster(ctx context.Context, o client.Object) []ctrl.Request {
	list := &bootstrapv1.CloudInitConfigList{}
	err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetName()})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing the CloudInitConfigs of a Cluster")
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
	if ref.Kind != "CloudInitConfig" || ref.APIGroup != bootstrapv1.GroupVersion.Group {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}}}
}

// beyondStatus lets through what someone else changed: this controller's own status is no news to
// it.
func beyondStatus() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		a, b := e.ObjectOld, e.ObjectNew
		return a.GetGeneration() != b.GetGeneration() ||
			a.GetDeletionTimestamp().IsZero() != b.GetDeletionTimestamp().IsZero() ||
			!maps.Equal(a.GetLabels(), b.GetLabels()) ||
			!maps.Equal(a.GetAnnotations(), b.GetAnnotations()) ||
			!equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences()) ||
			!slices.Equal(a.GetFinalizers(), b.GetFinalizers())
	}}
}

// machineMoved lets through what matters to the token: that the machine joined, or is on its way
// out.
func machineMoved() predicate.Predicate {
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

// clusterMoved lets through what a config waits for.
func clusterMoved() predicate.Predicate {
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
