// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OrphanPolicy says what happens to a resource in the cloud that is tagged as ours and belongs to
// no CloudMachine.
// +kubebuilder:validation:Enum=Delete;Report
type OrphanPolicy string

const (
	// OrphanPolicyDelete removes confirmed orphans.
	OrphanPolicyDelete OrphanPolicy = "Delete"
	// OrphanPolicyReport only reports them.
	OrphanPolicyReport OrphanPolicy = "Report"
)

// CloudAccountSpec describes one place where machines can be made, and how to talk to it.
// Exactly one cloud must be set.
// +kubebuilder:validation:XValidation:rule="[has(self.aws), has(self.kubevirt), has(self.openstack), has(self.simulated), has(self.vsphere)].filter(x, x).size() == 1",message="exactly one cloud must be set: aws, kubevirt, openstack, simulated or vsphere"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.place) || (has(self.place) && self.place == oldSelf.place)",message="place is set once: make a new CloudAccount for another place"
// +kubebuilder:validation:XValidation:rule="!has(self.place) || !has(self.aws) || !has(self.aws.accountID) || self.place.contains(':' + self.aws.accountID + ':')",message="aws.accountID is not the AWS account that the place names: make a new CloudAccount for another one"
type CloudAccountSpec struct {
	// credentialsRef names the Secret with the credentials, in this namespace. The Secret must have
	// the label infrastructure.cluster.x-k8s.io/cloud-credentials, whose value is the cloud's name
	// here, such as "aws". Each cloud says which keys it reads. A change of the Secret is picked up
	// at once. Without it the manager's own (ambient) credentials are used, which is permitted only
	// in namespaces that the operator listed with --ambient-credentials-namespaces, and never
	// together with an endpoint of one's own.
	// +optional
	CredentialsRef *LocalReference `json:"credentialsRef,omitempty"`

	// aws is a region of an AWS account.
	// +optional
	AWS *AWSAccount `json:"aws,omitempty"`

	// kubevirt is a namespace of a Kubernetes cluster with KubeVirt.
	// +optional
	KubeVirt *KubeVirtAccount `json:"kubevirt,omitempty"`

	// openstack is a project in a region of an OpenStack cloud.
	// +optional
	OpenStack *OpenStackAccount `json:"openstack,omitempty"`

	// simulated is the embedded simulated cloud: machines that cost nothing, for trying Drover out
	// and for tests.
	// +optional
	Simulated *SimulatedAccount `json:"simulated,omitempty"`

	// vsphere is a datacenter of a vCenter Server.
	// +optional
	VSphere *VSphereAccount `json:"vsphere,omitempty"`

	// place is managed by Drover: what the credentials were proved to lead to. It is immutable once
	// set. Credentials that lead to another place are refused. Example:
	// "aws:123456789012:eu-central-1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Place string `json:"place,omitempty"`

	// rateLimits bounds the calls to the cloud. The limits belong to the account, region and
	// endpoint, because that is what clouds throttle: CloudAccounts that share these share the
	// limits of the one seen first. Default: what the cloud documents.
	// +optional
	RateLimits *RateLimits `json:"rateLimits,omitempty"`

	// inventory says how often the account's machines are listed. One listing serves all machines.
	// +optional
	// +kubebuilder:default={}
	Inventory InventorySpec `json:"inventory,omitempty"`

	// orphanPolicy says what happens to resources that are tagged as ours and belong to no
	// CloudMachine: "Delete" or "Report". Default: "Report".
	// +optional
	// +kubebuilder:default=Report
	OrphanPolicy OrphanPolicy `json:"orphanPolicy,omitempty"`
}

// RateLimits holds one limit for each kind of call, so that none starves another.
type RateLimits struct {
	// create bounds the calls that make machines.
	// +optional
	Create *RateLimit `json:"create,omitempty"`

	// delete bounds the calls that remove machines and what belongs to them.
	// +optional
	Delete *RateLimit `json:"delete,omitempty"`

	// read bounds the calls that list and describe.
	// +optional
	Read *RateLimit `json:"read,omitempty"`
}

