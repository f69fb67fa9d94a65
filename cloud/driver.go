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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// The tags that mark Drover's resources in a cloud. They, never a name, decide what is Drover's.
const (
	// TagOwnership holds the DroverCluster's spec.creation.ownershipID.
	TagOwnership = "drover-ownership-id"
	// TagToken holds the DroverMachine's spec.creation.token.
	TagToken = "drover-creation-token"
	// TagMachine holds namespace/name of the DroverMachine, for people. Drover never reads it. A
	// cloud whose tags can't hold it goes without.
	TagMachine = "drover-machine"
)

// Cloud is one row of the registry. It holds what is known of a cloud without a call.
type Cloud struct {
	// Name is the cloud's key in both unions, and the label of its metrics.
	Name string

	// Union reads and validates the cloud's member of both unions. Make it a driverkit.Fields.
	Union Union

	// Endpoint returns all that decides where the account's calls go, and whom they trust there,
	// if the account chose it: a URL, a server, a domain, authorities. It returns "" if the calls
	// go to the cloud's own endpoints. Only accounts at the cloud's own endpoints share a rate
	// limit with other namespaces, because any other endpoint may claim to be any place. nil: the
	// account always chooses, for example in its credentials.
	Endpoint func(*infrav1.DroverAccountSpec) string

	// New makes the account's driver. It makes no call. Errors are InvalidSpec or Unauthorized (a
	// Secret that lacks a key).
	New func(Config) (Driver, error)

	// Limits are the rate limits that the cloud documents, or a low guess where it documents none.
	// A cloud that has one budget for all calls divides it among the classes.
	Limits Limits

	// Batch bounds what one Describe or Delete carries.
	Batch Batch

	// Traits are what the engine must know of the cloud's behavior.
	Traits Traits

	// CheckUserData returns an error that states both sizes if the cloud does not take user data as
	// large as these, after whatever encoding the driver applies. driverkit.MaxUserData makes one
	// for a cloud that only counts bytes.
	CheckUserData func(userData []byte) error

	// ProviderID returns a machine's provider ID as user data can express it, which are written
	// before the machine has a token: a text with cloud-init's instance-data variables, such as
	// "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}". nil where the guest can't know it:
	// then the controller sets it on the Node.
	ProviderID func(*infrav1.DroverAccountSpec) string
}

// Batch is how many References one Describe, and how many Resources one Delete, may carry: at least
// 1. All calls of one Describe or Delete, with their turns in the rate limit, end within the time
// of one call. So Delete is small where each resource takes a call of its own.
type Batch struct {
	Read, Delete int
}

// Traits are the behaviors in which clouds differ. The zero value is a cloud that reads its own
// writes, ends instances at once, and deletes nothing by itself.
type Traits struct {
	// ReadLag is how long after a successful create a read may still miss the resource; 0 where the
	// cloud reads its own writes. Within it, a read that finds nothing proves nothing.
	ReadLag time.Duration

	// CreateHorizon is how long after it was sent a create without an answer may still take effect;
	// 0: twice the time of one call. Until then, no read proves that it made nothing.
	CreateHorizon time.Duration

	// TerminationTime is how long an instance usually takes to end after the call that deletes it;
	// 0 where it ends at once, or nobody knows. While many are deleted, reads are no more frequent.
	TerminationTime time.Duration

	// CascadesDelete is true if the cloud deletes everything that Ensure made together with the
	// instance, so that a terminated instance has left nothing behind. Dependants need no tags.
	CascadesDelete bool

	// ZonalIdempotency is true if Ensure is idempotent only within one failure domain: in another
	// one, the same token makes a second instance. The engine then records the domain before a
	// create, and tries another one only after the cloud has refused the machine there.
	ZonalIdempotency bool

	// Named is true if an instance's name is its identity, and must be its Node's. The driver makes
	// it from Request.Name alone (naming.NodeName, as far as the cloud takes it), and creates on
	// the condition that nothing has the name. What has it is the answer if it carries the token,
	// else Conflict. The name is free again once the instance is gone, and may then be another
	// machine's: so reads by name or ProviderID compare the token, and Delete names an ID that is
	// never used again or a condition, if the cloud has one. The engine deletes only what a live
	// read has just shown, and two Machines of one name wait for each other.
	Named bool
}

// Union reads and validates one cloud's member of the unions in DroverAccount and DroverMachine.
// Webhooks use it for what a CRD can't check. It makes no call.
type Union interface {
	InAccount(*infrav1.DroverAccountSpec) bool
	InMachine(*infrav1.DroverMachineFields) bool
	ValidateAccount(*infrav1.DroverAccountSpec, *field.Path) field.ErrorList
	ValidateMachine(*infrav1.DroverMachineFields, *field.Path) field.ErrorList
}

