// SPDX-License-Identifier: Apache-2.0

// Package wire is the simulated cloud's API as it goes over HTTP: what the driver sends and the
// simulator answers. Both sides import it, and it imports nothing of theirs.
//
// A call is POST /v1/<operation> with a JSON body and "Authorization: Bearer <token>". 200 carries
// the operation's response, any other status an ErrorResponse. A throttled answer carries
// Retry-After, in seconds.
package wire

import "time"

// Prefix is the path before the operation's name.
const Prefix = "/v1/"

// The operations, named after EC2's.
const (
	RunInstances       = "RunInstances"
	DescribeInstances  = "DescribeInstances"
	DescribeResources  = "DescribeResources"
	TerminateInstances = "TerminateInstances"
	DeleteResources    = "DeleteResources"
	DescribeCatalog    = "DescribeCatalog"
	GetConsoleOutput   = "GetConsoleOutput"
)

// Limits of the API.
const (
	// MaxUserData is the size of user data in bytes, before base64: EC2's.
	MaxUserData = 16 << 10
	// MaxConsole is how much of a console is shown, in bytes: EC2's.
	MaxConsole = 64 << 10
	// MaxResults is the largest page, and the default one.
	MaxResults = 1000
	// MaxBatch is how many IDs or tag values one call may name.
	MaxBatch = 1000
	// MaxTags, MaxTagKey and MaxTagValue bound the tags of a resource: EC2's.
	MaxTags, MaxTagKey, MaxTagValue = 50, 128, 256
	// MaxName is the length of an instance's name, which is also its hostname.
	MaxName = 63
	// MaxClientToken is the length of a client token: EC2's.
	MaxClientToken = 64
)

// The error codes, EC2's words where it has one.
const (
	AuthFailure                  = "AuthFailure"
	RequestLimitExceeded         = "RequestLimitExceeded"
	InsufficientInstanceCapacity = "InsufficientInstanceCapacity"
	InstanceLimitExceeded        = "InstanceLimitExceeded"
	InvalidParameterValue        = "InvalidParameterValue"
	InstanceNotFound             = "InvalidInstanceID.NotFound"
	ResourceNotFound             = "InvalidResourceID.NotFound"
	ResourceInUse                = "ResourceInUse"
	IdempotentParameterMismatch  = "IdempotentParameterMismatch"
	DryRunOperation              = "DryRunOperation"
	InternalError                = "InternalError"
	ServiceUnavailable           = "ServiceUnavailable"
	InvalidAction                = "InvalidAction"
)

// ErrorResponse is the body of every answer that is not 200.
type ErrorResponse struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

func (e *ErrorResponse) Error() string { return e.Code + ": " + e.Message }

// Kind of a resource.
type Kind string

// The kinds.
const (
	Instance Kind = "instance"
	NIC      Kind = "nic"
	Disk     Kind = "disk"
)

// State of an instance.
type State string

// The states.
const (
	Pending    State = "pending"
	Running    State = "running"
	Stopping   State = "stopping"
	Stopped    State = "stopped"
	Terminated State = "terminated"
)

