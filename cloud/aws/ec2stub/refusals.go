// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
)

const (
	// maxAttachments is the maximum number of volumes and network interfaces of an instance (EC2's
	// user guide, "Amazon EBS volume limits", Nitro).
	maxAttachments = 28
	// maxUserData is EC2's limit in bytes, before base64.
	maxUserData = 16384
	// maxRatio is the maximum IOPS per GiB of an io1 volume.
	maxRatio = 50
	// maxThroughput is the maximum throughput of a gp3 volume in MiB/s per IOPS, and gp3IOPS is its
	// default IOPS.
	maxThroughput, gp3IOPS = 0.25, 3000
	// spotPrice is the price of a spot instance of any type, in USD per hour.
	spotPrice = 0.01
)

const (
	// Nobody is part of names that do not exist, and a tag value that the organization's policy
	// forbids.
	Nobody = "0dead"
	// ClusterGroup is a placement group with the strategy "cluster", which supports no small
	// instance type. All other groups have the strategy "spread".
	ClusterGroup = "cluster"
)

// snapshots are the snapshots whose size matters, with their size in GiB.
var snapshots = map[string]int{"snap-01": 8}

// checkLaunch refuses requests that EC2 never accepts.
func (c *Cloud) checkLaunch(form url.Values) (subnetItem, *failure) {
	size, ok := sizes[form.Get("InstanceType")]
	if !ok {
		return subnetItem{}, refuse("InvalidParameterValue", "Invalid value '%s' for InstanceType.", form.Get("InstanceType"))
	}
	image, ok := images[form.Get("ImageId")]
	if !ok {
		return subnetItem{}, refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", form.Get("ImageId"))
	}
	if image.Architecture != size.Architecture {
		return subnetItem{}, refuse("InvalidParameterValue",
			"The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.",
			size.Architecture, image.Architecture)
	}
	subnet, fail := checkNetwork(form, size)
	for _, check := range []func(url.Values, typeItem) *failure{
		checkInterfaces, checkNames, checkPlacement, checkReservation, checkProcessor, checkDevices, checkUserData, checkPrice, checkTags,
	} {
		if fail == nil {
			fail = check(form, size)
		}
	}
	return subnet, fail
}

func checkNetwork(form url.Values, size typeItem) (subnetItem, *failure) {
	interfaces := tagged(form, "NetworkInterface")
	if len(interfaces) == 0 {
		return subnetItem{}, refuse("MissingParameter", "this stand-in has no default VPC: name a subnet in NetworkInterface.1")
	}
	subnet, fail := findSubnet(interfaces[0].Get("SubnetId"))
	if fail != nil {
		return subnetItem{}, fail
	}
	if zone := form.Get("Placement.AvailabilityZone"); zone != "" && zone != subnet.Zone {
		return subnetItem{}, refuse("InvalidParameterValue", "The specified Availability Zone %s is not that of subnet %s.", zone, subnet.ID)
	}
	for _, id := range list(interfaces[0], "SecurityGroupId") {
		switch group := findGroup(id); {
		case group == nil:
			return subnetItem{}, refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
		case group.VPC != subnet.VPC:
			return subnetItem{}, refuse("InvalidParameter", "Security group %s and subnet %s belong to different networks.", id, subnet.ID)
		}
	}
	if len(interfaces) > size.Interfaces {
		return subnetItem{}, refuse("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", len(interfaces), size.Name)
	}
	if n := len(interfaces) + len(tagged(form, "BlockDeviceMapping")); n > maxAttachments {
		return subnetItem{}, refuse("AttachmentLimitExceeded", "Volume attachment limit exceeded: %d of %d", n, maxAttachments)
	}
	if len(interfaces) > 1 && interfaces[0].Get("AssociatePublicIpAddress") != "" {
		return subnetItem{}, refuse("InvalidParameterCombination",
			"The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.")
	}
	return subnet, nil
}

// checkInterfaces refuses adapters that the type lacks, and IPv6, which no subnet here has. Where
// AWS documents no message, the stub uses its own; the driver relies on the terms in it.
func checkInterfaces(form url.Values, size typeItem) *failure {
	seen := map[string]bool{}
	for _, nic := range tagged(form, "NetworkInterface") {
		card, _ := strconv.Atoi(nic.Get("NetworkCardIndex"))
		place := itoa(card) + "/" + nic.Get("DeviceIndex")
		switch {
		case seen[place]:
			return refuse("InvalidParameterValue", "Each network interface requires a unique device index.")
		case card > size.Cards:
			return refuse("InvalidParameterValue", "The network card index %d exceeds the limit for %s", card, size.Name)
		case strings.HasPrefix(nic.Get("InterfaceType"), "efa") && size.Cards == 0:
			return refuse("InvalidParameterCombination", "EFA interfaces are not supported on %s", size.Name)
		case nic.Get("Ipv6AddressCount") != "":
			return refuse("InvalidParameterValue", "The subnet %s has no IPv6 CIDR block", nic.Get("SubnetId"))
		}
		seen[place] = true
	}
	return nil
}

// checkNames refuses names that do not exist.
func checkNames(form url.Values, _ typeItem) *failure {
	for _, named := range []struct{ field, code, words string }{
		{"KeyName", "InvalidKeyPair.NotFound", "The key pair '%s' does not exist"},
		{"IamInstanceProfile.Name", "InvalidParameterValue",
			"Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"},
		{"Placement.GroupName", "InvalidPlacementGroup.Unknown", "The placement group '%s' is unknown."},
		{"Placement.HostId", "InvalidHostID.NotFound", "The host ID '%s' does not exist"},
		{"CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId", "InvalidCapacityReservationId.NotFound",
			"The capacity reservation ID '%s' does not exist"},
		{"CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationResourceGroupArn", "InvalidLaunchTargets",
			"The target '%s' is invalid"},
	} {
		if name := form.Get(named.field); strings.Contains(name, Nobody) {
			return refuse(named.code, named.words, name)
		}
	}
	return nil
}

