// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/predicates"
)

// CloudMachineReconciler creates, observes and deletes the VMs of CloudMachines.
//
// The phases of a machine are wait, claim, ensure, record, observe and link. The reconciler claims
// a machine (it writes the finalizer and the creation token before any call) only when everything
// that a create needs is available. So a token without a provider ID means that a create may have
// been sent, and a machine without a token has nothing in the cloud.
type CloudMachineReconciler struct {
	Client client.Client
	// APIReader bypasses the cache: before a create, and for Secrets, which are never cached.
	APIReader    client.Reader
	ClusterCache clustercache.ClusterCache
	Accounts     *fleet.Accounts
	Recorder     events.EventRecorder
	// Identity is the prefix of each creation token: 8 hexadecimal digits that identify the
	// management cluster that made a VM.
	Identity string
	// Namespace is the namespace that this manager works in; empty for all.
	Namespace string
	// Changed enqueues the machines whose instance or account changed.
	Changed *EventQueue
	// LateAfter is how long a VM may run before NodeJoined says why it is not a ready Node.
	LateAfter time.Duration
	// Progress returns how far a machine without a Node has come, as a reason and the end of a
	// sentence about its VM. Both are empty if the bootstrap provider is unknown.
	Progress         func(context.Context, *clusterv1.Cluster, *clusterv1.Machine) (reason, message string, err error)
	WatchFilterValue string

	controller   controller.Controller
	retries      retries
	attempts     createAttempts
	consoles     consoles
	removals     nodeRemovals
	replacements replacements
	startOnce    sync.Once
	started      time.Time // when this process first reconciled a machine
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=cloudmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=cloudmachines/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=cloudclusters;cloudaccounts,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *CloudMachineReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	kind := infrav1.GroupVersion.WithKind("CloudMachine")
	c, err := builder.ControllerManagedBy(mgr).
		For(&infrav1.CloudMachine{}, builder.WithPredicates(predicate.Or(predicates.SpecOrMetadataChanged(), onUpdate(nodeLookupChanged)))).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(util.MachineToInfrastructureMapFunc(kind)),
			builder.WithPredicates(onUpdate(machineInputsChanged))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToMachines),
			builder.WithPredicates(onUpdate(clusterInputsChanged))).
		Watches(&infrav1.CloudCluster{}, handler.EnqueueRequestsFromMapFunc(r.cloudClusterToUncreated),
			builder.WithPredicates(onUpdate(cloudClusterInputsChanged))).
		Watches(&infrav1.CloudMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineDeleted), builder.WithPredicates(onlyDeleted())).
		WatchesRawSource(r.Changed.Source()).
		WatchesRawSource(r.ClusterCache.GetClusterSource("cloudmachine", r.clusterToMachinesWithoutNode)).
		WithOptions(options).
		Named("cloudmachine").
		Build(r)
	r.controller = c
	return err
}

// machineScope holds the objects that one reconcile has read. It holds no client.
type machineScope struct {
	*infrav1.CloudMachine
	// owner and cluster are nil if they do not exist.
	owner   *clusterv1.Machine
	cluster *clusterv1.Cluster
	// ownershipID is the CloudCluster's ownership ID; empty if there is none.
	ownershipID string
	// unreachable is the start of an outage of the workload cluster's API server; empty if there is
	// no outage.
	unreachable string
	// account is nil while the CloudAccount is missing or refused.
	account machineAccount
	// skipStatusPatch skips the status write of this step: because the step wrote the spec, which
	// comes back as an event, or because there is nothing to report yet.
	skipStatusPatch bool
	// noticeToAck is the observed instance if its Notice and Ending are on record after this step.
	noticeToAck *cloud.Resource
}

func (s *machineScope) key() client.ObjectKey { return client.ObjectKeyFromObject(s.CloudMachine) }

func (s *machineScope) reference() cloud.Reference {
	return cloud.Reference{Token: s.Spec.Creation.Token, OwnershipID: s.ownershipID, ProviderID: s.Spec.ProviderID}
}

// Reconcile takes the next step of one machine.
func (r *CloudMachineReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	r.startOnce.Do(func() { r.started = time.Now() })
	scope, err := r.read(ctx, req)
	if scope == nil || err != nil {
		return reconcile.Result{}, err
	}
	return r.advance(ctx, scope)
}

