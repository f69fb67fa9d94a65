// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// These types have the fields of a MachineClass's providerSpec for AWS, v0.29. What becomes of them
// is in pkg/aws/core.go and core_util.go of
// https://github.com/gardener/machine-controller-manager-provider-aws
type (
	mcmAWS struct {
		APIVersion             string             `json:"apiVersion"`
		AMI                    string             `json:"ami"`
		BlockDevices           []mcmAWSDevice     `json:"blockDevices"`
		CapacityReservation    *mcmAWSReservation `json:"capacityReservation"`
		EBSOptimized           bool               `json:"ebsOptimized"`
		IAM                    mcmAWSProfile      `json:"iam"`
		MachineType            string             `json:"machineType"`
		KeyName                string             `json:"keyName"`
		Monitoring             bool               `json:"monitoring"`
		NetworkInterfaces      []mcmAWSInterface  `json:"networkInterfaces"`
		Region                 string             `json:"region"`
		SpotPrice              *string            `json:"spotPrice"`
		SrcAndDstChecksEnabled *bool              `json:"srcAndDstChecksEnabled"`
		Tags                   map[string]string  `json:"tags"`
		Metadata               *mcmAWSMetadata    `json:"instanceMetadataOptions"`
		CPU                    *mcmAWSCPU         `json:"cpuOptions"`
		Placement              *mcmAWSPlacement   `json:"placement"`
		Market                 *mcmAWSMarket      `json:"instanceMarketOptions"`
	}
	mcmAWSDevice struct {
		DeviceName  string    `json:"deviceName"`
		EBS         mcmAWSEBS `json:"ebs"`
		NoDevice    string    `json:"noDevice"`
		VirtualName string    `json:"virtualName"`
	}
	mcmAWSEBS struct {
		DeleteOnTermination *bool   `json:"deleteOnTermination"`
		Encrypted           bool    `json:"encrypted"`
		IOPS                int32   `json:"iops"`
		Throughput          *int32  `json:"throughput"`
		KMSKeyID            *string `json:"kmsKeyID"`
		SnapshotID          *string `json:"snapshotID"`
		VolumeSize          int32   `json:"volumeSize"`
		VolumeType          string  `json:"volumeType"`
	}
	mcmAWSReservation struct {
		Preference string  `json:"capacityReservationPreference"`
		ID         *string `json:"capacityReservationId"`
		GroupARN   *string `json:"capacityReservationResourceGroupArn"`
	}
	mcmAWSProfile struct {
		ARN  string `json:"arn"`
		Name string `json:"name"`
	}
	mcmAWSInterface struct {
		AssociatePublicIPAddress *bool    `json:"associatePublicIPAddress"`
		IPv6AddressCount         *int32   `json:"ipv6AddressCount"`
		IPv6PrefixCount          *int32   `json:"ipv6PrefixCount"`
		DeleteOnTermination      *bool    `json:"deleteOnTermination"`
		Description              *string  `json:"description"`
		SecurityGroupIDs         []string `json:"securityGroupIDs"`
		SubnetID                 string   `json:"subnetID"`
		InterfaceType            *string  `json:"interfaceType"`
		NetworkCardIndex         *int32   `json:"networkCardIndex"`
		DeviceIndex              *int32   `json:"deviceIndex"`
		PrimaryIPv6              *bool    `json:"primaryIpv6"`
	}
	mcmAWSMetadata struct {
		Endpoint string `json:"httpEndpoint"`
		HopLimit *int32 `json:"httpPutResponseHopLimit"`
		Tokens   string `json:"httpTokens"`
		IPv6     string `json:"httpProtocolIpv6"`
	}
	mcmAWSCPU struct {
		CoreCount      *int32  `json:"coreCount"`
		ThreadsPerCore *int32  `json:"threadsPerCore"`
		AMDSEVSNP      *string `json:"amdSevSnp"`
	}
	mcmAWSPlacement struct {
		GroupID   *string `json:"groupId"`
		Tenancy   *string `json:"tenancy"`
		HostID    *string `json:"hostId"`
		Partition *int32  `json:"partitionNumber"`
		Affinity  *string `json:"affinity"`
	}
	mcmAWSMarket struct {
		MarketType string `json:"marketType"`
	}
)

// mcmIgnores is the note on fields that machine-controller-manager has and does not send to EC2:
// they are not carried over, because its machines do without them.
const mcmIgnores = "machine-controller-manager ignores it, and so do new machines"

