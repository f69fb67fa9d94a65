// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// The defaults that the descriptions of SimulatedMachine's fields name.
const (
	defaultInstanceType = "small"
	defaultImage        = "node-image"
	defaultDiskGiB      = 20
)

type driver struct {
	endpoint, region, token string
	api                     driverkit.JSON
}

// accountID matches the account IDs of the simulated cloud.
var accountID = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	catalog, err := d.catalog(ctx)
	if err != nil {
		return cloud.Info{}, err
	}
	if !accountID.MatchString(catalog.Account) || d.api.Secrets.Clean(catalog.Account, len(catalog.Account)) != catalog.Account {
		return cloud.Info{}, d.api.Unexpected(wire.DescribeCatalog, "without an account")
	}
	slices.Sort(catalog.Zones)
	return cloud.Info{Place: "simulated:" + catalog.Account + ":" + d.region, FailureDomains: catalog.Zones}, nil
}

func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	run, err := d.runRequest(req)
	if err != nil {
		return cloud.Resource{}, err
	}
	var answer wire.RunInstancesResponse
	err = d.call(ctx, wire.RunInstances, cloud.ClassCreate, run, &answer)
	if driverkit.RefusedAs(err, wire.IdempotentParameterMismatch) {
		return d.adopt(ctx, req)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	made := toResource(answer.Instance)
	if made.Kind != cloud.KindInstance || made.ID == "" || made.Token != req.Token {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "%s: unexpected response: no instance has the token of the request",
			wire.RunInstances)
	}
	return made, nil
}

func (d *driver) runRequest(req cloud.Request) (wire.RunInstancesRequest, error) {
	spec, err := union.MachineOf(req.Spec)
	if err != nil {
		return wire.RunInstancesRequest{}, err
	}
	run := wire.RunInstancesRequest{
		Region:       d.region,
		ClientToken:  req.Token,
		Name:         driverkit.HostName(req.Name, wire.MaxName),
		InstanceType: cmp.Or(spec.InstanceType, defaultInstanceType),
		Image:        cmp.Or(spec.Image, defaultImage),
		Zone:         cmp.Or(req.FailureDomain, spec.Zone),
		DiskGiB:      cmp.Or(spec.DiskGiB, defaultDiskGiB),
		Spot:         spec.Market.Type == infrav1.SimulatedMarketSpot,
		UserData:     req.UserData,
		Tags:         tags(req.OwnershipID, req.Token, req.Namespace, req.Name),
	}
	for _, disk := range spec.DataDisks {
		run.DataDisksGiB = append(run.DataDisksGiB, disk.SizeGiB)
	}
	return run, nil
}

// DryRun implements preflight.DryRunner.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	run, err := d.runRequest(req)
	if err != nil {
		return err
	}
	run.DryRun = true
	if err = d.call(ctx, wire.RunInstances, cloud.ClassCreate, run, &wire.RunInstancesResponse{}); driverkit.RefusedAs(err,
		wire.DryRunOperation) {
		return nil
	}
	return err
}

// adopt returns the instance of an earlier request with the same token and other parameters.
func (d *driver) adopt(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	found, err := d.describe(ctx, wire.DescribeRequest{
		Region: d.region, TagKey: cloud.TagToken, TagValues: []string{req.Token}, Kinds: []wire.Kind{wire.Instance},
	})
	if err != nil {
		return cloud.Resource{}, err
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return cloud.Resource{}, cloud.Errorf(cloud.Unavailable,
			"%s: an instance with this token exists already, but the cloud does not show it yet", wire.RunInstances)
	}
	ids := make([]string, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "%d instances have the token %s: %s", len(found), req.Token, strings.Join(ids, ", "))
}

// EnsureBalancer implements cloud.Balancer.
func (d *driver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	class := cloud.ClassCreate
	if req.Recorded {
		class = cloud.ClassDelete
	}
	var answer wire.PutLoadBalancerResponse
	err := d.call(ctx, wire.PutLoadBalancer, class, wire.PutLoadBalancerRequest{
		Region:      d.region,
		ClientToken: req.Token,
		MustExist:   req.Recorded,
		Name:        driverkit.HostName(req.Name, wire.MaxName),
		Port:        req.Port,
		TargetIPs:   req.Targets,
		Tags:        tags(req.OwnershipID, req.Token, req.Namespace, req.Name),
	}, &answer)
	if err != nil {
		return cloud.Resource{}, err
	}
	made := toResource(answer.LoadBalancer)
	if made.Kind != cloud.KindBalancer || made.ID == "" || made.Token != req.Token {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "%s: unexpected response: no load balancer has the token of the request",
			wire.PutLoadBalancer)
	}
	return made, nil
}

