// SPDX-License-Identifier: Apache-2.0

package v1beta1

// AWSAccount is a region of an AWS account. Its credentials Secret has the keys "aws_access_key_id"
// and "aws_secret_access_key", plus "aws_session_token" for temporary credentials; or the keys
// "aws_role_arn" and "aws_web_identity_token".
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == has(oldSelf.endpoint) && (!has(self.endpoint) || self.endpoint == oldSelf.endpoint)",message="endpoint can't be changed, because the account's machines would look gone: make a new DroverAccount"
// +kubebuilder:validation:XValidation:rule="!has(self.endpoint) || ((!has(self.fips) || self.fips != 'Enabled') && (!has(self.dualStack) || self.dualStack != 'Enabled'))",message="fips and dualStack choose among AWS's own endpoints: leave them out, or endpoint"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.accountID) || (has(self.accountID) && self.accountID == oldSelf.accountID)",message="accountID can't be changed: make a new DroverAccount"
type AWSAccount struct {
	// region is the AWS region in which machines are created, in any partition. It is immutable: in
	// a listing of another region, all machines of this account would be gone.
	// Example: "eu-central-1", "us-gov-west-1", "cn-north-1".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="region can't be changed: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$`
	Region string `json:"region,omitempty"`

	// accountID is the ID of the AWS account to which the credentials, or the role that they
	// assume, must give access. It is immutable once set. Default: the account to which they give
	// access when they are first used.
	// Example: "123456789012".
	// +optional
	// +kubebuilder:validation:MinLength=12
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:Pattern=`^[0-9]{12}$`
	AccountID string `json:"accountID,omitempty"`

	// endpoint replaces AWS's own endpoint for EC2, SSM, STS and SQS, for a cloud that implements
	// their protocols. It needs credentialsRef, and is immutable. Default: the region's endpoints.
	// Example: "https://ec2.cloud.example:8443".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#@]+$`
	Endpoint string `json:"endpoint,omitempty"`

	// fips is "Enabled" to use the endpoints whose cryptography is validated to FIPS 140. Default:
	// "Disabled".
	// +optional
	FIPS FeatureState `json:"fips,omitempty"`

	// dualStack is "Enabled" to use the endpoints that are also reachable over IPv6. Default:
	// "Disabled".
	// +optional
	DualStack FeatureState `json:"dualStack,omitempty"`

	// assumeRole is a role to assume, in this or another AWS account. The credentials are then used
	// for nothing else.
	// +optional
	AssumeRole AWSAssumeRole `json:"assumeRole,omitempty,omitzero"`

	// interruptionQueue is the queue to which EventBridge sends what EC2 announces about instances.
	// Only this DroverAccount may use the queue, because Drover removes what it reads. Default:
	// none, and Drover notices an interruption only when the instance is gone.
	// +optional
	InterruptionQueue AWSInterruptionQueue `json:"interruptionQueue,omitempty,omitzero"`
}

// AWSRebalancePolicy specifies what happens to a spot instance that EC2 recommends to replace.
// +kubebuilder:validation:Enum=Report;Replace
type AWSRebalancePolicy string

const (
	// AWSRebalanceReport only shows the recommendation.
	AWSRebalanceReport AWSRebalancePolicy = "Report"
	// AWSRebalanceReplace replaces the machine.
	AWSRebalanceReplace AWSRebalancePolicy = "Replace"
)

// AWSInterruptionQueue is an Amazon SQS queue.
type AWSInterruptionQueue struct {
	// url is the URL of the queue, in the account's region.
	// Example: "https://sqs.eu-central-1.amazonaws.com/123456789012/drover".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#@]+/[^\s?#@]+$`
	URL string `json:"url,omitempty"`

	// rebalance specifies what happens when EC2 recommends leaving a spot instance because it is
	// likely to be interrupted. "Report" shows the recommendation in the DroverMachine's condition
	// InstanceHealthy. "Replace" deletes the Machine, as for an interruption. Default: "Report".
	// +optional
	Rebalance AWSRebalancePolicy `json:"rebalance,omitempty"`
}

