// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// AWSAccount is a region of an AWS account. Its credentials Secret has the keys "aws_access_key_id"
// and "aws_secret_access_key", and "aws_session_token" where they are temporary; or "aws_role_arn"
// and "aws_web_identity_token".
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == has(oldSelf.endpoint) && (!has(self.endpoint) || self.endpoint == oldSelf.endpoint)",message="endpoint can't be changed, because the account's machines would look gone: make a new CloudAccount"
// +kubebuilder:validation:XValidation:rule="!has(self.endpoint) || ((!has(self.fips) || !self.fips) && (!has(self.dualStack) || !self.dualStack))",message="fips and dualStack choose among AWS's own endpoints: leave them out, or endpoint"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.accountID) || (has(self.accountID) && self.accountID == oldSelf.accountID)",message="accountID can't be changed: make a new CloudAccount"
type AWSAccount struct {
	// region in which machines are made, of any partition. It can't be changed: to a listing of
	// another region, every machine of this account is gone. Example: "eu-central-1",
	// "us-gov-west-1", "cn-north-1".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="region can't be changed: make a new CloudAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$`
	Region string `json:"region"`

	// accountID is the AWS account that the credentials, or the role that they assume, must lead
	// to. Default: the one that they lead to when they are first used. Example: "123456789012".
	// +optional
	// +kubebuilder:validation:MinLength=12
	// +kubebuilder:validation:MaxLength=12
	// +kubebuilder:validation:Pattern=`^[0-9]{12}$`
	AccountID string `json:"accountID,omitempty"`

	// endpoint takes the place of AWS's own for EC2, SSM, STS and SQS alike, for a cloud that
	// speaks their protocols. It needs credentials of one's own. Default: the region's. Example:
	// "https://ec2.cloud.example:8443".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#@]+$`
	Endpoint string `json:"endpoint,omitempty"`

	// fips chooses the endpoints whose cryptography is validated to FIPS 140. Default: false.
	// +optional
	FIPS bool `json:"fips,omitempty"`

	// dualStack chooses the endpoints that are reached by IPv6 as well. Default: false.
	// +optional
	DualStack bool `json:"dualStack,omitempty"`

	// assumeRole is a role, of this or of another AWS account, to act as. The credentials are used
	// for nothing else then.
	// +optional
	AssumeRole *AWSAssumeRole `json:"assumeRole,omitempty"`

	// interruptionQueue is where EventBridge puts what EC2 announces of instances. It belongs to
	// this CloudAccount alone: what is read is removed from it. Default: none, and an instance that
	// is taken back is missed when it is gone.
	// +optional
	InterruptionQueue *AWSInterruptionQueue `json:"interruptionQueue,omitempty"`
}

// AWSInterruptionQueue is a queue of Amazon SQS.
type AWSInterruptionQueue struct {
	// url of the queue, in the account's region. Example:
	// "https://sqs.eu-central-1.amazonaws.com/123456789012/drover".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#@]+/[^\s?#@]+$`
	URL string `json:"url"`

	// rebalance says what follows when EC2 recommends to leave a spot instance because it is likely
	// to be taken back: "Report" shows it in the machine's condition Untroubled, "Replace" deletes
	// the Machine as in an interruption. Default: "Report".
	// +optional
	// +kubebuilder:default=Report
	// +kubebuilder:validation:Enum=Report;Replace
	Rebalance string `json:"rebalance,omitempty"`
}

