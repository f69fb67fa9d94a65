// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OrphanPolicy specifies what happens to a resource in the cloud that has Drover's tags and belongs
// to no DroverMachine.
// +kubebuilder:validation:Enum=Delete;Report
type OrphanPolicy string

const (
	// OrphanPolicyDelete deletes confirmed orphans.
	OrphanPolicyDelete OrphanPolicy = "Delete"
	// OrphanPolicyReport only reports orphans.
	OrphanPolicyReport OrphanPolicy = "Report"
)

// DroverAccountSpec describes one place where machines can be created, and how to access it.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.place) || (has(self.place) && self.place == oldSelf.place)",message="place is set once: make a new DroverAccount for another place"
// +kubebuilder:validation:XValidation:rule="!has(self.place) || !has(self.cloud.aws) || !has(self.cloud.aws.accountID) || self.place.contains(':' + self.cloud.aws.accountID + ':')",message="cloud.aws.accountID is not the AWS account that the place names: make a new DroverAccount for another one"
type DroverAccountSpec struct {
	// credentialsRef names the Secret with the credentials, in this namespace. The Secret must have
	// the label drover.io/cloud-credentials, whose value is the name of the member of cloud,
	// such as "aws". Each cloud documents which keys it reads. Drover picks up
	// a change of the Secret immediately. Default: the manager's own (ambient) credentials. They
	// are permitted only in namespaces that the operator lists in --ambient-credentials-namespaces,
	// and never together with a custom endpoint.
	// +optional
	CredentialsRef LocalReference `json:"credentialsRef,omitempty,omitzero"`

	// cloud specifies the place in one cloud.
	// +required
	Cloud AccountCloud `json:"cloud,omitzero"`

	// place identifies the place to which the credentials give access. Drover sets it after it has
	// verified the credentials. It is immutable once set, and credentials for another place are
	// rejected.
	// Example: "aws:123456789012:eu-central-1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Place string `json:"place,omitempty"`

	// rateLimits limits the calls to the cloud. The limits apply per place, because that is what
	// clouds throttle. DroverAccounts with the same place share the largest limits that any of them
	// specifies. Default: the limits that the cloud documents.
	// +optional
	RateLimits *RateLimits `json:"rateLimits,omitempty"`

	// inventory specifies how often the account's machines are listed. One listing serves all
	// machines.
	// +optional
	Inventory InventorySpec `json:"inventory,omitempty,omitzero"`

	// orphanPolicy specifies what happens to resources that have Drover's tags and belong to no
	// DroverMachine: "Delete" or "Report". Default: "Report".
	// +optional
	OrphanPolicy OrphanPolicy `json:"orphanPolicy,omitempty"`
}

// AccountCloud is a place in one cloud. Exactly one member must be set.
// +kubebuilder:validation:ExactlyOneOf=aws;azure;gcp;kubevirt;openstack;simulated;vsphere
type AccountCloud struct {
	// aws is a region of an AWS account.
	// +optional
	AWS *AWSAccount `json:"aws,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// azure is a resource group of an Azure subscription, in one location.
	// +optional
	Azure *AzureAccount `json:"azure,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// gcp is a Google Cloud project, in one region.
	// +optional
	GCP *GCPAccount `json:"gcp,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// kubevirt is a namespace of a Kubernetes cluster with KubeVirt.
	// +optional
	KubeVirt *KubeVirtAccount `json:"kubevirt,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// openstack is a project in a region of an OpenStack cloud.
	// +optional
	OpenStack *OpenStackAccount `json:"openstack,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// simulated is the embedded simulated cloud. Its machines cost nothing. It is for trying out
	// Drover and for tests.
	// +optional
	Simulated *SimulatedAccount `json:"simulated,omitempty"`

	// vsphere is a datacenter of a vCenter Server.
	// +optional
	VSphere *VSphereAccount `json:"vsphere,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.
}

// RateLimits holds one limit for each kind of call, so that no kind starves another.
type RateLimits struct {
	// create limits the calls that create machines.
	// +optional
	Create RateLimit `json:"create,omitempty,omitzero"`

	// delete limits the calls that delete machines and their dependants.
	// +optional
	Delete RateLimit `json:"delete,omitempty,omitzero"`

	// read limits the calls that list and describe.
	// +optional
	Read RateLimit `json:"read,omitempty,omitzero"`
}

// RateLimit is a token bucket.
type RateLimit struct {
	// perSecond is the sustained number of calls per second, as a decimal number.
	// Example: "2", "0.5".
	// +required
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0[.][0-9]{0,2}[1-9]|[1-9][0-9]{0,3}([.][0-9]{1,3})?)$')",message="must be a number from 0.001 to 9999.999, such as 2 or 0.5"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8
	PerSecond string `json:"perSecond,omitempty"`

	// burst is the number of calls that are possible at once after a pause.
	// Example: 5.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Burst int32 `json:"burst,omitempty"`
}

