// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/record"
)

// machineRecords remembers what the record already says of each machine, so that a step that is
// repeated writes no second line. It writes nothing to the API server: what a status says tells the
// next process. The zero value is ready for use.
type machineRecords struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*machineRecord
}

// machineRecord is what the record says of one machine.
type machineRecord struct {
	said  map[string]string // by message: what it was last said of
	cause cause
}

// cause is by what a VM goes, and why.
type cause struct {
	by      record.Cause
	message string
}

func (r *machineRecords) of(key types.NamespacedName) *machineRecord {
	if r.all == nil {
		r.all = map[types.NamespacedName]*machineRecord{}
	}
	if r.all[key] == nil {
		r.all[key] = &machineRecord{said: map[string]string{}}
	}
	return r.all[key]
}

// isNew reports whether the message was last said of something else, and remembers that it is said
// now.
func (r *machineRecords) isNew(m *infrav1.DroverMachine, message, of string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	said, of := r.of(client.ObjectKeyFromObject(m)).said, string(m.UID)+"/"+of
	isNew := said[message] != of
	said[message] = of
	return isNew
}

// says reports whether this process has last said the message of that.
func (r *machineRecords) says(m *infrav1.DroverMachine, message, of string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(client.ObjectKeyFromObject(m)).said[message] == string(m.UID)+"/"+of
}

// setCause remembers by what the VM goes.
func (r *machineRecords) setCause(key types.NamespacedName, c cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(key).cause = c
}

func (r *machineRecords) cause(key types.NamespacedName) cause {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(key).cause
}

func (r *machineRecords) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
}

// The messages of the record of machines.
const (
	saidCreating   = "Creating the VM"
	saidExists     = "The VM exists"
	saidRecorded   = "Recorded the provider ID"
	saidNotReady   = "The machine is not ready"
	saidReplacing  = "Deleting the Machine"
	saidDeleting   = "Deleting the VM"
	saidDeleted    = "The VM is deleted"
	saidGone       = "The VM is gone"
	saidNothing    = "Nothing of the machine is in the cloud"
	saidAbandoning = "Leaving the VM"
)

// say writes a line about a machine.
func (r *DroverMachineReconciler) say(s *machineScope, message, providerID string, more ...any) {
	r.Log.Info(message, append([]any{
		record.Cluster, record.Key(s.Namespace, clusterNameOf(s.DroverMachine, s.owner)),
		record.Machine, s.key().String(),
		record.Account, record.Key(s.Namespace, s.Spec.AccountRef.Name),
		record.ProviderID, providerID,
		record.Token, s.Spec.Creation.Token,
	}, more...)...)
}

// event emits an Event about a machine. The API server refuses a longer note.
func (r *DroverMachineReconciler) event(m *infrav1.DroverMachine, kind, reason, action, note string) {
	r.Recorder.Eventf(m, nil, kind, reason, action, "%s", cloud.Clip(note, maxEventNote))
}

// recordCreate says once for each attempt that the create is sent.
func (r *DroverMachineReconciler) recordCreate(s *machineScope) {
	creation := s.Spec.Creation
	if r.records.isNew(s.DroverMachine, saidCreating, fmt.Sprint(creation.Token, creation.Attempt, creation.FailureDomain)) {
		r.say(s, saidCreating, "")
	}
}

// recordExists says that the VM of a create is known.
func (r *DroverMachineReconciler) recordExists(s *machineScope, providerID string) {
	if r.records.isNew(s.DroverMachine, saidExists, providerID) {
		r.say(s, saidExists, providerID)
		r.event(s.DroverMachine, corev1.EventTypeNormal, "InstanceCreated", "Create", fmt.Sprintf("VM %s exists", providerID))
	}
}

// recordReplacement says that Drover deletes the Machine of a VM, and why.
func (r *DroverMachineReconciler) recordReplacement(s *machineScope) {
	c := cause{record.Replacement, cmp.Or(s.instance.Notice, s.instance.Reason)}
	if s.instance.Code == cloud.NoCapacity {
		c.by = record.FailedStart
	}
	r.records.setCause(s.key(), c)
	r.say(s, saidReplacing, s.Spec.ProviderID, record.By, c.by, record.Message, c.message)
	r.Recorder.Eventf(s.DroverMachine, s.owner, corev1.EventTypeWarning, "Interrupted", "Replace",
		"Machine deleted, so that it is drained and replaced: %s", c.message)
}

// recordDeletion says once by what and why the VM is being deleted. An earlier process has said it
// if the status says that the deletion has begun, unless this one has only now found the VM.
func (r *DroverMachineReconciler) recordDeletion(ctx context.Context, s *machineScope, begun bool) {
	if !r.records.isNew(s.DroverMachine, saidDeleting, s.Spec.ProviderID) {
		return
	}
	c := r.causeOf(ctx, s)
	r.records.setCause(s.key(), c)
	if begun && !r.records.says(s.DroverMachine, saidExists, s.Spec.ProviderID) {
		return
	}
	r.say(s, saidDeleting, s.Spec.ProviderID, record.State, s.Status.InstanceState, record.By, c.by, record.Message, c.message)
	if s.Spec.ProviderID != "" {
		r.event(s.DroverMachine, corev1.EventTypeNormal, "InstanceDeleting", "Delete",
			strings.TrimSuffix(fmt.Sprintf("Deleting VM %s: %s: %s", s.Spec.ProviderID, c.by, c.message), ": "))
	}
}