// AWSAssumeRole is a role to act as.
type AWSAssumeRole struct {
	// arn of the role. Example: "arn:aws:iam::123456789012:role/drover".
	// +required
	// +kubebuilder:validation:MinLength=20
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$`
	ARN string `json:"arn"`

	// externalID that the role's trust policy asks for. It is no secret. Example: "drover-team-a".
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1224
	// +kubebuilder:validation:Pattern=`^[\w+=,.@:/-]+$`
	ExternalID string `json:"externalID,omitempty"`
}

// AWSMachine is an EC2 instance. It is made by one RunInstances.
// +kubebuilder:validation:XValidation:rule="!has(self.publicIP) || !has(self.networkInterfaces)",message="EC2 gives no public IP to a machine with several network interfaces: leave out publicIP, or networkInterfaces"
// +kubebuilder:validation:XValidation:rule="!has(self.hostID) || (has(self.tenancy) && self.tenancy == 'host')",message="hostID needs tenancy host"
type AWSMachine struct {
	// instanceType is the size. Example: "m7g.large".
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9-]+\.[a-z0-9-]+$`
	InstanceType string `json:"instanceType"`

	// image to boot.
	// +required
	Image AWSImage `json:"image"`

	// subnets that the machine may be in, of which it gets the one with the most free addresses in
	// its failure domain. Example: {"tags": {"kubernetes.io/role/internal-elb": "1"}}.
	// +required
	Subnets AWSSelector `json:"subnets"`

	// securityGroups of all its network interfaces; by tags, those of the subnet's VPC. Default:
	// the VPC's default group.
	// +optional
	SecurityGroups *AWSSelector `json:"securityGroups,omitempty"`

	// publicIP gives the machine a public IPv4 address, or denies it one. Default: as the subnet
	// has it.
	// +optional
	PublicIP *bool `json:"publicIP,omitempty"`

	// ipv6AddressCount is how many IPv6 addresses the first network interface gets. Default: 0, or
	// as the subnet has it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	IPv6AddressCount int32 `json:"ipv6AddressCount,omitempty"`

	// primaryIPv6 keeps the first of these for the machine's whole life. Default: false.
	// +optional
	PrimaryIPv6 bool `json:"primaryIPv6,omitempty"`

	// efa makes the first network interface an Elastic Fabric Adapter. Default: false.
	// +optional
	EFA bool `json:"efa,omitempty"`

	// networkInterfaces are further ones, in the same subnet. They are deleted with the machine.
	// Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=63
	NetworkInterfaces []AWSNetworkInterface `json:"networkInterfaces,omitempty"`

	// rootVolume is the disk that the machine boots from. Default: as the image has it, and
	// encrypted.
	// +optional
	RootVolume *AWSVolume `json:"rootVolume,omitempty"`

	// volumes are further disks. They are deleted with the machine. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=deviceName
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=27
	Volumes []AWSDataVolume `json:"volumes,omitempty"`

	// instanceProfile is the name or the ARN of the IAM instance profile that software on the
	// machine may use. Default: none. Example: "nodes.example".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[\w+=,.@:/-]+$`
	InstanceProfile string `json:"instanceProfile,omitempty"`

	// metadata says how software on the machine reaches the instance metadata service.
	// +optional
	// +kubebuilder:default={}
	Metadata AWSMetadata `json:"metadata,omitempty"`

	// keyName names the EC2 key pair whose public key the image lets in. Default: none. Example:
	// "operators".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	KeyName string `json:"keyName,omitempty"`

	// tenancy of the hardware: "default" shares it with other customers, "dedicated" does not,
	// "host" is a Dedicated Host. Default: the VPC's.
	// +optional
	// +kubebuilder:validation:Enum=default;dedicated;host
	Tenancy string `json:"tenancy,omitempty"`

	// hostID is the Dedicated Host, in a zone of its own. Default: any with room. Example:
	// "h-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^h-[0-9a-f]+$`
	HostID string `json:"hostID,omitempty"`

	// placementGroup to be in.
	// +optional
	PlacementGroup *AWSPlacementGroup `json:"placementGroup,omitempty"`

	// capacityReservation to use. Default: any open one that fits.
	// +optional
	CapacityReservation *AWSCapacityReservation `json:"capacityReservation,omitempty"`

	// cpuOptions change the processor. Default: the instance type's.
	// +optional
	CPUOptions *AWSCPUOptions `json:"cpuOptions,omitempty"`

	// market to buy the machine on. Default: on demand.
	// +optional
	Market *AWSMarket `json:"market,omitempty"`

	// detailedMonitoring has CloudWatch measure each minute instead of each five; AWS charges for
	// it. Default: false.
	// +optional
	DetailedMonitoring bool `json:"detailedMonitoring,omitempty"`

	// tags are put on the instance, its volumes and its network interfaces, beside Drover's own.
	// Keys can't begin with "aws:" or "drover-". Example: {"cost-center": "4711"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=40
	Tags map[string]string `json:"tags,omitempty"`
}

// AWSSelector names resources by IDs or by tags. Tags are looked up anew every few minutes.
// +kubebuilder:validation:XValidation:rule="has(self.ids) != has(self.tags)",message="exactly one of ids and tags must be set"
type AWSSelector struct {
	// ids of the resources. Example: ["subnet-0a1b2c3d4e5f60718"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[a-z]+-[0-9a-f]+$`
	IDs []string `json:"ids,omitempty"`

	// tags that a resource must have, all of them; an empty value takes any. Example: {"role":
	// "nodes"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=10
	Tags map[string]string `json:"tags,omitempty"`
}

