// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"maps"
	"strings"

	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcAWSSpec has the fields of a cloudProviderSpec for AWS, v1.62.
type mcAWSSpec struct {
	AccessKeyID          mcVar             `json:"accessKeyId"`
	SecretAccessKey      mcVar             `json:"secretAccessKey"`
	AssumeRoleARN        mcVar             `json:"assumeRoleARN"`
	AssumeRoleExternalID mcVar             `json:"assumeRoleExternalID"`
	Region               mcVar             `json:"region"`
	AvailabilityZone     mcVar             `json:"availabilityZone"`
	VPCID                mcVar             `json:"vpcId"`
	SubnetID             mcVar             `json:"subnetId"`
	SecurityGroupIDs     []mcVar           `json:"securityGroupIDs"`
	InstanceProfile      mcVar             `json:"instanceProfile"`
	InstanceType         mcVar             `json:"instanceType"`
	AMI                  mcVar             `json:"ami"`
	DiskSize             int32             `json:"diskSize"`
	DiskType             mcVar             `json:"diskType"`
	DiskIOPS             *int32            `json:"diskIops"`
	EBSVolumeEncrypted   mcVar             `json:"ebsVolumeEncrypted"`
	Tags                 map[string]string `json:"tags"`
	AssignPublicIP       *bool             `json:"assignPublicIP"`
	IsSpotInstance       *bool             `json:"isSpotInstance"`
	SpotInstanceConfig   *struct {
		MaxPrice             mcVar `json:"maxPrice"`
		PersistentRequest    mcVar `json:"persistentRequest"`
		InterruptionBehavior mcVar `json:"interruptionBehavior"`
	} `json:"spotInstanceConfig"`
}

// mcAWS maps a cloudProviderSpec to the fields of a machine. Credentials are the DroverAccount's.
func (s findings) mcAWS(pool *Pool, from map[string]any, family string, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	spec := &mcAWSSpec{}
	if !s.decode(map[string]any{at: from}, at, spec) {
		return
	}
	text := func(field string, v mcVar) string { return s.text(at+"."+field, v) }
	if region := text("region", spec.Region); region != "" && region != target.Account.Spec.Cloud.AWS.Region {
		s.addRefused(at+".region", "it is %q, and the DroverAccount's is %q", region, target.Account.Spec.Cloud.AWS.Region)
	}
	subnet := text("subnetId", spec.SubnetID)
	if subnet == "" {
		s.addRefused(at+".subnetId", "there is none: name the subnet, which Drover can't leave to AWS")
	}
	// machine-controller's own default, and the types for which it sends IOPS
	disk := cmp.Or(text("diskType", spec.DiskType), "standard")
	iops := ptr.Deref(spec.DiskIOPS, 0)
	if iops != 0 && disk != "io1" && disk != "gp3" {
		iops = 0
		s.addNote(at+".diskIops", "it has no effect on a disk of type %s, here as there", disk)
	}
	m := &infrav1.AWSMachine{
		InstanceType: text("instanceType", spec.InstanceType), Image: infrav1.AWSImage{ID: text("ami", spec.AMI)},
		InstanceProfile: text("instanceProfile", spec.InstanceProfile), PublicIP: stateOf(ptr.Deref(spec.AssignPublicIP, true)),
		Subnets: infrav1.AWSSelector{IDs: []string{subnet}}, Tags: maps.Clone(spec.Tags),
		RootVolume: &infrav1.AWSVolume{
			SizeGiB: spec.DiskSize, Type: infrav1.AWSVolumeType(disk), IOPS: iops,
			Encryption: stateOf(text("ebsVolumeEncrypted", spec.EBSVolumeEncrypted) == "true"),
		},
		Metadata: infrav1.AWSMetadata{Tokens: infrav1.AWSMetadataTokensOptional, HopLimit: 3}, // as the other system makes them
	}
	for _, group := range spec.SecurityGroupIDs {
		if m.SecurityGroups == nil {
			m.SecurityGroups = &infrav1.AWSSelector{}
		}
		m.SecurityGroups.IDs = append(m.SecurityGroups.IDs, text("securityGroupIDs", group))
	}
	if strings.Contains(family, "IPv6") {
		m.IPv6AddressCount = 1
	}
	if ptr.Deref(spec.IsSpotInstance, false) {
		m.Market = infrav1.AWSMarket{Type: infrav1.AWSMarketSpot}
		mcLabel(pool, "k8c.io/aws-spot", "aws-node-termination-handler")
		if c := spec.SpotInstanceConfig; c != nil {
			m.Market.MaxPriceUSD = text("spotInstanceConfig.maxPrice", c.MaxPrice)
			if text("spotInstanceConfig.persistentRequest", c.PersistentRequest) == "true" {
				s.addRefused(at+".spotInstanceConfig.persistentRequest",
					"AWS would replace a machine that Drover deletes: only one-time requests can be taken over")
			}
		}
	}
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{AWS: m}}), []string{mcKey}
}
