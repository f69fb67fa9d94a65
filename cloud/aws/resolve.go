// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// image is what a create uses of an AMI.
type image struct {
	id           string
	root         string // name of the root device; "" unless on EBS
	rootGiB      int32
	kept         []types.BlockDeviceMapping // other volumes that would outlive the instance
	architecture types.ArchitectureValues
	windows      bool
}

// subnet is what a create uses of a subnet.
type subnet struct {
	id, zone, vpc string
	free          int32 // free addresses
}

// keyOf returns the key under which the answer to a question is cached.
func keyOf(question any) string {
	key, _ := json.Marshal(question) // never fails: these are API fields, which came as JSON
	return string(key)
}

func (d *driver) image(ctx context.Context, wanted infrav1.AWSImage) (image, error) {
	if wanted.SSMParameter != "" {
		id, err := d.parameter(ctx, wanted.SSMParameter)
		if err != nil {
			return image{}, err
		}
		wanted = infrav1.AWSImage{ID: id}
	}
	return d.images.Get(ctx, keyOf(wanted), func(ctx context.Context) (image, error) {
		found, err := d.findImages(ctx, wanted)
		if err != nil {
			return image{}, err
		}
		newest := slices.MaxFunc(found, func(a, b types.Image) int {
			return cmp.Or(strings.Compare(aws.ToString(a.CreationDate), aws.ToString(b.CreationDate)), // RFC 3339
				strings.Compare(aws.ToString(a.ImageId), aws.ToString(b.ImageId)))
		})
		return toImage(newest), nil
	})
}

// parameter returns the image ID that a Systems Manager parameter holds.
func (d *driver) parameter(ctx context.Context, name string) (string, error) {
	return d.parameters.Get(ctx, name, func(ctx context.Context) (string, error) {
		answer, err := d.ssm.GetParameter(ctx, &ssm.GetParameterInput{Name: &name})
		if err != nil {
			return "", d.secrets.typed("GetParameter "+name, err)
		}
		if answer.Parameter == nil {
			return "", cloud.Errorf(cloud.Unknown, "GetParameter %s: unexpected response without a parameter (not AWS): check spec.cloud.aws.endpoint", name)
		}
		id := aws.ToString(answer.Parameter.Value)
		if !strings.HasPrefix(id, "ami-") {
			return "", cloud.Errorf(cloud.InvalidSpec, "parameter %s does not contain an AMI ID", name)
		}
		return id, nil
	})
}

// findImages returns at least one image, or an error.
func (d *driver) findImages(ctx context.Context, wanted infrav1.AWSImage) ([]types.Image, error) {
	in := &ec2.DescribeImagesInput{}
	missing := cloud.Errorf(cloud.InvalidSpec, "AMI %s does not exist in this region, or the account may not use it", wanted.ID)
	if lookup := wanted.Lookup; lookup.Name != "" {
		in.Owners = lookup.Owners
		in.Filters = append(tagFilters(lookup.Tags), filter("name", lookup.Name), filter("state", "available"))
		if lookup.Architecture != "" {
			in.Filters = append(in.Filters, filter("architecture", ec2Architecture(string(lookup.Architecture))))
		}
		missing = cloud.Errorf(cloud.NotFound, "no available AMI of %s matches name %q, architecture and tags (check image.lookup)",
			strings.Join(lookup.Owners, ", "), lookup.Name)
	} else {
		in.ImageIds = []string{wanted.ID}
	}
	answer, err := d.ec2.DescribeImages(ctx, in)
	if err != nil {
		return nil, d.secrets.typed("DescribeImages", err)
	}
	if len(answer.Images) == 0 {
		return nil, missing
	}
	return answer.Images, nil
}

func toImage(i types.Image) image {
	out := image{id: aws.ToString(i.ImageId), architecture: i.Architecture, windows: i.Platform == types.PlatformValuesWindows}
	if i.RootDeviceType == types.DeviceTypeInstanceStore {
		return out
	}
	out.root = aws.ToString(i.RootDeviceName)
	for _, device := range i.BlockDeviceMappings {
		switch {
		case device.Ebs == nil:
		case aws.ToString(device.DeviceName) == out.root:
			out.rootGiB = aws.ToInt32(device.Ebs.VolumeSize)
		case !aws.ToBool(device.Ebs.DeleteOnTermination):
			out.kept = append(out.kept, device)
		}
	}
	return out
}

