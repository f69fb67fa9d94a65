// SPDX-License-Identifier: Apache-2.0

package gcp

import "time"

// What follows are the members of Compute Engine's resources that Drover sends or reads, as the
// reference of its API, version 1, names them. Numbers of 64 bits are strings in it. A test
// compares all of them with Google's discovery document.

type instance struct {
	ID                 string            `json:"id,omitempty"`
	Name               string            `json:"name,omitempty"`
	Zone               string            `json:"zone,omitempty"`
	Status             string            `json:"status,omitempty"`
	StatusMessage      string            `json:"statusMessage,omitempty"`
	CreationTimestamp  *time.Time        `json:"creationTimestamp,omitempty"`
	LastStartTimestamp *time.Time        `json:"lastStartTimestamp,omitempty"`
	Description        string            `json:"description,omitempty"`
	MachineType        string            `json:"machineType,omitempty"`
	MinCPUPlatform     string            `json:"minCpuPlatform,omitempty"`
	CanIPForward       bool              `json:"canIpForward,omitempty"`
	Labels             map[string]string `json:"labels,omitempty"`
	LabelFingerprint   string            `json:"labelFingerprint,omitempty"`
	ResourcePolicies   []string          `json:"resourcePolicies,omitempty"`

	Disks               []attachedDisk       `json:"disks,omitempty"`
	NetworkInterfaces   []networkInterface   `json:"networkInterfaces,omitempty"`
	ServiceAccounts     []serviceAccount     `json:"serviceAccounts,omitempty"`
	GuestAccelerators   []accelerator        `json:"guestAccelerators,omitempty"`
	Tags                *networkTags         `json:"tags,omitempty"`
	Metadata            *metadata            `json:"metadata,omitempty"`
	Scheduling          *scheduling          `json:"scheduling,omitempty"`
	Shielded            *shielded            `json:"shieldedInstanceConfig,omitempty"`
	Confidential        *confidential        `json:"confidentialInstanceConfig,omitempty"`
	AdvancedFeatures    *advancedFeatures    `json:"advancedMachineFeatures,omitempty"`
	ReservationAffinity *reservationAffinity `json:"reservationAffinity,omitempty"`
	Params              *instanceParams      `json:"params,omitempty"`
	ResourceStatus      *resourceStatus      `json:"resourceStatus,omitempty"`
}

type attachedDisk struct {
	Boot             bool              `json:"boot,omitempty"`
	AutoDelete       bool              `json:"autoDelete"`
	Type             string            `json:"type,omitempty"`
	Interface        string            `json:"interface,omitempty"`
	DeviceName       string            `json:"deviceName,omitempty"`
	InitializeParams *initializeParams `json:"initializeParams,omitempty"`
	EncryptionKey    *encryptionKey    `json:"diskEncryptionKey,omitempty"`
}

type initializeParams struct {
	SourceImage           string            `json:"sourceImage,omitempty"`
	SourceSnapshot        string            `json:"sourceSnapshot,omitempty"`
	DiskSizeGB            int64             `json:"diskSizeGb,omitempty,string"`
	DiskType              string            `json:"diskType,omitempty"`
	StoragePool           string            `json:"storagePool,omitempty"`
	ProvisionedIOPS       int64             `json:"provisionedIops,omitempty,string"`
	ProvisionedThroughput int64             `json:"provisionedThroughput,omitempty,string"`
	Labels                map[string]string `json:"labels,omitempty"`
	ResourceManagerTags   map[string]string `json:"resourceManagerTags,omitempty"`
}

type encryptionKey struct {
	KMSKeyName           string `json:"kmsKeyName,omitempty"`
	KMSKeyServiceAccount string `json:"kmsKeyServiceAccount,omitempty"`
}

type networkInterface struct {
	Network           string         `json:"network,omitempty"`
	Subnetwork        string         `json:"subnetwork,omitempty"`
	StackType         string         `json:"stackType,omitempty"`
	NICType           string         `json:"nicType,omitempty"`
	QueueCount        int32          `json:"queueCount,omitempty"`
	AccessConfigs     []accessConfig `json:"accessConfigs,omitempty"`
	IPv6AccessConfigs []accessConfig `json:"ipv6AccessConfigs,omitempty"`
	AliasIPRanges     []aliasIPRange `json:"aliasIpRanges,omitempty"`

	// Google's answers only.
	NetworkIP   string `json:"networkIP,omitempty"`
	IPv6Address string `json:"ipv6Address,omitempty"`
}