// AWSAssumeRole is a role to assume.
type AWSAssumeRole struct {
	// arn is the ARN of the role.
	// Example: "arn:aws:iam::123456789012:role/drover".
	// +required
	// +kubebuilder:validation:MinLength=20
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$`
	ARN string `json:"arn,omitempty"`

	// externalID is the external ID that the role's trust policy requires. It is not a secret.
	// Example: "drover-team-a".
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1224
	// +kubebuilder:validation:Pattern=`^[\w+=,.@:/-]+$`
	ExternalID string `json:"externalID,omitempty"`
}

// AWSTenancy specifies with whom an instance shares its hardware.
// +kubebuilder:validation:Enum=default;dedicated;host
type AWSTenancy string

const (
	// AWSTenancyDefault is hardware shared with other AWS accounts.
	AWSTenancyDefault AWSTenancy = "default"
	// AWSTenancyDedicated is hardware of this AWS account alone.
	AWSTenancyDedicated AWSTenancy = "dedicated"
	// AWSTenancyHost is a Dedicated Host.
	AWSTenancyHost AWSTenancy = "host"
)

// AWSMachine is an EC2 instance. Drover creates it with one RunInstances call.
// +kubebuilder:validation:XValidation:rule="!has(self.publicIP) || !has(self.networkInterfaces)",message="EC2 gives no public IP to a machine with several network interfaces: leave out publicIP, or networkInterfaces"
// +kubebuilder:validation:XValidation:rule="!has(self.hostID) || (has(self.tenancy) && self.tenancy == 'host')",message="hostID needs tenancy host"
type AWSMachine struct {
	// instanceType is the size of the instance.
	// Example: "m7g.large".
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9-]+\.[a-z0-9-]+$`
	InstanceType string `json:"instanceType,omitempty"`

	// image is the AMI to boot.
	// +required
	Image AWSImage `json:"image,omitempty,omitzero"`

	// subnets are the subnets that the machine may be in. Drover uses the one with the most free
	// addresses in the machine's failure domain.
	// Example: {"tags": {"kubernetes.io/role/internal-elb": "1"}}.
	// +required
	Subnets AWSSelector `json:"subnets,omitempty,omitzero"`

	// securityGroups are the security groups of all network interfaces of the machine. Tags select
	// only groups of the subnet's VPC. Default: the VPC's default group.
	// +optional
	SecurityGroups *AWSSelector `json:"securityGroups,omitempty"` //nolint:kubeapilinter // The struct is not comparable, and has no member that is always set.

	// publicIP is "Enabled" to give the machine a public IPv4 address, and "Disabled" to give it
	// none. Default: the subnet's setting.
	// +optional
	PublicIP FeatureState `json:"publicIP,omitempty"`

	// ipv6AddressCount is the number of IPv6 addresses of the first network interface. Default: 0,
	// or the subnet's setting.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	IPv6AddressCount int32 `json:"ipv6AddressCount,omitempty"`

	// primaryIPv6 is "Enabled" to keep the first of these IPv6 addresses for the lifetime of the
	// machine. Default: "Disabled".
	// +optional
	PrimaryIPv6 FeatureState `json:"primaryIPv6,omitempty"`

	// efa is "Enabled" to make the first network interface an Elastic Fabric Adapter. Default:
	// "Disabled".
	// +optional
	EFA FeatureState `json:"efa,omitempty"`

	// networkInterfaces are additional network interfaces in the same subnet. They are deleted with
	// the machine. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=63
	NetworkInterfaces []AWSNetworkInterface `json:"networkInterfaces,omitempty"`

	// rootVolume is the disk that the machine boots from. Default: the image's settings, and
	// encrypted.
	// +optional
	RootVolume *AWSVolume `json:"rootVolume,omitempty"`

	// volumes are additional disks. They are deleted with the machine. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=deviceName
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=27
	Volumes []AWSDataVolume `json:"volumes,omitempty"`

	// instanceProfile is the name or ARN of the IAM instance profile that software on the machine
	// can use. Default: none.
	// Example: "nodes.example".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[\w+=,.@:/-]+$`
	InstanceProfile string `json:"instanceProfile,omitempty"`

	// metadata specifies how software on the machine reaches the instance metadata service.
	// Default: with a session token, within one network hop.
	// +optional
	Metadata AWSMetadata `json:"metadata,omitempty,omitzero"`

	// keyName is the name of the EC2 key pair whose public key the image accepts for logins.
	// Default: none.
	// Example: "operators".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	KeyName string `json:"keyName,omitempty"`

	// tenancy is the tenancy of the hardware: "default" shares it with other customers, "dedicated"
	// does not, and "host" is a Dedicated Host. Default: the VPC's tenancy.
	// +optional
	Tenancy AWSTenancy `json:"tenancy,omitempty"`

	// hostID is the ID of the Dedicated Host, which is in one zone. Default: any host with
	// capacity.
	// Example: "h-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^h-[0-9a-f]+$`
	HostID string `json:"hostID,omitempty"`

	// placementGroup is the placement group of the machine.
	// +optional
	PlacementGroup AWSPlacementGroup `json:"placementGroup,omitempty,omitzero"`

	// capacityReservation specifies the reserved capacity to use. Default: any open reservation
	// that matches.
	// +optional
	CapacityReservation *AWSCapacityReservation `json:"capacityReservation,omitempty"`

	// cpuOptions changes the processor. Default: the instance type's options.
	// +optional
	CPUOptions AWSCPUOptions `json:"cpuOptions,omitempty,omitzero"`

	// market specifies how the machine is purchased. Default: on demand.
	// +optional
	Market AWSMarket `json:"market,omitempty,omitzero"`

	// detailedMonitoring is "Enabled" to make CloudWatch measure every minute instead of every five
	// minutes. AWS charges for it. Default: "Disabled".
	// +optional
	DetailedMonitoring FeatureState `json:"detailedMonitoring,omitempty"`

	// tags are added to the instance, its volumes and its network interfaces, in addition to
	// Drover's tags. Keys must not begin with "aws:" or "drover-".
	// Example: {"cost-center": "4711"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=40
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="a key has at most 128 characters, a value 256"
	Tags map[string]string `json:"tags,omitempty"`
}

