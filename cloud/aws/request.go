// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// ec2UserData is EC2's limit for user data, in bytes before base64 (EC2's user guide, "Run commands
// when you launch an EC2 instance").
const ec2UserData = 16 << 10

// plan is a machine with all its references resolved.
type plan struct {
	spec     *infrav1.AWSMachine
	image    image
	subnet   subnet
	groups   []string
	userData *string
}

// userData returns the bootstrap data in base64, compressed first if it is too long. cloud-init
// decompresses it. Ignition does not, so JSON data stays as it is.
func userData(data []byte) (*string, error) {
	if len(data) == 0 {
		return nil, nil
	}
	size := len(data)
	if size > maxUserData {
		return nil, fmt.Errorf("the user data has %d bytes, at most %d are possible", size, maxUserData)
	}
	if size > ec2UserData && !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		data = compress(data)
	}
	if len(data) > ec2UserData {
		return nil, fmt.Errorf("the user data has %d bytes, %d after compression, and EC2 accepts at most %d", size, len(data), ec2UserData)
	}
	return aws.String(base64.StdEncoding.EncodeToString(data)), nil
}

func compress(data []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // fails for invalid levels only
	_, _ = w.Write(data)                                    // a Buffer accepts any write
	_ = w.Close()
	return out.Bytes()
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func optionalInt(n int32) *int32 {
	if n == 0 {
		return nil
	}
	return &n
}

func instanceProfile(nameOrARN string) *types.IamInstanceProfileSpecification {
	switch {
	case nameOrARN == "":
		return nil
	case strings.HasPrefix(nameOrARN, "arn:"):
		return &types.IamInstanceProfileSpecification{Arn: &nameOrARN}
	}
	return &types.IamInstanceProfileSpecification{Name: &nameOrARN}
}

// placement sets the zone, although the subnet implies it, to make the scope of the client token
// explicit.
func placement(p plan) *types.Placement {
	out := &types.Placement{AvailabilityZone: &p.subnet.zone, Tenancy: types.Tenancy(p.spec.Tenancy), HostId: optional(p.spec.HostID)}
	if group := p.spec.PlacementGroup; group.Name != "" {
		out.GroupName, out.PartitionNumber = &group.Name, optionalInt(group.Partition)
	}
	return out
}

// networkInterfaces returns the first interface, which has the addresses, and the machine's
// additional ones.
func networkInterfaces(p plan) []types.InstanceNetworkInterfaceSpecification {
	one := func(device, card int32, kind infrav1.AWSInterfaceType) types.InstanceNetworkInterfaceSpecification {
		nic := types.InstanceNetworkInterfaceSpecification{
			DeviceIndex: &device, NetworkCardIndex: optionalInt(card), SubnetId: &p.subnet.id, Groups: p.groups, DeleteOnTermination: aws.Bool(true),
		}
		if kind != infrav1.AWSInterface {
			nic.InterfaceType = optional(string(kind))
		}
		return nic
	}
	first := one(0, 0, "")
	if p.spec.EFA == infrav1.FeatureEnabled {
		first.InterfaceType = aws.String(string(infrav1.AWSInterfaceEFA))
	}
	first.AssociatePublicIpAddress = driverkit.Bool(p.spec.PublicIP)
	first.Ipv6AddressCount = optionalInt(p.spec.IPv6AddressCount)
	if p.spec.PrimaryIPv6 == infrav1.FeatureEnabled {
		first.PrimaryIpv6 = aws.Bool(true)
	}
	all := []types.InstanceNetworkInterfaceSpecification{first}
	for _, nic := range p.spec.NetworkInterfaces {
		all = append(all, one(aws.ToInt32(nic.DeviceIndex), aws.ToInt32(nic.NetworkCard), nic.Type))
	}
	return all
}

// blockDevices returns the root volume, encrypted by default, and the other volumes. All of them
// are deleted with the instance, including volumes that the image would keep. A request overwrites
// the AMI's mapping or is merged with it (EC2's user guide, "Add block device mappings to an Amazon
// EC2 instance"), so the request repeats all settings of the image.
func blockDevices(p plan) (all []types.BlockDeviceMapping) {
	if p.image.root != "" {
		root := infrav1.AWSVolume{}
		if p.spec.RootVolume != nil {
			root = *p.spec.RootVolume
		}
		all = append(all, types.BlockDeviceMapping{DeviceName: &p.image.root, Ebs: blockDevice(root)})
	}
	for _, volume := range p.spec.Volumes {
		ebs := blockDevice(volume.AWSVolume)
		ebs.SnapshotId = optional(volume.SnapshotID)
		all = append(all, types.BlockDeviceMapping{DeviceName: &volume.DeviceName, Ebs: ebs})
	}
	for _, kept := range p.image.kept {
		named := func(m types.BlockDeviceMapping) bool {
			return aws.ToString(m.DeviceName) == aws.ToString(kept.DeviceName)
		}
		if !slices.ContainsFunc(all, named) {
			all = append(all, types.BlockDeviceMapping{DeviceName: kept.DeviceName, Ebs: deletedWithInstance(*kept.Ebs)})
		}
	}
	return all
}

// deletedWithInstance returns an image's volume, changed to be deleted with the instance. It leaves
// out the encryption, which the snapshot defines.
func deletedWithInstance(v types.EbsBlockDevice) *types.EbsBlockDevice {
	v.DeleteOnTermination, v.Encrypted, v.KmsKeyId = aws.Bool(true), nil, nil
	return &v
}

func blockDevice(v infrav1.AWSVolume) *types.EbsBlockDevice {
	encrypted := aws.Bool(true)
	if v.Encryption == infrav1.FeatureDisabled {
		encrypted = nil // EC2 refuses to remove a snapshot's encryption
	}
	return &types.EbsBlockDevice{
		DeleteOnTermination: aws.Bool(true),
		Encrypted:           encrypted,
		KmsKeyId:            optional(v.KMSKeyID),
		VolumeSize:          optionalInt(v.SizeGiB),
		VolumeType:          types.VolumeType(v.Type),
		Iops:                optionalInt(v.IOPS),
		Throughput:          optionalInt(v.ThroughputMiBps),
	}
}

func metadataOptions(m infrav1.AWSMetadata) *types.InstanceMetadataOptionsRequest {
	out := &types.InstanceMetadataOptionsRequest{
		HttpEndpoint:            types.InstanceMetadataEndpointStateEnabled,
		HttpTokens:              types.HttpTokensStateRequired,
		HttpPutResponseHopLimit: aws.Int32(max(m.HopLimit, 1)),
	}
	if m.Tokens == infrav1.AWSMetadataTokensOptional {
		out.HttpTokens = types.HttpTokensStateOptional
	}
	if m.IPv6 == infrav1.FeatureEnabled {
		out.HttpProtocolIpv6 = types.InstanceMetadataProtocolStateEnabled
	}
	if m.InstanceTags == infrav1.FeatureEnabled {
		out.InstanceMetadataTags = types.InstanceMetadataTagsStateEnabled
	}
	return out
}

func capacityReservation(r *infrav1.AWSCapacityReservation) *types.CapacityReservationSpecification {
	switch {
	case r == nil:
		return nil
	case r.Preference != "":
		return &types.CapacityReservationSpecification{CapacityReservationPreference: types.CapacityReservationPreference(r.Preference)}
	}
	return &types.CapacityReservationSpecification{CapacityReservationTarget: &types.CapacityReservationTarget{
		CapacityReservationId: optional(r.ID), CapacityReservationResourceGroupArn: optional(r.ResourceGroupARN),
	}}
}

// cpuOptions returns nil if the instance type's options remain: some types accept no others.
func cpuOptions(c infrav1.AWSCPUOptions) *types.CpuOptionsRequest {
	out := types.CpuOptionsRequest{CoreCount: optionalInt(c.CoreCount), ThreadsPerCore: optionalInt(c.ThreadsPerCore)}
	if c.AMDSEVSNP == infrav1.FeatureEnabled {
		out.AmdSevSnp = types.AmdSevSnpSpecificationEnabled
	}
	if c.NestedVirtualization == infrav1.FeatureEnabled {
		out.NestedVirtualization = types.NestedVirtualizationSpecificationEnabled
	}
	if out == (types.CpuOptionsRequest{}) {
		return nil
	}
	return &out
}

// marketOptions requests a one-time spot instance, which EC2 terminates when it takes it back.
func marketOptions(m infrav1.AWSMarket) *types.InstanceMarketOptionsRequest {
	if m.Type == "" {
		return nil
	}
	out := &types.InstanceMarketOptionsRequest{MarketType: types.MarketType(m.Type)}
	if out.MarketType == types.MarketTypeSpot {
		out.SpotOptions = &types.SpotMarketOptions{
			MaxPrice:                     optional(m.MaxPriceUSD),
			SpotInstanceType:             types.SpotInstanceTypeOneTime,
			InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate,
		}
	}
	return out
}

// tagSpecifications puts the same tags on everything that the request creates, sorted by key: a
// repeated request must be identical byte by byte.
func tagSpecifications(req cloud.Request, spec *infrav1.AWSMachine) []types.TagSpecification {
	all := map[string]string{"Name": cloud.Clip(req.Name, maxTagValue)}
	maps.Copy(all, spec.Tags)
	all[cloud.TagOwnership] = req.OwnershipID
	all[cloud.TagToken] = req.Token
	all[cloud.TagMachine] = cloud.Clip(req.Namespace+"/"+req.Name, maxTagValue)
	var tags []types.Tag
	for _, key := range slices.Sorted(maps.Keys(all)) {
		tags = append(tags, types.Tag{Key: aws.String(key), Value: aws.String(all[key])})
	}
	kinds := []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume, types.ResourceTypeNetworkInterface}
	if spec.Market.Type == infrav1.AWSMarketSpot {
		kinds = append(kinds, types.ResourceTypeSpotInstancesRequest)
	}
	var specs []types.TagSpecification
	for _, kind := range kinds {
		specs = append(specs, types.TagSpecification{ResourceType: kind, Tags: tags})
	}
	return specs
}