// checkPlacement refuses host tenancy without a host ID, cluster groups for small types, and
// partitions, which no group has.
func checkPlacement(form url.Values, size typeItem) *failure {
	switch group := form.Get("Placement.GroupName"); {
	case form.Get("Placement.Tenancy") == "host" && form.Get("Placement.HostId") == "":
		return refuse("UnavailableHostRequirements", "There are no valid Dedicated Hosts available on which you can launch an instance.")
	case group == ClusterGroup && size.Cards == 0:
		return refuse("InvalidParameterCombination", "Cluster placement groups are not supported by the '%s' instance type. Specify a supported instance type or change the placement group strategy, and try again.", size.Name)
	case group != "" && form.Get("Placement.PartitionNumber") != "":
		return refuse("InvalidParameterCombination", "The partition number can't be specified for the placement group '%s', which has none.", group)
	}
	return nil
}

// checkReservation: no reservation has room, and no Capacity Block has started.
func checkReservation(form url.Values, _ typeItem) *failure {
	switch {
	case form.Get("InstanceMarketOptions.MarketType") == "capacity-block":
		return refuse("InvalidCapacityReservationState.PendingActivation", "Your Capacity Block is not active yet.")
	case form.Get("CapacityReservationSpecification.CapacityReservationPreference") == "capacity-reservations-only":
		return refuse("ReservationCapacityExceeded", "There is not enough available capacity in the Capacity Reservation.")
	}
	return nil
}

func checkProcessor(form url.Values, size typeItem) *failure {
	switch {
	case form.Get("CpuOptions.AmdSevSnp") == "enabled":
		return refuse("InvalidParameterCombination", "AMD SEV-SNP is not supported on %s", size.Name)
	case form.Get("CpuOptions.NestedVirtualization") == "enabled":
		return refuse("InvalidParameterCombination", "Nested virtualization is not supported on %s", size.Name)
	case form.Get("CpuOptions.CoreCount") != "" && size.Fixed:
		return refuse("UnsupportedOperation", "The %s instance type does not support specifying CpuOptions.", size.Name)
	}
	return nil
}

func checkDevices(form url.Values, size typeItem) *failure {
	named := map[string]bool{}
	for _, device := range tagged(form, "BlockDeviceMapping") {
		name, snapshot, kind := device.Get("DeviceName"), device.Get("Ebs.SnapshotId"), device.Get("Ebs.VolumeType")
		gib, _ := strconv.Atoi(device.Get("Ebs.VolumeSize"))
		iops, _ := strconv.Atoi(device.Get("Ebs.Iops"))
		throughput, _ := strconv.ParseFloat(device.Get("Ebs.Throughput"), 64)
		ratio := throughput / float64(cmp.Or(iops, gp3IOPS))
		switch {
		case named[name]:
			return refuse("InvalidBlockDeviceMapping", "The device '%s' is used in more than one block-device mapping", name)
		case size.Plain && device.Get("Ebs.Encrypted") == "true":
			return refuse("EncryptedVolumesNotSupported", "Encrypted volumes are not supported by %s", size.Name)
		case name == rootDevice && (kind == "st1" || kind == "sc1"):
			return refuse("BootForVolumeTypeUnsupported", "The volume type %s can't be used as a boot volume", kind)
		case name == rootDevice && gib > 0 && gib < rootGiB:
			return refuse("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot of the image, expect size >= %dGB", gib,
				rootGiB)
		case ratio > maxThroughput:
			return refuse("InvalidParameterCombination", "Throughput to iops ratio of %f is too high; maximum is %f", ratio, maxThroughput)
		case strings.Contains(snapshot, Nobody):
			return refuse("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", snapshot)
		case gib > 0 && gib < snapshots[snapshot]:
			return refuse("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot '%s', expect size >= %dGB", gib, snapshot,
				snapshots[snapshot])
		case kind == "io1" && iops > maxRatio*gib:
			return refuse("InvalidParameterCombination", "Iops to volume size ratio of %f is too high; maximum is %f", float64(iops)/float64(gib),
				float64(maxRatio))
		}
		named[name] = true
	}
	return nil
}

func checkUserData(form url.Values, _ typeItem) *failure {
	data, err := base64.StdEncoding.DecodeString(form.Get("UserData"))
	if err != nil {
		return refuse("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data")
	}
	if len(data) > maxUserData {
		return refuse("InvalidParameterValue", "User data is limited to %d bytes", maxUserData)
	}
	return nil
}

func checkPrice(form url.Values, _ typeItem) *failure {
	price := form.Get("InstanceMarketOptions.SpotOptions.MaxPrice")
	if offer, err := strconv.ParseFloat(price, 64); err == nil && offer < spotPrice {
		return refuse("SpotMaxPriceTooLow", "Your Spot request price of %s is lower than the minimum required Spot request fulfillment price of %g.", price, spotPrice)
	}
	return nil
}

func checkTags(form url.Values, _ typeItem) *failure {
	for _, spec := range tagged(form, "TagSpecification") {
		for _, tag := range tagged(spec, "Tag") {
			if tag.Get("Value") == Nobody {
				return refuse("TagPolicyViolation", "The tag policy does not allow the specified value for the following tag key: '%s'.",
					tag.Get("Key"))
			}
		}
	}
	return nil
}
