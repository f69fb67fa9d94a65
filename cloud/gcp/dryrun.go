// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// projectPermissions are what Drover needs in the project to create and delete a machine. Rights on
// images and subnetworks may be given for these alone.
var projectPermissions = []string{
	"compute.disks.create", "compute.disks.delete", "compute.disks.list", "compute.disks.setLabels",
	"compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.list",
	"compute.instances.setLabels", "compute.instances.setMetadata",
}

// DryRun implements preflight.DryRunner. Compute Engine checks no instance without creating it. So
// DryRun looks up what the machine names, and compares the region's quotas and the permissions with
// what it needs.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	spec, err := union.MachineOf(req.Spec)
	if err != nil {
		return err
	}
	zone, err := d.zoneOf(ctx, req)
	if err != nil {
		return err
	}
	r, err := d.readRegion(ctx)
	switch {
	case err != nil:
		return err
	case !slices.Contains(r.Zones, zone):
		return cloud.Errorf(cloud.InvalidSpec, "failure domain %q is not a zone of region %s", zone, d.account.Region)
	}
	if err := d.checkProject(ctx, spec); err != nil {
		return err
	}
	kind, err := d.machineTypeIn(ctx, zone, spec.MachineType)
	switch {
	case err != nil:
		return err
	case kind == nil: // as in the answer to a create
		return cloud.Errorf(cloud.NoCapacity, "machine type %q does not exist in zone %s", spec.MachineType, zone)
	}
	if err := d.checkSources(ctx, spec, kind); err != nil {
		return err
	}
	for i := range spec.NetworkInterfaces {
		if err := d.checkSubnetwork(ctx, &spec.NetworkInterfaces[i]); err != nil {
			return err
		}
	}
	return d.checkQuotas(&r, needs(spec, kind), spec.ProvisioningModel == infrav1.GCPProvisioningSpot)
}

// checkProject asks the Cloud Resource Manager which permissions the caller has in the project.
// Asking needs no permission, but the service must be enabled in the caller's project: if it
// refuses, the permissions are not known. It can't be asked through an endpoint for Compute Engine.
func (d *driver) checkProject(ctx context.Context, spec *infrav1.GCPMachine) error {
	if d.account.Endpoint != "" {
		return nil
	}
	wanted := slices.Clone(projectPermissions)
	if len(spec.NetworkTags) > 0 {
		wanted = append(wanted, "compute.instances.setTags")
	}
	if spec.ServiceAccount != nil {
		wanted = append(wanted, "compute.instances.setServiceAccount")
	}
	if spec.PlacementPolicy != "" {
		wanted = append(wanted, "compute.resourcePolicies.use")
	}
	missing, err := d.missingPermissions(ctx, request{
		op: "TestProjectPermissions", address: "https://cloudresourcemanager." + universeOf(d.account) + "/v1/projects/" + d.account.ProjectID +
			":testIamPermissions",
	}, wanted)
	switch {
	case cloud.CodeOf(err) == cloud.Unauthorized:
		return nil
	case err != nil:
		return err
	case len(missing) > 0:
		return cloud.Errorf(cloud.Unauthorized, "the account's identity lacks %s in project %s: give it the role that docs/clouds/gcp.md shows",
			strings.Join(missing, ", "), d.account.ProjectID)
	}
	return nil
}

// missingPermissions asks which of the permissions the caller lacks.
func (d *driver) missingPermissions(ctx context.Context, r request, wanted []string) ([]string, error) {
	var has permissions
	r.class, r.method, r.in, r.out = cloud.ClassRead, http.MethodPost, permissions{wanted}, &has
	if err := d.call(ctx, r); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(p string) bool { return slices.Contains(has.Permissions, p) }), nil
}

// checkSources looks up the images and snapshots of the disks. A machine does not boot from an
// image for another architecture.
func (d *driver) checkSources(ctx context.Context, spec *infrav1.GCPMachine, kind *machineType) error {
	sources := []*infrav1.GCPImage{&spec.Image}
	for i := range spec.Disks {
		if of := &spec.Disks[i].Source; *of != (infrav1.GCPImage{}) {
			sources = append(sources, of)
		}
	}
	for i, of := range sources {
		op, path := "GetImage", "global/images/"+of.Name
		switch {
		case of.Family != "":
			op, path = "GetImageFamily", "global/images/family/"+of.Family
		case of.Snapshot != "":
			op, path = "GetSnapshot", "global/snapshots/"+of.Snapshot
		}
		project := cmp.Or(of.Project, d.account.ProjectID)
		var found source
		err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, project: project, path: path, out: &found})
		switch {
		case driverkit.RefusedAs(err, notFound):
			return cloud.Errorf(cloud.NotFound, "%s of project %s does not exist", path, project)
		case err != nil:
			return err
		case found.Name == "":
			return d.api.Unexpected(op, "without a name")
		}
		is, needed := map[string]string{"ARM64": "arm64", "X86_64": "amd64"}[found.Architecture], architecture(kind)
		if i == 0 && is != "" && is != needed {
			return cloud.Errorf(cloud.InvalidSpec, "image %s is for %s, and machine type %s for %s", found.Name, is, kind.Name, needed)
		}
	}
	return nil
}