func tags(ownershipID, token, namespace, name string) map[string]string {
	return map[string]string{
		cloud.TagOwnership: ownershipID,
		cloud.TagToken:     token,
		cloud.TagMachine:   cloud.Clip(namespace+"/"+name, wire.MaxTagValue),
	}
}

func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	return d.describe(ctx, wire.DescribeRequest{Region: d.region, TagKey: cloud.TagOwnership})
}

// Describe filters by token only: an instance that has the Reference's ProviderID and tags also has
// its token.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	tokens := make([]string, 0, len(refs))
	for _, ref := range refs {
		if ref.Token != "" {
			tokens = append(tokens, ref.Token)
		}
	}
	slices.Sort(tokens)
	tokens = slices.Compact(tokens)
	if len(tokens) == 0 {
		return nil, nil
	}
	return d.describe(ctx, wire.DescribeRequest{Region: d.region, TagKey: cloud.TagToken, TagValues: tokens})
}

// Find implements cloud.Finder.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	zone, id, ok := strings.Cut(strings.TrimPrefix(ref.ProviderID, providerScheme), "/")
	if !ok || ref.ProviderID != providerID(zone, id) {
		return nil, cloud.Invalid("provider ID %q is not of an instance", cloud.Clip(ref.ProviderID, 256))
	}
	var page wire.DescribeResponse
	if err := d.call(ctx, wire.DescribeResources, cloud.ClassRead,
		wire.DescribeRequest{Region: d.region, IDs: []string{id}, Kinds: []wire.Kind{wire.Instance}}, &page); err != nil {
		return nil, err
	}
	if page.NextToken != "" || len(page.Resources) > 1 || len(page.Resources) == 1 && page.Resources[0].ID != id {
		return nil, d.api.Unexpected(wire.DescribeResources, "for one ID")
	}
	if len(page.Resources) == 0 {
		return nil, nil
	}
	r := toResource(page.Resources[0])
	return &r, nil
}

// describe reads all pages and returns each resource that has an ownership ID once.
func (d *driver) describe(ctx context.Context, req wire.DescribeRequest) ([]cloud.Resource, error) {
	seen := map[string]bool{}
	return driverkit.Pages(ctx, wire.DescribeResources, func(ctx context.Context, mark string) (all []cloud.Resource, next string, err error) {
		req.NextToken = mark
		var page wire.DescribeResponse
		if err := d.call(ctx, wire.DescribeResources, cloud.ClassRead, req, &page); err != nil {
			return nil, "", err
		}
		for _, r := range page.Resources {
			key := string(r.Kind) + "/" + r.ID
			if r.Tags[cloud.TagOwnership] == "" || seen[key] {
				continue
			}
			seen[key] = true
			all = append(all, toResource(r))
		}
		return all, page.NextToken, nil
	})
}

func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	errs := make([]error, len(resources))
	var instances, dependants []int
	for i, r := range resources {
		if r.Kind == cloud.KindInstance {
			instances = append(instances, i)
		} else {
			dependants = append(dependants, i)
		}
	}
	d.remove(ctx, wire.TerminateInstances, resources, instances, errs)
	d.remove(ctx, wire.DeleteResources, resources, dependants, errs)
	return errs
}

// remove deletes the resources at the indices in which with one batch. It stores errors at the same
// indices.
func (d *driver) remove(ctx context.Context, op string, resources []cloud.Resource, which []int, errs []error) {
	if len(which) == 0 {
		return
	}
	req := wire.BatchRequest{Region: d.region}
	for _, i := range which {
		req.IDs = append(req.IDs, resources[i].ID)
	}
	var answer wire.BatchResponse
	err := d.call(ctx, op, cloud.ClassDelete, req, &answer)
	if err == nil && len(answer.Results) != len(which) {
		err = cloud.Errorf(cloud.Unknown, "%s: unexpected response with %d results for %d resources", op, len(answer.Results), len(which))
	}
	for n, i := range which {
		if err != nil {
			errs[i] = err
			continue
		}
		result := answer.Results[n]
		switch {
		case result.ID != resources[i].ID:
			errs[i] = cloud.Errorf(cloud.Unknown, "%s: unexpected response without a result for %s", op, resources[i].ID)
		case result.Error == nil, result.Error.Code == wire.InstanceNotFound, result.Error.Code == wire.ResourceNotFound:
		default:
			errs[i] = d.toError(op+" "+resources[i].ID, result.Error, nil)
		}
	}
}