// advance takes the next step and then writes the status once.
func (r *CloudMachineReconciler) advance(ctx context.Context, scope *machineScope) (reconcile.Result, error) {
	before := scope.DeepCopy()
	result, err := r.step(ctx, scope)
	if scope.skipStatusPatch {
		return result, err
	}
	if scope.account != nil {
		scope.Status.Cloud = scope.account.Cloud().Name
	}
	setUnknown(scope.CloudMachine, infrav1.NotCheckedReason, clusterv1.ReadyCondition, infrav1.MachineInstanceHealthyCondition)
	setUnknown(scope.CloudMachine, infrav1.WaitingForNodeReason, infrav1.MachineNodeJoinedCondition)
	r.eventOnChange(before, scope.CloudMachine)
	err = errors.Join(err, patchStatus(ctx, r.Client, before, scope.CloudMachine))
	if err == nil && scope.noticeToAck != nil {
		scope.account.AckEvent(scope.Spec.Creation.Token, scope.noticeToAck)
	}
	return result, err
}

// read reads the objects that the step needs. A nil scope means that there is nothing to do.
func (r *CloudMachineReconciler) read(ctx context.Context, req reconcile.Request) (*machineScope, error) {
	machine := &infrav1.CloudMachine{}
	if err := r.Client.Get(ctx, req.NamespacedName, machine); err != nil {
		if apierrors.IsNotFound(err) {
			r.retries.forget(req.NamespacedName)
			r.attempts.forget(req.NamespacedName)
			r.consoles.forget(req.NamespacedName)
			return nil, nil
		}
		return nil, fmt.Errorf("reading the CloudMachine: %w", err)
	}
	if !predicates.Watched(machine, r.WatchFilterValue) {
		return nil, nil
	}
	scope := &machineScope{CloudMachine: machine}
	scope.account = r.account(client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.AccountRef.Name})

	var err error
	if scope.owner, err = util.GetOwnerMachine(ctx, r.Client, machine.ObjectMeta); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the owner Machine: %w", err)
	}
	if name := clusterNameOf(machine, scope.owner); name != "" {
		scope.cluster, err = util.GetClusterByName(ctx, r.Client, machine.Namespace, name)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the Cluster: %w", err)
		}
	}
	infra, err := r.cloudCluster(ctx, scope.cluster)
	if err != nil {
		return nil, err
	}
	scope.ownershipID, scope.unreachable = infra.Spec.Creation.OwnershipID, infra.Annotations[infrav1.UnreachableAnnotation]
	return scope, nil
}

func clusterNameOf(machine *infrav1.CloudMachine, owner *clusterv1.Machine) string {
	if owner != nil {
		return owner.Spec.ClusterName
	}
	return machine.Labels[clusterv1.ClusterNameLabel]
}

// cloudCluster returns the Cluster's CloudCluster, or an empty one if there is none.
func (r *CloudMachineReconciler) cloudCluster(ctx context.Context, cluster *clusterv1.Cluster) (*infrav1.CloudCluster, error) {
	cloudCluster := &infrav1.CloudCluster{}
	if cluster == nil || cluster.Spec.InfrastructureRef.GroupKind() != infrav1.CloudClusterKind {
		return cloudCluster, nil
	}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Spec.InfrastructureRef.Name}
	if err := r.Client.Get(ctx, key, cloudCluster); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the CloudCluster: %w", err)
	}
	return cloudCluster, nil
}

// statusGracePeriod is how long a new CloudMachine may wait before its status says what it waits
// for. Cluster API creates the Machine, its bootstrap data and the rest in quick succession. The
// delay saves one write per machine, and the work that Cluster API does after each write.
const statusGracePeriod = 10 * time.Second

// gracePeriodLeft returns how much of statusGracePeriod is left. It returns 0 for a creation time
// in the future, which happens when clocks differ.
func gracePeriodLeft(created time.Time) time.Duration {
	age := time.Since(created)
	if age < 0 {
		return 0
	}
	return statusGracePeriod - age
}