// AWSImage names an AMI in one of three ways. The two that may change their mind are looked up anew
// every few minutes.
// +kubebuilder:validation:XValidation:rule="[has(self.id), has(self.ssmParameter), has(self.lookup)].filter(x, x).size() == 1",message="exactly one of id, ssmParameter and lookup must be set"
type AWSImage struct {
	// id of the AMI, in the account's region. Example: "ami-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=5
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^ami-[0-9a-f]+$`
	ID string `json:"id,omitempty"`

	// ssmParameter is the name or the ARN of a Systems Manager parameter that holds the AMI's ID;
	// Canonical and Amazon publish theirs so. Example:
	// "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[\w.:/-]+$`
	SSMParameter string `json:"ssmParameter,omitempty"`

	// lookup finds the newest AMI that fits.
	// +optional
	Lookup *AWSImageLookup `json:"lookup,omitempty"`
}

// AWSImageLookup finds the newest AMI that fits.
type AWSImageLookup struct {
	// owners are the accounts whose AMIs are trusted: IDs, "self", "amazon" or "aws-marketplace".
	// Anybody can publish an AMI under any name, so there is no default. Example: ["099720109477"].
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MinLength=4
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:items:Pattern=`^([0-9]{12}|self|amazon|aws-marketplace)$`
	Owners []string `json:"owners"`

	// name of the AMI; "*" and "?" stand for what may differ. Example: "capi-ubuntu-24.04-v1.36.*".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// architecture of the AMI, in Go's words. Default: either. Example: "arm64".
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture,omitempty"`

	// tags that the AMI must have, all of them; an empty value takes any. Example: {"release":
	// "stable"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=10
	Tags map[string]string `json:"tags,omitempty"`
}

// AWSVolume is a disk of Elastic Block Store.
// +kubebuilder:validation:XValidation:rule="!has(self.throughputMiBps) || (has(self.type) && self.type == 'gp3')",message="throughputMiBps needs type gp3"
// +kubebuilder:validation:XValidation:rule="has(self.iops) ? has(self.type) && self.type in ['gp3', 'io1', 'io2'] : !has(self.type) || !(self.type in ['io1', 'io2'])",message="iops is for type gp3, and for io1 and io2, which need it"
type AWSVolume struct {
	// sizeGiB of the disk, in GiB. Default: the image's or snapshot's. Example: 100.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// type of the disk. Default: the image's, or "gp2" for one without. Example: "gp3".
	// +optional
	// +kubebuilder:validation:Enum=gp2;gp3;io1;io2;sc1;st1;standard
	Type string `json:"type,omitempty"`

	// iops is how many operations a second it takes. Default: 3000 for gp3. Example: 6000.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=256000
	IOPS int32 `json:"iops,omitempty"`

	// throughputMiBps is how many MiB a second it moves. Default: 125. Example: 500.
	// +optional
	// +kubebuilder:validation:Minimum=125
	// +kubebuilder:validation:Maximum=2000
	ThroughputMiBps int32 `json:"throughputMiBps,omitempty"`

	// encrypted says whether the disk is encrypted; false leaves it to the image or snapshot, and
	// to the account's own setting. Default: true.
	// +optional
	// +kubebuilder:default=true
	Encrypted *bool `json:"encrypted,omitempty"`

	// kmsKeyID is the ID, alias or ARN of the key that it is encrypted with. Default: the account's
	// for EBS. Example: "alias/nodes".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	KMSKeyID string `json:"kmsKeyID,omitempty"`
}

// AWSDataVolume is a disk beside the root volume.
type AWSDataVolume struct {
	// deviceName under which it is attached. Example: "/dev/sdf".
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(/dev/)?[a-z]+[0-9]*$`
	DeviceName string `json:"deviceName"`

	// snapshotID of the snapshot that the disk is filled from. Default: none, and then sizeGiB is
	// needed. Example: "snap-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^snap-[0-9a-f]+$`
	SnapshotID string `json:"snapshotID,omitempty"`

	AWSVolume `json:",inline"`
}

