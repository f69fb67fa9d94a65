// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// lifeActions are what the driver does in the resource group in a machine's life, with what Azure
// requires of the caller for the parts that it makes inline.
var lifeActions = []string{
	"Microsoft.Compute/disks/delete", "Microsoft.Compute/disks/read", "Microsoft.Compute/disks/write",
	"Microsoft.Compute/virtualMachines/delete", "Microsoft.Compute/virtualMachines/instanceView/read",
	"Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action",
	"Microsoft.Compute/virtualMachines/write",
	"Microsoft.Network/networkInterfaces/delete", "Microsoft.Network/networkInterfaces/join/action",
	"Microsoft.Network/networkInterfaces/read", "Microsoft.Network/networkInterfaces/write",
	"Microsoft.Network/publicIPAddresses/delete", "Microsoft.Network/publicIPAddresses/read",
}

// publicActions are those for a machine with a public address.
var publicActions = []string{"Microsoft.Network/publicIPAddresses/join/action", "Microsoft.Network/publicIPAddresses/write"}

// DryRun implements preflight.DryRunner. Azure has no create that makes nothing, so DryRun reads
// what a create depends on: the caller's permissions, the size with its zones, quotas, networks,
// the image and its terms. It also returns Unauthorized for a missing permission that only later
// steps need.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	spec, err := union.MachineOf(req.Spec)
	if err != nil {
		return err
	}
	s, err := d.size(ctx, spec.VMSize)
	switch {
	case err != nil:
		return err
	case req.FailureDomain != "" && spec.AvailabilitySetID == "" && !slices.Contains(s.zones, req.FailureDomain):
		return cloud.Errorf(cloud.InvalidSpec, "size %q is not available to the subscription in zone %q of location %s, but in zones %q",
			spec.VMSize, req.FailureDomain, d.account.Location, s.zones)
	}
	for _, check := range []func(context.Context, *infrav1.AzureMachine, size) error{d.checkPermissions, d.checkQuota, d.checkNetworks,
		d.checkImage} {
		if err := check(ctx, spec, s); err != nil {
			return err
		}
	}
	return nil
}

// checkPermissions compares what the driver does with what Azure's access control grants to the
// caller: in the resource group, and on what network interfaces refer to. Azure's answer has
// neither deny assignments nor policies.
func (d *driver) checkPermissions(ctx context.Context, spec *infrav1.AzureMachine, _ size) error {
	group, _, _ := strings.Cut(pathOf(d.account, ""), "/providers/")
	actions := slices.Clone(lifeActions)
	if slices.ContainsFunc(spec.NetworkInterfaces, func(n infrav1.AzureNetworkInterface) bool { return n.PublicIP != nil }) {
		actions = append(actions, publicActions...)
	}
	if err := d.checkGranted(ctx, group, actions); err != nil {
		return err
	}
	for _, id := range joined(spec) {
		if err := d.checkGranted(ctx, id, []string{kindOf(id) + "/join/action"}); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) checkGranted(ctx context.Context, scope string, actions []string) error {
	granted, err := pages[permission](ctx, d, "ListPermissions", scope+"/providers/Microsoft.Authorization/permissions",
		permissionsVersion, nil)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(actions), func(action string) bool {
		return slices.ContainsFunc(granted, func(p permission) bool { return p.grants(action) })
	})
	if len(missing) > 0 {
		return cloud.Errorf(cloud.Unauthorized, "the credentials lack permissions on %s: %s (give their identity the role that docs/clouds/azure.md shows)",
			scope, strings.Join(missing, ", "))
	}
	return nil
}

