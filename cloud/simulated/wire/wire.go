// SPDX-License-Identifier: Apache-2.0

// Package wire is the simulated cloud's HTTP API: what the driver sends and what the simulator
// answers. Both sides import it. It imports nothing of theirs.
//
// A call is POST /v1/<operation> with a JSON body and "Authorization: Bearer <token>". Status 200
// carries the operation's response, any other status an ErrorResponse. A throttled answer has
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
	PutLoadBalancer    = "PutLoadBalancer"
)

// Limits of the API.
const (
	// MaxUserData is the maximum size of user data in bytes, before base64: EC2's.
	MaxUserData = 16 << 10
	// MaxConsole is how many bytes of a console are returned: EC2's.
	MaxConsole = 64 << 10
	// MaxResults is the maximum and default page size.
	MaxResults = 1000
	// MaxBatch is the maximum number of IDs or tag values in one call.
	MaxBatch = 1000
	// MaxTags, MaxTagKey and MaxTagValue limit the tags of a resource: EC2's.
	MaxTags, MaxTagKey, MaxTagValue = 50, 128, 256
	// MaxName is the maximum length of an instance's name, which is also its hostname.
	MaxName = 63
	// MaxClientToken is the maximum length of a client token: EC2's.
	MaxClientToken = 64
)

// The error codes, the same as EC2's where EC2 has one.
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
	Balancer Kind = "balancer"
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

// Resource is a resource in the cloud.
type Resource struct {
	Kind      Kind              `json:"kind"`
	ID        string            `json:"id"`
	Region    string            `json:"region"`
	Zone      string            `json:"zone"`
	Tags      map[string]string `json:"tags,omitempty"`
	CreatedAt time.Time         `json:"createdAt"`

	// For an instance.
	Name         string `json:"name,omitempty"`
	State        State  `json:"state,omitempty"`
	StateReason  string `json:"stateReason,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Image        string `json:"image,omitempty"`
	Spot         bool   `json:"spot,omitempty"`

	// For an instance and a NIC.
	Network   string `json:"network,omitempty"`
	PrivateIP string `json:"privateIP,omitempty"`

	// For a disk.
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// For a dependant: its instance, and whether it is deleted with the instance.
	AttachedTo         string `json:"attachedTo,omitempty"`
	DeleteOnTerminated bool   `json:"deleteOnTerminated,omitempty"`

	// For a load balancer, which also has Name, State (pending or running) and PrivateIP.
	Port    int32    `json:"port,omitempty"`
	Targets []Target `json:"targets,omitempty"`
}

// Target is a machine to which a load balancer forwards connections.
type Target struct {
	IP      string `json:"ip"`
	Healthy bool   `json:"healthy"`
}

// PutLoadBalancerRequest creates a load balancer, or replaces the targets of an existing one.
type PutLoadBalancerRequest struct {
	Region string `json:"region"`
	// ClientToken identifies the load balancer. It is not free again after a deletion.
	ClientToken string `json:"clientToken"`
	// MustExist makes the call return ResourceNotFound instead of creating the load balancer.
	MustExist bool   `json:"mustExist,omitempty"`
	Name      string `json:"name,omitempty"`
	// Port of the load balancer and of its targets. It can't be changed.
	Port int32 `json:"port"`
	// TargetIPs is the full set of targets.
	TargetIPs []string          `json:"targetIPs,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// PutLoadBalancerResponse holds the load balancer.
type PutLoadBalancerResponse struct {
	LoadBalancer Resource `json:"loadBalancer"`
}

// RunInstancesRequest creates one instance with its NIC and disks, all with the same tags.
type RunInstancesRequest struct {
	Region string `json:"region"`
	// ClientToken makes the call idempotent: the same token with the same parameters returns the
	// same instance, even if it is terminated. With other parameters the call returns
	// IdempotentParameterMismatch. A failed call does not use up the token.
	ClientToken string `json:"clientToken,omitempty"`
	// DryRun makes a call that would succeed return DryRunOperation (412).
	DryRun bool `json:"dryRun,omitempty"`

	Name         string `json:"name,omitempty"`
	InstanceType string `json:"instanceType"`
	Image        string `json:"image"`
	// Zone; if empty, the cloud chooses one with capacity.
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

// DescribeRequest reads one page of resources. All filters that are set must match.
type DescribeRequest struct {
	Region string   `json:"region"`
	IDs    []string `json:"ids,omitempty"`
	// TagKey selects resources with this tag; with TagValues, with one of these values.
	TagKey    string   `json:"tagKey,omitempty"`
	TagValues []string `json:"tagValues,omitempty"`
	Kinds     []Kind   `json:"kinds,omitempty"`
	// MaxResults is the page size, at most and by default MaxResults. A page that is not the last
	// may be smaller, even empty: only an empty NextToken ends the listing.
	MaxResults int    `json:"maxResults,omitempty"`
	NextToken  string `json:"nextToken,omitempty"`
}

// DescribeResponse is a page.
type DescribeResponse struct {
	Resources []Resource `json:"resources"`
	NextToken string     `json:"nextToken,omitempty"`
}

// BatchRequest names the resources for TerminateInstances or DeleteResources.
type BatchRequest struct {
	Region string   `json:"region"`
	IDs    []string `json:"ids"`
}

// BatchResponse has one result for each ID, in the request's order.
type BatchResponse struct {
	Results []BatchResult `json:"results"`
}

// BatchResult has a nil Error if the deletion was accepted.
type BatchResult struct {
	ID    string         `json:"id"`
	Error *ErrorResponse `json:"error,omitempty"`
}

// ConsoleRequest requests an instance's console output.
type ConsoleRequest struct {
	Region string `json:"region"`
	ID     string `json:"id"`
}

// ConsoleResponse holds the end of the output.
type ConsoleResponse struct {
	Output []byte `json:"output,omitempty"`
}

// CatalogRequest requests a region's catalog.
type CatalogRequest struct {
	Region string `json:"region"`
}

// CatalogResponse holds what a region offers, and the account.
type CatalogResponse struct {
	// Account is a random account ID, unique across all simulated clouds.
	Account       string         `json:"account"`
	Zones         []string       `json:"zones"`
	InstanceTypes []InstanceType `json:"instanceTypes"`
	Images        []Image        `json:"images"`
	Networks      []Network      `json:"networks"`
}

// InstanceType is a machine size.
type InstanceType struct {
	Name      string `json:"name"`
	CPU       int32  `json:"cpu"`
	MemoryMiB int64  `json:"memoryMiB"`
	// PricePerHour in US dollars. SpotPricePerHour 0 means that there are no spot instances.
	PricePerHour     float64 `json:"pricePerHour"`
	SpotPricePerHour float64 `json:"spotPricePerHour,omitempty"`
	// Arch in Go's terms. It must match the image's.
	Arch string `json:"arch"`
}

// Image is a boot image.
type Image struct {
	Name string `json:"name"`
	Arch string `json:"arch"`
	OS   string `json:"os"`
}

// Network is a network for NICs.
type Network struct {
	Name string `json:"name"`
	CIDR string `json:"cidr"`
}