// AWSNetworkInterface is a network interface beside the first.
type AWSNetworkInterface struct {
	// type is "interface", or "efa" or "efa-only" for an Elastic Fabric Adapter with or without IP.
	// Default: "interface".
	// +optional
	// +kubebuilder:default=interface
	// +kubebuilder:validation:Enum=interface;efa;efa-only
	Type string `json:"type,omitempty"`

	// networkCard is the index of the card that it is on, where the instance type has several.
	// Default: 0. Example: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	NetworkCard int32 `json:"networkCard,omitempty"`

	// deviceIndex of the interface on its card. The machine's first interface is 0 on card 0.
	// Example: 1.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	DeviceIndex int32 `json:"deviceIndex"`
}

// AWSMetadata says how software on the machine reaches the instance metadata service, where the
// machine's user data and the credentials of its instance profile are.
type AWSMetadata struct {
	// tokens says whether a session token ("IMDSv2") must be sent: "required" or "optional".
	// Default: "required".
	// +optional
	// +kubebuilder:default=required
	// +kubebuilder:validation:Enum=required;optional
	Tokens string `json:"tokens,omitempty"`

	// hopLimit is how many hops the answer may travel. 1 keeps it from pods that do not share the
	// host's network. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	HopLimit int32 `json:"hopLimit,omitempty"`

	// ipv6 serves it by IPv6 as well. Default: false.
	// +optional
	IPv6 bool `json:"ipv6,omitempty"`

	// instanceTags shows the instance's tags in it. Default: false.
	// +optional
	InstanceTags bool `json:"instanceTags,omitempty"`
}

// AWSPlacementGroup is a placement group to be in.
type AWSPlacementGroup struct {
	// name of the placement group. Example: "spread".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name"`

	// partition of the group to be in, where its strategy is "partition". Default: EC2 chooses.
	// Example: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	Partition int32 `json:"partition,omitempty"`
}

// AWSCapacityReservation says which reserved capacity a machine uses.
// +kubebuilder:validation:XValidation:rule="[has(self.id), has(self.resourceGroupARN), has(self.preference)].filter(x, x).size() == 1",message="exactly one of id, resourceGroupARN and preference must be set"
type AWSCapacityReservation struct {
	// id of the reservation. Example: "cr-0a1b2c3d4e5f60718".
	// +optional
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^cr-[0-9a-f]+$`
	ID string `json:"id,omitempty"`

	// resourceGroupARN is a group of reservations, of which any is used.
	// Example: "arn:aws:resource-groups:eu-central-1:123456789012:group/nodes".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^arn:aws[a-z-]*:resource-groups:`
	ResourceGroupARN string `json:"resourceGroupARN,omitempty"`

	// preference where none is named: "open" uses any that fits, "none" uses none,
	// "capacity-reservations-only" fails where none fits. Example: "none".
	// +optional
	// +kubebuilder:validation:Enum=open;none;capacity-reservations-only
	Preference string `json:"preference,omitempty"`
}

// AWSCPUOptions change the processor.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.coreCount) == has(self.threadsPerCore)",message="coreCount and threadsPerCore go together"
type AWSCPUOptions struct {
	// coreCount is how many cores the machine has. Example: 4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CoreCount int32 `json:"coreCount,omitempty"`

	// threadsPerCore is 1 to switch simultaneous multithreading off, else 2. Example: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2
	ThreadsPerCore int32 `json:"threadsPerCore,omitempty"`

	// amdSEVSNP encrypts the memory, where the instance type can. Default: false.
	// +optional
	AMDSEVSNP bool `json:"amdSEVSNP,omitempty"`

	// nestedVirtualization lets the machine run virtual machines, where the instance type can.
	// Default: false.
	// +optional
	NestedVirtualization bool `json:"nestedVirtualization,omitempty"`
}

// AWSMarket is how the machine is bought.
// +kubebuilder:validation:XValidation:rule="!has(self.maxPriceUSD) || self.type == 'spot'",message="maxPriceUSD needs type spot"
type AWSMarket struct {
	// type is "spot" for a machine that is cheaper and that AWS may take back at any time,
	// "capacity-block" for one of a Capacity Block, which capacityReservation names.
	// +required
	// +kubebuilder:validation:Enum=spot;capacity-block
	Type string `json:"type"`

	// maxPriceUSD is the most that an hour may cost, in US dollars. AWS advises against it: the
	// machine is taken back the more often. Default: the price on demand. Example: "0.05".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?$`
	MaxPriceUSD string `json:"maxPriceUSD,omitempty"`
}