// aws maps a providerSpec to the fields of a machine.
func (s findings) aws(spec *mcmAWS, region string) *infrav1.AWSMachine {
	const at = "providerSpec."
	if spec.Region != region {
		s.addRefused(at+"region", "it is %q, and the DroverAccount's is %q", spec.Region, region)
	}
	m := &infrav1.AWSMachine{
		InstanceType: spec.MachineType, Image: infrav1.AWSImage{ID: spec.AMI}, KeyName: spec.KeyName,
		InstanceProfile: spec.IAM.Name + spec.IAM.ARN, // exactly one is set
		Tags:            maps.Clone(spec.Tags),
	}
	maps.DeleteFunc(m.Tags, func(key, _ string) bool { return strings.Contains(key, mcmRoleKey) || key == "Name" })
	if spec.Monitoring {
		s.addNote(at+"monitoring", mcmIgnores)
	}
	if spec.EBSOptimized {
		s.addNote(at+"ebsOptimized", "current instance types are optimized for EBS by default")
	}
	if !ptr.Deref(spec.SrcAndDstChecksEnabled, true) {
		s.addLost(at+"srcAndDstChecksEnabled", "the source and destination check stays on for new machines, so packets of pods that are not encapsulated are dropped")
	}
	s.awsDisks(m, spec.BlockDevices)
	s.awsInterfaces(m, spec.NetworkInterfaces)
	s.awsPurchase(m, spec)
	s.awsPlacement(m, spec.Placement)
	s.awsMetadata(m, spec.Metadata)
	if c := spec.CPU; c != nil {
		m.CPUOptions.AMDSEVSNP = enabledIf(ptr.Deref(c.AMDSEVSNP, "") == "enabled")
		switch {
		case c.CoreCount != nil && c.ThreadsPerCore != nil:
			m.CPUOptions.CoreCount, m.CPUOptions.ThreadsPerCore = *c.CoreCount, *c.ThreadsPerCore
		case c.CoreCount != nil, c.ThreadsPerCore != nil:
			s.addNote(at+"cpuOptions", "machine-controller-manager ignores coreCount and threadsPerCore, one without the other")
		}
	}
	return m
}

// awsDisks maps the block devices. The old system takes the name "/root", or the only device, for
// the root volume.
func (s findings) awsDisks(m *infrav1.AWSMachine, devices []mcmAWSDevice) {
	const at = "providerSpec.blockDevices"
	for _, d := range devices {
		volume := infrav1.AWSVolume{
			SizeGiB: d.EBS.VolumeSize, Type: infrav1.AWSVolumeType(d.EBS.VolumeType), IOPS: d.EBS.IOPS,
			ThroughputMiBps: ptr.Deref(d.EBS.Throughput, 0),
			Encryption:      stateOf(d.EBS.Encrypted),
		}
		if !ptr.Deref(d.EBS.DeleteOnTermination, true) {
			s.addLost(at+".ebs.deleteOnTermination", "the disks of new machines are deleted with them")
		}
		for _, ignored := range [][2]string{
			{".ebs.kmsKeyID", ptr.Deref(d.EBS.KMSKeyID, "")}, {".noDevice", d.NoDevice}, {".virtualName", d.VirtualName},
		} {
			if ignored[1] != "" {
				s.addNote(at+ignored[0], mcmIgnores)
			}
		}
		snapshot := ptr.Deref(d.EBS.SnapshotID, "")
		if d.DeviceName == "/root" || len(devices) == 1 {
			if snapshot != "" {
				s.addLost(at+".ebs.snapshotID", "the root volume of new machines comes from the image")
			}
			m.RootVolume = &volume
			continue
		}
		m.Volumes = append(m.Volumes, infrav1.AWSDataVolume{DeviceName: d.DeviceName, SnapshotID: snapshot, AWSVolume: volume})
	}
	if len(m.Volumes) > 0 && m.RootVolume == nil {
		s.addRefused(at+".deviceName", `none of several is "/root", so Drover can't tell which is the root volume`)
	}
}

func (s findings) awsInterfaces(m *infrav1.AWSMachine, interfaces []mcmAWSInterface) {
	const at = "providerSpec.networkInterfaces"
	if len(interfaces) == 0 {
		s.addRefused(at, "there is none")
		return
	}
	first := interfaces[0]
	m.Subnets = infrav1.AWSSelector{IDs: []string{first.SubnetID}}
	if len(first.SecurityGroupIDs) > 0 {
		m.SecurityGroups = &infrav1.AWSSelector{IDs: first.SecurityGroupIDs}
	}
	if len(interfaces) == 1 {
		m.PublicIP = stateIfSet(first.AssociatePublicIPAddress)
	}
	m.IPv6AddressCount = ptr.Deref(first.IPv6AddressCount, 0)
	m.PrimaryIPv6 = enabledIf(m.IPv6AddressCount > 0 && ptr.Deref(first.PrimaryIPv6, true)) // as there
	m.EFA = enabledIf(ptr.Deref(first.InterfaceType, "") == "efa")
	if kind := ptr.Deref(first.InterfaceType, "interface"); kind != "interface" && kind != "efa" {
		s.addLost(at+".interfaceType", "the first interface of new machines can't be %q", kind)
	}
	if ptr.Deref(first.NetworkCardIndex, 0) != 0 || ptr.Deref(first.DeviceIndex, 0) != 0 {
		s.addRefused(at+".deviceIndex", "the first interface must have index 0 on card 0: list it first")
	}
	for i, one := range interfaces {
		if len(interfaces) > 1 && ptr.Deref(one.AssociatePublicIPAddress, false) {
			s.addLost(at+".associatePublicIPAddress", "EC2 gives no public address to machines with several network interfaces")
		}
		if ptr.Deref(one.IPv6PrefixCount, 0) > 0 {
			s.addLost(at+".ipv6PrefixCount", "new machines get no IPv6 prefixes, which the network plugin may need for pods")
		}
		if !ptr.Deref(one.DeleteOnTermination, true) {
			s.addLost(at+".deleteOnTermination", "the interfaces of new machines are deleted with them")
		}
		if ptr.Deref(one.Description, "") != "" {
			s.addNote(at+".description", "the interfaces of new machines have tags instead")
		}
		if i == 0 {
			continue
		}
		m.NetworkInterfaces = append(m.NetworkInterfaces, infrav1.AWSNetworkInterface{
			Type: infrav1.AWSInterfaceType(ptr.Deref(one.InterfaceType, string(infrav1.AWSInterface))), NetworkCard: one.NetworkCardIndex,
			DeviceIndex: ptr.To(ptr.Deref(one.DeviceIndex, int32(i))),
		})
		if one.SubnetID != first.SubnetID {
			s.addLost(at+".subnetID", "all interfaces of new machines are in the subnet of the first one, %s", first.SubnetID)
		}
		if !slices.Equal(one.SecurityGroupIDs, first.SecurityGroupIDs) {
			s.addLost(at+".securityGroupIDs", "all interfaces of new machines have the security groups of the first one")
		}
		if ptr.Deref(one.IPv6AddressCount, 0) > 0 {
			s.addLost(at+".ipv6AddressCount", "only the first interface of new machines gets IPv6 addresses")
		}
	}
}

