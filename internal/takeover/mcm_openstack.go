// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// These types have the fields of a MachineClass's providerSpec for OpenStack, v0.27.
type (
	mcmOpenStack struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		Spec       mcmOpenStackSpec `json:"spec"`
	}
	mcmOpenStackSpec struct {
		ImageID          string                `json:"imageID"`
		ImageName        string                `json:"imageName"`
		Region           string                `json:"region"`
		AvailabilityZone string                `json:"availabilityZone"`
		FlavorName       string                `json:"flavorName"`
		KeyName          string                `json:"keyName"`
		SecurityGroups   []string              `json:"securityGroups"`
		Tags             map[string]string     `json:"tags"`
		NetworkID        string                `json:"networkID"`
		SubnetID         *string               `json:"subnetID"`
		SubnetIDs        []string              `json:"subnetIDs"`
		PodNetworkCIDR   string                `json:"podNetworkCidr"`
		PodNetworkCIDRs  []string              `json:"podNetworkCIDRs"`
		RootDiskSize     int32                 `json:"rootDiskSize"`
		RootDiskType     *string               `json:"rootDiskType"`
		UseConfigDrive   *bool                 `json:"useConfigDrive"`
		ServerGroupID    *string               `json:"serverGroupID"`
		Networks         []mcmOpenStackNetwork `json:"networks"`
	}
	mcmOpenStackNetwork struct {
		ID         string `json:"id"`
		Name       string `json:"name"`
		PodNetwork bool   `json:"podNetwork"`
	}
)

// The metadata keys by which machine-controller-manager recognizes its servers have these parts.
const (
	mcmServerClusterKey = "kubernetes.io-cluster-"
	mcmServerRoleKey    = "kubernetes.io-role-"
)

// openstack maps a class for OpenStack.
func (s findings) openstack(pool *Pool, class *unstructured.Unstructured, target *Target) {
	const at = "providerSpec.spec."
	config := &mcmOpenStack{}
	if !s.decode(class.Object, "providerSpec", config) {
		return
	}
	spec := &config.Spec
	s.region(at+"region", spec.Region, target)
	m := &infrav1.OpenStackMachine{
		Flavor: spec.FlavorName, Image: infrav1.OpenStackImage{ID: spec.ImageID}, AvailabilityZone: spec.AvailabilityZone, KeyName: spec.KeyName,
		ServerGroupID: ptr.Deref(spec.ServerGroupID, ""), ConfigDrive: stateIfSet(spec.UseConfigDrive), Metadata: maps.Clone(spec.Tags),
	}
	if spec.ImageID == "" {
		m.Image.Name = spec.ImageName
	}
	maps.DeleteFunc(m.Metadata, func(key, _ string) bool { return strings.Contains(key, mcmServerRoleKey) })
	s.openstackPorts(m, spec)
	own := len(m.Ports) > 0 && len(m.Ports[0].FixedIPs) > 0 // a port of the machine's name
	switch {
	case spec.RootDiskSize > 0 && spec.RootDiskType != nil: // a volume of its name, in its zone
		m.RootVolume = infrav1.OpenStackVolume{SizeGiB: spec.RootDiskSize, Type: *spec.RootDiskType,
			InMachineZone: enabledIf(spec.AvailabilityZone != "")}
		own = true
	case spec.RootDiskSize > 0:
		m.RootVolume = infrav1.OpenStackVolume{SizeGiB: spec.RootDiskSize}
	case spec.RootDiskType != nil:
		s.addNote(at+"rootDiskType", "it has no effect without rootDiskSize, here as there")
	}
	pool.Machine = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{OpenStack: m}})
	pool.Keys = s.keys(at+"tags", spec.Tags, mcmServerClusterKey, mcmServerRoleKey)
	pool.named = own
}

// openstackPorts maps the networks. The old system lets pods' addresses pass its ports.
func (s findings) openstackPorts(m *infrav1.OpenStackMachine, spec *mcmOpenStackSpec) {
	const at = "providerSpec.spec."
	subnets := append(slices.Clone(spec.SubnetIDs), ptr.Deref(spec.SubnetID, ""))
	pods := append(slices.Clone(spec.PodNetworkCIDRs), spec.PodNetworkCIDR)
	for _, list := range []*[]string{&subnets, &pods} {
		slices.Sort(*list)
		*list = slices.DeleteFunc(slices.Compact(*list), func(text string) bool { return text == "" })
	}
	networks := spec.Networks
	switch {
	case spec.NetworkID != "" && len(networks) > 0:
		s.addRefused(at+"networks", "networkID is set, too: one of them must go")
		return
	case spec.NetworkID != "":
		networks = []mcmOpenStackNetwork{{ID: spec.NetworkID, PodNetwork: true}}
	case len(networks) == 0:
		s.addRefused(at+"networkID", "neither it nor networks is set")
		return
	case len(subnets) > 0:
		s.addNote(at+"subnetIDs", "they have no effect without networkID: new machines get addresses of any subnet, as before")
		subnets = nil
	}
	if len(pods) > 1 {
		s.addNote(at+"podNetworkCIDRs", "the ports of new machines let all of %s pass, and those of the old ones only one",
			strings.Join(pods, ", "))
	}
	for _, n := range networks {
		port := infrav1.OpenStackPort{Network: n.ID, SecurityGroups: spec.SecurityGroups}
		if n.ID == "" {
			port.Network = n.Name
		}
		for _, id := range subnets {
			port.FixedIPs = append(port.FixedIPs, infrav1.OpenStackFixedIP{SubnetID: id})
		}
		for _, pod := range pods {
			if n.PodNetwork {
				port.AllowedAddressPairs = append(port.AllowedAddressPairs, infrav1.OpenStackAddressPair{IPAddress: pod})
			}
		}
		m.Ports = append(m.Ports, port)
	}
}

// region refuses a region of OpenStack that is not the account's.
func (s findings) region(field, region string, target *Target) {
	if account := target.Account.Spec.Cloud.OpenStack.Region; region != "" && account != "" && region != account {
		s.addRefused(field, "it is %q, and the DroverAccount's is %q", region, account)
	}
}

// instanceOnOpenStack returns the server's ID in a Node's provider ID, or "". The region is empty
// unless OpenStack's cloud controller writes it.
func instanceOnOpenStack(providerID string) string {
	rest, ok := strings.CutPrefix(providerID, "openstack://")
	_, id, slash := strings.Cut(rest, "/")
	if !ok || !slash || strings.Contains(id, "/") {
		return ""
	}
	return id
}