// RateLimit is a token bucket.
type RateLimit struct {
	// perSecond is the sustained number of calls per second, as a decimal number. Example: "2",
	// "0.5".
	// +required
	// +kubebuilder:validation:Pattern=`^(0\.[0-9]{0,2}[1-9]|[1-9][0-9]{0,3}(\.[0-9]{1,3})?)$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8
	PerSecond string `json:"perSecond"`

	// burst is the number of calls that may come at once after a pause. Example: 5.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Burst int32 `json:"burst"`
}

// InventorySpec says how often the account is listed.
type InventorySpec struct {
	// idleSeconds is the time between two complete listings, in seconds, while nothing is expected
	// to change. It is how soon a VM that vanished is noticed. Default: 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	IdleSeconds int32 `json:"idleSeconds,omitempty"`

	// activeSeconds is the time between two complete listings, in seconds, while a machine is
	// starting: ten times as long as a listing takes, if that is longer, and no longer than
	// idleSeconds. When all that start have become Nodes, the next one comes at once. Default: 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	ActiveSeconds int32 `json:"activeSeconds,omitempty"`
}

// CloudAccountStatus is what is known of the account.
// +kubebuilder:validation:MinProperties=1
type CloudAccountStatus struct {
	// conditions: Ready says whether the credentials work; InventoryFresh says whether the last
	// complete listing is as recent as it should be; NoOrphans whether all that it has belongs to a
	// machine. docs/conditions.md lists every reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// failureDomains are the zones in which this account can make machines. Example:
	// ["sim-1a","sim-1b"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	FailureDomains []string `json:"failureDomains,omitempty"`

	// orphans says what costs money in this account, carries the ownership of a cluster here and
	// belongs to none of its machines.
	// +optional
	Orphans *OrphansStatus `json:"orphans,omitempty"`

	// formerOwners are clusters that were deleted: whatever of them is still in the account is an
	// orphan too. They are forgotten when nothing of them has been there for a while.
	// +optional
	// +listType=map
	// +listMapKey=ownershipID
	// +kubebuilder:validation:MaxItems=100
	FormerOwners []FormerOwner `json:"formerOwners,omitempty"`
}

// FormerOwner is a CloudCluster that was deleted.
type FormerOwner struct {
	// ownershipID is what its resources are tagged with. Example: "7yx3kq5bl2m4p6r8t0v1w9z3ac".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	OwnershipID string `json:"ownershipID"`

	// cluster is the CloudCluster's name. Example: "blue".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster"`
}

// OrphansStatus is what the last pass of the orphan collector found.
type OrphansStatus struct {
	// machines is the number of CloudMachines in this namespace at the last pass whose findings
	// were believed. Where it halves from one pass to the next, orphans are deleted only on a
	// person's word.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Machines *int32 `json:"machines,omitempty"`

	// found is the number of resources without a machine. Example: 2.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Found *int32 `json:"found,omitempty"`

	// confirmed is how many of them were so in all listings during the grace period.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Confirmed *int32 `json:"confirmed,omitempty"`

	// foreign is the number of resources of clusters here that another management cluster made and
	// that belong to no CloudMachine here: it has a copy of the CloudCluster, or had it before a
	// move. They are never touched.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Foreign *int32 `json:"foreign,omitempty"`

	// strangers is the number of resources with Drover's tags whose ownership ID is no
	// CloudCluster's here: another management cluster's. They are never touched.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Strangers *int32 `json:"strangers,omitempty"`

	// digest names the present set of orphans. The annotation
	// infrastructure.cluster.x-k8s.io/confirm-orphans with this value lets them be deleted although
	// they are many.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Digest string `json:"digest,omitempty"`

	// observed lists the first of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Observed []Orphan `json:"observed,omitempty"`
}

