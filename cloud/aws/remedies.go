// SPDX-License-Identifier: Apache-2.0

package aws

import "strings"

// remedies say which field a refusal is about, and what to do. The first whose code is the beginning of AWS's, and whose words are among
// AWS's, is told. AWS's codes are those of errors.go; the reasons of a launch that failed later ("Client.…") are from EC2's user guide,
// "Troubleshoot Amazon EC2 instance launch issues".
var remedies = []struct{ code, words, remedy string }{
	{"InvalidInstanceType", "", "instanceType: name a type that this region has"},
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
	{"AttachmentLimitExceeded", "", "volumes, networkInterfaces: ask for fewer, or for an instanceType that takes more"},
	{"InvalidBlockDeviceMapping", "", "rootVolume, volumes: ask for no less than the snapshot holds, and for each device once"},
	{"InvalidSnapshot", "", "volumes: name snapshots of this region that the account may use"},
	{"InvalidKeyPair", "", "keyName: name a key pair of this region"},
	{"InvalidPlacementGroup", "", "placementGroup: name one of this region"},
	{"InvalidHostID", "", "hostID: name a dedicated host of this region"},
	{"InvalidCapacityReservation", "", "capacityReservation: name one of this region that is open to the account"},
	{"SpotMaxPriceTooLow", "", "market.maxPriceUSD: raise it, or leave it out"},
	{"ParameterNotFound", "", "image.ssmParameter: name a parameter of this region"},
	{"QueueDoesNotExist", "", "interruptionQueue.url: name a queue of this region that exists"},
	{"AWS.SimpleQueueService.NonExistentQueue", "", "interruptionQueue.url: name a queue of this region that exists"},
	{"AccessDenied", "sqs:", "interruptionQueue: give the credentials the statement on the queue in docs/clouds/aws.md"},
	{"VcpuLimitExceeded", "", "ask AWS for a higher quota, or delete instances"},
	{"ExpiredToken", "", "credentialsRef: renew the credentials in the Secret"},
	{"RequestExpired", "", "the manager's clock differs from AWS's: set it right"},
	{"AuthFailure", "", "credentialsRef: put an access key into the Secret that AWS knows and that is active"},
	{"InvalidClientTokenId", "", "credentialsRef: put an access key into the Secret that AWS knows and that is active"},
	{"SignatureDoesNotMatch", "", "credentialsRef: put the access key's own secret into the Secret"},
	{"UnauthorizedOperation", "", "give the credentials the policy in docs/clouds/aws.md"},

	{"Client.InternalError", "", "rootVolume.kmsKeyID, volumes: the account must be allowed to use the KMS key of each encrypted disk, the image's too"},
	{"Client.InvalidKMSKey", "", "rootVolume.kmsKeyID, volumes: name KMS keys that are enabled"},
	{"Client.VolumeLimitExceeded", "", "ask AWS for a higher quota of EBS storage, or delete volumes"},
	{"Client.InvalidSnapshot", "", "image, volumes: the snapshot is gone, or not shared with the account"},
}

// remedyFor is what to do about a refusal, or "".
func remedyFor(code, words string) string {
	for _, r := range remedies {
		if strings.HasPrefix(code, r.code) && strings.Contains(words, r.words) {
			return r.remedy
		}
	}
	return ""
}