// AWSLoadBalancer is a Network Load Balancer for the API servers of a cluster.
type AWSLoadBalancer struct {
	// subnets are where the load balancer has addresses: the first by ID in each zone, all of one
	// VPC. If not set, the subnets of the default VPC are used.
	// +optional
	Subnets *AWSSelector `json:"subnets,omitempty"` //nolint:kubeapilinter // The struct is not comparable, and has no member that is always set.

	// securityGroups are set beside the group that Drover creates for the load balancer. Name the
	// machines' group here if its rules let its own members connect to the API servers.
	// +optional
	SecurityGroups *AWSSelector `json:"securityGroups,omitempty"` //nolint:kubeapilinter // The struct is not comparable, and has no member that is always set.

	// scheme is "Internal" for a load balancer with private addresses only, or "InternetFacing".
	// Default: "InternetFacing".
	// +optional
	Scheme LoadBalancerScheme `json:"scheme,omitempty"`
}

// AWSSelector selects resources by IDs or by tags. Drover looks up tags again every few minutes.
// +kubebuilder:validation:XValidation:rule="has(self.ids) != has(self.tags)",message="exactly one of ids and tags must be set"
// +kubebuilder:validation:MinProperties=1
type AWSSelector struct {
	// ids are the IDs of the resources.
	// Example: ["subnet-0a1b2c3d4e5f60718"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[a-z]+-[0-9a-f]+$`
	IDs []string `json:"ids,omitempty"`

	// tags are the tags that a resource must have, all of them. An empty value matches any value.
	// Example: {"role": "nodes"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="a key has at most 128 characters, a value 256"
	Tags map[string]string `json:"tags,omitempty"`
}

