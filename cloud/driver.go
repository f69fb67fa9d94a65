// SPDX-License-Identifier: Apache-2.0

// Package cloud is the contract between Drover and a cloud, and nothing else: what the author of a driver reads. It
// knows the kinds in api and no Kubernetes client. Package fleet, below it, runs the drivers; package driverkit holds
// what drivers share. A driver lives in a package below this one, and imports this package, driverkit and its cloud's
// SDK: never fleet, and never another driver.
package cloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	// Name is the cloud's key in the unions of CloudAccount and CloudMachine, and the label of its metrics.
	Name string

	// InAccount and InMachine tell whether the union's member for this cloud is set.
	InAccount func(*infrav1.CloudAccountSpec) bool
	InMachine func(*infrav1.CloudMachineFields) bool

	// ValidateAccount and ValidateMachine check what the CRD can't. They make no call: webhooks use them.
	ValidateAccount func(*infrav1.CloudAccountSpec, *field.Path) field.ErrorList
	ValidateMachine func(*infrav1.CloudMachineFields, *field.Path) field.ErrorList

	// New makes the account's driver. It makes no call. Errors are InvalidSpec or Unauthorized (a Secret that
	// lacks a key).
	New func(Config) (Driver, error)

	// Roots returns the authorities that the account's endpoint is verified against, for a cloud whose accounts bring
	// their own. nil, or a nil answer: the system's. It makes no call. Errors are InvalidSpec.
	Roots func(*infrav1.CloudAccountSpec) (*x509.CertPool, error)

	// TLS is asked instead of Roots where it is set: for a cloud whose credentials say how its endpoint proves itself, or are
	// a certificate themselves. It makes no call. Errors are InvalidSpec or Unauthorized.
	TLS func(account *infrav1.CloudAccountSpec, credentials map[string][]byte) (*tls.Config, error)

	// Limits are the rate limits that the cloud documents, or a prudent guess where it documents none.
	Limits Limits

	// Consistency is how long after a successful create a read may still miss the resource. 0 where the cloud
	// reads its own writes. Within it, a read that finds nothing is not believed.
	Consistency time.Duration

	// Whole says that all that Ensure makes goes with its instance by the cloud's own doing. Then an instance that the cloud
	// shows as terminated has left nothing that a read could still miss. Otherwise its dependants may be hidden for Consistency.
	Whole bool

	// Shutdown is how long an instance takes, as a rule, from the call that deletes it until it is gone. While many go at once, they are looked at
	// no more often than that, and collected for up to half of it. 0 where it is gone at once, or nobody knows.
	Shutdown time.Duration

	// Zonal says that Ensure is idempotent within one failure domain alone: the same token makes a second instance in
	// another. Then the domain is on record before a create is sent, Account.Ensure is asked for that one alone, and a machine
	// leaves it only after the cloud has refused it there.
	Zonal bool

	// MaxUserData is the largest user data in bytes, as Request carries it, before any encoding.
	MaxUserData int

	// TakesUserData is an error, with the numbers, where user data that are no larger don't fit after whatever encoding. nil: all do.
	TakesUserData func([]byte) error

	// MaxBatch is how many References one Describe, and how many Resources one Delete, may carry. At least 1.
	MaxBatch int

	// MaxDelete is how many Resources one Delete may carry, where that is fewer: where each is a call of its own, and all must end within the time
	// of one. 0: MaxBatch.
	MaxDelete int

	// ProviderID returns a machine's provider ID as its user data can say it, which are written before the machine has a token: a text with
	// cloud-init's instance-data variables, such as "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}".
	// nil where the guest can't know it: then the controller sets it on the Node.
	ProviderID func(*infrav1.CloudAccountSpec) string

	// Zone returns the zone that a machine's own fields ask for, or "". Zones are what Info.FailureDomains lists.
	Zone func(*infrav1.CloudMachineFields) string
}

// DeleteBatch is how many Resources one Delete may carry.
func (c *Cloud) DeleteBatch() int { return max(cmp.Or(c.MaxDelete, c.MaxBatch), 1) }

// Takes is an error, with the numbers, where the cloud does not take user data as large as these.
func (c *Cloud) Takes(userData []byte) error {
	if c.MaxUserData > 0 && len(userData) > c.MaxUserData {
		return fmt.Errorf("the user data has %d bytes, and cloud %q takes %d at most", len(userData), c.Name, c.MaxUserData)
	}
	if c.TakesUserData == nil {
		return nil
	}
	err := c.TakesUserData(userData)
	if e := (*Error)(nil); errors.As(err, &e) {
		return errors.New(e.Message) // what it is called is for those who send a request
	}
	return err
}