// Config is what a driver is made from.
type Config struct {
	// Namespace is the DroverAccount's. A driver may use it to tell tenants apart in the cloud's
	// logs, and for nothing else.
	Namespace string

	// Account is the DroverAccount's spec. An edit of the cloud's member makes another driver; one
	// of rateLimits or inventory does not.
	Account *infrav1.DroverAccountSpec

	// ActiveInterval returns inventory.activeSeconds as it is now; 0 or nil: it is not set. A
	// Watcher collects changes for as long before it reads them.
	ActiveInterval func() time.Duration

	// Credentials is the Secret's data; nil means the manager's own credentials. The caller has
	// permitted those, and never combines them with a tenant's endpoint.
	Credentials map[string][]byte

	// Connect returns the transport of all calls. It waits for the account's rate limit, sets a
	// deadline for each call, and counts it. With a TLS configuration, the account has connections
	// of its own that use it; with nil, connections are shared and trust the system's authorities.
	// A driver calls Connect once, sends every call through the result, and names it by
	// WithOperation. An error that is *Queued (the call's turn comes too late for ctx) stays in the
	// chain of the driver's error.
	Connect func(*tls.Config) (http.RoundTripper, error)
}

// Driver is what a cloud must be able to do. Each method is one attempt: it does not sleep, poll or
// retry, and its SDK does not retry either. It makes no call after ctx has ended ("context").
// Errors are *Error, or *Queued when a call's turn in the rate limit has not come ("turn after
// deadline"). No error text holds a secret. Methods may be called concurrently.
//
// In quotes are the subtests of conformance.Run that prove a rule, here and in the other
// interfaces.
type Driver interface {
	// Probe proves the credentials and returns where they lead, with the cheapest calls there are
	// ("probe", "credentials", "place"). Called when an account or its Secret changes, and again
	// until it succeeds.
	Probe(ctx context.Context) (Info, error)

	// Ensure creates the machine, or takes the next step of its creation. Called when a machine has
	// no recorded instance, and again until it returns one. It is not called for a machine that the
	// engine knows to have ended, because a cloud may forget deleted instances at once.
	//
	//  1. At most one instance with req.Token ever exists, whatever became of earlier calls
	//     ("create is idempotent", "create in parallel", "create after lost response", "create in
	//     progress", "one name").
	//  2. It returns that instance, even if it is Terminated ("terminated is not recreated"), and
	//     even if req differs from the request that made it ("create is idempotent").
	//  3. More than one instance is Conflict, and so is a name that another machine has, where the
	//     cloud is Named ("one name").
	//  4. Until the instance exists, a creation of several steps returns Unavailable, and says what
	//     it waits for ("create").
	//  5. A create that the cloud refused leaves nothing behind ("rejected requests", "user data").
	//  6. One that it accepted may still fail: from when reads show the instance, it is
	//     StatePending, and then StateFailed or StateTerminated with a Code. If it fails and leaves
	//     nothing that reads show, Ensure returns the Code as an error ("accepted without
	//     capacity").
	//  7. If the outcome of a call is open, the error is Unavailable or Unknown ("create after lost
	//     response"). What the cloud itself says keeps its Code ("injected errors").
	Ensure(ctx context.Context, req Request) (Resource, error)

	// List returns everything in the account that carries TagOwnership, of any cluster: instances
	// and dependants, and terminated instances as long as the cloud shows them ("list", "foreign
	// resources"). It returns all pages or an error ("reads with network faults"). Where pages have
	// numbers, a deletion meanwhile must not make it skip a resource. Called at the account's
	// interval, more often while instances start or stop, and not while a Watcher reports.
	List(ctx context.Context) ([]Resource, error)

	// Describe is a live read of everything that carries one of the tokens: instances, terminated
	// ones too, and dependants ("describe"). It returns nothing, and no error, for a token that
	// nothing carries. What the credentials may not see is Unauthorized, never an empty answer
	// ("permissions that filter"). Called before a machine is taken for gone, when a deletion needs
	// its next step, and before an orphan is deleted.
	Describe(ctx context.Context, refs []Reference) ([]Resource, error)

	// Delete takes the next step of each resource's deletion. It waits for its turns in the rate
	// limit, and for no instance to end. It returns one error for each resource: nil if the cloud
	// accepted the deletion, or the resource is gone ("delete", "delete with network faults").
	// Called for a machine's instances first, and for its dependants once they have ended.
	Delete(ctx context.Context, resources []Resource) []error

	// Offering describes a machine as a Node. An unknown type or image is InvalidSpec ("offering").
	// Called for each template, when it or its account changes: a driver caches its lookups.
	Offering(ctx context.Context, spec *infrav1.DroverMachineFields) (Offering, error)
}

// Info is what Probe learns.
type Info struct {
	// Place identifies where the credentials lead, by what the cloud answers and not by what the
	// account's spec says. It never changes, holds no secret, and two places differ if a machine in
	// one can't be seen in the other. The engine records it, and uses no credentials that lead
	// elsewhere. Example: "aws:123456789012:us-east-1".
	Place string
	// FailureDomains are the zones in which machines can be made, sorted.
	FailureDomains []string
}