// Resource is something in the cloud.
type Resource struct {
	Kind      Kind              `json:"kind"`
	ID        string            `json:"id"`
	Region    string            `json:"region"`
	Zone      string            `json:"zone"`
	Tags      map[string]string `json:"tags,omitempty"`
	CreatedAt time.Time         `json:"createdAt"`

	// An instance's.
	Name         string `json:"name,omitempty"`
	State        State  `json:"state,omitempty"`
	StateReason  string `json:"stateReason,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Image        string `json:"image,omitempty"`
	Spot         bool   `json:"spot,omitempty"`

	// An instance's and a NIC's.
	Network   string `json:"network,omitempty"`
	PrivateIP string `json:"privateIP,omitempty"`

	// A disk's.
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// A dependant's: the instance that it is attached to, and whether it goes with it.
	AttachedTo         string `json:"attachedTo,omitempty"`
	DeleteOnTerminated bool   `json:"deleteOnTerminated,omitempty"`
}

// RunInstancesRequest makes one instance, its NIC and its disks, all with the same tags.
type RunInstancesRequest struct {
	Region string `json:"region"`
	// ClientToken makes the call idempotent: the same token with the same parameters answers the
	// same instance, also when it is terminated; with other parameters it is
	// IdempotentParameterMismatch. A failed call binds nothing.
	ClientToken string `json:"clientToken,omitempty"`
	// DryRun answers DryRunOperation (412) where the call would have succeeded.
	DryRun bool `json:"dryRun,omitempty"`

	Name         string `json:"name,omitempty"`
	InstanceType string `json:"instanceType"`
	Image        string `json:"image"`
	// Zone, or empty: the cloud chooses one with capacity.
	Zone         string            `json:"zone,omitempty"`
	Network      string            `json:"network,omitempty"`
	DiskGiB      int32             `json:"diskGiB,omitempty"`
	DataDisksGiB []int32           `json:"dataDisksGiB,omitempty"`
	Spot         bool              `json:"spot,omitempty"`
	UserData     []byte            `json:"userData,omitempty"`
	Tags         map[string]string `json:"tags,omitempty"`
}

// RunInstancesResponse holds the instance.
type RunInstancesResponse struct {
	Instance Resource `json:"instance"`
}

// DescribeRequest reads resources, one page. All filters that are set must match.
type DescribeRequest struct {
	Region string   `json:"region"`
	IDs    []string `json:"ids,omitempty"`
	// TagKey: only what carries this tag; with TagValues: one of these values.
	TagKey    string   `json:"tagKey,omitempty"`
	TagValues []string `json:"tagValues,omitempty"`
	Kinds     []Kind   `json:"kinds,omitempty"`
	// MaxResults is the page's size, at most and by default MaxResults. A page may be smaller, even
	// empty, and yet not be the last: only an empty NextToken ends the listing.
	MaxResults int    `json:"maxResults,omitempty"`
	NextToken  string `json:"nextToken,omitempty"`
}

// DescribeResponse is a page.
type DescribeResponse struct {
	Resources []Resource `json:"resources"`
	NextToken string     `json:"nextToken,omitempty"`
}

// BatchRequest names what TerminateInstances or DeleteResources shall remove.
type BatchRequest struct {
	Region string   `json:"region"`
	IDs    []string `json:"ids"`
}

// BatchResponse has one result for each ID, in the request's order.
type BatchResponse struct {
	Results []BatchResult `json:"results"`
}

// BatchResult is nil-coded where the removal was accepted.
type BatchResult struct {
	ID    string         `json:"id"`
	Error *ErrorResponse `json:"error,omitempty"`
}

// ConsoleRequest asks for what an instance has written to its console.
type ConsoleRequest struct {
	Region string `json:"region"`
	ID     string `json:"id"`
}

// ConsoleResponse holds its end.
type ConsoleResponse struct {
	Output []byte `json:"output,omitempty"`
}

// CatalogRequest asks for what a region offers.
type CatalogRequest struct {
	Region string `json:"region"`
}

// CatalogResponse is what a region offers, and to whom.
type CatalogResponse struct {
	// Account is the customer's number, by chance: no other customer has it, of this simulated
	// cloud or another.
	Account       string         `json:"account"`
	Zones         []string       `json:"zones"`
	InstanceTypes []InstanceType `json:"instanceTypes"`
	Images        []Image        `json:"images"`
	Networks      []Network      `json:"networks"`
}

// InstanceType is a size of machine.
type InstanceType struct {
	Name      string `json:"name"`
	CPU       int32  `json:"cpu"`
	MemoryMiB int64  `json:"memoryMiB"`
	// PricePerHour in US dollars. SpotPricePerHour 0 means: no spot.
	PricePerHour     float64 `json:"pricePerHour"`
	SpotPricePerHour float64 `json:"spotPricePerHour,omitempty"`
	// Arch in Go's words; the image's must be the same.
	Arch string `json:"arch"`
}

// Image is what an instance boots from.
type Image struct {
	Name string `json:"name"`
	Arch string `json:"arch"`
	OS   string `json:"os"`
}

// Network is where NICs lie.
type Network struct {
	Name string `json:"name"`
	CIDR string `json:"cidr"`
}
