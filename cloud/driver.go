// SPDX-License-Identifier: Apache-2.0

// Package cloud is the contract between Drover and a cloud, and nothing else: what the author of a
// driver reads. It knows the kinds in api and no Kubernetes client. Package fleet, below it, runs
// the drivers; package driverkit holds what drivers share. A driver lives in a package below this
// one, and imports this package, driverkit and its cloud's SDK: never fleet, and never another
// driver.
package cloud

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// The tags that mark what is ours in a cloud. Ownership is told by these alone, never by a name.
const (
	// TagOwnership holds the CloudCluster's spec.ownershipID.
	TagOwnership = "drover-ownership-id"
	// TagToken holds the CloudMachine's spec.creationToken.
	TagToken = "drover-creation-token"
	// TagMachine holds namespace/name of the CloudMachine, for people. It is never read back.
	TagMachine = "drover-machine"
)

// Cloud is one row of the registry: what is known of a cloud without asking it.
type Cloud struct {
	// Name is the cloud's key in the unions of CloudAccount and CloudMachine, and the label of its
	// metrics.
	Name string

	// Union reads and validates the cloud's member of both unions. Make it a driverkit.Fields.
	Union Union

	// New makes the account's driver. It makes no call. Errors are InvalidSpec or Unauthorized (a
	// Secret that lacks a key).
	New func(Config) (Driver, error)

	// Limits are the rate limits that the cloud documents, or a prudent guess where it documents
	// none.
	Limits Limits

	// Batch bounds what one Describe or Delete carries.
	Batch Batch

	// Traits are what the engine must know of the cloud's behaviour.
	Traits Traits

	// CheckUserData returns an error that states both sizes if the cloud does not take user data as
	// large as these, after whatever encoding the driver applies. driverkit.MaxUserData makes one
	// for a cloud that only counts bytes.
	CheckUserData func(userData []byte) error

	// ProviderID returns a machine's provider ID as user data can express it, which are written
	// before the machine has a token: a text with cloud-init's instance-data variables, such as
	// "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}". nil where the guest can't know it:
	// then the controller sets it on the Node.
	ProviderID func(*infrav1.CloudAccountSpec) string
}

// Batch is how many References one Describe, and how many Resources one Delete, may carry. Both are
// at least 1. Delete is the smaller one where each resource is a call of its own, and all must end
// within the time of one call.
type Batch struct {
	Read, Delete int
}

// Traits are the behaviours in which clouds differ. The zero value is the most demanding cloud for
// the engine: it reads its own writes, instances end at once, and nothing goes by itself.
type Traits struct {
	// ReadLag is how long after a successful create a read may still miss the resource; 0 where the
	// cloud reads its own writes. Within it, a read that finds nothing proves nothing.
	ReadLag time.Duration

	// CreateHorizon is how long a create of which no answer came may still take effect, counted
	// from when it was sent; 0: twice the bound of one call. A token that may have been sent is not
	// believed to be unused before.
	CreateHorizon time.Duration

	// TerminationTime is how long an instance usually takes from the call that deletes it until it
	// is gone. While many are deleted at once, they are read no more often than that. 0 where it is
	// gone at once, or nobody knows.
	TerminationTime time.Duration

	// CascadesDelete is true if deleting the instance also deletes everything else that Ensure
	// created, by the cloud's own doing. Then an instance that the cloud shows as terminated has
	// left nothing behind.
	CascadesDelete bool

	// ZonalIdempotency is true if Ensure is idempotent within one failure domain alone: the same
	// token makes a second instance in another one. Then the domain is recorded before a create is
	// sent, and a machine leaves it only after the cloud has refused it there.
	ZonalIdempotency bool
}

// Union reads and validates one cloud's member of the unions in CloudAccount and CloudMachine.
// Validation checks what the CRD can't, and makes no call: webhooks use it.
type Union interface {
	InAccount(*infrav1.CloudAccountSpec) bool
	InMachine(*infrav1.CloudMachineFields) bool
	ValidateAccount(*infrav1.CloudAccountSpec, *field.Path) field.ErrorList
	ValidateMachine(*infrav1.CloudMachineFields, *field.Path) field.ErrorList
}