// tagFilters returns filters that require all tags. An empty value matches any value.
func tagFilters(tags map[string]string) (filters []types.Filter) {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if tags[key] == "" {
			filters = append(filters, filter("tag-key", literal(key)))
		} else {
			filters = append(filters, filter("tag:"+key, literal(tags[key])))
		}
	}
	return filters
}

// FailureDomains implements cloud.Placer. It returns the zones of the machine's subnets.
func (d *driver) FailureDomains(ctx context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	machine, err := union.MachineOf(fields)
	if err != nil {
		return nil, err
	}
	all, err := d.subnetsOf(ctx, machine.Subnets)
	var zones []string
	for _, s := range all {
		zones = append(zones, s.zone)
	}
	slices.Sort(zones)
	return slices.Compact(zones), err
}

func (d *driver) subnetsOf(ctx context.Context, wanted infrav1.AWSSelector) ([]subnet, error) {
	return d.subnets.Get(ctx, keyOf(wanted), func(ctx context.Context) ([]subnet, error) { return d.findSubnets(ctx, wanted) })
}

// subnet returns the subnet with the most free addresses in the zone, or in any zone if zone is "".
// It leaves out subnets that were full a moment ago.
func (d *driver) subnet(ctx context.Context, wanted infrav1.AWSSelector, zone string) (subnet, error) {
	all, err := d.subnetsOf(ctx, wanted)
	if err != nil {
		return subnet{}, err
	}
	inZone := func(s subnet) bool { return zone == "" || s.zone == zone }
	i := slices.IndexFunc(all, func(s subnet) bool { return inZone(s) && !d.fullSubnets.Has(s.id) })
	switch {
	case i < 0 && slices.ContainsFunc(all, inZone):
		return subnet{}, cloud.Errorf(cloud.NoCapacity,
			"each of the machine's subnets in zone %q has recently had no free address (subnets: add a larger one)", zone)
	case i < 0:
		// Not InvalidSpec: if the machine may be in any zone, the account tries the next.
		return subnet{}, cloud.Errorf(cloud.NoCapacity, "none of the machine's subnets is in zone %q (subnets: add a subnet of that zone)", zone)
	}
	return all[i], nil
}

// findSubnets returns at least one subnet, or an error. It sorts by free addresses, most first.
func (d *driver) findSubnets(ctx context.Context, wanted infrav1.AWSSelector, more ...types.Filter) ([]subnet, error) {
	answer, err := d.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: wanted.IDs,
		Filters: append(tagFilters(wanted.Tags), more...)})
	if err != nil {
		return nil, d.secrets.typed("DescribeSubnets", err)
	}
	var all []subnet
	for _, s := range answer.Subnets {
		all = append(all, subnet{
			id: aws.ToString(s.SubnetId), zone: aws.ToString(s.AvailabilityZone), vpc: aws.ToString(s.VpcId),
			free: aws.ToInt32(s.AvailableIpAddressCount),
		})
	}
	if len(all) == 0 {
		return nil, cloud.Errorf(cloud.NotFound, "no subnet of this region has the tags in subnets.tags, or, without these, is the default VPC's")
	}
	slices.SortFunc(all, func(a, b subnet) int {
		return cmp.Or(cmp.Compare(b.free, a.free), strings.Compare(a.id, b.id))
	})
	return all, nil
}

// securityGroups returns the IDs of the machine's groups, or nil for the VPC's default group.
func (d *driver) securityGroups(ctx context.Context, wanted *infrav1.AWSSelector, vpc string) ([]string, error) {
	if wanted == nil {
		return nil, nil
	}
	if len(wanted.IDs) > 0 {
		return wanted.IDs, nil
	}
	return d.groups.Get(ctx, vpc+keyOf(wanted), func(ctx context.Context) ([]string, error) {
		answer, err := d.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
			Filters: append(tagFilters(wanted.Tags), filter("vpc-id", vpc)),
		})
		if err != nil {
			return nil, d.secrets.typed("DescribeSecurityGroups", err)
		}
		var ids []string
		for _, group := range answer.SecurityGroups {
			ids = append(ids, aws.ToString(group.GroupId))
		}
		if len(ids) == 0 {
			return nil, cloud.Errorf(cloud.NotFound, "no security group of %s has the tags in securityGroups.tags", vpc)
		}
		slices.Sort(ids)
		return ids, nil
	})
}