type accessConfig struct {
	Type         string `json:"type,omitempty"`
	Name         string `json:"name,omitempty"`
	NetworkTier  string `json:"networkTier,omitempty"`
	NATIP        string `json:"natIP,omitempty"`
	ExternalIPv6 string `json:"externalIpv6,omitempty"`
}

type aliasIPRange struct {
	Range          string `json:"ipCidrRange,omitempty"`
	SecondaryRange string `json:"subnetworkRangeName,omitempty"`
}

type serviceAccount struct {
	Email  string   `json:"email"`
	Scopes []string `json:"scopes"`
}

type accelerator struct {
	Type  string `json:"acceleratorType"`
	Count int32  `json:"acceleratorCount"`
}

type networkTags struct {
	Items       []string `json:"items"`
	Fingerprint string   `json:"fingerprint,omitempty"`
}

// labelsRequest replaces the labels of an instance.
type labelsRequest struct {
	Labels      map[string]string `json:"labels"`
	Fingerprint string            `json:"labelFingerprint"`
}

type metadata struct {
	Items []metadataItem `json:"items"`
}

type metadataItem struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type scheduling struct {
	ProvisioningModel string         `json:"provisioningModel,omitempty"`
	TerminationAction string         `json:"instanceTerminationAction,omitempty"`
	Preemptible       bool           `json:"preemptible,omitempty"`
	AutomaticRestart  *bool          `json:"automaticRestart,omitempty"`
	OnHostMaintenance string         `json:"onHostMaintenance,omitempty"`
	MaxRunDuration    *duration      `json:"maxRunDuration,omitempty"`
	NodeAffinities    []nodeAffinity `json:"nodeAffinities,omitempty"`
}

type duration struct {
	Seconds int64 `json:"seconds,string"`
}

type nodeAffinity struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type shielded struct {
	SecureBoot          *bool `json:"enableSecureBoot,omitempty"`
	VTPM                *bool `json:"enableVtpm,omitempty"`
	IntegrityMonitoring *bool `json:"enableIntegrityMonitoring,omitempty"`
}

type confidential struct {
	Enable bool   `json:"enableConfidentialCompute"`
	Type   string `json:"confidentialInstanceType"`
}

type advancedFeatures struct {
	NestedVirtualization bool  `json:"enableNestedVirtualization,omitempty"`
	ThreadsPerCore       int32 `json:"threadsPerCore,omitempty"`
	VisibleCores         int32 `json:"visibleCoreCount,omitempty"`
}

type reservationAffinity struct {
	Type   string   `json:"consumeReservationType"`
	Key    string   `json:"key,omitempty"`
	Values []string `json:"values,omitempty"`
}

type instanceParams struct {
	ResourceManagerTags map[string]string `json:"resourceManagerTags,omitempty"`
}

type resourceStatus struct {
	UpcomingMaintenance *upcomingMaintenance `json:"upcomingMaintenance,omitempty"`
}

type upcomingMaintenance struct {
	WindowStartTime   string `json:"windowStartTime,omitempty"`
	MaintenanceStatus string `json:"maintenanceStatus,omitempty"`
}

// operation is the progress of a create or a delete, or tells what Compute Engine did by itself.
type operation struct {
	Name       string     `json:"name"`
	InsertTime *time.Time `json:"insertTime,omitempty"`
	Status     string     `json:"status"`
	TargetID   string     `json:"targetId"`
	HTTPStatus int        `json:"httpErrorStatusCode,omitempty"`
	Error      *opFailure `json:"error,omitempty"`
}

type opFailure struct {
	Errors []failure `json:"errors"`
}

// failure is one error of an answer, with a reason, or of an operation, with a code.
type failure struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type region struct {
	Name     string   `json:"name"`
	SelfLink string   `json:"selfLink"`
	Status   string   `json:"status"`
	Zones    []string `json:"zones"`
	Quotas   []quota  `json:"quotas"`
}

