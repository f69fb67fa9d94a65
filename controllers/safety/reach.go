// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

// pausedByReachability is the value that this controller gives Cluster API's paused annotation. A
// pause by a user or by the overshoot controller has another value, and stays.
const pausedByReachability = "frozen-by-drover-in-outage"

const (
	// connectTimeout is how long a new process waits for its first connection before it treats a
	// missing connection as an outage. Cluster API retries connections every half minute.
	connectTimeout = 2 * time.Minute
	// nodeReportPeriods is how many periods the Nodes have to report after their API server answers
	// again. Nodes that have not reported by then are unhealthy for another reason.
	nodeReportPeriods = 5
	// maxNamed is how many Machines a message names.
	maxNamed = 5
)

// ReachabilityReconciler stops the replacement of machines while their health is unknown. If the
// API server of a workload cluster does not answer, it pauses the cluster's MachineHealthChecks,
// MachineDeployments and MachineSets. It also marks the DroverCluster, for which Drover then makes
// no VM. Deletions by users still go through. The controller reverts all this when the API server
// answers and the Nodes have reported to it, so that no Node is blamed for the outage.
//
// All state is in the objects themselves, so a restarted manager continues where it stopped.
type ReachabilityReconciler struct {
	Client       client.Client
	ClusterCache clustercache.ClusterCache
	Recorder     events.EventRecorder
	// Log gets one line for each freeze and its end.
	Log logr.Logger

	// Period is the time between two requests to a workload cluster. Timeout is how long it may
	// fail to answer.
	Period, Timeout  time.Duration
	Metrics          *Metrics
	WatchFilterValue string

	probeStates sync.Map // DroverCluster → *probeState
}

// probeState is what the controller keeps between two requests. It is lost with the process, which
// costs only time.
type probeState struct {
	begun time.Time
	// failing is when answers stopped, recovered when they resumed. Each is zero if it does not
	// apply.
	failing, recovered time.Time
	// answered: this process has had an answer.
	answered bool
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinehealthchecks,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinedeployments;machinesets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters/status,verbs=patch

// SetupWithManager registers the reconciler.
func (r *ReachabilityReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	if r.Timeout <= 0 || r.Period < r.Timeout {
		return fmt.Errorf("the reachability controller needs 0 < timeout <= period: %s, %s", r.Timeout, r.Period)
	}
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverCluster{}, builder.WithPredicates(specOrLabelsChanged)).
		WatchesRawSource(r.ClusterCache.GetClusterSource("reachability", ofCluster)).
		WithOptions(options).
		Named("reachability").
		Complete(conflict.Retried(r))
}

// specOrLabelsChanged filters out status changes, which this controller makes itself. It passes
// label changes, because the watch filter is a label.
var specOrLabelsChanged = predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})

// ofCluster returns a request for the DroverCluster of a Cluster.
func ofCluster(_ context.Context, o client.Object) []reconcile.Request {
	cluster, ok := o.(*clusterv1.Cluster)
	if !ok || cluster.Spec.InfrastructureRef.GroupKind() != infrav1.DroverClusterKind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Spec.InfrastructureRef.Name}}}
}

// Reconcile probes the API server of one workload cluster, and acts on the result.
func (r *ReachabilityReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	infra := &infrav1.DroverCluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, infra); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.forget(req)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !predicates.Watched(infra, r.WatchFilterValue) {
		r.forget(req)
		return reconcile.Result{}, nil
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, infra.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}
	if cluster == nil || !conditions.IsTrue(cluster, clusterv1.ClusterControlPlaneInitializedCondition) ||
		ptr.Deref(cluster.Spec.Paused, false) || annotations.HasPaused(infra) {
		return reconcile.Result{RequeueAfter: r.Period}, nil // no API server yet, or the cluster moves, or is paused
	}
	if annotations.IsExternallyManaged(infra) {
		r.forget(req)
		return reconcile.Result{RequeueAfter: r.Period}, r.handOver(ctx, infra, cluster)
	}
	known, _ := r.probeStates.LoadOrStore(req.NamespacedName, &probeState{begun: time.Now()})
	after, err := r.probe(ctx, infra, cluster, known.(*probeState))
	r.Metrics.reachable(infra, !conditions.IsFalse(infra, infrav1.ClusterReachableCondition))
	return reconcile.Result{RequeueAfter: wait.Jitter(after, .1)}, err
}