// recordDeleted says that nothing of the VM is left.
func (r *DroverMachineReconciler) recordDeleted(s *machineScope) {
	if !r.records.isNew(s.DroverMachine, saidDeleted, s.Spec.ProviderID) {
		return
	}
	c := r.records.cause(s.key())
	if s.Spec.ProviderID == "" {
		r.say(s, saidNothing, "", record.By, c.by)
		return
	}
	r.say(s, saidDeleted, s.Spec.ProviderID, record.By, c.by)
	r.event(s.DroverMachine, corev1.EventTypeNormal, "InstanceDeleted", "Delete", fmt.Sprintf("VM %s is deleted: %s", s.Spec.ProviderID, c.by))
}

// recordAbandoned says that the VM is left.
func (r *DroverMachineReconciler) recordAbandoned(s *machineScope) {
	if !r.records.isNew(s.DroverMachine, saidAbandoning, s.Spec.ProviderID) {
		return
	}
	r.say(s, saidAbandoning, s.Spec.ProviderID, record.By, record.Abandoned)
	r.Recorder.Eventf(s.DroverMachine, nil, corev1.EventTypeWarning, "Abandoned", "Delete",
		"VM %q (token %s) was abandoned by annotation: it may keep running and cost money until someone deletes it", s.Spec.ProviderID,
		s.Spec.Creation.Token)
}

// causeOf returns by what the VM of a DroverMachine that is being deleted goes.
func (r *DroverMachineReconciler) causeOf(ctx context.Context, s *machineScope) cause {
	switch owner := r.ownerNow(ctx, s); {
	case s.cluster != nil && !s.cluster.DeletionTimestamp.IsZero():
		return cause{by: record.ClusterDeleted}
	case owner == nil:
		return cause{record.ObjectDeleted, "no Machine owns it"}
	case owner.DeletionTimestamp.IsZero():
		return cause{record.ObjectDeleted, "its Machine is not being deleted"}
	default:
		if known := r.records.cause(s.key()); known.by != "" {
			return known
		}
		return cause{record.MachineDeleted, machineProblem(owner)}
	}
}

// ownerNow returns the Machine. The cache of Machines may lag behind that of DroverMachines, and
// would then say that nobody deleted the Machine.
func (r *DroverMachineReconciler) ownerNow(ctx context.Context, s *machineScope) *clusterv1.Machine {
	if s.owner == nil || !s.owner.DeletionTimestamp.IsZero() {
		return s.owner
	}
	live := &clusterv1.Machine{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s.owner), live); err != nil || live.UID != s.owner.UID {
		return s.owner
	}
	return live
}

// machineProblem returns what Cluster API or a user says of a Machine that is being deleted. It is
// a fact beside the deletion and not always its reason: a user may delete such a Machine, too.
func machineProblem(m *clusterv1.Machine) string {
	for _, problem := range []struct{ kind, says string }{
		{clusterv1.MachineHealthCheckSucceededCondition, "its health check failed"},
		{clusterv1.MachineUpToDateCondition, "it was not up to date"},
	} {
		if c := conditions.Get(m, problem.kind); conditions.IsFalse(m, problem.kind) {
			return strings.TrimSuffix(problem.says+": "+c.Message, ": ")
		}
	}
	if _, marked := m.Annotations[clusterv1.DeleteMachineAnnotation]; marked {
		return "it was marked by " + clusterv1.DeleteMachineAnnotation
	}
	return ""
}

// refusals are the reasons of Ready that users must know of. They are no part of a machine's normal
// life.
var refusals = []string{
	infrav1.NeverSeenReason, infrav1.DuplicateTokenReason, infrav1.InstanceStoppedReason, infrav1.DuplicateInstancesReason,
	infrav1.QuotaExceededReason, infrav1.NoCapacityReason, infrav1.UnauthorizedReason, infrav1.InvalidSpecReason,
	infrav1.CloudNotFoundReason, infrav1.CloudConflictReason, infrav1.CloudErrorUnknownReason, infrav1.SecretInvalidReason,
}

// recordChange says what the new status says of the VM, once for each change of its reason. A
// machine that waits for its next attempt in between has not changed.
func (r *DroverMachineReconciler) recordChange(before *infrav1.DroverMachine, s *machineScope) {
	was, is, message := readyReason(before), readyReason(s.DroverMachine), readyMessage(s.DroverMachine)
	id := s.Spec.ProviderID
	switch {
	case was == is:
	case is == infrav1.ReadyReason:
		r.records.isNew(s.DroverMachine, saidNotReady, "") // a later problem is a new one
	case is == infrav1.InstanceGoneReason:
		r.say(s, saidGone, id, record.By, record.Cloud, record.Message, message)
		r.event(s.DroverMachine, corev1.EventTypeWarning, is, "Reconcile", message)
	case slices.Contains(refusals, is) && r.records.isNew(s.DroverMachine, saidNotReady, is):
		r.say(s, saidNotReady, id, record.Reason, is, record.Message, message)
		if id != "" && !strings.Contains(message, id) {
			message = "VM " + id + ": " + message
		}
		r.event(s.DroverMachine, corev1.EventTypeWarning, is, "Reconcile", message)
	}
}
