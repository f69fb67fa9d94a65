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

// problemFilters returns the filters for DescribeInstanceStatus, which can't filter by tag. They
// select only instances with a problem. EC2 requires all filters of a call to match, so each is a
// separate call.
func problemFilters() [][]types.Filter {
	return [][]types.Filter{
		{filter("event.code", "instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")},
		{filter("instance-status.status", "impaired")},
		{filter("system-status.status", "impaired")},
	}
}

// addNotices adds to instances what EC2 reports besides their state. Notices only inform users. If
// they can't be read, for example without permission, the listing succeeds and the last known
// notices stay.
func (d *driver) addNotices(ctx context.Context, instances []cloud.Resource) {
	known, _ := d.notices.Get(ctx, "", func(ctx context.Context) (map[string]string, error) {
		now, listed := map[string]string{}, map[string]bool{}
		for i := range instances {
			listed[instances[i].ID] = true
		}
		for _, filters := range problemFilters() {
			if err := d.statuses(ctx, now, listed, filters); err != nil {
				return d.previousNotices(), nil
			}
		}
		d.lastNotices.Store(&now)
		return now, nil
	})
	d.setNotices(known, instances)
}

// previousNotices returns the last known notices by instance ID, or nil.
func (d *driver) previousNotices() map[string]string {
	if known := d.lastNotices.Load(); known != nil {
		return *known
	}
	return nil
}

func (d *driver) setNotices(known map[string]string, instances []cloud.Resource) {
	for i := range instances {
		if r := &instances[i]; r.State == cloud.StateRunning {
			r.Notice = known[r.ID]
		}
	}
}

// statuses reads all pages of the statuses that match the filters, and keeps those of the listed
// instances: EC2 also returns those of instances that are not Drover's.
func (d *driver) statuses(ctx context.Context, into map[string]string, listed map[string]bool, filters []types.Filter) error {
	_, err := driverkit.Pages(ctx, "DescribeInstanceStatus", func(ctx context.Context, next string) ([]struct{}, string, error) {
		answer, err := d.ec2.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{
			Filters: filters, MaxResults: aws.Int32(statusPage), NextToken: optional(next),
		})
		if err != nil {
			return nil, "", d.secrets.typed("DescribeInstanceStatus", err)
		}
		for i := range answer.InstanceStatuses {
			if s := &answer.InstanceStatuses[i]; listed[aws.ToString(s.InstanceId)] {
				into[aws.ToString(s.InstanceId)] = d.secrets.Clean(notice(s), 512)
			}
		}
		return make([]struct{}, len(answer.InstanceStatuses)), aws.ToString(answer.NextToken), nil
	})
	return err
}

// notice returns what is wrong with an instance, or will happen to it.
func notice(s *types.InstanceStatus) string {
	var all []string
	for _, e := range s.Events {
		words := aws.ToString(e.Description)
		if strings.HasPrefix(words, "[Completed]") || strings.HasPrefix(words, "[Canceled]") { // EC2 shows these for a week
			continue
		}
		all = append(all, "AWS announces "+string(e.Code)+" from "+aws.ToTime(e.NotBefore).UTC().Format(time.RFC3339)+": "+words)
	}
	if s.InstanceStatus != nil && s.InstanceStatus.Status == types.SummaryStatusImpaired {
		all = append(all, "the instance status check fails: the guest does not respond")
	}
	if s.SystemStatus != nil && s.SystemStatus.Status == types.SummaryStatusImpaired {
		all = append(all, "the system status check fails: AWS's hardware or network has a problem")
	}
	return strings.Join(all, "; ")
}