// AWSImage names an AMI in one of three ways. Drover looks up ssmParameter and lookup again every
// few minutes, because their results can change.
// +kubebuilder:validation:XValidation:rule="[has(self.id), has(self.ssmParameter), has(self.lookup)].filter(x, x).size() == 1",message="exactly one of id, ssmParameter and lookup must be set"
// +kubebuilder:validation:MinProperties=1
type AWSImage struct {
	// id is the ID of the AMI, in the account's region.
	// Example: "ami-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=5
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^ami-[0-9a-f]+$`
	ID string `json:"id,omitempty"`

	// ssmParameter is the name or ARN of a Systems Manager parameter that holds the AMI's ID.
	// Canonical and Amazon publish such parameters.
	// Example:
	// "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[\w.:/-]+$`
	SSMParameter string `json:"ssmParameter,omitempty"`

	// lookup finds the newest AMI that matches.
	// +optional
	Lookup AWSImageLookup `json:"lookup,omitempty,omitzero"`
}

// AWSArchitecture is a CPU architecture, as a GOARCH value.
// +kubebuilder:validation:Enum=amd64;arm64
type AWSArchitecture string

const (
	// AWSArchitectureAMD64 is EC2's "x86_64".
	AWSArchitectureAMD64 AWSArchitecture = "amd64"
	// AWSArchitectureARM64 is EC2's "arm64".
	AWSArchitectureARM64 AWSArchitecture = "arm64"
)

// AWSImageLookup finds the newest AMI that matches.
type AWSImageLookup struct {
	// owners are the accounts whose AMIs are trusted: IDs, "self", "amazon" or "aws-marketplace".
	// Anyone can publish an AMI under any name, so there is no default.
	// Example: ["099720109477"].
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MinLength=4
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:items:Pattern=`^([0-9]{12}|self|amazon|aws-marketplace)$`
	Owners []string `json:"owners,omitempty"`

	// name is the name of the AMI. "*" and "?" are wildcards.
	// Example: "capi-ubuntu-24.04-v1.36.*".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`

	// architecture is the CPU architecture of the AMI, as a GOARCH value. Default: either.
	// Example: "arm64".
	// +optional
	Architecture AWSArchitecture `json:"architecture,omitempty"`

	// tags are the tags that the AMI must have, all of them. An empty value matches any value.
	// Example: {"release": "stable"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 128 && size(self[k]) <= 256)",message="a key has at most 128 characters, a value 256"
	Tags map[string]string `json:"tags,omitempty"`
}

// AWSVolumeType is a volume type of EBS.
// +kubebuilder:validation:Enum=gp2;gp3;io1;io2;sc1;st1;standard
type AWSVolumeType string

const (
	// AWSVolumeGP2 is the previous general purpose SSD.
	AWSVolumeGP2 AWSVolumeType = "gp2"
	// AWSVolumeGP3 is the general purpose SSD.
	AWSVolumeGP3 AWSVolumeType = "gp3"
	// AWSVolumeIO1 is the previous SSD with provisioned IOPS.
	AWSVolumeIO1 AWSVolumeType = "io1"
	// AWSVolumeIO2 is the SSD with provisioned IOPS.
	AWSVolumeIO2 AWSVolumeType = "io2"
	// AWSVolumeSC1 is the cold HDD.
	AWSVolumeSC1 AWSVolumeType = "sc1"
	// AWSVolumeST1 is the HDD optimized for throughput.
	AWSVolumeST1 AWSVolumeType = "st1"
	// AWSVolumeStandard is the magnetic volume.
	AWSVolumeStandard AWSVolumeType = "standard"
)

// AWSVolume is an Elastic Block Store (EBS) volume.
// +kubebuilder:validation:XValidation:rule="!has(self.throughputMiBps) || (has(self.type) && self.type == 'gp3')",message="throughputMiBps needs type gp3"
// +kubebuilder:validation:XValidation:rule="has(self.iops) ? has(self.type) && self.type in ['gp3', 'io1', 'io2'] : !has(self.type) || !(self.type in ['io1', 'io2'])",message="iops is for type gp3, and for io1 and io2, which need it"
type AWSVolume struct {
	// sizeGiB is the size of the disk in GiB. Default: the size of the image or snapshot.
	// Example: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// type is the type of the disk. Default: the image's type, or "gp2" for a disk without an
	// image.
	// Example: "gp3".
	// +optional
	Type AWSVolumeType `json:"type,omitempty"`

	// iops is the number of I/O operations per second. Default: 3000 for gp3.
	// Example: 6000.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=256000
	IOPS int32 `json:"iops,omitempty"`

	// throughputMiBps is the throughput in MiB per second. Default: 125 for gp3.
	// Example: 500.
	// +optional
	// +kubebuilder:validation:Minimum=125
	// +kubebuilder:validation:Maximum=2000
	ThroughputMiBps int32 `json:"throughputMiBps,omitempty"`

	// encryption is "Enabled" to encrypt the disk. If it is "Disabled", the image or snapshot and
	// the account's own setting decide. Default: "Enabled".
	// +optional
	Encryption FeatureState `json:"encryption,omitempty"`

	// kmsKeyID is the ID, alias or ARN of the key that encrypts the disk. Default: the account's
	// key for EBS.
	// Example: "alias/nodes".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	KMSKeyID string `json:"kmsKeyID,omitempty"`
}

