// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
)

const (
	// maxAttachments is how many volumes and network interfaces an instance can have (EC2's user guide, "Amazon EBS volume limits", Nitro).
	maxAttachments = 28
	// maxUserData is EC2's limit in bytes, before base64.
	maxUserData = 16384
	// maxRatio is how many I/O operations a second an io1 volume has for each GiB, at most.
	maxRatio = 50
	// spotPrice is what a spot instance of any type costs in USD an hour.
	spotPrice = 0.01
)

// Nobody is a part of names that nothing has.
const Nobody = "0dead"

// snapshots are those with a size in GiB that matters.
var snapshots = map[string]int{"snap-01": 8}

// checkLaunch refuses what EC2 would never take.
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
		return subnetItem{}, refuse("InvalidParameterValue", "The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.",
			size.Architecture, image.Architecture)
	}
	subnet, fail := checkNetwork(form, size)
	for _, check := range []func(url.Values) *failure{checkNames, checkDevices, checkUserData, checkPrice} {
		if fail == nil {
			fail = check(form)
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
		return subnetItem{}, refuse("InvalidParameterCombination", "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.")
	}
	return subnet, nil
}

// checkNames refuses the names of what is not there.
func checkNames(form url.Values) *failure {
	for _, named := range []struct{ field, code, words string }{
		{"KeyName", "InvalidKeyPair.NotFound", "The key pair '%s' does not exist"},
		{"IamInstanceProfile.Name", "InvalidParameterValue", "Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"},
		{"Placement.GroupName", "InvalidPlacementGroup.Unknown", "The placement group '%s' is unknown."},
		{"Placement.HostId", "InvalidHostID.NotFound", "The host ID '%s' does not exist"},
		{"CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId", "InvalidCapacityReservationId.NotFound",
			"The capacity reservation ID '%s' does not exist"},
	} {
		if name := form.Get(named.field); strings.Contains(name, Nobody) {
			return refuse(named.code, named.words, name)
		}
	}
	return nil
}

func checkDevices(form url.Values) *failure {
	for _, device := range tagged(form, "BlockDeviceMapping") {
		snapshot, kind := device.Get("Ebs.SnapshotId"), device.Get("Ebs.VolumeType")
		gib, _ := strconv.Atoi(device.Get("Ebs.VolumeSize"))
		iops, _ := strconv.Atoi(device.Get("Ebs.Iops"))
		switch {
		case strings.Contains(snapshot, Nobody):
			return refuse("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", snapshot)
		case gib > 0 && gib < snapshots[snapshot]:
			return refuse("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot '%s', expect size >= %dGB", gib, snapshot, snapshots[snapshot])
		case kind == "io1" && iops > maxRatio*gib:
			return refuse("InvalidParameterCombination", "Iops to volume size ratio of %f is too high; maximum is %f", float64(iops)/float64(gib), float64(maxRatio))
		}
	}
	return nil
}

func checkUserData(form url.Values) *failure {
	data, err := base64.StdEncoding.DecodeString(form.Get("UserData"))
	if err != nil {
		return refuse("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data")
	}
	if len(data) > maxUserData {
		return refuse("InvalidParameterValue", "User data is limited to %d bytes", maxUserData)
	}
	return nil
}

func checkPrice(form url.Values) *failure {
	price := form.Get("InstanceMarketOptions.SpotOptions.MaxPrice")
	if offer, err := strconv.ParseFloat(price, 64); err == nil && offer < spotPrice {
		return refuse("SpotMaxPriceTooLow", "Your Spot request price of %s is lower than the minimum required Spot request fulfillment price of %g.", price, spotPrice)
	}
	return nil
}