// Config is what a driver is made from.
type Config struct {
	// Account is the CloudAccount's spec.
	Account *infrav1.CloudAccountSpec

	// Credentials is the Secret's data; nil means ambient credentials, which the caller has permitted.
	Credentials map[string][]byte

	// Endpoint is the operator's own endpoint, for a cloud that has one (--simulated-endpoint). A tenant's endpoint
	// is in Account and never goes together with ambient credentials.
	Endpoint string

	// Transport carries every call. It waits for the account's rate limit, bounds each call in time and counts it.
	// A driver must send all its traffic through it, and name each call by WithOperation. An error of the Transport's
	// that is *Queued (the turn would come too late for ctx) must stay in the chain of the driver's error.
	Transport http.RoundTripper
}

// Driver is what a cloud must be able to do. Every method is one attempt: it never sleeps, polls or retries (its SDK's
// own retries are off), honours ctx, makes no call once ctx has ended, and returns errors that are *Error. No error text
// holds a secret. Methods may be called at the same time.
type Driver interface {
	// Identity tells accounts apart for the rate limit: two drivers with the same Identity are throttled together.
	// It holds the cloud, endpoint, region and the account's own ID or the credentials' public part; no secret. No call.
	Identity() string

	// Probe proves the credentials by the cheapest call there is.
	Probe(ctx context.Context) (Info, error)

	// Ensure creates the machine, or moves its creation one step on. It is idempotent by req.Token: whatever happened to
	// earlier calls, at most one instance with the token exists, and that one is returned, also when it is Terminated
	// and also when req differs from the one that created it. More than one is Conflict. A create that the cloud surely
	// refused leaves nothing behind. An error that leaves open whether something was made is Unavailable or Unknown.
	// Where as much is under way as the cloud is to be burdened with at once, the error is *Queued, and nothing was asked for.
	Ensure(ctx context.Context, req Request) (Resource, error)

	// List returns everything in this account that carries TagOwnership, of any cluster: instances and dependants,
	// terminated instances as long as the cloud shows them. It is complete, all pages, or an error.
	List(ctx context.Context) ([]Resource, error)

	// Describe is a live read of everything that carries one of the tokens, instances and dependants, terminated
	// instances included; and the instance that a ProviderID names, provided its tags are the Reference's. At most
	// MaxBatch references come. A reference for which nothing is there is not an error: nothing is returned for it.
	Describe(ctx context.Context, refs []Reference) ([]Resource, error)

	// Delete moves the deletion of each resource one step on, and waits for none. At most DeleteBatch come. The answer has
	// one error for each resource: nil for accepted or gone already.
	Delete(ctx context.Context, resources []Resource) []error

	// Offering says what a machine of this kind will be. An unknown type or image is InvalidSpec.
	Offering(ctx context.Context, spec *infrav1.CloudMachineFields) (Offering, error)
}

// Info is what Probe learns.
type Info struct {
	// FailureDomains are the zones in which machines can be made, sorted.
	FailureDomains []string
}

// Request is a machine to be made.
type Request struct {
	// Token is the CloudMachine's spec.creationToken, OwnershipID its CloudCluster's.
	Token, OwnershipID string
	// Attempt counts the creates that a Zonal cloud has refused. A token of the cloud's own is made of Token and this: it is a new one
	// after each refusal, and the same one otherwise. Open says that an earlier create of this attempt may have been
	// sent, by this process or one before it, and that nobody was told what came of it.
	Attempt int
	Open    bool
	// Namespace and Name are the CloudMachine's: for the name that people see, made to fit the cloud, and TagMachine.
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
	// Token is the CloudMachine's. OwnershipID is its CloudCluster's, and empty when that is gone: the token alone, 128
	// bits of chance, decides then.
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
	// Reason says why it is Failed, Stopped or Terminated, or still Pending, in the cloud's words; for people. It stays the same
	// as long as nothing changes.
	Reason string
	// Notice is what the cloud announces of an instance that runs, or finds wrong with it, for people; "" for nothing. It changes nothing but what
	// is shown.
	Notice string
	// Ending is true when the cloud is about to take an Interruptible instance back, within minutes: its Machine gives way to a successor.
	Ending bool
}

// Offering is what a machine will be as a Node, for scale from zero.
type Offering struct {
	Capacity corev1.ResourceList
	// Architecture and OperatingSystem in Go's words: "amd64", "linux".
	Architecture, OperatingSystem string
}