// handOver leaves a DroverCluster to the controller that manages it from now on. By Cluster API's
// contract, nothing is written to it. Only a freeze from before may be ours.
func (r *ReachabilityReconciler) handOver(ctx context.Context, infra *infrav1.DroverCluster, cluster *clusterv1.Cluster) error {
	if err := r.pause(ctx, cluster, false); err != nil {
		return fmt.Errorf("unfreezing Cluster %q: %w", cluster.Name, err)
	}
	if infra.Annotations[infrav1.UnreachableAnnotation] == "" {
		return nil
	}
	return r.mark(ctx, infra, "")
}

// forget drops the state of a DroverCluster that is gone, or that another controller handles.
func (r *ReachabilityReconciler) forget(req reconcile.Request) {
	r.probeStates.Delete(req.NamespacedName)
	r.Metrics.unreachable.DeleteLabelValues(req.Namespace, req.Name)
}

// probe probes the API server and acts on the result. It returns when to probe again.
func (r *ReachabilityReconciler) probe(ctx context.Context, infra *infrav1.DroverCluster, cluster *clusterv1.Cluster,
	c *probeState) (time.Duration, error) {
	if !cluster.DeletionTimestamp.IsZero() { // Cluster API deletes nothing that is paused
		return r.Period, r.pause(ctx, cluster, false)
	}
	shortly, begin := r.Period/6, time.Now()
	err := r.readNode(ctx, cluster)
	switch {
	case errors.Is(err, clustercache.ErrClusterNotConnected) && !c.answered && time.Since(c.begun) < connectTimeout:
		return shortly, nil
	case err != nil:
		c.recovered = time.Time{}
		if c.failing.IsZero() {
			c.failing = begin
		}
		marked := infra.Annotations[infrav1.UnreachableAnnotation] != ""
		if left := r.Timeout - time.Since(c.failing); left > 0 && !marked {
			return min(left, shortly), nil
		}
		if !marked {
			ctrl.LoggerFrom(ctx).Info("Froze the workload cluster, because its API server does not answer", "since", c.failing, "reason",
				err.Error())
		}
		return shortly, r.freeze(ctx, infra, cluster, c.failing)
	}
	if c.failing, c.answered = (time.Time{}), true; c.recovered.IsZero() {
		c.recovered = time.Now()
	}
	if conditions.IsTrue(infra, infrav1.ClusterReachableCondition) && infra.Annotations[infrav1.UnreachableAnnotation] == "" {
		return r.Period, r.pause(ctx, cluster, false) // objects that the cache did not yet show as frozen at the last unfreeze
	}
	// A DroverCluster whose condition is Unknown was never frozen, or comes from another management
	// cluster: a move does not copy the status.
	frozen := !conditions.IsUnknown(infra, infrav1.ClusterReachableCondition) || infra.Annotations[infrav1.UnreachableAnnotation] != ""
	if err := r.mark(ctx, infra, ""); err != nil { // VMs may be made again
		return 0, err
	}
	notReporting, err := r.nodesNotReporting(ctx, cluster)
	if err != nil {
		return 0, err
	}
	until := c.recovered.Add(nodeReportPeriods * r.Period)
	if frozen && len(notReporting) > 0 && time.Now().Before(until) {
		return shortly, r.setCondition(ctx, infra, metav1.ConditionFalse, infrav1.WaitingForNodesReason, fmt.Sprintf(
			"The API server answers; no machine is replaced until the Nodes of %d Machines have reported to it, or until %s: %s",
			len(notReporting), until.UTC().Format(time.RFC3339), enumerate(notReporting)))
	}
	return r.Period, r.unfreeze(ctx, infra, cluster)
}

// readNode reads a Node past every cache. An API server that has lost its storage can't answer,
// because it serves a list without a resource version only from etcd (Kubernetes API Concepts,
// "Resource versions").
func (r *ReachabilityReconciler) readNode(ctx context.Context, cluster *clusterv1.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	live, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(cluster))
	if err == nil {
		err = live.List(ctx, &corev1.NodeList{}, client.Limit(1))
	}
	if err != nil {
		return fmt.Errorf("reading from the API server of Cluster %q: %w", cluster.Name, err)
	}
	return nil
}

