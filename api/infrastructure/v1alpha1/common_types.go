// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// LocalReference names an object in the same namespace as the object that holds the reference.
// Namespaces are tenants: there is no way to name an object of another namespace.
type LocalReference struct {
	// name of the object, in this object's own namespace. Example: "production".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

const (
	// MachineFinalizer holds a CloudMachine until a live read of the cloud said that nothing is
	// left of its VM.
	MachineFinalizer = "cloudmachine.infrastructure.cluster.x-k8s.io"

	// AccountFinalizer holds a CloudAccount until no CloudMachine refers to it, so that their VMs
	// can be deleted.
	AccountFinalizer = "cloudaccount.infrastructure.cluster.x-k8s.io"

	// ClusterFinalizer holds a CloudCluster until no CloudMachine of its cluster is left: its
	// ownershipID is needed to delete their VMs, and when a whole namespace is deleted nothing else
	// keeps the order.
	ClusterFinalizer = "cloudcluster.infrastructure.cluster.x-k8s.io"

	// AbandonAnnotation on a CloudMachine under deletion lets go of its VM without deleting it. Its
	// value must be the CloudMachine's own name, so that it can't be spread by a template or a
	// wildcard. The VM goes on running and costing money: a Warning Event says so.
	AbandonAnnotation = "infrastructure.cluster.x-k8s.io/abandon"
)

// Reasons of conditions, shared by the kinds of this group. docs/conditions.md gives the remedy for
// each.
const (
	// PausedReason and NotPausedReason belong to the Paused condition.
	// (Cluster API's own words, repeated in docs/conditions.md.)

	// ReadyReason says that everything this object stands for is there and works.
	ReadyReason = "Ready"
	// WaitingForOwnerReason says that no Cluster API object owns this one yet.
	WaitingForOwnerReason = "WaitingForOwner"
	// WaitingForClusterReason says that the Cluster's infrastructure is not provisioned yet.
	WaitingForClusterReason = "WaitingForCluster"
	// WaitingForBootstrapDataReason says that the bootstrap provider has not yet written the
	// machine's user data.
	WaitingForBootstrapDataReason = "WaitingForBootstrapData"
	// WaitingForAccountReason says that the CloudAccount is missing, refused, or has not been
	// connected yet.
	WaitingForAccountReason = "WaitingForAccount"
	// QueuedReason says that the call waits for its turn in the account's rate limit.
	QueuedReason = "Queued"
	// StartingReason says that the VM was created and has not been seen running yet.
	StartingReason = "Starting"
	// DeletingReason says that the VM and what belongs to it are being deleted.
	DeletingReason = "Deleting"
	// WaitingForMachineDeletionReason says that the owner Machine has not yet let its
	// infrastructure go.
	WaitingForMachineDeletionReason = "WaitingForMachineDeletion"
	// InstanceGoneReason says that the VM disappeared from the cloud; a live read confirmed it.
	// It is never created again under the same Machine.
	InstanceGoneReason = "InstanceGone"
	// CloudNoticeReason says that the cloud announces something of the VM, such as its end, or
	// finds something wrong with it.
	CloudNoticeReason = "CloudNotice"
	// InstanceStoppedReason says that the VM exists and is not running.
	InstanceStoppedReason = "InstanceStopped"
	// DuplicateInstancesReason says that more than one VM carries this machine's token. Nothing is
	// changed until a person has decided.
	DuplicateInstancesReason = "DuplicateInstances"
	// DuplicateTokenReason says that another CloudMachine has this one's creationToken: one of the
	// two is a copy. Nothing is made or deleted for either of them.
	DuplicateTokenReason = "DuplicateToken"
	// NeverSeenReason says that the account shows no VM with this machine's tags, and has never
	// shown one. That is not taken for the VM's end.
	NeverSeenReason = "NeverSeen"
	// DuplicateNodesReason says that more than one Node carries this machine's provider ID or
	// address, or that another machine has the same address.
	DuplicateNodesReason = "DuplicateNodes"
	// NoCertificateRequestReason says that the VM has run for long, and no kubelet on it has asked
	// for a certificate.
	NoCertificateRequestReason = "NoCertificateRequest"
	// CertificateNotApprovedReason says that the machine's kubelet has asked for a certificate and
	// does not get it.
	CertificateNotApprovedReason = "CertificateNotApproved"
	// NodeMissingReason says that the VM has run for long, and no Node is known to be its own.
	NodeMissingReason = "NodeMissing"
	// NodeNotReadyReason says that the machine's Node has been there for long, and was never ready.
	NodeNotReadyReason = "NodeNotReady"
	// NotPermittedReason says that the operator has not allowed what is asked for.
	NotPermittedReason = "NotPermitted"
	// PlaceMismatchReason says that the account's credentials lead to another place than the one
	// its machines are in.
	PlaceMismatchReason = "PlaceMismatch"
	// SecretInvalidReason says that a referenced Secret is missing, lacks a key, or does not say
	// that it may be used.
	SecretInvalidReason = "SecretInvalid"
	// InventoryStaleReason says that the last complete listing of the account is older than it
	// should be.
	InventoryStaleReason = "InventoryStale"
	// InUseReason says that an object can't be removed while others refer to it.
	InUseReason = "InUse"
)

// Reasons that come from the cloud's answers; each equals the cloud.Code of the same name.
const (
	// ThrottledReason says that the cloud asked for fewer calls.
	ThrottledReason = "Throttled"
	// QuotaExceededReason says that the account's quota leaves no room for this machine.
	QuotaExceededReason = "QuotaExceeded"
	// NoCapacityReason says that the cloud has no machine of this type to give, here and now.
	NoCapacityReason = "NoCapacity"
	// WaitingForAPIServerReason says that the API server of the workload cluster does not answer.
	WaitingForAPIServerReason = "WaitingForAPIServer"
	// UnauthorizedReason says that the cloud refused the credentials.
	UnauthorizedReason = "Unauthorized"
	// InvalidSpecReason says that the cloud will never accept this machine as it is described.
	InvalidSpecReason = "InvalidSpec"
	// NotFoundReason says that something the machine refers to does not exist in the cloud.
	NotFoundReason = "NotFound"
	// ConflictReason says that the cloud's state contradicts the request.
	ConflictReason = "Conflict"
	// UnavailableReason says that the cloud did not answer, or answered that it can't work now.
	UnavailableReason = "Unavailable"
	// UnknownReason says that the cloud answered something that Drover does not know.
	UnknownReason = "Unknown"
)

// What the overshoot controller writes on MachineDeployments and MachineSets that have far more
// machines than they should.
const (
	// FreezeLabel is "True" on what is frozen; machine-controller-manager's name.
	FreezeLabel = "freeze"
	// FrozenReplicasAnnotation holds how many replicas were desired when the freeze began: asking
	// for fewer ends it.
	FrozenReplicasAnnotation = "infrastructure.cluster.x-k8s.io/frozen-replicas"

	// FrozenCondition is True while no machines are made for a pool, because it has too many.
	FrozenCondition = "Frozen"
	// OvershootingReason: there are too many machines.
	OvershootingReason = "Overshooting"
	// NotFrozenReason: there were, and now there are not.
	NotFrozenReason = "NotFrozen"
)

// What the reachability controller writes on a CloudCluster while its workload cluster can't be
// relied on.
const (
	// UnreachableAnnotation holds since when the API server of the workload cluster does not
	// answer. While it is there, no VM is made for the cluster, but for its control plane.
	UnreachableAnnotation = "infrastructure.cluster.x-k8s.io/unreachable-since"

	// ClusterReachableCondition is False while nothing of the cluster is replaced, because its
	// Nodes' health is not known.
	ClusterReachableCondition = "Reachable"
	// ReachableReason: the API server answers, and the Nodes' health is known.
	ReachableReason = "Reachable"
	// UnreachableReason: the API server does not answer, or can't read its own storage.
	UnreachableReason = "Unreachable"
	// WaitingForNodesReason: the API server answers again, and there are Nodes that have not
	// reported to it since.
	WaitingForNodesReason = "WaitingForNodes"
)