// InventorySpec specifies how often the account is listed.
// +kubebuilder:validation:MinProperties=1
type InventorySpec struct {
	// idleSeconds is the time between two complete listings, in seconds, while no change is
	// expected. It determines how soon Drover notices that a VM has vanished. Default: 60.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	IdleSeconds int32 `json:"idleSeconds,omitempty"`

	// activeSeconds is the time between two complete listings, in seconds, while a machine is
	// starting. The actual time is at least ten times the duration of a listing, and at most
	// idleSeconds. When all starting machines have become Nodes, the next listing follows
	// immediately. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	ActiveSeconds int32 `json:"activeSeconds,omitempty"`
}

// DroverAccountStatus is the observed state of the account.
// +kubebuilder:validation:MinProperties=1
type DroverAccountStatus struct {
	// conditions include Ready, which reports whether the credentials work; InventoryFresh, which
	// reports whether the last complete listing is recent enough; and OrphansResolved, which
	// reports whether every resource belongs to a machine. docs/conditions.md lists every
	// reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation of the spec that this status reflects.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// cloud is the cloud of the account, as its field in spec is named.
	// Example: "aws".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cloud string `json:"cloud,omitempty"`

	// failureDomains are the zones in which this account can create machines.
	// Example: ["sim-1a","sim-1b"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	FailureDomains []string `json:"failureDomains,omitempty"`

	// orphans reports the resources that cost money in this account, have the ownership ID of a
	// cluster here, and belong to none of its machines.
	// +optional
	Orphans *OrphansStatus `json:"orphans,omitempty"`

	// missing names the first of the machines that are missing from the cloud while the condition
	// MachinesFound is False, ordered by name. The manager's log names all of them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=50
	Missing []MissingMachine `json:"missing,omitempty"`

	// formerOwners are deleted clusters. Their remaining resources in the account are orphans, too.
	// Drover removes an entry when the account has had no such resources for a while.
	// +optional
	// +listType=map
	// +listMapKey=ownershipID
	// +kubebuilder:validation:MaxItems=100
	FormerOwners []FormerOwner `json:"formerOwners,omitempty"`
}