// nodesNotReporting returns the names of the Machines whose Nodes have unknown health. The Node's
// Ready is Unknown, or Cluster API has not read the Node since the outage, or a Machine has no
// Node.
func (r *ReachabilityReconciler) nodesNotReporting(ctx context.Context, cluster *clusterv1.Cluster) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	machines := &clusterv1.MachineList{}
	err = r.Client.List(ctx, machines, client.UnsafeDisableDeepCopy,
		client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
	if err != nil {
		return nil, fmt.Errorf("listing the Machines: %w", err)
	}
	reports := map[string]bool{} // by Node name
	live, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(cluster))
	if err == nil {
		err = eachItem(ctx, live, &corev1.NodeList{}, func(o runtime.Object) {
			node := o.(*corev1.Node)
			reports[node.Name] = slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status != corev1.ConditionUnknown
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("listing the Nodes of Cluster %q: %w", cluster.Name, err)
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		known := reports[m.Status.NodeRef.Name] && !conditions.IsUnknown(m, clusterv1.MachineNodeReadyCondition) &&
			!conditions.IsUnknown(m, clusterv1.MachineNodeHealthyCondition)
		if !known && m.DeletionTimestamp.IsZero() {
			names = append(names, m.Name)
		}
	}
	return names, nil
}

// enumerate returns the first few names, and how many more there are.
func enumerate(names []string) string {
	slices.Sort(names)
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// freeze sets the condition before it freezes anything. If it is interrupted, and the API server
// then answers, unfreeze reverts what was frozen so far. freeze marks the DroverCluster, and pauses
// what may replace machines. It runs again for the whole outage, so it continues after an
// interruption, and covers new objects.
func (r *ReachabilityReconciler) freeze(ctx context.Context, infra *infrav1.DroverCluster, cluster *clusterv1.Cluster,
	since time.Time) error {
	began := cmp.Or(infra.Annotations[infrav1.UnreachableAnnotation], since.UTC().Format(time.RFC3339))
	if err := r.setCondition(ctx, infra, metav1.ConditionFalse, infrav1.UnreachableReason, fmt.Sprintf(
		"The API server has not answered since %s, or can't read its storage: until it does, no VM is created and no machine is replaced; deletions by users continue",
		began)); err != nil {
		return err
	}
	if infra.Annotations[infrav1.UnreachableAnnotation] == "" {
		if err := r.mark(ctx, infra, began); err != nil {
			return err
		}
	}
	if err := r.pause(ctx, cluster, true); err != nil {
		return fmt.Errorf("freezing Cluster %q: %w", cluster.Name, err)
	}
	return nil
}

// unfreeze reverts freeze, except for the mark, which the first answer removes. It sets the
// condition last. As long as the condition is not True, the next reconcile continues an interrupted
// unfreeze, also for a cluster that has moved here from another management cluster.
func (r *ReachabilityReconciler) unfreeze(ctx context.Context, infra *infrav1.DroverCluster, cluster *clusterv1.Cluster) error {
	if err := r.pause(ctx, cluster, false); err != nil {
		return fmt.Errorf("unfreezing Cluster %q: %w", cluster.Name, err)
	}
	return r.setCondition(ctx, infra, metav1.ConditionTrue, infrav1.ReachableReason, "")
}

// pause sets or removes this controller's pause on everything in a cluster that may replace
// Drover's machines. It does not pause objects that are being deleted, checks that repair the
// control plane, which may be the cause of the outage, or pools of other providers.
func (r *ReachabilityReconciler) pause(ctx context.Context, cluster *clusterv1.Cluster, on bool) error {
	checks, deployments, sets := &clusterv1.MachineHealthCheckList{}, &clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}
	for _, list := range []client.ObjectList{checks, deployments, sets} {
		if err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace)); err != nil {
			return fmt.Errorf("listing %T: %w", list, err)
		}
	}
	var errs []error
	pauseOne := func(o client.Object, on bool) {
		errs = append(errs, r.pauseOne(ctx, o, on && o.GetDeletionTimestamp().IsZero()))
	}
	for i := range checks.Items {
		if c := &checks.Items[i]; c.Spec.ClusterName == cluster.Name && !ofControlPlane(c) {
			pauseOne(c, on)
		}
	}
	for i := range deployments.Items {
		if d := &deployments.Items[i]; d.Spec.ClusterName == cluster.Name {
			pauseOne(d, on && makesDroverMachines(d.Spec.Template))
		}
	}
	for i := range sets.Items {
		if s := &sets.Items[i]; s.Spec.ClusterName == cluster.Name {
			pauseOne(s, on && makesDroverMachines(s.Spec.Template))
		}
	}
	return errors.Join(errs...)
}