// checkSubnetwork asks whether an interface may use its subnetwork. A network without subnetwork
// can't be asked about.
func (d *driver) checkSubnetwork(ctx context.Context, nic *infrav1.GCPNetworkInterface) error {
	if nic.Subnetwork == "" {
		return nil
	}
	wanted := []string{"compute.subnetworks.use"}
	if nic.PublicIP != nil || nic.PublicIPv6 == infrav1.FeatureEnabled {
		wanted = append(wanted, "compute.subnetworks.useExternalIp")
	}
	project := cmp.Or(nic.HostProject, d.account.ProjectID)
	missing, err := d.missingPermissions(ctx, request{
		op: "TestSubnetworkPermissions", project: project, path: "regions/" + d.account.Region + "/subnetworks/" + nic.Subnetwork +
			"/testIamPermissions",
	}, wanted)
	switch {
	case driverkit.RefusedAs(err, notFound):
		return cloud.Errorf(cloud.NotFound, "subnetwork %s does not exist in region %s of project %s", nic.Subnetwork, d.account.Region, project)
	case err != nil:
		return err
	case len(missing) > 0: // some services of Google answer so if there is no such resource
		return cloud.Errorf(cloud.Unauthorized, "the account's identity lacks %s for subnetwork %s in region %s of project %s, or there is no such subnetwork",
			strings.Join(missing, ", "), nic.Subnetwork, d.account.Region, project)
	}
	return nil
}

// need is what a machine takes of a quota of its region.
type need struct {
	metric string
	amount float64
	// spot is the quota that a spot machine takes it from instead, if the project has any.
	spot string
}

// cpuQuotas are the quotas for the processors of families of machine types ("Allocation quotas").
// Processors of newer families are limited in another way, which the region does not tell.
var cpuQuotas = map[string]string{
	"e2": "CPUS", "n1": "CPUS", "f1": "CPUS", "g1": "CPUS",
	"n2": "N2_CPUS", "n2d": "N2D_CPUS", "c2": "C2_CPUS", "c2d": "C2D_CPUS", "t2d": "T2D_CPUS", "a2": "A2_CPUS", "m1": "M1_CPUS",
}

// diskQuotas are the quotas for types of disks. The type of a disk without one depends on the
// machine type.
var diskQuotas = map[string]string{"pd-standard": "DISKS_TOTAL_GB", "pd-balanced": "SSD_TOTAL_GB", "pd-ssd": "SSD_TOTAL_GB"}

// needs returns what a machine takes of the quotas that a region tells. Disks of the image's size
// are left out.
func needs(spec *infrav1.GCPMachine, kind *machineType) []need {
	all := []need{{metric: "INSTANCES", amount: 1}}
	family, _, _ := strings.Cut(kind.Name, "-")
	if metric := cpuQuotas[family]; metric != "" {
		all = append(all, need{metric, float64(kind.GuestCPUs), "PREEMPTIBLE_CPUS"})
	}
	gpu := func(of string, n int64) {
		metric := strings.ToUpper(strings.NewReplacer("tesla-", "", "-", "_").Replace(of)) + "_GPUS"
		all = append(all, need{metric, float64(n), "PREEMPTIBLE_" + metric})
	}
	for _, a := range kind.Accelerators {
		gpu(a.Type, a.Count)
	}
	for _, a := range spec.Accelerators {
		gpu(a.Type, int64(a.Count))
	}
	addresses := 0
	for i := range spec.NetworkInterfaces {
		if spec.NetworkInterfaces[i].PublicIP != nil {
			addresses++
		}
	}
	all = append(all, need{metric: "IN_USE_ADDRESSES", amount: float64(addresses)})
	gib := map[string]int64{}
	if spec.BootDisk.SizeGiB > 0 {
		gib[diskQuotas[spec.BootDisk.Type]] += spec.BootDisk.SizeGiB
	}
	for i := range spec.Disks {
		gib[diskQuotas[spec.Disks[i].Type]] += spec.Disks[i].SizeGiB
	}
	for _, metric := range []string{"DISKS_TOTAL_GB", "SSD_TOTAL_GB"} {
		all = append(all, need{metric: metric, amount: float64(gib[metric])})
	}
	return all
}

// checkQuotas compares needs with what the region has left. It does not know of quotas that the
// region does not tell.
func (d *driver) checkQuotas(r *region, needs []need, spot bool) error {
	of := map[string]quota{}
	for _, q := range r.Quotas {
		of[q.Metric] = q
	}
	for _, n := range needs {
		q, told := of[n.metric]
		if preemptible := of[n.spot]; spot && preemptible.Limit > 0 {
			q, told = preemptible, true
		}
		if told && n.amount > 0 && q.Usage+n.amount > q.Limit {
			return cloud.Errorf(cloud.QuotaExceeded, "quota %s of region %s: the machine needs %g, and %g of %g are used",
				d.api.Secrets.Clean(q.Metric, 64), r.Name, n.amount, q.Usage, q.Limit)
		}
	}
	return nil
}
