// SPDX-License-Identifier: Apache-2.0

package v1beta1

// LocalReference names an object in the same namespace as the object that holds the reference.
// Namespaces are tenants: there is no way to name an object of another namespace.
type LocalReference struct {
	// name is the name of the object, in this object's namespace.
	// Example: "production".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`
}

// FeatureState specifies whether a feature is in use.
// +kubebuilder:validation:Enum=Enabled;Disabled
type FeatureState string

// The states of a feature.
const (
	// FeatureEnabled enables the feature.
	FeatureEnabled FeatureState = "Enabled"
	// FeatureDisabled disables the feature.
	FeatureDisabled FeatureState = "Disabled"
)

// LoadBalancerScheme specifies which addresses a load balancer has.
// +kubebuilder:validation:Enum=Internal;InternetFacing
type LoadBalancerScheme string

const (
	// LoadBalancerInternal is a load balancer with private addresses only.
	LoadBalancerInternal LoadBalancerScheme = "Internal"
	// LoadBalancerInternetFacing is a load balancer with public addresses.
	LoadBalancerInternetFacing LoadBalancerScheme = "InternetFacing"
)

const (
	// MachineFinalizer keeps a DroverMachine until a live read of the cloud shows that nothing is
	// left of its VM.
	MachineFinalizer = "drover.io/drovermachine"

	// AccountFinalizer keeps a DroverAccount until no DroverMachine refers to it, so that their VMs
	// can be deleted.
	AccountFinalizer = "drover.io/droveraccount"

	// ClusterFinalizer keeps a DroverCluster until no DroverMachine of its cluster is left. Its
	// ownershipID is needed to delete their VMs, and nothing else ensures the order when a whole
	// namespace is deleted.
	ClusterFinalizer = "drover.io/drovercluster"

	// EndpointFinalizer keeps a DroverCluster until a live read of the cloud shows that nothing is
	// left of its load balancer.
	EndpointFinalizer = "drover.io/endpoint"

	// EndpointHook keeps a Machine of a control plane, with its member of etcd, until the
	// endpoint's load balancer sends it no new connections. It is one of Cluster API's
	// pre-terminate hooks.
	EndpointHook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/drover-endpoint"

	// CredentialsFinalizer keeps the Secret with a DroverAccount's credentials as long as VMs or a
	// load balancer can be deleted only with it, and, while its namespace is being deleted, until
	// no DroverAccount refers to it. Without CredentialsLabel, the Secret is released at once.
	CredentialsFinalizer = "drover.io/credentials"

	// AbandonAnnotation on a DroverMachine that is being deleted releases its VM without deleting
	// it, and on a DroverCluster its load balancer. Its value must be the object's own name, so
	// that a template or a wildcard can't spread it. What is released continues to run and cost
	// money, and a Warning Event says so.
	AbandonAnnotation = "drover.io/abandon"
)

