// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// trouble is what is asked of DescribeInstanceStatus, which knows no tags: not the status of all,
// but those of whom there is something to say. Its filters are all to be fulfilled, so that these
// are questions of their own.
func trouble() [][]types.Filter {
	return [][]types.Filter{
		{filter("event.code", "instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")},
		{filter("instance-status.status", "impaired")},
		{filter("system-status.status", "impaired")},
	}
}

// notices puts to instances what EC2 says of them beside their state. It is a help to people: that
// it can't be had, for want of a permission or otherwise, spoils no listing, and what was known
// stays.
func (d *driver) notices(ctx context.Context, instances []cloud.Resource) {
	known, _ := d.troubled.Get(ctx, "", func(ctx context.Context) (map[string]string, error) {
		now := map[string]string{}
		for _, filters := range trouble() {
			if err := d.statuses(ctx, now, filters); err != nil {
				return d.noticed(), nil
			}
		}
		d.known.Store(&now)
		return now, nil
	})
	d.attach(known, instances)
}

// noticed is what was last known.
func (d *driver) noticed() map[string]string {
	if known := d.known.Load(); known != nil {
		return *known
	}
	return nil
}

func (d *driver) attach(known map[string]string, instances []cloud.Resource) {
	for i := range instances {
		if r := &instances[i]; r.State == cloud.StateRunning {
			r.Notice = known[r.ID]
		}
	}
}

// statuses reads all pages of what the filters leave.
func (d *driver) statuses(ctx context.Context, into map[string]string, filters []types.Filter) error {
	_, err := driverkit.Pages(ctx, "DescribeInstanceStatus", func(ctx context.Context, next string) ([]struct{}, string, error) {
		answer, err := d.ec2.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{
			Filters: filters, MaxResults: aws.Int32(statusPage), NextToken: optional(next),
		})
		if err != nil {
			return nil, "", d.secrets.typed("DescribeInstanceStatus", err)
		}
		for i := range answer.InstanceStatuses {
			s := &answer.InstanceStatuses[i]
			into[aws.ToString(s.InstanceId)] = d.secrets.Clean(notice(s), 512)
		}
		return nil, aws.ToString(answer.NextToken), nil
	})
	return err
}

// notice says what is wrong with an instance, or will happen to it.
func notice(s *types.InstanceStatus) string {
	var all []string
	for _, e := range s.Events {
		words := aws.ToString(e.Description)
		if strings.HasPrefix(words, "[Completed]") || strings.HasPrefix(words, "[Canceled]") { // shown for a week
			continue
		}
		all = append(all, "AWS announces "+string(e.Code)+" from "+aws.ToTime(e.NotBefore).UTC().Format(time.RFC3339)+": "+words)
	}
	if s.InstanceStatus != nil && s.InstanceStatus.Status == types.SummaryStatusImpaired {
		all = append(all, "the instance's status check fails: its system does not answer")
	}
	if s.SystemStatus != nil && s.SystemStatus.Status == types.SummaryStatusImpaired {
		all = append(all, "the system's status check fails: something is wrong with AWS's computer")
	}
	return strings.Join(all, "; ")
}