// Config is what a driver is made from.
type Config struct {
	// Account is the CloudAccount's spec.
	Account *infrav1.CloudAccountSpec

	// Credentials is the Secret's data; nil means ambient credentials, which the caller has
	// permitted. A tenant's endpoint never goes together with those.
	Credentials map[string][]byte

	// Connect returns what carries every call. It waits for the account's rate limit, bounds each
	// call in time and counts it. With a TLS configuration the connections are the account's own
	// and trust as that says; nil: they are shared, and trust the system's authorities. A driver
	// calls it once, sends all its traffic through it, and names each call by WithOperation. An
	// error of the carrier that is *Queued (the turn would come too late for ctx) must stay in the
	// chain of the driver's error.
	Connect func(*tls.Config) (http.RoundTripper, error)
}

// Driver is what a cloud must be able to do. Every method is one attempt: it never sleeps, polls or
// retries (its SDK's own retries are off), honours ctx, makes no call once ctx has ended, and
// returns errors that are *Error. No error text holds a secret. Methods may be called at the same
// time.
type Driver interface {
	// Probe proves the credentials, and tells where they lead, by the cheapest calls there are.
	Probe(ctx context.Context) (Info, error)

	// Ensure creates the machine, or moves its creation one step on. It is idempotent by req.Token:
	// whatever happened to earlier calls, at most one instance with the token exists, and that one
	// is returned, also when it is Terminated and also when req differs from the one that created
	// it. More than one is Conflict. A create that the cloud surely refused leaves nothing behind.
	// An error that leaves open whether this call made something is Unavailable or Unknown; what
	// became of earlier calls is the engine's to find out. Where as much is under way as the cloud
	// is to be burdened with at once, the error is *Queued, and nothing was asked for.
	Ensure(ctx context.Context, req Request) (Resource, error)

	// List returns everything in this account that carries TagOwnership, of any cluster: instances
	// and dependants, terminated instances as long as the cloud shows them. It is complete, all
	// pages, or an error.
	List(ctx context.Context) ([]Resource, error)

	// Describe is a live read of everything that carries one of the tokens, instances and
	// dependants, terminated instances included; and the instance that a ProviderID names, provided
	// its tags are the Reference's. At most Batch.Read references come. A reference for which
	// nothing is there is not an error: nothing is returned for it.
	Describe(ctx context.Context, refs []Reference) ([]Resource, error)

	// Delete moves the deletion of each resource one step on, and waits for no instance to end. At
	// most Batch.Delete come. The answer has one error for each resource: nil for accepted or gone
	// already.
	Delete(ctx context.Context, resources []Resource) []error

	// Offering says what a machine of this kind will be. An unknown type or image is InvalidSpec.
	Offering(ctx context.Context, spec *infrav1.CloudMachineFields) (Offering, error)
}

// Info is what Probe learns.
type Info struct {
	// Place identifies where the credentials lead: what the cloud itself answers, never what the
	// account's spec claims. It is stable for the place's life, holds no secret, and differs
	// wherever a machine of one place can't be seen in the other. Example:
	// "aws:123456789012:us-east-1". The engine pins it, and uses no credentials that lead
	// elsewhere.
	Place string
	// FailureDomains are the zones in which machines can be made, sorted.
	FailureDomains []string
}

// Request is a machine to be made.
type Request struct {
	// Token is the CloudMachine's spec.creationToken, OwnershipID its CloudCluster's.
	Token, OwnershipID string
	// Attempt counts the creates that a cloud with zonal idempotency has refused. A client token of
	// the cloud's own is made of Token and Attempt: it is a new one after each refusal, and the
	// same one otherwise.
	Attempt int
	// MaybeSent is true if an earlier create of this attempt may have been sent, by this process or
	// one before it, whose answer nobody knows. A driver without client tokens must then not trust
	// a single read that finds nothing.
	MaybeSent bool
	// Namespace and Name are the CloudMachine's: for the name that people see, made to fit the
	// cloud, and TagMachine.
	Namespace, Name string
	// FailureDomain to put it in; empty where the cloud has none or may choose.
	FailureDomain string
	// UserData is the bootstrap data as it is; the driver encodes it as its cloud wants it.
	UserData []byte
	// Spec is the machine as it was asked for.
	Spec *infrav1.CloudMachineFields
}