// Orphan is a resource in the cloud that belongs to no machine.
type Orphan struct {
	// kind is "Instance", "NIC", "Disk" or "Address".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Kind string `json:"kind"`

	// id is the cloud's own. Example: "i-0a1b2c3d4e5f60718".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ID string `json:"id"`

	// since is when the first listing began that had it without a machine.
	// +required
	Since metav1.Time `json:"since,omitempty"`

	// next says what happens to it, and when. Example: "may be deleted if it is still without a
	// machine after 2026-01-02T03:04:05Z".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Next string `json:"next,omitempty"`
}

// AccountNoOrphansCondition is False while the account has resources that belong to no machine.
const AccountNoOrphansCondition = "NoOrphans"

// The reasons of NoOrphans.
const (
	// NoOrphansReason: every resource belongs to a machine.
	NoOrphansReason = "NoneFound"
	// OrphansReportedReason: the policy is to report.
	OrphansReportedReason = "Reported"
	// OrphansDeletingReason: they are deleted once they are confirmed.
	OrphansDeletingReason = "Deleting"
	// OrphansDoubtedReason: a person must decide, as the message says.
	OrphansDoubtedReason = "Doubted"
)

// CredentialsLabel on a Secret says that it may be used as the credentials of a CloudAccount. Its
// value is the name of the account's cloud, as the field of the CloudAccount has it: a Secret is
// never sent to an endpoint of another cloud.
const CredentialsLabel = "infrastructure.cluster.x-k8s.io/cloud-credentials"

// ConfirmOrphansAnnotation on a CloudAccount lets exactly the set of orphans be deleted that its
// value names.
const ConfirmOrphansAnnotation = "infrastructure.cluster.x-k8s.io/confirm-orphans"

// ConfirmMissingAnnotation on a CloudAccount lets exactly the set of missing machines be called
// gone that its value names.
const ConfirmMissingAnnotation = "infrastructure.cluster.x-k8s.io/confirm-missing"

// AccountMachinesFoundCondition is False while so many of the account's machines are missing at
// once that none of them is believed to be gone. It is True otherwise, once the account was listed.
const AccountMachinesFoundCondition = "MachinesFound"

const (
	// MachinesFoundReason: no machine's absence is in doubt.
	MachinesFoundReason = "Found"
	// MassAbsenceReason: so many machines are missing at once that a person must say whether they
	// are gone.
	MassAbsenceReason = "MassAbsence"
)

// AccountInventoryFreshCondition is True while complete listings come as often as they should.
const AccountInventoryFreshCondition = "InventoryFresh"

// AccountNewsHeardCondition is False while what the cloud tells by itself can't be had: the news at
// a place that the account names, such as a queue, or the changes of a cloud that is followed;
// absent otherwise.
const AccountNewsHeardCondition = "NewsHeard"

// CloudAccount is one place where machines can be made: a cloud, its credentials, its limits. All
// machines that refer to it share one client, one rate limit and one inventory.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cloudaccounts,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta2=v1alpha1","clusterctl.cluster.x-k8s.io/move-hierarchy="}
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status",description="Whether the credentials work"
// +kubebuilder:printcolumn:name="Fresh",type="string",JSONPath=".status.conditions[?(@.type=='InventoryFresh')].status",description="Whether the listing of machines is recent"
// +kubebuilder:printcolumn:name="Waiting for",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",description="What keeps it from being ready"
// +kubebuilder:printcolumn:name="Place",type="string",JSONPath=".spec.place",description="Where the credentials lead",priority=1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type CloudAccount struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the place and how to talk to it.
	// +required
	Spec CloudAccountSpec `json:"spec,omitempty"`

	// status is what Drover knows of it.
	// +optional
	Status CloudAccountStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (a *CloudAccount) GetConditions() []metav1.Condition { return a.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (a *CloudAccount) SetConditions(c []metav1.Condition) { a.Status.Conditions = c }

// CloudAccountList is a list of CloudAccounts.
// +kubebuilder:object:root=true
type CloudAccountList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the CloudAccounts.
	Items []CloudAccount `json:"items"`
}