// step chooses the machine's next step and takes it.
func (r *CloudMachineReconciler) step(ctx context.Context, s *machineScope) (reconcile.Result, error) {
	grace := gracePeriodLeft(s.CreationTimestamp.Time)
	if s.owner == nil && grace > 0 && s.DeletionTimestamp.IsZero() {
		s.skipStatusPatch = true
		return reconcile.Result{RequeueAfter: grace}, nil
	}
	switch {
	case setPaused(s.CloudMachine, s.cluster):
		return reconcile.Result{}, nil
	case !s.DeletionTimestamp.IsZero():
		return r.reconcileDelete(ctx, s)
	case s.Spec.ProviderID != "":
		return r.observe(ctx, s)
	}
	if reason, message := missingPrerequisite(s); reason != "" {
		if grace > 0 && readyReason(s.CloudMachine) == "" {
			s.skipStatusPatch = true
			return reconcile.Result{RequeueAfter: grace}, nil
		}
		setNotReady(s.CloudMachine, reason, message)
		return reconcile.Result{}, nil
	}
	if s.Spec.Creation.Token == "" {
		return r.claim(ctx, s)
	}
	return r.create(ctx, s)
}

// missingPrerequisite returns what is missing before the machine can be created, as a reason and a
// sentence; "" if nothing is missing. The end of each wait comes as an event. The account is
// checked before the user data, which may need it (bootstrap.ConfigReconciler.Host).
func missingPrerequisite(s *machineScope) (reason, message string) {
	switch {
	case s.owner == nil:
		return infrav1.WaitingForOwnerReason, "Waiting for a Machine to own this object"
	case !s.owner.DeletionTimestamp.IsZero():
		return infrav1.WaitingForMachineDeletionReason, "The Machine is being deleted, so no VM is created"
	case s.cluster == nil:
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for Cluster %q to exist", s.owner.Spec.ClusterName)
	case s.cluster.Status.Initialization.InfrastructureProvisioned == nil || !*s.cluster.Status.Initialization.InfrastructureProvisioned:
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for the infrastructure of Cluster %q to be provisioned", s.cluster.Name)
	case s.ownershipID == "":
		return infrav1.WaitingForClusterReason, fmt.Sprintf("Waiting for the CloudCluster of Cluster %q to get its ownership ID", s.cluster.Name)
	case s.unreachable != "" && !util.IsControlPlaneMachine(s.owner):
		return infrav1.WaitingForAPIServerReason, fmt.Sprintf("Waiting for the API server of Cluster %q, which has not answered since %s: a VM could not join as a Node",
			s.cluster.Name, s.unreachable)
	case s.account == nil:
		return infrav1.WaitingForAccountReason, fmt.Sprintf("Waiting for CloudAccount %q in this namespace to be connected", s.Spec.AccountRef.Name)
	case !s.account.Cloud().Union.InMachine(&s.Spec.CloudMachineFields):
		return infrav1.InvalidSpecReason, fmt.Sprintf("CloudAccount %q is for cloud %q, but this machine has the fields of another cloud: create a new template",
			s.Spec.AccountRef.Name, s.account.Cloud().Name)
	case s.owner.Spec.Bootstrap.DataSecretName == nil:
		return infrav1.WaitingForBootstrapDataReason, fmt.Sprintf("Waiting for the bootstrap data of Machine %q", s.owner.Name)
	}
	return "", ""
}

// maxEventNote is the maximum length of an Event's text, in bytes (k8s.io/api/events/v1).
const maxEventNote = 1024

// eventOnChange records one Event for each change that matters to users.
func (r *CloudMachineReconciler) eventOnChange(before, after *infrav1.CloudMachine) {
	if problem := conditions.Get(after, infrav1.MachineNodeJoinedCondition); conditions.IsFalse(after, infrav1.MachineNodeJoinedCondition) &&
		problem.Reason != conditions.GetReason(before, infrav1.MachineNodeJoinedCondition) {
		r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, problem.Reason, "Link", "%s", cloud.Clip(problem.Message, maxEventNote))
	}
	was, is := readyReason(before), readyReason(after)
	if was == is {
		return
	}
	switch is {
	case infrav1.ReadyReason:
		r.Recorder.Eventf(after, nil, corev1.EventTypeNormal, "InstanceRunning", "Observe", "VM %s is running", after.Spec.ProviderID)
	case infrav1.InstanceGoneReason, infrav1.NeverSeenReason, infrav1.DuplicateTokenReason, infrav1.InstanceStoppedReason, infrav1.DuplicateInstancesReason,
		infrav1.QuotaExceededReason, infrav1.NoCapacityReason, infrav1.UnauthorizedReason, infrav1.InvalidSpecReason,
		infrav1.CloudNotFoundReason, infrav1.CloudConflictReason, infrav1.CloudErrorUnknownReason, infrav1.SecretInvalidReason:
		r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, is, "Reconcile", "%s", readyMessage(after))
	}
}