// Reasons of conditions, shared by the kinds of this group. docs/conditions.md gives the remedy for
// each.
const (
	// PausedReason and NotPausedReason belong to the Paused condition. Cluster API defines them,
	// and docs/conditions.md repeats them.

	// ReadyReason says that everything that this object represents exists and works.
	ReadyReason = "Ready"
	// WaitingForOwnerReason says that no Cluster API object owns this one yet.
	WaitingForOwnerReason = "WaitingForOwner"
	// WaitingForClusterReason says that the Cluster's infrastructure is not provisioned yet.
	WaitingForClusterReason = "WaitingForCluster"
	// WaitingForBootstrapDataReason says that the bootstrap provider has not yet written the
	// machine's user data.
	WaitingForBootstrapDataReason = "WaitingForBootstrapData"
	// WaitingForAccountReason says that the DroverAccount is missing, refused, or has not been
	// connected yet.
	WaitingForAccountReason = "WaitingForAccount"
	// AccountDeletingReason says that no VM is created, because the DroverAccount is being deleted.
	AccountDeletingReason = "AccountDeleting"
	// QueuedReason says that the call waits for the account's rate limit.
	QueuedReason = "Queued"
	// StartingReason says that the VM was created but has not been seen running yet.
	StartingReason = "Starting"
	// DeletingReason says that the VM and its dependants are being deleted.
	DeletingReason = "Deleting"
	// WaitingForMachineDeletionReason says that the owner Machine has not released its
	// infrastructure yet.
	WaitingForMachineDeletionReason = "WaitingForMachineDeletion"
	// InstanceGoneReason says that the VM disappeared from the cloud, and that a live read
	// confirmed it. The VM is never created again for the same Machine.
	InstanceGoneReason = "InstanceGone"
	// CloudNoticeReason says that the cloud announces something about the VM, such as its end, or
	// detects a problem with it.
	CloudNoticeReason = "CloudNotice"
	// InstanceStoppedReason says that the VM exists but is not running.
	InstanceStoppedReason = "InstanceStopped"
	// DuplicateInstancesReason says that more than one VM has this machine's creation token. Drover
	// changes nothing until a person has decided.
	DuplicateInstancesReason = "DuplicateInstances"
	// DuplicateTokenReason says that another DroverMachine has this one's creation.token: one of
	// the two is a copy. Drover creates and deletes nothing for either of them.
	DuplicateTokenReason = "DuplicateToken"
	// NeverSeenReason says that the account shows no VM with this machine's tags, and has never
	// shown one. Drover does not conclude from this that the VM is gone.
	NeverSeenReason = "NeverSeen"
	// DuplicateNodesReason says that more than one Node has this machine's provider ID or name, or
	// that another machine has the same name or address.
	DuplicateNodesReason = "DuplicateNodes"
	// ProviderIDConflictReason says that a Node with the name of one machine carries the provider
	// ID of another one.
	ProviderIDConflictReason = "ProviderIDConflict"
	// NoCertificateRequestReason says that the VM has run for a long time, but no kubelet on it has
	// requested a certificate.
	NoCertificateRequestReason = "NoCertificateRequest"
	// CertificateNotApprovedReason says that the machine's kubelet has requested a certificate but
	// does not get it.
	CertificateNotApprovedReason = "CertificateNotApproved"
	// NodeMissingReason says that the VM has run for a long time, but no Node is known to be its
	// own.
	NodeMissingReason = "NodeMissing"
	// NodeNotReadyReason says that the machine's Node has existed for a long time, but was never
	// ready.
	NodeNotReadyReason = "NodeNotReady"
	// NodeJoinedReason says that one Node has the machine's provider ID.
	NodeJoinedReason = "NodeJoined"
	// WaitingForNodeReason says that no Node is known to be the machine's yet, and that it is not
	// late.
	WaitingForNodeReason = "WaitingForNode"
	// InstanceHealthyReason says that the VM runs, and that the cloud announces nothing about it.
	InstanceHealthyReason = "InstanceHealthy"
	// NotCheckedReason says that Drover does not know yet, because it has not looked.
	NotCheckedReason = "NotChecked"
	// NotPermittedReason says that the operator has not permitted the request.
	NotPermittedReason = "NotPermitted"
	// PlaceMismatchReason says that the account's credentials give access to a place other than
	// that of its machines.
	PlaceMismatchReason = "PlaceMismatch"
	// SecretInvalidReason says that a referenced Secret is missing, lacks a key, or lacks the label
	// that permits its use.
	SecretInvalidReason = "SecretInvalid"
	// InventoryStaleReason says that the last complete listing of the account is older than it
	// should be.
	InventoryStaleReason = "InventoryStale"
	// InUseReason says that an object can't be removed while others refer to it.
	InUseReason = "InUse"
)

