// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"net/netip"
	"slices"

	"github.com/vmware/govmomi/vim25/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// choice selects the machine's addresses among those of its guest.
type choice struct {
	network string // the network whose addresses come first
	exclude []netip.Prefix
}

func newChoice(n *infrav1.VSphereNodeAddresses) (c choice, err error) {
	if n == nil {
		return c, nil
	}
	c.network = n.Network
	for _, text := range n.Exclude {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return c, cloud.Invalid("nodeAddresses.exclude: %q is not an address range", cloud.Clip(text, 64))
		}
		c.exclude = append(c.exclude, p)
	}
	return c, nil
}

func (c choice) has(a netip.Addr) bool {
	excluded := slices.ContainsFunc(c.exclude, func(p netip.Prefix) bool { return p.Contains(a.WithZone("")) })
	return !excluded && !a.IsLinkLocalUnicast() && !a.IsLoopback()
}

// addresses returns the addresses that VMware Tools report for the VM's own adapters, and the host
// name that the machine was given. Adapters of pods, of which a node has many, have no device. Any
// other name that the guest reports is left out, and gives no right to a certificate.
func (m vm) addresses(chosen choice) []clusterv1.MachineAddress {
	var first, others []clusterv1.MachineAddress
	nics, _ := m.properties["guest.net"].(types.ArrayOfGuestNicInfo)
	for _, nic := range nics.GuestNicInfo {
		if nic.DeviceConfigId < 0 {
			continue
		}
		to := &others
		if chosen.network != "" && nic.Network == chosen.network {
			to = &first
		}
		for _, text := range nic.IpAddress {
			a, err := netip.ParseAddr(text)
			if err == nil && chosen.has(a) {
				*to = append(*to, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: a.WithZone("").String()})
			}
		}
	}
	all := slices.Concat(first, others)
	if name := m.text(option(optionHost)); name != "" {
		all = append(all, clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: name})
	}
	return all
}