// Request is a machine to be made.
type Request struct {
	// Token is the DroverMachine's spec.creation.token, OwnershipID its DroverCluster's.
	Token, OwnershipID string
	// Attempt counts the creates that a cloud with zonal idempotency has refused. The cloud's
	// client token is made from Token and Attempt, so that it is new after each refusal.
	Attempt int
	// MaybeSent is true if this or an earlier process may have sent a create of this attempt, and
	// its answer is not known. A driver without client tokens must then not trust a read that finds
	// nothing before CreateHorizon has passed.
	MaybeSent bool
	// Namespace and Name are the DroverMachine's: for the name that people see, and for TagMachine.
	Namespace, Name string
	// FailureDomain for the machine; empty where the cloud has none or may choose.
	FailureDomain string
	// UserData is the bootstrap data, not encoded.
	UserData []byte
	// Spec is the DroverMachine's.
	Spec *infrav1.DroverMachineFields
}

// Reference finds what belongs to one machine or load balancer.
type Reference struct {
	// Token is the DroverMachine's. OwnershipID is its DroverCluster's; empty if that is gone, and
	// then the token decides alone.
	Token, OwnershipID string
	// ProviderID is the DroverMachine's; empty if the creation was not recorded.
	ProviderID string
	// Balancer is true for a load balancer whose creation was recorded. A driver looks for it by more
	// than its tags: without them, or where the account may not read it, it is not gone.
	Balancer bool
}

// Kind of a Resource.
type Kind string

// The kinds of resources. Everything but Instance is a dependant.
const (
	KindInstance Kind = "Instance"
	KindNIC      Kind = "NIC"
	KindDisk     Kind = "Disk"
	KindAddress  Kind = "Address"
	KindBalancer Kind = "Balancer"
)

// State of an instance or a balancer. Other resources have none. A balancer is Pending, Running or
// Failed.
type State string

// The states of an instance.
const (
	// StatePending: it exists, and does not run yet.
	StatePending State = "Pending"
	// StateRunning: the cloud says that it runs.
	StateRunning State = "Running"
	// StateStopping: it is about to be Stopped or Terminated.
	StateStopping State = "Stopping"
	// StateStopped: it exists and does not run. Others may start it again.
	StateStopped State = "Stopped"
	// StateFailed: the cloud failed to make it, and will not try again. It must be deleted.
	StateFailed State = "Failed"
	// StateTerminated: it has ended for good. The cloud still shows it.
	StateTerminated State = "Terminated"
)

// Resource is anything in a cloud that carries Drover's tags.
type Resource struct {
	Kind Kind
	// ID is the cloud's own, unique within account and kind.
	ID string
	// Token and OwnershipID are read from the tags.
	Token, OwnershipID string
	// CreatedAt is by the cloud's clock; zero where the cloud does not say.
	CreatedAt time.Time
	// Balancer is set for a balancer, which also has State and Reason.
	Balancer *BalancerState

	// Only instances have what follows.

	ProviderID    string
	State         State
	FailureDomain string
	Addresses     []clusterv1.MachineAddress
	// ImageID is the cloud's ID of its image; "" if the cloud does not say.
	ImageID string
	// Interruptible is true if the cloud may take the instance back.
	Interruptible bool
	// Code is why it is StateFailed, StateTerminated or still StatePending; "" if the cloud does
	// not say. For an instance that failed or ended with NoCapacity, the engine avoids the failure
	// domain of its create, as after that error, and has its Machine replaced.
	Code Code
	// GuestReported are those of Addresses that only the guest itself reports.
	GuestReported []string
	// Reason says, for people, why it is Failed, Stopped, Terminated or still Pending. It must not
	// change while nothing else does.
	Reason string
	// Notice says, for people, what the cloud announces or finds wrong; "" for nothing. It is only
	// shown.
	Notice string
	// Reclaim says whether the cloud takes an Interruptible instance back, or did so.
	Reclaim Reclaim
}

// Reclaim says how certain it is that the cloud takes an instance back; "" if it does not say so.
type Reclaim string

// The values of Reclaim. In both cases, the instance's Machine is replaced.
const (
	// ReclaimAdvised: it may happen, or there is time. Only as many Machines are replaced at a time
	// as the pool allows.
	ReclaimAdvised Reclaim = "Advised"
	// ReclaimCertain: it ends within minutes, as after a spot interruption notice, or has ended.
	ReclaimCertain Reclaim = "Certain"
)

// Placer is a Driver whose machines' fields may limit the failure domains, for example by subnets.
type Placer interface {
	Driver
	// FailureDomains returns the domains that the fields allow; none: all of Info's ("create in
	// failure domain"). Called before creates and for each template: a driver caches its lookups.
	FailureDomains(ctx context.Context, fields *infrav1.DroverMachineFields) ([]string, error)
}

// Offering is what a machine will be as a Node, for scale from zero.
type Offering struct {
	Capacity corev1.ResourceList
	// Architecture and OperatingSystem in Go's words: "amd64", "linux".
	Architecture, OperatingSystem string
}