// Reference finds what belongs to one machine.
type Reference struct {
	// Token is the CloudMachine's. OwnershipID is its CloudCluster's, and empty when that is gone:
	// the token alone, 128 bits of chance, decides then.
	Token, OwnershipID string
	// ProviderID as recorded; empty when the creation was never recorded.
	ProviderID string
}

// Kind of a Resource.
type Kind string

// The kinds of resources. Everything but Instance is a dependant.
const (
	KindInstance Kind = "Instance"
	KindNIC      Kind = "NIC"
	KindDisk     Kind = "Disk"
	KindAddress  Kind = "Address"
)

// State of an instance. A dependant has none.
type State string

// The states of an instance.
const (
	// StatePending: made, and not running yet.
	StatePending State = "Pending"
	// StateRunning: the cloud says that it runs.
	StateRunning State = "Running"
	// StateStopping: on its way to Stopped or Terminated.
	StateStopping State = "Stopping"
	// StateStopped: exists, does not run, may be started again by others.
	StateStopped State = "Stopped"
	// StateFailed: the cloud could not make it, and will not; it exists and must be deleted.
	StateFailed State = "Failed"
	// StateTerminated: gone for good; the cloud only remembers it.
	StateTerminated State = "Terminated"
)

// Resource is something in a cloud that carries our tags.
type Resource struct {
	Kind Kind
	// ID is the cloud's own, unique within account and kind.
	ID string
	// Token and OwnershipID are read from the tags.
	Token, OwnershipID string
	// CreatedAt is by the cloud's clock; zero where the cloud does not say.
	CreatedAt time.Time

	// What follows is an instance's alone.

	ProviderID    string
	State         State
	FailureDomain string
	Addresses     []clusterv1.MachineAddress
	// ImageID is what it was made from, in the cloud's words; "" where the cloud does not say.
	ImageID string
	// Interruptible is true when the cloud may take the instance back.
	Interruptible bool
	// Code says what kind of failure made it StateFailed, or keeps it StatePending; "" where the
	// cloud does not say. NoCapacity is how a create reports that the cloud accepted and then found
	// no room for.
	Code Code
	// GuestReported are those of Addresses for which nobody but the guest itself vouches.
	GuestReported []string
	// Reason says why it is Failed, Stopped or Terminated, or still Pending, in the cloud's words;
	// for people. It stays the same as long as nothing changes.
	Reason string
	// Notice is what the cloud announces of an instance that runs, or finds wrong with it, for
	// people; "" for nothing. It changes nothing but what is shown.
	Notice string
	// Ending is true when the cloud is about to take an Interruptible instance back, within
	// minutes: its Machine gives way to a successor.
	Ending bool
	// Imminent is true when an Ending instance ends soon whatever is done, such as two minutes
	// after a spot interruption notice; false for what only recommends to leave it. Waves of
	// recommendations are followed a few machines at a time.
	Imminent bool
}

// Placer is a Driver whose machines' own fields may allow some failure domains alone, such as those
// of the subnets that they name.
type Placer interface {
	Driver

	// FailureDomains returns the domains in which a machine with these fields can be made; none:
	// all of Info's.
	FailureDomains(ctx context.Context, fields *infrav1.CloudMachineFields) ([]string, error)
}

// Offering is what a machine will be as a Node, for scale from zero.
type Offering struct {
	Capacity corev1.ResourceList
	// Architecture and OperatingSystem in Go's words: "amd64", "linux".
	Architecture, OperatingSystem string
}
