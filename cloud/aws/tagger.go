// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/tagging"
)

// maxTagged is how many resources one DeleteTags may name (EC2 API Reference, DeleteTags).
const maxTagged = 1000

// Tagged implements tagging.Tagger. It asks EC2 for one of the keys, and looks for the others
// itself.
func (d *driver) Tagged(ctx context.Context, keys []string) ([]tagging.Instance, error) {
	const op = "DescribeInstances"
	if len(keys) == 0 {
		return nil, nil
	}
	filters := []types.Filter{filter("instance-state-name", "pending", "running", "shutting-down", "stopping", "stopped"),
		filter("tag-key", literal(keys[0]))}
	return driverkit.SizedPages(ctx, op, &d.pages, smallestPage, instancesPage,
		func(ctx context.Context, next string, size int) ([]tagging.Instance, string, error) {
			answer, err := d.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{
				Filters: filters, MaxResults: aws.Int32(int32(size)), NextToken: optional(next),
			})
			if err != nil {
				return nil, "", d.secrets.typed(op, err)
			}
			var found []tagging.Instance
			for _, reservation := range answer.Reservations {
				for i := range reservation.Instances {
					t := toTagged(&reservation.Instances[i])
					if !slices.ContainsFunc(keys, func(key string) bool { _, has := t.Tags[key]; return !has }) {
						found = append(found, t)
					}
				}
			}
			return found, aws.ToString(answer.NextToken), nil
		})
}

func toTagged(i *types.Instance) tagging.Instance {
	t := tagging.Instance{Resource: toInstance(i), Type: string(i.InstanceType), Tags: map[string]string{}}
	for _, tag := range i.Tags {
		t.Tags[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return t
}

// Tag implements tagging.Tagger, in one step. The instance's volumes and network interfaces need no
// tags: EC2 deletes them with it, unless the image or a user has decided otherwise.
func (d *driver) Tag(ctx context.Context, id string, tags map[string]string, _ []string) error {
	in := &ec2.CreateTagsInput{Resources: []string{id}}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		in.Tags = append(in.Tags, types.Tag{Key: aws.String(key), Value: aws.String(cloud.Clip(tags[key], maxTagValue))})
	}
	_, err := d.ec2.CreateTags(ctx, in)
	return d.secrets.typed("CreateTags "+id, err)
}

// Untag implements tagging.Tagger.
func (d *driver) Untag(ctx context.Context, ids, keys []string) error {
	var tags []types.Tag
	for _, key := range keys {
		tags = append(tags, types.Tag{Key: aws.String(key)}) // without a value: whatever it is
	}
	for some := range slices.Chunk(ids, maxTagged) {
		if _, err := d.ec2.DeleteTags(ctx, &ec2.DeleteTagsInput{Resources: some, Tags: tags}); err != nil {
			return d.secrets.typed("DeleteTags", err)
		}
	}
	return nil
}