// Reasons that come from the cloud's answers. Each stands for one cloud.Code.
const (
	// ThrottledReason says that the cloud asked for fewer calls.
	ThrottledReason = "Throttled"
	// QuotaExceededReason says that the account's quota leaves no room for this machine.
	QuotaExceededReason = "QuotaExceeded"
	// NoCapacityReason says that the cloud currently has no capacity for a machine of this type
	// here.
	NoCapacityReason = "NoCapacity"
	// WaitingForAPIServerReason says that the API server of the workload cluster does not answer.
	WaitingForAPIServerReason = "WaitingForAPIServer"
	// UnauthorizedReason says that the cloud refused the credentials.
	UnauthorizedReason = "Unauthorized"
	// InvalidSpecReason says that the cloud will never accept this machine as specified.
	InvalidSpecReason = "InvalidSpec"
	// CloudNotFoundReason says that something the machine refers to does not exist in the cloud.
	CloudNotFoundReason = "CloudResourceNotFound"
	// CloudConflictReason says that the request contradicts the cloud's state.
	CloudConflictReason = "CloudConflict"
	// CloudUnavailableReason says that the cloud did not answer, or answered that it can't work
	// now.
	CloudUnavailableReason = "CloudUnavailable"
	// CloudErrorUnknownReason says that the cloud gave an answer that Drover does not know.
	CloudErrorUnknownReason = "CloudErrorUnknown"
)

// The overshoot controller writes these on MachineDeployments and MachineSets that have far more
// machines than they should.
const (
	// FreezeLabel is "True" on a frozen object.
	FreezeLabel = "drover.io/freeze"
	// FrozenReplicasAnnotation holds the number of desired replicas at the start of the freeze. A
	// smaller number of desired replicas ends the freeze.
	FrozenReplicasAnnotation = "drover.io/frozen-replicas"
	// FrozenMessageAnnotation says why no machines are created for a pool. The status of a pool is
	// Cluster API's.
	FrozenMessageAnnotation = "drover.io/frozen-message"
)

// ReadyBudgetAnnotation on a MachineDeployment says in which time which share of its machines should
// become ready Nodes, for example "180s, 95%". Drover only measures it.
const ReadyBudgetAnnotation = "drover.io/ready-budget"

// The endpoint's controller writes these on a DroverCluster with an endpoint.
const (
	// EndpointReadyCondition is True while the load balancer forwards connections to a machine that
	// answers, or once the virtual IP address is reserved.
	EndpointReadyCondition = "EndpointReady"
	// NoTargetsReason says that no machine of the control plane has an address yet.
	NoTargetsReason = "NoTargets"
	// NoTargetAnswersReason says that the load balancer's health check fails for all machines.
	NoTargetAnswersReason = "NoTargetAnswers"
	// WaitingForAddressReason says that the pool of virtual IP addresses has given none yet.
	WaitingForAddressReason = "WaitingForAddress"
	// AddressClaimTakenReason says that the IPAddressClaim of the virtual IP address is somebody
	// else's.
	AddressClaimTakenReason = "AddressClaimTaken"
	// LoadBalancerLostReason says that the load balancer no longer exists. It is not created again.
	LoadBalancerLostReason = "LoadBalancerLost"
	// LoadBalancerFailedReason says that the cloud failed to create the load balancer. Its address is
	// recorded nowhere yet.
	LoadBalancerFailedReason = "LoadBalancerFailed"
	// WaitingForEndpointReason says that the endpoint has no address yet.
	WaitingForEndpointReason = "WaitingForEndpoint"
	// WaitingForControlPlaneReason says that the zones of the control plane's machines are unknown.
	WaitingForControlPlaneReason = "WaitingForControlPlane"
)

// The reachability controller writes these on a DroverCluster while its workload cluster is
// unreliable.
const (
	// UnreachableAnnotation holds the time since which the API server of the workload cluster has
	// not answered. While it is present, no VM is created for the cluster, except for its control
	// plane.
	UnreachableAnnotation = "drover.io/unreachable-since"

	// ClusterReachableCondition is False while nothing of the cluster is replaced, because the
	// health of its Nodes is unknown. It is Unknown until the API server has been asked.
	ClusterReachableCondition = "Reachable"
	// ReachableReason says that the API server answers, and that the health of the Nodes is known.
	ReachableReason = "Reachable"
	// UnreachableReason says that the API server does not answer, or can't read its own storage.
	UnreachableReason = "Unreachable"
	// WaitingForNodesReason says that the API server answers again, but that some Nodes have not
	// reported to it since.
	WaitingForNodesReason = "WaitingForNodes"
)