// awsPurchase maps how machines are bought.
func (s findings) awsPurchase(m *infrav1.AWSMachine, spec *mcmAWS) {
	switch market, price := spec.Market, spec.SpotPrice; {
	case market != nil:
		if price != nil {
			s.addNote("providerSpec.spotPrice", "machine-controller-manager ignores it beside instanceMarketOptions")
		}
		m.Market.Type = infrav1.AWSMarketType(market.MarketType)
		if m.Market.Type != infrav1.AWSMarketSpot && m.Market.Type != infrav1.AWSMarketCapacityBlock {
			m.Market.Type = ""
			s.addLost("providerSpec.instanceMarketOptions.marketType", "new machines can't be bought as %q", market.MarketType)
		}
	case price != nil:
		m.Market = infrav1.AWSMarket{Type: infrav1.AWSMarketSpot, MaxPriceUSD: *price}
	}
	if r := spec.CapacityReservation; r != nil {
		of := infrav1.AWSCapacityReservation{ID: ptr.Deref(r.ID, ""), ResourceGroupARN: ptr.Deref(r.GroupARN, "")}
		if of == (infrav1.AWSCapacityReservation{}) {
			of.Preference = infrav1.AWSCapacityPreference(r.Preference)
		}
		m.CapacityReservation = given(of)
	}
}

func (s findings) awsPlacement(m *infrav1.AWSMachine, placement *mcmAWSPlacement) {
	const at = "providerSpec.placement."
	if placement == nil {
		return
	}
	m.Tenancy, m.HostID = infrav1.AWSTenancy(ptr.Deref(placement.Tenancy, "")), ptr.Deref(placement.HostID, "")
	if placement.GroupID != nil {
		s.addLost(at+"groupId", "Drover knows placement groups by name: new machines are in none")
	}
	if placement.Partition != nil {
		s.addLost(at+"partitionNumber", "new machines are in no placement group")
	}
	if ptr.Deref(placement.Affinity, "default") != "default" {
		s.addLost(at+"affinity", "new machines are not bound to their host while they are stopped")
	}
}

func (s findings) awsMetadata(m *infrav1.AWSMachine, options *mcmAWSMetadata) {
	const at = "providerSpec.instanceMetadataOptions"
	m.Metadata = infrav1.AWSMetadata{Tokens: infrav1.AWSMetadataTokensRequired, HopLimit: 1}
	var unset []string
	if options == nil {
		options = &mcmAWSMetadata{}
	}
	if options.Endpoint == "disabled" {
		s.addLost(at+".httpEndpoint", "new machines reach the instance metadata service")
	}
	if options.Tokens != "" {
		m.Metadata.Tokens = infrav1.AWSMetadataTokens(options.Tokens)
	} else {
		unset = append(unset, "requests need a session token")
	}
	if options.HopLimit != nil {
		m.Metadata.HopLimit = *options.HopLimit
	} else {
		unset = append(unset, "a response makes one hop")
	}
	m.Metadata.IPv6 = enabledIf(options.IPv6 == "enabled")
	if len(unset) > 0 {
		s.addNote(at, "it leaves to the account and the image what Drover sets for new machines: %s", strings.Join(unset, ", and "))
	}
}

// instanceOnAWS returns the instance ID in a Node's provider ID, or "".
func instanceOnAWS(providerID string) string {
	var zone, id string
	if rest, ok := strings.CutPrefix(providerID, "aws:///"); ok {
		zone, id, _ = strings.Cut(rest, "/")
	}
	if zone == "" || !strings.HasPrefix(id, "i-") || strings.Contains(id, "/") {
		return ""
	}
	return id
}
