// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
)

// DroverMachineReconciler creates, observes and deletes the VMs of DroverMachines.
//
// A reconcile is a list of phases (see phases), one file each. The reconciler claims a machine (it
// writes the finalizer and the creation token before any call) only when everything that a create
// needs is available. So a token without a provider ID means that a create may have been sent, and
// a machine without a token has nothing in the cloud. The reconciler never connects to a workload
// cluster: NodeReconciler does, with workers of its own.
type DroverMachineReconciler struct {
	Client client.Client
	// APIReader bypasses the cache: before a create, and for Secrets, which are never cached.
	APIReader client.Reader
	Accounts  *fleet.Accounts
	Recorder  events.EventRecorder
	// Log gets one line for each thing that happens to a VM.
	Log logr.Logger
	// Identity is the prefix of each creation token: 8 hexadecimal digits that identify the
	// management cluster that made a VM.
	Identity string
	// Namespace is the namespace that this manager works in; empty for all.
	Namespace string
	// Changed enqueues the machines whose instance, account or Node changed.
	Changed *EventQueue
	// Nodes hands work on workload clusters over to NodeReconciler.
	Nodes            *NodeHandover
	WatchFilterValue string

	retries      retries
	attempts     createAttempts
	replacements replacements
	records      machineRecords
	startOnce    sync.Once
	started      time.Time // when this process first reconciled a machine
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droverclusters;droveraccounts,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *DroverMachineReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	kind := infrav1.GroupVersion.WithKind("DroverMachine")
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverMachine{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(util.MachineToInfrastructureMapFunc(kind)),
			builder.WithPredicates(onUpdate(machineInputsChanged))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusterToMachines(r.Client)),
			builder.WithPredicates(onUpdate(clusterInputsChanged))).
		Watches(&infrav1.DroverCluster{}, handler.EnqueueRequestsFromMapFunc(r.droverClusterToUncreated),
			builder.WithPredicates(onUpdate(droverClusterInputsChanged))).
		Watches(&infrav1.DroverAccount{}, handler.EnqueueRequestsFromMapFunc(r.accountToUncreated),
			builder.WithPredicates(onUpdate(accountGotWorse))).
		Watches(&infrav1.DroverMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineDeleted), builder.WithPredicates(onlyDeleted())).
		WatchesRawSource(r.Changed.Source()).
		WithOptions(options).
		Named("drovermachine").
		Complete(conflict.Retried(r))
}

// phase is one part of a reconcile. A result or an error ends the reconcile; otherwise the next
// phase runs. Phases change only the status of the scope's DroverMachine in memory. They write its
// spec and its finalizers themselves, because these must be recorded before the next call.
type phase func(context.Context, *machineScope) (*reconcile.Result, error)

// phases are the phases of a machine, in their order.
func (r *DroverMachineReconciler) phases() []phase {
	return []phase{
		r.pause,
		r.delete,       // until nothing is left in the cloud
		r.wait,         // until everything that a create needs is available
		r.claim,        // finalizer and token, before any call
		r.create,       // the VM, and its provider ID
		r.observe,      // what the account and NodeReconciler know of the VM
		r.interruption, // replace the Machine of a VM that the cloud is about to reclaim
	}
}

// done ends the reconcile.
func done(result reconcile.Result, err error) (*reconcile.Result, error) { return &result, err }

// Reconcile takes the next step of one machine, and then writes its status once.
func (r *DroverMachineReconciler) Reconcile(ctx context.Context, req reconcile.Request) (_ reconcile.Result, reterr error) {
	r.startOnce.Do(func() { r.started = time.Now() })
	s, err := readMachine(ctx, r.Client, r.Accounts, req.NamespacedName)
	if apierrors.IsNotFound(err) {
		r.forget(req.NamespacedName)
		return reconcile.Result{}, nil
	}
	if err != nil || !predicates.Watched(s.DroverMachine, r.WatchFilterValue) {
		return reconcile.Result{}, err
	}
	before := s.DeepCopy()
	defer func() { reterr = errors.Join(reterr, r.patch(ctx, before, s)) }()
	for _, phase := range r.phases() {
		if result, err := phase(ctx, s); result != nil || err != nil {
			return ptr.Deref(result, reconcile.Result{}), err
		}
	}
	return reconcile.Result{}, nil
}

// forget drops what this process remembers of a machine that no longer exists.
func (r *DroverMachineReconciler) forget(key client.ObjectKey) {
	r.retries.forget(key)
	r.attempts.forget(key)
	r.records.forget(key)
	r.Nodes.forget(key)
}

// patch writes the status if the phases changed it, and then acknowledges what it records.
func (r *DroverMachineReconciler) patch(ctx context.Context, before *infrav1.DroverMachine, s *machineScope) error {
	if equality.Semantic.DeepEqual(before.Status, s.Status) {
		s.acknowledge()
		return nil
	}
	if s.account != nil {
		s.Status.Cloud = s.account.Cloud().Name
	}
	setPaused(s.DroverMachine, s.cluster)
	setUnknown(s.DroverMachine, infrav1.NotCheckedReason, clusterv1.ReadyCondition, infrav1.MachineInstanceHealthyCondition)
	setUnknown(s.DroverMachine, infrav1.WaitingForNodeReason, infrav1.MachineNodeJoinedCondition)
	r.eventOnChange(before, s)
	if err := patchStatus(ctx, r.Client, before, s.DroverMachine); err != nil {
		return err
	}
	s.acknowledge()
	return nil
}

// maxEventNote is the maximum length of an Event's text, in bytes (k8s.io/api/events/v1).
const maxEventNote = 1024

// eventOnChange records one Event for each change that matters to users.
func (r *DroverMachineReconciler) eventOnChange(before *infrav1.DroverMachine, s *machineScope) {
	after := s.DroverMachine
	if problem := conditions.Get(after, infrav1.MachineNodeJoinedCondition); conditions.IsFalse(after, infrav1.MachineNodeJoinedCondition) &&
		problem.Reason != conditions.GetReason(before, infrav1.MachineNodeJoinedCondition) {
		r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, problem.Reason, "Link", "%s", cloud.Clip(problem.Message, maxEventNote))
	}
	r.recordChange(before, s)
}