// grants reports whether a permission has an action and does not take it back.
func (p permission) grants(action string) bool {
	matches := func(pattern string) bool {
		ok, err := regexp.MatchString("(?i)^"+strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")+"$", action)
		return ok && err == nil
	}
	return slices.ContainsFunc(p.Actions, matches) && !slices.ContainsFunc(p.NotActions, matches)
}

// joined returns the IDs that Azure lets nobody refer to without the kind's action "join", each
// once.
func joined(spec *infrav1.AzureMachine) (all []string) {
	for i := range spec.NetworkInterfaces {
		n := &spec.NetworkInterfaces[i]
		all = append(all, n.SubnetID, n.SecurityGroupID)
		all = append(all, n.ApplicationSecurityGroupIDs...)
		all = append(all, n.LoadBalancerBackendPoolIDs...)
		all = append(all, n.ApplicationGatewayBackendPoolIDs...)
		if n.PublicIP != nil {
			all = append(all, n.PublicIP.PrefixID)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id string) bool { return id == "" })
}

// kindOf returns the kind of a resource, such as "Microsoft.Network/virtualNetworks/subnets".
func kindOf(id string) string {
	_, path, _ := strings.Cut(id, "/providers/")
	parts := strings.Split(path, "/")
	kind := parts[0]
	for i := 1; i < len(parts); i += 2 {
		kind += "/" + parts[i]
	}
	return kind
}

// checkQuota compares the vCPUs of the size with what is left of the location's quotas. Machines on
// a host of their own or in a capacity reservation use what was reserved.
func (d *driver) checkQuota(ctx context.Context, spec *infrav1.AzureMachine, s size) error {
	if spec.HostID != "" || spec.HostGroupID != "" || spec.CapacityReservationGroupID != "" {
		return nil
	}
	needed := map[string]int64{"cores": s.cpus, strings.ToLower(s.family): s.cpus, "virtualmachines": 1}
	if spec.Spot != nil {
		needed = map[string]int64{"lowprioritycores": s.cpus, "virtualmachines": 1}
	}
	all, err := pages[usage](ctx, d, "ListUsages", d.locationPath()+"/usages", machinesVersion, nil)
	for _, u := range all {
		if n := needed[strings.ToLower(u.Name.Value)]; n > 0 && u.CurrentValue+n > u.Limit {
			return cloud.Errorf(cloud.QuotaExceeded, "quota %s of the subscription in location %s: %d of %d are in use, and a %s needs %d",
				u.Name.Value, d.account.Location, u.CurrentValue, u.Limit, spec.VMSize, n)
		}
	}
	return err
}

// locationPath returns the path of what Microsoft.Compute has in the account's location.
func (d *driver) locationPath() string {
	return "/subscriptions/" + d.account.SubscriptionID + "/providers/Microsoft.Compute/locations/" + d.account.Location
}

// isHere reports whether Azure means the account's location by a name, such as "West Europe".
func (d *driver) isHere(name string) bool {
	return strings.EqualFold(strings.ReplaceAll(name, " ", ""), d.account.Location)
}

// checkNetworks reads the virtual network of each subnet, which has its location and its subnets.
func (d *driver) checkNetworks(ctx context.Context, spec *infrav1.AzureMachine, _ size) error {
	for i := range spec.NetworkInterfaces {
		id := spec.NetworkInterfaces[i].SubnetID
		parts := strings.Split(id, "/")
		var n virtualNetwork
		err := d.read(ctx, "GetVirtualNetwork", strings.Join(parts[:len(parts)-2], "/"), networkVersion, nil, &n)
		switch {
		case cloud.CodeOf(err) == cloud.NotFound:
			return cloud.Errorf(cloud.NotFound, "the virtual network of subnet %s does not exist", id)
		case err != nil:
			return err
		case !d.isHere(n.Location):
			return cloud.Errorf(cloud.NotFound, "subnet %s is in location %s, and the account is in %s", id, n.Location, d.account.Location)
		case !slices.ContainsFunc(n.Properties.Subnets, func(s named) bool { return strings.EqualFold(s.Name, lastPart(id)) }):
			return cloud.Errorf(cloud.NotFound, "subnet %s does not exist", id)
		}
	}
	return nil
}

// checkImage compares the image with the size and the location, and its plan with the machine's.
func (d *driver) checkImage(ctx context.Context, spec *infrav1.AzureMachine, s size) error {
	i, name := spec.Image, imageID(image(spec.Image))
	facts, err := d.readImage(ctx, i)
	switch {
	case cloud.CodeOf(err) == cloud.NotFound && i.Marketplace != nil:
		return cloud.Errorf(cloud.InvalidSpec, "the marketplace has no image %s in location %s", name, d.account.Location)
	case cloud.CodeOf(err) == cloud.NotFound:
		return cloud.Errorf(cloud.NotFound, "image %s does not exist", name)
	case err != nil:
		return err
	}
	p, plan, wanted := facts.Properties, facts.Properties.Plan, planOf(i)
	if plan == nil {
		plan = p.PurchasePlan
	}
	regions := p.PublishingProfile.TargetRegions
	switch {
	case (p.Architecture == "Arm64") != (s.architecture == "arm64") && p.Architecture != "":
		return cloud.Errorf(cloud.InvalidSpec, "image %s is for architecture %s, and size %s is for %s", name, p.Architecture, spec.VMSize,
			s.architecture)
	case p.HyperVGeneration != "" && len(s.generations) > 0 && !slices.Contains(s.generations, p.HyperVGeneration):
		return cloud.Errorf(cloud.InvalidSpec, "image %s is for generation %s of virtual machines, and size %s for %q", name, p.HyperVGeneration,
			spec.VMSize, s.generations)
	case len(regions) > 0 && !slices.ContainsFunc(regions, func(r named) bool { return d.isHere(r.Name) }):
		return cloud.Errorf(cloud.NotFound, "image %s is not replicated to location %s: add it to the version's target regions", name,
			d.account.Location)
	case plan != nil && (wanted == nil || !strings.EqualFold(fmt.Sprint(*plan), fmt.Sprint(*wanted))):
		return cloud.Errorf(cloud.InvalidSpec, "image %s has the plan %s of product %s of publisher %s, which the machine does not name (%s)",
			name, plan.Name, plan.Product, plan.Publisher, remedies["VMMarketplaceInvalidInput"])
	case plan == nil && wanted != nil && i.Marketplace != nil:
		return cloud.Errorf(cloud.InvalidSpec, "image %s has no plan: leave out image.marketplace.plan", name)
	case wanted == nil:
		return nil
	}
	var terms agreement
	path := "/subscriptions/" + d.account.SubscriptionID + "/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/" +
		url.PathEscape(wanted.Publisher) + "/offers/" + url.PathEscape(wanted.Product) + "/plans/" + url.PathEscape(wanted.Name) +
		"/agreements/current"
	if err := d.read(ctx, "GetTerms", path, termsVersion, nil, &terms); err != nil {
		return err
	}
	if !terms.Properties.Accepted {
		return cloud.Errorf(cloud.Conflict, "the terms of image %s are not accepted (accept them once: az vm image terms accept --publisher %s --offer %s --plan %s)",
			name, wanted.Publisher, wanted.Product, wanted.Name)
	}
	return nil
}

// readImage returns what Azure says of an image. Of an image in a gallery that is not named by its
// version, it reads only the definition.
func (d *driver) readImage(ctx context.Context, i infrav1.AzureImage) (facts imageFacts, err error) {
	const op = "GetImage"
	path := i.ID
	switch {
	case i.Marketplace != nil:
		return d.readMarketplace(ctx, i.Marketplace)
	case i.ID == "":
		path = d.locationPath() + i.CommunityGalleryImageID + i.SharedGalleryImageID // whichever there is
	case strings.EqualFold(kindOf(i.ID), "Microsoft.Compute/images"):
		if err = d.read(ctx, op, path, machinesVersion, nil, &facts); err == nil && !d.isHere(facts.Location) {
			err = cloud.Errorf(cloud.InvalidSpec, "image %s is in location %s, and the account is in %s", path, facts.Location, d.account.Location)
		}
		return facts, err
	}
	parts := strings.Split(path, "/")
	last, definition := len(parts)-2, path
	versioned := strings.EqualFold(parts[last], "versions")
	if versioned {
		definition = strings.Join(parts[:last], "/")
	}
	err = d.read(ctx, op, definition, galleriesVersion, nil, &facts)
	if err == nil && versioned && parts[last+1] != "latest" {
		var of imageFacts
		err = d.read(ctx, op, path, galleriesVersion, nil, &of)
		facts.Properties.PublishingProfile = of.Properties.PublishingProfile
	}
	return facts, err
}

// readMarketplace returns what Azure says of an image of the marketplace. The version "latest" is
// the last one in the list.
func (d *driver) readMarketplace(ctx context.Context, m *infrav1.AzureMarketplaceImage) (facts imageFacts, err error) {
	path := d.locationPath() + "/publishers/" + url.PathEscape(m.Publisher) + "/artifacttypes/vmimage/offers/" + url.PathEscape(m.Offer) +
		"/skus/" + url.PathEscape(m.SKU) + "/versions"
	version := m.Version
	if version == "" || version == "latest" {
		var all []named
		if err := d.read(ctx, "ListImageVersions", path, machinesVersion, url.Values{"$top": {"1"}, "$orderby": {"name desc"}},
			&all); err != nil {
			return facts, err
		}
		if len(all) == 0 {
			return facts, cloud.Errorf(cloud.NotFound, "the image has no version in location %s", d.account.Location)
		}
		version = all[0].Name
	}
	err = d.read(ctx, "GetImage", path+"/"+url.PathEscape(version), machinesVersion, nil, &facts)
	return facts, err
}
