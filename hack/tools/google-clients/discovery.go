// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/api/cloudresourcemanager/v1"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/option"
)

// known returns a check that T has all members of an answer.
func known[T any]() func([]byte) error {
	return func(body []byte) error {
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		return d.Decode(new(T))
	}
}

// readDiscovery reads with google.golang.org/api.
func readDiscovery(ctx context.Context, in *input, answers *recorder, option option.ClientOption) (*reading, error) {
	c, err := compute.NewService(ctx, option)
	if err != nil {
		return nil, err
	}
	manager, err := cloudresourcemanager.NewService(ctx, option)
	if err != nil {
		return nil, err
	}
	out := &reading{}
	list := c.Instances.AggregatedList(in.Project).Filter(in.Filter).MaxResults(2)
	err = list.Pages(ctx, func(page *compute.InstanceAggregatedList) error {
		out.Unreachables = append(out.Unreachables, page.Unreachables...)
		if page.Warning != nil {
			out.Warnings = append(out.Warnings, page.Warning.Code)
		}
		for name, scope := range page.Items {
			if w := scope.Warning; w != nil && w.Code != "NO_RESULTS_ON_PAGE" {
				out.Warnings = append(out.Warnings, name+": "+w.Code)
			}
			for _, i := range scope.Instances {
				out.Instances = append(out.Instances, machineOfDiscovery(i))
			}
		}
		return nil
	})
	if err := cmp.Or(err, answers.take(known[compute.InstanceAggregatedList]())); err != nil {
		return nil, err
	}
	disks, err := c.Disks.AggregatedList(in.Project).Filter(in.Filter).Do()
	if err := cmp.Or(err, answers.take(known[compute.DiskAggregatedList]())); err != nil {
		return nil, err
	}
	for _, scope := range disks.Items {
		for _, d := range scope.Disks {
			out.Disks = append(out.Disks, last(d.Zone)+"/"+d.Name)
		}
	}
	ops, err := c.GlobalOperations.AggregatedList(in.Project).Filter(in.Preemptions).Do()
	if err := cmp.Or(err, answers.take(known[compute.OperationAggregatedList]())); err != nil {
		return nil, err
	}
	for _, scope := range ops.Items {
		for _, op := range scope.Operations {
			out.Preempted = append(out.Preempted, number(op.TargetId))
		}
	}
	region, err := c.Regions.Get(in.Project, in.Region).Do()
	if err := cmp.Or(err, answers.take(known[compute.Region]())); err != nil {
		return nil, err
	}
	out.Region, out.Quotas = region.Name, len(region.Quotas)
	kind, err := c.MachineTypes.Get(in.Project, in.Zone, in.MachineType).Do()
	if err := cmp.Or(err, answers.take(known[compute.MachineType]())); err != nil {
		return nil, err
	}
	out.MachineType = kind.Name
	image, err := c.Images.GetFromFamily(in.ImageProject, in.Family).Do()
	if err := cmp.Or(err, answers.take(known[compute.Image]())); err != nil {
		return nil, err
	}
	out.Image = image.Name
	granted, err := c.Subnetworks.TestIamPermissions(in.Project, in.Region, in.Subnetwork,
		&compute.TestPermissionsRequest{Permissions: []string{subnetUse}}).Do()
	if err := cmp.Or(err, answers.take(known[compute.TestPermissionsResponse]())); err != nil {
		return nil, err
	}
	out.Permissions = granted.Permissions
	project, err := manager.Projects.TestIamPermissions(in.Project,
		&cloudresourcemanager.TestIamPermissionsRequest{Permissions: []string{instancesList}}).Do()
	if err := cmp.Or(err, answers.take(known[cloudresourcemanager.TestIamPermissionsResponse]())); err != nil {
		return nil, err
	}
	out.Permissions = append(out.Permissions, project.Permissions...)
	first := out.Instances[0]
	console, err := c.Instances.GetSerialPortOutput(in.Project, first.Zone, first.Name).Port(1).Start(-100).Do()
	if err := cmp.Or(err, answers.take(known[compute.SerialPortOutput]())); err != nil {
		return nil, err
	}
	out.Console = len(console.Contents)

	if err := out.balancerOfDiscovery(c, in, answers); err != nil {
		return nil, err
	}

	create := func(zone, kind, request string) (progress, error) {
		op, err := c.Instances.Insert(in.Project, zone, &compute.Instance{
			Name: "made-by-discovery", MachineType: "zones/" + zone + "/machineTypes/" + kind,
			Disks: []*compute.AttachedDisk{{Boot: true, AutoDelete: true, InitializeParams: &compute.AttachedDiskInitializeParams{
				SourceImage: "projects/" + in.Project + "/global/images/" + in.Image,
			}}},
			NetworkInterfaces: []*compute.NetworkInterface{{Subnetwork: "projects/" + in.Project + "/regions/" + in.Region + "/subnetworks/" +
				in.Subnetwork}},
		}).RequestId(request).Do()
		if err != nil {
			return progress{}, err
		}
		return progressOfDiscovery(op), answers.take(known[compute.Operation]())
	}
	if err := out.create(in, create); err != nil {
		return nil, err
	}
	_, err = c.Instances.Get(in.Project, in.Zone, "unknown").Do()
	out.Unknown = refused(err)
	op, err := c.Instances.Delete(in.Project, in.Zone, out.Done.Target).Do()
	if err := cmp.Or(err, answers.take(known[compute.Operation]())); err != nil {
		return nil, err
	}
	out.Deleted = progressOfDiscovery(op)
	return out, nil
}