// ofControlPlane reports whether a MachineHealthCheck selects control plane machines.
func ofControlPlane(c *clusterv1.MachineHealthCheck) bool {
	if _, ok := c.Spec.Selector.MatchLabels[clusterv1.MachineControlPlaneLabel]; ok {
		return true
	}
	return slices.ContainsFunc(c.Spec.Selector.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Key == clusterv1.MachineControlPlaneLabel && e.Operator != metav1.LabelSelectorOpDoesNotExist
	})
}

func (r *ReachabilityReconciler) pauseOne(ctx context.Context, o client.Object, on bool) error {
	value, paused := o.GetAnnotations()[clusterv1.PausedAnnotation]
	if on == paused || (paused && value != pausedByReachability) {
		return nil
	}
	err := patchMetadata(ctx, r.Client, o, func() { annotate(o, clusterv1.PausedAnnotation, pausedByReachability, on) })
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("changing the pause of %T %q: %w", o, o.GetName(), err)
	}
	return nil
}

// annotate sets or removes an annotation.
func annotate(o client.Object, key, value string, on bool) {
	if on {
		annotations.AddAnnotations(o, map[string]string{key: value})
	} else {
		delete(o.GetAnnotations(), key)
	}
}

// mark sets the time since which the cluster is unreachable, or removes it if since is "".
func (r *ReachabilityReconciler) mark(ctx context.Context, infra *infrav1.DroverCluster, since string) error {
	err := patchMetadata(ctx, r.Client, infra, func() { annotate(infra, infrav1.UnreachableAnnotation, since, since != "") })
	if err != nil {
		return fmt.Errorf("marking DroverCluster %q: %w", infra.Name, err)
	}
	return nil
}

// setCondition sets the condition if it changes, and emits an Event if its reason changes.
func (r *ReachabilityReconciler) setCondition(ctx context.Context, infra *infrav1.DroverCluster, status metav1.ConditionStatus, reason,
	message string) error {
	known := !conditions.IsUnknown(infra, infrav1.ClusterReachableCondition)
	isSame := conditions.GetReason(infra, infrav1.ClusterReachableCondition) == reason
	if isSame && conditions.GetMessage(infra, infrav1.ClusterReachableCondition) == message {
		return nil
	}
	before := infra.DeepCopy()
	conditions.Set(infra, metav1.Condition{
		Type: infrav1.ClusterReachableCondition, Status: status, Reason: reason, Message: message, ObservedGeneration: infra.Generation,
	})
	// Others write the status too, so use an optimistic lock.
	if err := r.Client.Status().Patch(ctx, infra, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("setting the condition Reachable of Cluster %q to %s: %w", infra.Name, reason, err)
	}
	switch {
	case isSame:
	case status == metav1.ConditionFalse:
		r.Log.Info("Froze the cluster", record.Cluster, clusterKey(infra), record.Reason, reason, record.Message, message)
		r.Recorder.Eventf(infra, nil, corev1.EventTypeWarning, reason, "Freeze", "%s", message)
	case known:
		r.Log.Info("Unfroze the cluster", record.Cluster, clusterKey(infra), record.Reason, reason)
		r.Recorder.Eventf(infra, nil, corev1.EventTypeNormal, reason, "Unfreeze",
			"The API server answers, and the Nodes have reported: machines are created and replaced again")
	}
	return nil
}

// clusterKey returns the Cluster of a DroverCluster as the record gives it.
func clusterKey(infra *infrav1.DroverCluster) string {
	return record.Key(infra.Namespace, cmp.Or(infra.Labels[clusterv1.ClusterNameLabel], infra.Name))
}
