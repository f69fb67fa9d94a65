// SPDX-License-Identifier: Apache-2.0

package aws

import "strings"

// remedies say which field a refusal is about and what to do. The first entry whose code is a
// prefix of AWS's code, and whose words are part of AWS's message, is used. AWS's codes are those
// in errors.go. The reasons of a launch that failed later ("Client.…") are from EC2's user guide,
// "Troubleshoot Amazon EC2 instance launch issues".
var remedies = []struct{ code, words, remedy string }{
	// AWS documents no code for these. The words are those of the request.
	{"", "EFA", "efa, networkInterfaces: choose an instanceType that has Elastic Fabric Adapters"},
	{"", "lastic Fabric", "efa, networkInterfaces: choose an instanceType that has Elastic Fabric Adapters"},
	{"", "SEV-SNP", "cpuOptions.amdSEVSNP: choose an instanceType and an image that have it"},
	{"", "ested virtualization", "cpuOptions.nestedVirtualization: choose an instanceType that has it"},
	{"", "CpuOptions", "cpuOptions: remove them, or use values that the instanceType supports"},
	{"Invalid", "IPv6", "ipv6AddressCount, subnets: use subnets with IPv6 addresses, or set no ipv6AddressCount"},

	{"InvalidInstanceType", "", "instanceType: name a type that this region has"},
	{"InvalidInterface.IpAddressLimitExceeded", "", "ipv6AddressCount: use a smaller number, or an instanceType that supports more"},
	{"InvalidParameterValue", "device index", "networkInterfaces.deviceIndex: give each its own on its card; 0 on card 0 is the machine's first"},
	{"InvalidParameterValue", "etwork card", "networkInterfaces.networkCard: name a card that the instanceType has"},
	{"InvalidParameterCombination", "lacement group", "placementGroup: use one whose strategy supports the instanceType and partition"},
	{"UnsupportedTenancy", "", "tenancy: choose one that the VPC and the instanceType have"},
	{"InvalidParameterValue", "architecture", "image, instanceType: choose both for the same processor architecture"},
	{"InvalidParameterValue", "InstanceType", "instanceType: name a type that this region has"},
	{"InvalidParameterValue", "nstance Profile", "instanceProfile: name one of this AWS account"},
	{"InvalidParameterValue", "KmsKeyId", "rootVolume.kmsKeyID, volumes: name a key of this region that the account may use"},
	{"InvalidParameterCombination", "ops", "rootVolume, volumes: choose a type, sizeGiB, iops and throughputMiBps that EBS has together"},
	{"InvalidParameter", "different networks", "securityGroups: name groups that exist, of the subnets' VPC"},
	{"InvalidAMIID", "", "image: name an AMI of this region that the account may use"},
	{"InvalidSubnetID", "", "subnets: name subnets of this region that exist"},
	{"InvalidGroup", "", "securityGroups: name groups that exist, of the subnets' VPC"},
	{"InvalidSecurityGroupID", "", "securityGroups: name groups that exist, of the subnets' VPC"},
	{"SecurityGroup", "", "securityGroups: name fewer"},
	{"BootForVolumeTypeUnsupported", "", "rootVolume.type: use a bootable type, such as gp3"},
	{"EncryptedVolumesNotSupported", "", "instanceType: use one that supports encrypted disks, or set encryption to Disabled"},
	{"CustomerKeyHasBeenRevoked", "", "rootVolume.kmsKeyID, volumes: name a key that the account may use"},
	{"UnknownVolumeType", "", "rootVolume.type, volumes: choose one that this region has"},
	{"VolumeTypeNotAvailableInZone", "", "rootVolume.type, volumes: choose one that the zone has"},
	{"TagPolicyViolation", "", "tags: set them as the organization's tag policy wants them"},
	{"TagLimitExceeded", "", "tags: ask for fewer"},
	{"InvalidTagKey", "", "tags: use keys that EC2 accepts"},
	{"AttachmentLimitExceeded", "", "volumes, networkInterfaces: use fewer, or an instanceType that supports more"},
	{"InvalidBlockDeviceMapping", "", "rootVolume, volumes: use at least the snapshot's size, and each device once"},
	{"InvalidSnapshot", "", "volumes: name snapshots of this region that the account may use"},
	{"InvalidKeyPair", "", "keyName: name a key pair of this region"},
	{"InvalidPlacementGroup.InUse", "", "placementGroup: it is in one zone; let the machine be in that failure domain"},
	{"InvalidPlacementGroup", "", "placementGroup: name one of this region"},
	{"InvalidHostID", "", "hostID: name a dedicated host of this region"},
	{"InvalidHostId", "", "hostID: name a dedicated host of this region"},
	{"UnavailableHostRequirements", "", "tenancy, hostID: allocate a dedicated host that fits and has room"},
	{"IncompatibleHostRequirements", "", "tenancy, hostID: allocate a dedicated host that fits and has room"},
	{"InsufficientCapacityOnHost", "", "hostID: use a dedicated host with free capacity, or remove hostID"},
	{"UnsupportedInstanceTypeOnHost", "", "instanceType, hostID: use a type that the host supports"},
	{"ZonesMismatched", "", "hostID: it is in one zone; let the machine be in that failure domain"},
	{"ReservationCapacityExceeded", "", "capacityReservation: enlarge it, or name another"},
	{"InvalidLaunchTargets", "", "capacityReservation: name reservations of this region that are active"},
	{"InvalidCapacityReservationState", "", "capacityReservation: the Capacity Block has not started; the machine is created when it starts"},
	{"InvalidCapacityReservation", "", "capacityReservation: name one of this region that is open to the account"},
	{"SpotMaxPriceTooLow", "", "market.maxPriceUSD: raise it, or leave it out"},
	{"ParameterNotFound", "", "image.ssmParameter: name a parameter of this region"},
	{"QueueDoesNotExist", "", "interruptionQueue.url: name a queue of this region that exists"},
	{"AWS.SimpleQueueService.NonExistentQueue", "", "interruptionQueue.url: name a queue of this region that exists"},
	{"AccessDenied", "sts:AssumeRole", "assumeRole: let the role's trust policy name these credentials, and the externalID"},
	{"InvalidIdentityToken", "", "credentialsRef: renew the web identity token in the Secret"},
	{"AccessDenied", "sqs:", "interruptionQueue: give the credentials the statement on the queue in docs/clouds/aws.md"},
	// https://github.com/aws-cloudformation/rain/issues/187
	{"OperationNotPermitted", "deletion protection", "switch off the load balancer's deletion protection"},
	// https://github.com/cloud-custodian/cloud-custodian/issues/9921
	{"ResourceInUse", "another service", "remove the load balancer from the VPC endpoint service that uses it"},
	{"VcpuLimitExceeded", "", "ask AWS for a higher quota, or delete instances"},
	{"ExpiredToken", "", "credentialsRef: renew the credentials in the Secret"},
	{"InvalidSecurity.RequestHasExpired", "", "the manager's clock differs from AWS's: set it right"},
	{"RequestExpired", "", "the manager's clock differs from AWS's: set it right"},
	{"AuthFailure", "ot authorized for images", "image: name an AMI that is shared with the account, or subscribe to it"},
	{"AuthFailure", "", "credentialsRef: put an access key into the Secret that AWS knows and that is active"},
	{"InvalidClientTokenId", "", "credentialsRef: put an access key into the Secret that AWS knows and that is active"},
	{"SignatureDoesNotMatch", "", "credentialsRef: put the access key's own secret into the Secret"},
	{"UnauthorizedOperation", "", "give the credentials the policy in docs/clouds/aws.md"},

	{"Client.InternalError", "", "rootVolume.kmsKeyID, volumes: the account must be allowed to use the KMS key of each encrypted disk, the image's too"},
	{"Client.InvalidKMSKey", "", "rootVolume.kmsKeyID, volumes: name KMS keys that are enabled"},
	{"Client.VolumeLimitExceeded", "", "ask AWS for a higher quota of EBS storage, or delete volumes"},
	{"Client.InvalidSnapshot", "", "image, volumes: the snapshot is gone, or not shared with the account"},
}

// remedyFor returns what to do about a refusal, or "".
func remedyFor(code, words string) string {
	for _, r := range remedies {
		if strings.HasPrefix(code, r.code) && strings.Contains(words, r.words) {
			return r.remedy
		}
	}
	return ""
}