type quota struct {
	Metric string  `json:"metric"`
	Limit  float64 `json:"limit"`
	Usage  float64 `json:"usage"`
}

// source is an image or a snapshot.
type source struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"`
}

// permissions are asked for, or those of them that the caller has.
type permissions struct {
	Permissions []string `json:"permissions"`
}

type machineType struct {
	Name         string                `json:"name"`
	GuestCPUs    int64                 `json:"guestCpus"`
	MemoryMB     int64                 `json:"memoryMb"`
	Architecture string                `json:"architecture"`
	Accelerators []includedAccelerator `json:"accelerators"`
}

type includedAccelerator struct {
	Type  string `json:"guestAcceleratorType"`
	Count int64  `json:"guestAcceleratorCount"`
}

type serialPortOutput struct {
	Kind     string `json:"kind"`
	Contents string `json:"contents"`
}

type disk struct {
	ID                string            `json:"id"`
	Name              string            `json:"name"`
	Zone              string            `json:"zone"`
	CreationTimestamp *time.Time        `json:"creationTimestamp"`
	Labels            map[string]string `json:"labels"`
	Users             []string          `json:"users"`
}

// aggregated is one page of a listing of all zones.
type aggregated struct {
	Kind          string           `json:"kind"`
	Items         map[string]scope `json:"items"`
	NextPageToken string           `json:"nextPageToken"`
	Unreachables  []string         `json:"unreachables"`
	Warning       *warning         `json:"warning"`
}

// scope is what one zone or region has in a listing.
type scope struct {
	Instances  []instance  `json:"instances"`
	Disks      []disk      `json:"disks"`
	Operations []operation `json:"operations"`
	Warning    *warning    `json:"warning"`
}

type warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// listed is one page of a listing of one zone, or of no zone.
type listed[T any] struct {
	Kind          string   `json:"kind"`
	Items         []T      `json:"items"`
	NextPageToken string   `json:"nextPageToken"`
	Warning       *warning `json:"warning"`
}

// part has what all parts of a load balancer have in common.
type part struct {
	Name              string     `json:"name"`
	Description       string     `json:"description"`
	CreationTimestamp *time.Time `json:"creationTimestamp,omitempty"`
}

type healthCheck struct {
	part
	Type               string     `json:"type"`
	Interval           int32      `json:"checkIntervalSec"`
	Timeout            int32      `json:"timeoutSec"`
	HealthyThreshold   int32      `json:"healthyThreshold"`
	UnhealthyThreshold int32      `json:"unhealthyThreshold"`
	HTTPS              httpsCheck `json:"httpsHealthCheck"`
}

type httpsCheck struct {
	Path              string `json:"requestPath"`
	PortSpecification string `json:"portSpecification"`
}

type endpointGroup struct {
	part
	Type        string `json:"networkEndpointType"`
	DefaultPort int32  `json:"defaultPort"`
	Network     string `json:"network"`
}

type networkEndpoint struct {
	Instance string `json:"instance"`
	Address  string `json:"ipAddress"`
	Port     int32  `json:"port"`
}

type endpointStatus struct {
	Endpoint networkEndpoint  `json:"networkEndpoint"`
	Healths  []endpointHealth `json:"healths"`
}

type endpointHealth struct {
	State string `json:"healthState"`
}

type backendService struct {
	part
	Scheme         string    `json:"loadBalancingScheme"`
	Protocol       string    `json:"protocol"`
	TimeoutSeconds int32     `json:"timeoutSec"`
	HealthChecks   []string  `json:"healthChecks"`
	Backends       []backend `json:"backends"`
	Draining       *draining `json:"connectionDraining,omitempty"`
}

type backend struct {
	Group          string `json:"group"`
	Mode           string `json:"balancingMode"`
	MaxPerEndpoint int32  `json:"maxConnectionsPerEndpoint"`
}

type draining struct {
	Seconds int32 `json:"drainingTimeoutSec"`
}

type tcpProxy struct {
	part
	Service string `json:"service"`
}

type forwardingRule struct {
	part
	Scheme    string `json:"loadBalancingScheme"`
	Protocol  string `json:"IPProtocol"`
	PortRange string `json:"portRange"`
	Target    string `json:"target"`

	// Google's answers only.
	Address string `json:"IPAddress,omitempty"`
}