// AWSDataVolume is a disk in addition to the root volume.
type AWSDataVolume struct {
	// deviceName is the name under which the disk is attached.
	// Example: "/dev/sdf".
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(/dev/)?[a-z]+[0-9]*$`
	DeviceName string `json:"deviceName,omitempty"`

	// snapshotID is the ID of the snapshot from which the disk is created. Default: none, and
	// sizeGiB is required.
	// Example: "snap-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^snap-[0-9a-f]+$`
	SnapshotID string `json:"snapshotID,omitempty"`

	AWSVolume `json:",inline"`
}

// AWSInterfaceType is the type of a network interface.
// +kubebuilder:validation:Enum=interface;efa;efa-only
type AWSInterfaceType string

const (
	// AWSInterface is an ordinary network interface.
	AWSInterface AWSInterfaceType = "interface"
	// AWSInterfaceEFA is an Elastic Fabric Adapter that also has an IP address.
	AWSInterfaceEFA AWSInterfaceType = "efa"
	// AWSInterfaceEFAOnly is an Elastic Fabric Adapter without an IP address.
	AWSInterfaceEFAOnly AWSInterfaceType = "efa-only"
)

// AWSNetworkInterface is a network interface in addition to the first one.
type AWSNetworkInterface struct {
	// type is "interface", or "efa" or "efa-only" for an Elastic Fabric Adapter with or without IP.
	// Default: "interface".
	// +optional
	Type AWSInterfaceType `json:"type,omitempty"`

	// networkCard is the index of the network card of the interface, if the instance type has
	// several cards. Default: 0.
	// Example: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	NetworkCard *int32 `json:"networkCard,omitempty"`

	// deviceIndex is the index of the interface on its card. The machine's first interface has
	// index 0 on card 0.
	// Example: 1.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	DeviceIndex *int32 `json:"deviceIndex,omitempty"`
}

// AWSMetadataTokens specifies whether the instance metadata service requires a session token.
// +kubebuilder:validation:Enum=required;optional
type AWSMetadataTokens string

const (
	// AWSMetadataTokensRequired permits only IMDSv2.
	AWSMetadataTokensRequired AWSMetadataTokens = "required"
	// AWSMetadataTokensOptional permits IMDSv1 too.
	AWSMetadataTokensOptional AWSMetadataTokens = "optional"
)

// AWSMetadata specifies how software on the machine reaches the instance metadata service, which
// has the machine's user data and the credentials of its instance profile.
// +kubebuilder:validation:MinProperties=1
type AWSMetadata struct {
	// tokens specifies whether requests must contain a session token ("IMDSv2"): "required" or
	// "optional". Default: "required".
	// +optional
	Tokens AWSMetadataTokens `json:"tokens,omitempty"`

	// hopLimit is the maximum number of network hops of a response. 1 keeps responses from pods
	// that do not share the host's network. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	HopLimit int32 `json:"hopLimit,omitempty"`

	// ipv6 is "Enabled" to make the service available over IPv6 as well. Default: "Disabled".
	// +optional
	IPv6 FeatureState `json:"ipv6,omitempty"`

	// instanceTags is "Enabled" to make the instance's tags available in the metadata. Default:
	// "Disabled".
	// +optional
	InstanceTags FeatureState `json:"instanceTags,omitempty"`
}

