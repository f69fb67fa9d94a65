// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// message returns a check that a message has all members of an answer. The client itself drops
// those that it does not know.
func message(m proto.Message) func([]byte) error {
	return func(body []byte) error {
		proto.Reset(m)
		return protojson.Unmarshal(body, m)
	}
}

// protobufClients are the clients for the kinds of resources.
type protobufClients struct {
	instances    *compute.InstancesClient
	disks        *compute.DisksClient
	regions      *compute.RegionsClient
	machineTypes *compute.MachineTypesClient
	images       *compute.ImagesClient
	subnetworks  *compute.SubnetworksClient
	operations   *compute.GlobalOperationsClient
	checks       *compute.HealthChecksClient
	rules        *compute.GlobalForwardingRulesClient
	proxies      *compute.TargetTcpProxiesClient
	services     *compute.BackendServicesClient
	groups       *compute.NetworkEndpointGroupsClient
}

func newProtobufClients(ctx context.Context, option option.ClientOption) (c protobufClients, err error) {
	var errs [12]error
	c.instances, errs[0] = compute.NewInstancesRESTClient(ctx, option)
	c.disks, errs[1] = compute.NewDisksRESTClient(ctx, option)
	c.regions, errs[2] = compute.NewRegionsRESTClient(ctx, option)
	c.machineTypes, errs[3] = compute.NewMachineTypesRESTClient(ctx, option)
	c.images, errs[4] = compute.NewImagesRESTClient(ctx, option)
	c.subnetworks, errs[5] = compute.NewSubnetworksRESTClient(ctx, option)
	c.operations, errs[6] = compute.NewGlobalOperationsRESTClient(ctx, option)
	c.checks, errs[7] = compute.NewHealthChecksRESTClient(ctx, option)
	c.rules, errs[8] = compute.NewGlobalForwardingRulesRESTClient(ctx, option)
	c.proxies, errs[9] = compute.NewTargetTcpProxiesRESTClient(ctx, option)
	c.services, errs[10] = compute.NewBackendServicesRESTClient(ctx, option)
	c.groups, errs[11] = compute.NewNetworkEndpointGroupsRESTClient(ctx, option)
	return c, errors.Join(errs[:]...)
}