func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (cloud.Offering, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return cloud.Offering{}, err
	}
	catalog, err := d.catalog(ctx)
	if err != nil {
		return cloud.Offering{}, err
	}
	instanceType, image := cmp.Or(spec.InstanceType, defaultInstanceType), cmp.Or(spec.Image, defaultImage)
	t := slices.IndexFunc(catalog.InstanceTypes, func(t wire.InstanceType) bool { return t.Name == instanceType })
	if t < 0 {
		return cloud.Offering{}, cloud.Errorf(cloud.InvalidSpec, "instance type %[2]q does not exist in region %[1]s", d.region, instanceType)
	}
	i := slices.IndexFunc(catalog.Images, func(i wire.Image) bool { return i.Name == image })
	if i < 0 {
		return cloud.Offering{}, cloud.Errorf(cloud.InvalidSpec, "image %[2]q does not exist in region %[1]s", d.region, image)
	}
	return offering(catalog.InstanceTypes[t], catalog.Images[i], cmp.Or(spec.DiskGiB, defaultDiskGiB)), nil
}

func offering(t wire.InstanceType, image wire.Image, disk int32) cloud.Offering {
	o := driverkit.Offering(image.Arch, int64(t.CPU), t.MemoryMiB<<20, int64(disk)<<30, nil)
	o.OperatingSystem = image.OS
	return o
}

// Console implements cloud.Console.
func (d *driver) Console(ctx context.Context, instance cloud.Resource) ([]byte, error) {
	var answer wire.ConsoleResponse
	err := d.call(ctx, wire.GetConsoleOutput, cloud.ClassRead, wire.ConsoleRequest{Region: d.region, ID: instance.ID}, &answer)
	return answer.Output, err
}

func (d *driver) catalog(ctx context.Context) (wire.CatalogResponse, error) {
	var answer wire.CatalogResponse
	err := d.call(ctx, wire.DescribeCatalog, cloud.ClassRead, wire.CatalogRequest{Region: d.region}, &answer)
	return answer, err
}

func toResource(r wire.Resource) cloud.Resource {
	out := cloud.Resource{
		Kind:        toKind(r.Kind),
		ID:          r.ID,
		Token:       r.Tags[cloud.TagToken],
		OwnershipID: r.Tags[cloud.TagOwnership],
		CreatedAt:   r.CreatedAt,
	}
	if out.Kind == cloud.KindBalancer {
		out.State, out.Balancer = toState(r.State), &cloud.BalancerState{Address: r.PrivateIP, Port: r.Port}
		for _, t := range r.Targets {
			out.Balancer.Targets = append(out.Balancer.Targets, cloud.BalancerTarget{Address: t.IP, Healthy: t.Healthy})
		}
		return out
	}
	if out.Kind != cloud.KindInstance {
		return out
	}
	out.ProviderID = providerID(r.Zone, r.ID)
	out.State = toState(r.State)
	out.FailureDomain = r.Zone
	out.Interruptible = r.Spot
	out.Reason = r.StateReason
	if r.PrivateIP != "" {
		out.Addresses = append(out.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: r.PrivateIP})
	}
	if r.Name != "" {
		out.Addresses = append(out.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: r.Name})
	}
	return out
}

func toKind(k wire.Kind) cloud.Kind {
	switch k {
	case wire.Instance:
		return cloud.KindInstance
	case wire.NIC:
		return cloud.KindNIC
	case wire.Disk:
		return cloud.KindDisk
	case wire.Balancer:
		return cloud.KindBalancer
	}
	return cloud.Kind(k)
}

// toState maps a state. An unknown state is Pending, so that nothing is concluded from it.
func toState(s wire.State) cloud.State {
	switch s {
	case wire.Running:
		return cloud.StateRunning
	case wire.Stopping:
		return cloud.StateStopping
	case wire.Stopped:
		return cloud.StateStopped
	case wire.Terminated:
		return cloud.StateTerminated
	}
	return cloud.StatePending
}