// balancerOfDiscovery reads the load balancer.
func (out *reading) balancerOfDiscovery(c *compute.Service, in *input, answers *recorder) error {
	b := &out.Balancer
	checks, err := c.HealthChecks.List(in.Project).Filter(in.BalancerFilter).Do()
	if err := cmp.Or(err, answers.take(known[compute.HealthCheckList]())); err != nil {
		return err
	}
	for _, check := range checks.Items {
		b.Checks = append(b.Checks, check.Type+" "+check.HttpsHealthCheck.RequestPath)
	}
	rules, err := c.GlobalForwardingRules.List(in.Project).Filter(in.BalancerFilter).Do()
	if err := cmp.Or(err, answers.take(known[compute.ForwardingRuleList]())); err != nil {
		return err
	}
	for _, rule := range rules.Items {
		b.Rules = append(b.Rules, rule.IPAddress+" "+rule.PortRange)
	}
	rule, err := c.GlobalForwardingRules.Get(in.Project, in.Balancer).Do()
	if err := cmp.Or(err, answers.take(known[compute.ForwardingRule]())); err != nil {
		return err
	}
	b.Target = in.referred(rule.Target)
	proxy, err := c.TargetTcpProxies.Get(in.Project, in.Balancer).Do()
	if err := cmp.Or(err, answers.take(known[compute.TargetTcpProxy]())); err != nil {
		return err
	}
	b.Service = in.referred(proxy.Service)
	service, err := c.BackendServices.Get(in.Project, in.Balancer).Do()
	if err := cmp.Or(err, answers.take(known[compute.BackendService]())); err != nil {
		return err
	}
	b.Check = in.referred(service.HealthChecks[0])
	for _, backend := range service.Backends {
		b.Groups = append(b.Groups, in.referred(backend.Group))
	}
	group, err := c.NetworkEndpointGroups.Get(in.Project, in.Zone, in.Balancer).Do()
	if err := cmp.Or(err, answers.take(known[compute.NetworkEndpointGroup]())); err != nil {
		return err
	}
	endpoints, err := c.NetworkEndpointGroups.ListNetworkEndpoints(in.Project, in.Zone, group.Name,
		&compute.NetworkEndpointGroupsListEndpointsRequest{HealthStatus: "SHOW"}).Do()
	if err := cmp.Or(err, answers.take(known[compute.NetworkEndpointGroupsListNetworkEndpoints]())); err != nil {
		return err
	}
	for _, e := range endpoints.Items {
		b.Endpoints = append(b.Endpoints, fmt.Sprint(e.NetworkEndpoint.IpAddress, " ", e.NetworkEndpoint.Port, " ", e.Healths[0].HealthState))
	}
	return nil
}

func machineOfDiscovery(i *compute.Instance) machine {
	m := machine{ID: number(i.Id), Name: i.Name, Zone: last(i.Zone), Status: i.Status, Created: i.CreationTimestamp, Labels: i.Labels}
	for _, nic := range i.NetworkInterfaces {
		m.Addresses = append(m.Addresses, nic.NetworkIP)
		for _, config := range nic.AccessConfigs {
			m.Addresses = append(m.Addresses, config.NatIP)
		}
	}
	m.Spot = i.Scheduling != nil && i.Scheduling.ProvisioningModel == "SPOT"
	if s := i.ResourceStatus; s != nil && s.UpcomingMaintenance != nil {
		m.Maintenance = s.UpcomingMaintenance.MaintenanceStatus
	}
	return m
}

func progressOfDiscovery(op *compute.Operation) progress {
	p := progress{Name: op.Name, Type: op.OperationType, Status: op.Status, Request: op.ClientOperationId, Target: number(op.TargetId)}
	if op.Error != nil {
		p.Code = op.Error.Errors[0].Code
	}
	return p
}