// readProtobuf reads with cloud.google.com/go/compute.
func readProtobuf(ctx context.Context, in *input, answers *recorder, option option.ClientOption) (*reading, error) {
	c, err := newProtobufClients(ctx, option)
	if err != nil {
		return nil, err
	}
	out := &reading{}
	if err := out.list(ctx, c, in); err != nil {
		return nil, err
	}
	if err := answers.take(message(&computepb.InstanceAggregatedList{})); err != nil {
		return nil, err
	}
	for disks, err := range c.disks.AggregatedList(ctx, &computepb.AggregatedListDisksRequest{Project: in.Project, Filter: &in.Filter}).All() {
		if err != nil {
			return nil, err
		}
		for _, d := range disks.Value.Disks {
			out.Disks = append(out.Disks, last(d.GetZone())+"/"+d.GetName())
		}
	}
	if err := answers.take(message(&computepb.DiskAggregatedList{})); err != nil {
		return nil, err
	}
	for ops, err := range c.operations.AggregatedList(ctx,
		&computepb.AggregatedListGlobalOperationsRequest{Project: in.Project, Filter: &in.Preemptions}).All() {
		if err != nil {
			return nil, err
		}
		for _, op := range ops.Value.Operations {
			out.Preempted = append(out.Preempted, number(op.GetTargetId()))
		}
	}
	if err := answers.take(message(&computepb.OperationAggregatedList{})); err != nil {
		return nil, err
	}
	region, err := c.regions.Get(ctx, &computepb.GetRegionRequest{Project: in.Project, Region: in.Region})
	if err := cmp.Or(err, answers.take(message(&computepb.Region{}))); err != nil {
		return nil, err
	}
	out.Region, out.Quotas = region.GetName(), len(region.GetQuotas())
	kind, err := c.machineTypes.Get(ctx, &computepb.GetMachineTypeRequest{Project: in.Project, Zone: in.Zone, MachineType: in.MachineType})
	if err := cmp.Or(err, answers.take(message(&computepb.MachineType{}))); err != nil {
		return nil, err
	}
	out.MachineType = kind.GetName()
	image, err := c.images.GetFromFamily(ctx, &computepb.GetFromFamilyImageRequest{Project: in.ImageProject, Family: in.Family})
	if err := cmp.Or(err, answers.take(message(&computepb.Image{}))); err != nil {
		return nil, err
	}
	out.Image = image.GetName()
	granted, err := c.subnetworks.TestIamPermissions(ctx, &computepb.TestIamPermissionsSubnetworkRequest{
		Project: in.Project, Region: in.Region, Resource: in.Subnetwork,
		TestPermissionsRequestResource: &computepb.TestPermissionsRequest{Permissions: []string{subnetUse}},
	})
	if err := cmp.Or(err, answers.take(message(&computepb.TestPermissionsResponse{}))); err != nil {
		return nil, err
	}
	out.Permissions = granted.GetPermissions()
	first := out.Instances[0]
	console, err := c.instances.GetSerialPortOutput(ctx, &computepb.GetSerialPortOutputInstanceRequest{
		Project: in.Project, Zone: first.Zone, Instance: first.Name, Port: proto.Int32(1), Start: proto.Int64(-100),
	})
	if err := cmp.Or(err, answers.take(message(&computepb.SerialPortOutput{}))); err != nil {
		return nil, err
	}
	out.Console = len(console.GetContents())

	if err := out.balancerOfProtobuf(ctx, c, in, answers); err != nil {
		return nil, err
	}

	create := func(zone, kind, request string) (progress, error) {
		op, err := c.instances.Insert(ctx, &computepb.InsertInstanceRequest{Project: in.Project, Zone: zone, RequestId: &request,
			InstanceResource: &computepb.Instance{
				Name: proto.String("made-by-protobuf"), MachineType: proto.String("zones/" + zone + "/machineTypes/" + kind),
				Disks: []*computepb.AttachedDisk{{Boot: proto.Bool(true), AutoDelete: proto.Bool(true),
					InitializeParams: &computepb.AttachedDiskInitializeParams{
						SourceImage: proto.String("projects/" + in.Project + "/global/images/" + in.Image),
					}}},
				NetworkInterfaces: []*computepb.NetworkInterface{{Subnetwork: proto.String("projects/" + in.Project + "/regions/" + in.Region +
					"/subnetworks/" + in.Subnetwork)}},
			}})
		if err != nil {
			return progress{}, err
		}
		return progressOfProtobuf(op.Proto()), answers.take(message(&computepb.Operation{}))
	}
	if err := out.create(in, create); err != nil {
		return nil, err
	}
	_, err = c.instances.Get(ctx, &computepb.GetInstanceRequest{Project: in.Project, Zone: in.Zone, Instance: "unknown"})
	out.Unknown = refused(err)
	op, err := c.instances.Delete(ctx, &computepb.DeleteInstanceRequest{Project: in.Project, Zone: in.Zone, Instance: out.Done.Target})
	if err := cmp.Or(err, answers.take(message(&computepb.Operation{}))); err != nil {
		return nil, err
	}
	out.Deleted = progressOfProtobuf(op.Proto())
	return out, nil
}