// AWSPlacementGroup is the placement group of a machine.
type AWSPlacementGroup struct {
	// name is the name of the placement group.
	// Example: "spread".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name,omitempty"`

	// partition is the partition of the group, if the group's strategy is "partition". Default: EC2
	// chooses.
	// Example: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	Partition int32 `json:"partition,omitempty"`
}

// AWSCapacityPreference specifies which capacity reservations an instance may use.
// +kubebuilder:validation:Enum=open;none;capacity-reservations-only
type AWSCapacityPreference string

const (
	// AWSCapacityOpen uses any open reservation that fits, or none.
	AWSCapacityOpen AWSCapacityPreference = "open"
	// AWSCapacityNone uses no reservation.
	AWSCapacityNone AWSCapacityPreference = "none"
	// AWSCapacityReservationsOnly uses reservations only.
	AWSCapacityReservationsOnly AWSCapacityPreference = "capacity-reservations-only"
)

// AWSCapacityReservation specifies which reserved capacity a machine uses.
// +kubebuilder:validation:XValidation:rule="[has(self.id), has(self.resourceGroupARN), has(self.preference)].filter(x, x).size() == 1",message="exactly one of id, resourceGroupARN and preference must be set"
type AWSCapacityReservation struct {
	// id is the ID of the reservation.
	// Example: "cr-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^cr-[0-9a-f]+$`
	ID string `json:"id,omitempty"`

	// resourceGroupARN is the ARN of a group of reservations. EC2 can use any of them.
	// Example: "arn:aws:resource-groups:eu-central-1:123456789012:group/nodes".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^arn:aws[a-z-]*:resource-groups:`
	ResourceGroupARN string `json:"resourceGroupARN,omitempty"`

	// preference applies if no reservation is named: "open" uses any that matches, "none" uses
	// none, and "capacity-reservations-only" fails if none matches.
	// Example: "none".
	// +optional
	Preference AWSCapacityPreference `json:"preference,omitempty"`
}

// AWSCPUOptions changes the processor.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.coreCount) == has(self.threadsPerCore)",message="coreCount and threadsPerCore go together"
type AWSCPUOptions struct {
	// coreCount is the number of CPU cores.
	// Example: 4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CoreCount int32 `json:"coreCount,omitempty"`

	// threadsPerCore is 1 to disable simultaneous multithreading, otherwise 2.
	// Example: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2
	ThreadsPerCore int32 `json:"threadsPerCore,omitempty"`

	// amdSEVSNP is "Enabled" to encrypt the memory, if the instance type supports it. Default:
	// "Disabled".
	// +optional
	AMDSEVSNP FeatureState `json:"amdSEVSNP,omitempty"`

	// nestedVirtualization is "Enabled" to let the machine run virtual machines, if the instance
	// type supports it. Default: "Disabled".
	// +optional
	NestedVirtualization FeatureState `json:"nestedVirtualization,omitempty"`
}

// AWSMarketType is how an instance is bought.
// +kubebuilder:validation:Enum=spot;capacity-block
type AWSMarketType string

const (
	// AWSMarketSpot is spare capacity that EC2 may take back.
	AWSMarketSpot AWSMarketType = "spot"
	// AWSMarketCapacityBlock is a capacity block that was bought in advance.
	AWSMarketCapacityBlock AWSMarketType = "capacity-block"
)

// AWSMarket specifies how the machine is purchased.
// +kubebuilder:validation:XValidation:rule="!has(self.maxPriceUSD) || self.type == 'spot'",message="maxPriceUSD needs type spot"
type AWSMarket struct {
	// type is "spot" for a cheaper machine that AWS may interrupt at any time, or "capacity-block"
	// for a machine of the Capacity Block that capacityReservation names.
	// +required
	Type AWSMarketType `json:"type,omitempty"`

	// maxPriceUSD is the maximum price per hour, in US dollars. AWS advises against it, because the
	// machine is then interrupted more often. Default: the on-demand price.
	// Example: "0.05".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?$`
	MaxPriceUSD string `json:"maxPriceUSD,omitempty"`
}