// MissingMachine is a machine whose VM the cloud does not show.
type MissingMachine struct {
	// name is the name of the DroverMachine.
	// Example: "blue-md-0-x7k2p".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// providerID is the machine's spec.providerID.
	// Example: "simulated:///sim-1a/i-0a1b2c3d".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// FormerOwner is a DroverCluster that was deleted.
type FormerOwner struct {
	// ownershipID is the ownership ID in the tags of the cluster's resources.
	// Example: "7yx3kq5bl2m4p6r8t0v1w9z3ac".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	OwnershipID string `json:"ownershipID,omitempty"`

	// cluster is the name of the DroverCluster.
	// Example: "blue".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster,omitempty"`
}

// OrphansStatus is the result of the last pass of the orphan collector.
type OrphansStatus struct {
	// machines is the number of DroverMachines in this namespace at the last pass whose findings
	// Drover trusted. If the number halves from one pass to the next, Drover deletes orphans only
	// after a person confirms it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Machines *int32 `json:"machines,omitempty"`

	// found is the number of resources without a machine.
	// Example: 2.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Found *int32 `json:"found,omitempty"`

	// confirmed is the number of these resources that had no machine in all listings of the grace
	// period.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Confirmed *int32 `json:"confirmed,omitempty"`

	// otherManager is the number of resources of clusters here that another management cluster
	// created and that belong to no DroverMachine here. That management cluster has a copy of the
	// DroverCluster, or had it before a move. Drover never touches these resources.
	// +optional
	// +kubebuilder:validation:Minimum=0
	OtherManager *int32 `json:"otherManager,omitempty"`

	// unknownOwner is the number of resources with Drover's tags whose ownership ID belongs to no
	// DroverCluster here, but to another management cluster. Drover never touches these resources.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnknownOwner *int32 `json:"unknownOwner,omitempty"`

	// digest identifies the current set of orphans. The annotation
	// drover.io/confirm-orphans with this value permits their deletion even
	// though they are many.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Digest string `json:"digest,omitempty"`

	// observed lists the first orphans of this set.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Observed []Orphan `json:"observed,omitempty"`
}

// OrphanState is how far Drover is with a resource that belongs to no machine.
// +kubebuilder:validation:Enum=Observed;Confirmed;Deleting;OtherManager
type OrphanState string

const (
	// OrphanObserved is the state of a resource that has no machine, before the grace period ends.
	OrphanObserved OrphanState = "Observed"
	// OrphanConfirmed is the state of a resource that had no machine in all listings of the grace
	// period.
	OrphanConfirmed OrphanState = "Confirmed"
	// OrphanDeleting is the state of a resource that Drover deletes, with the others of the same
	// machine.
	OrphanDeleting OrphanState = "Deleting"
	// OrphanOtherManager is the state of a resource that another management cluster created. Drover
	// never touches it.
	OrphanOtherManager OrphanState = "OtherManager"
)

// Orphan is a resource in the cloud that belongs to no machine.
type Orphan struct {
	// kind is the kind of the resource: "Instance", "NIC", "Disk" or "Address".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Kind string `json:"kind,omitempty"`

	// id is the cloud's ID of the resource.
	// Example: "i-0a1b2c3d4e5f60718".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ID string `json:"id,omitempty"`

	// since is the time at which the first listing began that showed the resource without a
	// machine.
	// +required
	Since metav1.Time `json:"since,omitempty,omitzero"` //nolint:kubeapilinter // No time is empty.

	// state is how far Drover is with the resource: "Observed", "Confirmed", "Deleting" or
	// "OtherManager". Whether Drover deletes what is confirmed, orphanPolicy and the condition
	// OrphansResolved say.
	// +required
	State OrphanState `json:"state,omitempty"`

	// dueTime is when the grace period of a resource in the state "Observed" ends. The first listing
	// after that confirms the resource, if it still has no machine.
	// +optional
	DueTime metav1.Time `json:"dueTime,omitempty,omitzero"` //nolint:kubeapilinter // No time is empty.
}

// AccountOrphansResolvedCondition is False while the account has resources that belong to no
// machine. It is Unknown before the first pass of the orphan collector.
const AccountOrphansResolvedCondition = "OrphansResolved"

// The reasons of the OrphansResolved condition.
const (
	// NoOrphansReason says that every resource belongs to a machine.
	NoOrphansReason = "NoOrphans"
	// OrphansReportOnlyReason says that there are orphans, and that Drover only reports them.
	OrphansReportOnlyReason = "ReportOnly"
	// OrphansDeletingReason says that orphans are deleted once they are confirmed.
	OrphansDeletingReason = "Deleting"
	// OrphansConfirmationRequiredReason says that a person must decide, as the message explains.
	OrphansConfirmationRequiredReason = "ConfirmationRequired"
)

// CredentialsLabel on a Secret permits its use as the credentials of a DroverAccount. Its value is
// the name of the account's cloud, as the field of the DroverAccount is named. Because of that, a
// Secret is never sent to an endpoint of another cloud.
const CredentialsLabel = "drover.io/cloud-credentials"

// ConfirmOrphansAnnotation on a DroverAccount permits deletion of exactly the set of orphans that
// its value identifies.
const ConfirmOrphansAnnotation = "drover.io/confirm-orphans"

// ConfirmMissingAnnotation on a DroverAccount confirms that exactly the set of missing machines
// that its value identifies is gone.
const ConfirmMissingAnnotation = "drover.io/confirm-missing"

// AccountMachinesFoundCondition is False while so many of the account's machines are missing at
// once that Drover treats none of them as gone. Otherwise it is True, once the account has been
// listed; before, it is Unknown.
const AccountMachinesFoundCondition = "MachinesFound"

const (
	// MachinesFoundReason says that no machine's absence is in doubt.
	MachinesFoundReason = "MachinesFound"
	// MassAbsenceReason says that so many machines are missing at once that a person must decide
	// whether they are gone.
	MassAbsenceReason = "MassAbsence"
)

// AccountInventoryFreshCondition is True while complete listings are as frequent as they should be.
// It is Unknown while no machine refers to the account, because Drover does not list it then.
const AccountInventoryFreshCondition = "InventoryFresh"

// InventoryFreshReason says that the last complete listing is recent enough.
const InventoryFreshReason = "InventoryFresh"

// AccountEventStreamConnectedCondition is False while Drover can't receive what the cloud
// announces: messages from a place that the account names, such as a queue, or the changes of a
// cloud that Drover watches. It is Unknown until something was received from there. Otherwise it is
// True, also if the cloud announces nothing.
const AccountEventStreamConnectedCondition = "EventStreamConnected"

// The reasons of the EventStreamConnected condition, apart from the cloud's answers.
const (
	// EventStreamConnectedReason says that Drover has received what the cloud announces, and that
	// nothing has failed since.
	EventStreamConnectedReason = "EventStreamConnected"
	// NoEventStreamReason says that the cloud announces nothing, or that the account names no
	// source. Drover lists the account instead.
	NoEventStreamReason = "NoEventStream"
)

// DroverAccount is one place where machines can be created: a cloud, its credentials and its
// limits. All machines that refer to it share one client, one rate limit and one inventory.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=droveraccounts,scope=Namespaced,categories=cluster-api,shortName=dra
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta2=v1beta1","clusterctl.cluster.x-k8s.io/move-hierarchy="}
// +kubebuilder:printcolumn:name="Cloud",type="string",JSONPath=".status.cloud",description="The cloud"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason",description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Fresh",type="string",JSONPath=".status.conditions[?(@.type=='InventoryFresh')].status",description="Whether the listing of machines is recent"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Place",type="string",JSONPath=".spec.place",description="The place that the credentials give access to",priority=1
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",description="What keeps it from being ready, or what a person must decide",priority=1
type DroverAccount struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the place and how to access it.
	// +required
	Spec DroverAccountSpec `json:"spec,omitzero"`

	// status is the observed state of the account.
	// +optional
	Status DroverAccountStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (a *DroverAccount) GetConditions() []metav1.Condition { return a.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (a *DroverAccount) SetConditions(c []metav1.Condition) { a.Status.Conditions = c }

// DroverAccountList is a list of DroverAccounts.
// +kubebuilder:object:root=true
type DroverAccountList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverAccounts.
	Items []DroverAccount `json:"items"`
}