// balancerOfProtobuf reads the load balancer without its endpoints: the client asks for them with a
// body that is not what the discovery document describes.
func (out *reading) balancerOfProtobuf(ctx context.Context, c protobufClients, in *input, answers *recorder) error {
	b := &out.Balancer
	for check, err := range c.checks.List(ctx, &computepb.ListHealthChecksRequest{Project: in.Project, Filter: &in.BalancerFilter}).All() {
		if err != nil {
			return err
		}
		b.Checks = append(b.Checks, check.GetType()+" "+check.GetHttpsHealthCheck().GetRequestPath())
	}
	if err := answers.take(message(&computepb.HealthCheckList{})); err != nil {
		return err
	}
	for rule, err := range c.rules.List(ctx, &computepb.ListGlobalForwardingRulesRequest{Project: in.Project,
		Filter: &in.BalancerFilter}).All() {
		if err != nil {
			return err
		}
		b.Rules = append(b.Rules, rule.GetIPAddress()+" "+rule.GetPortRange())
	}
	if err := answers.take(message(&computepb.ForwardingRuleList{})); err != nil {
		return err
	}
	rule, err := c.rules.Get(ctx, &computepb.GetGlobalForwardingRuleRequest{Project: in.Project, ForwardingRule: in.Balancer})
	if err := cmp.Or(err, answers.take(message(&computepb.ForwardingRule{}))); err != nil {
		return err
	}
	b.Target = in.referred(rule.GetTarget())
	proxy, err := c.proxies.Get(ctx, &computepb.GetTargetTcpProxyRequest{Project: in.Project, TargetTcpProxy: in.Balancer})
	if err := cmp.Or(err, answers.take(message(&computepb.TargetTcpProxy{}))); err != nil {
		return err
	}
	b.Service = in.referred(proxy.GetService())
	service, err := c.services.Get(ctx, &computepb.GetBackendServiceRequest{Project: in.Project, BackendService: in.Balancer})
	if err := cmp.Or(err, answers.take(message(&computepb.BackendService{}))); err != nil {
		return err
	}
	b.Check = in.referred(service.GetHealthChecks()[0])
	for _, backend := range service.GetBackends() {
		b.Groups = append(b.Groups, in.referred(backend.GetGroup()))
	}
	_, err = c.groups.Get(ctx, &computepb.GetNetworkEndpointGroupRequest{Project: in.Project, Zone: in.Zone,
		NetworkEndpointGroup: in.Balancer})
	return cmp.Or(err, answers.take(message(&computepb.NetworkEndpointGroup{})))
}

// list reads the instances. What a page says about zones is in its response, not in the iterator.
func (out *reading) list(ctx context.Context, c protobufClients, in *input) error {
	all := c.instances.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{Project: in.Project, Filter: &in.Filter,
		MaxResults: proto.Uint32(2)})
	var page *computepb.InstanceAggregatedList
	for {
		scope, err := all.Next()
		switch {
		case errors.Is(err, iterator.Done):
			return nil
		case err != nil:
			return err
		}
		if now := all.Response.(*computepb.InstanceAggregatedList); now != page {
			page = now
			out.Unreachables = append(out.Unreachables, page.GetUnreachables()...)
			if page.Warning != nil {
				out.Warnings = append(out.Warnings, page.Warning.GetCode())
			}
		}
		if code := scope.Value.GetWarning().GetCode(); code != "" && code != "NO_RESULTS_ON_PAGE" {
			out.Warnings = append(out.Warnings, scope.Key+": "+code)
		}
		for _, i := range scope.Value.GetInstances() {
			out.Instances = append(out.Instances, machineOfProtobuf(i))
		}
	}
}

func machineOfProtobuf(i *computepb.Instance) machine {
	m := machine{ID: number(i.GetId()), Name: i.GetName(), Zone: last(i.GetZone()), Status: i.GetStatus(), Created: i.GetCreationTimestamp(),
		Labels: i.GetLabels()}
	for _, nic := range i.GetNetworkInterfaces() {
		m.Addresses = append(m.Addresses, nic.GetNetworkIP())
		for _, config := range nic.GetAccessConfigs() {
			m.Addresses = append(m.Addresses, config.GetNatIP())
		}
	}
	m.Spot = i.GetScheduling().GetProvisioningModel() == "SPOT"
	m.Maintenance = i.GetResourceStatus().GetUpcomingMaintenance().GetMaintenanceStatus()
	return m
}

func progressOfProtobuf(op *computepb.Operation) progress {
	p := progress{Name: op.GetName(), Type: op.GetOperationType(), Status: op.GetStatus().String(), Request: op.GetClientOperationId(),
		Target: number(op.GetTargetId())}
	if failures := op.GetError().GetErrors(); len(failures) > 0 {
		p.Code = failures[0].GetCode()
	}
	return p
}
