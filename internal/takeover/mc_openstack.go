// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcOpenStackSpec has the fields of a cloudProviderSpec for OpenStack, v1.62.
type mcOpenStackSpec struct {
	IdentityEndpoint            mcVar             `json:"identityEndpoint"`
	Username                    mcVar             `json:"username"`
	Password                    mcVar             `json:"password"`
	ApplicationCredentialID     mcVar             `json:"applicationCredentialID"`
	ApplicationCredentialSecret mcVar             `json:"applicationCredentialSecret"`
	DomainName                  mcVar             `json:"domainName"`
	ProjectName                 mcVar             `json:"projectName"`
	ProjectID                   mcVar             `json:"projectID"`
	TenantName                  mcVar             `json:"tenantName"`
	TenantID                    mcVar             `json:"tenantID"`
	TokenID                     mcVar             `json:"tokenId"`
	Region                      mcVar             `json:"region"`
	InstanceReadyCheckPeriod    mcVar             `json:"instanceReadyCheckPeriod"`
	InstanceReadyCheckTimeout   mcVar             `json:"instanceReadyCheckTimeout"`
	ComputeAPIVersion           mcVar             `json:"computeAPIVersion"`
	Image                       mcVar             `json:"image"`
	Flavor                      mcVar             `json:"flavor"`
	SecurityGroups              []mcVar           `json:"securityGroups"`
	Network                     mcVar             `json:"network"`
	Networks                    []mcVar           `json:"networks"`
	Subnet                      mcVar             `json:"subnet"`
	FloatingIPPool              mcVar             `json:"floatingIpPool"`
	AvailabilityZone            mcVar             `json:"availabilityZone"`
	TrustDevicePath             mcVar             `json:"trustDevicePath"`
	RootDiskSizeGB              *int32            `json:"rootDiskSizeGB"`
	RootDiskVolumeType          mcVar             `json:"rootDiskVolumeType"`
	NodeVolumeAttachLimit       *int32            `json:"nodeVolumeAttachLimit"`
	ServerGroup                 mcVar             `json:"serverGroup"`
	ConfigDrive                 mcVar             `json:"configDrive"`
	DisablePortSecurity         mcVar             `json:"disablePortSecurity"`
	Tags                        map[string]string `json:"tags"`
}

// mcGroup is the security group that machine-controller makes for pools that name none.
const mcGroup = "kubernetes-v1"

// mcAddress is the annotation with the ID of the floating IP that machine-controller has made for a
// Machine, and the finalizer that releases it.
const mcAddress = "kubermatic.io/release-openstack-floating-ip"

// mcOpenStack maps a cloudProviderSpec to the fields of a machine. Credentials and waiting times
// are the DroverAccount's and Drover's.
func (s findings) mcOpenStack(pool *Pool, from map[string]any, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	spec := &mcOpenStackSpec{}
	if !s.decode(map[string]any{at: from}, at, spec) {
		return
	}
	text := func(field string, v mcVar) string { return s.text(at+"."+field, v) }
	s.region(at+".region", text("region", spec.Region), target)
	m := &infrav1.OpenStackMachine{
		Flavor: text("flavor", spec.Flavor), Image: infrav1.OpenStackImage{Name: text("image", spec.Image)},
		AvailabilityZone: text("availabilityZone", spec.AvailabilityZone), ServerGroupID: text("serverGroup", spec.ServerGroup),
		ConfigDrive: stateOf(text("configDrive", spec.ConfigDrive) == "true"), Metadata: maps.Clone(spec.Tags),
	}
	var groups, networks []string
	for _, group := range spec.SecurityGroups {
		groups = append(groups, text("securityGroups", group))
	}
	open := text("disablePortSecurity", spec.DisablePortSecurity) == "true"
	switch {
	case open:
		groups = nil // it takes them off the ports
	case len(groups) == 0:
		groups = []string{mcGroup}
		s.addNote(at+".securityGroups", "there is none: new machines are in the group %s, as the old ones; keep it", mcGroup)
	}
	for i, network := range append([]mcVar{spec.Network}, spec.Networks...) {
		name := text(map[bool]string{true: "network", false: "networks"}[i == 0], network)
		if name != "" && !slices.Contains(networks, name) {
			networks = append(networks, name)
		}
	}
	for _, name := range networks {
		port := infrav1.OpenStackPort{Network: name, SecurityGroups: groups}
		if open {
			port.PortSecurity = infrav1.FeatureDisabled
		}
		m.Ports = append(m.Ports, port)
	}
	if len(networks) == 0 {
		s.addRefused(at+".network", "there is none")
	} else {
		m.Ports[0].FloatingNetwork = text("floatingIpPool", spec.FloatingIPPool)
	}
	if subnet := text("subnet", spec.Subnet); subnet != "" {
		s.addNote(at+".subnet", "machine-controller does not use it for machines: new ones get addresses of any subnet of the network, as before")
	}
	if size := spec.RootDiskSizeGB; size != nil && *size < 1 {
		s.addRefused(at+".rootDiskSizeGB", "it is %d, and a volume has at least 1: leave it out for the flavor's disk", *size)
	} else if size != nil {
		m.RootVolume = infrav1.OpenStackVolume{SizeGiB: *spec.RootDiskSizeGB, Type: text("rootDiskVolumeType", spec.RootDiskVolumeType)}
	} else if text("rootDiskVolumeType", spec.RootDiskVolumeType) != "" {
		s.addNote(at+".rootDiskVolumeType", "it has no effect without rootDiskSizeGB, here as there")
	}
	if text("trustDevicePath", spec.TrustDevicePath) == "true" {
		s.addNote(at+".trustDevicePath", "it is for the cloud provider that was built into kubelets, and has no effect any more")
	}
	if spec.NodeVolumeAttachLimit != nil {
		s.addNote(at+".nodeVolumeAttachLimit", "it is for the cloud provider that was built into kubelets: set the limit in the CSI driver")
	}
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{OpenStack: m}}), []string{mcServerKey}
}

// address adds the floating IP that machine-controller would release with a Machine.
func (p *Plan) address(o *unstructured.Unstructured, one *Machine, pool *Pool) {
	if pool.Machine == nil || pool.Machine.Cloud.OpenStack == nil {
		return
	}
	id := strings.TrimSpace(o.GetAnnotations()[mcAddress])
	switch {
	case id != "" && slices.Contains(o.GetFinalizers(), mcAddress):
		one.OwnedResources = []string{id}
	case len(pool.Machine.Cloud.OpenStack.Ports) > 0 && pool.Machine.Cloud.OpenStack.Ports[0].FloatingNetwork != "":
		p.findingsFor("Machine", o.GetName()).addNote("metadata.annotations",
			"%s is missing, so its floating IP is not its own: it stays when the machine goes, as before", mcAddress)
	}
}
