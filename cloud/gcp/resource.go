// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// states maps the status of instances. TERMINATED means stopped: a deleted instance is not shown.
var states = map[string]cloud.State{
	"PENDING":        cloud.StatePending,
	"PROVISIONING":   cloud.StatePending,
	"STAGING":        cloud.StatePending,
	"RUNNING":        cloud.StateRunning,
	"REPAIRING":      cloud.StateRunning,
	"PENDING_STOP":   cloud.StateStopping,
	"STOPPING":       cloud.StateStopping,
	"DEPROVISIONING": cloud.StateStopping,
	"SUSPENDING":     cloud.StateStopping,
	"STOPPED":        cloud.StateStopped,
	"SUSPENDED":      cloud.StateStopped,
	"TERMINATED":     cloud.StateStopped,
}

// isUndecided reports whether Compute Engine still looks for capacity for the instance: if it finds
// none, the instance vanishes.
func (i *instance) isUndecided() bool { return i.Status == "PENDING" || i.Status == "PROVISIONING" }

// resource returns an instance. An unknown status is Pending, so that nothing is concluded from it.
func (d *driver) resource(i *instance) cloud.Resource {
	zone := lastPart(i.Zone)
	r := cloud.Resource{
		Kind:          cloud.KindInstance,
		ID:            zone + "/" + i.ID,
		OwnershipID:   i.Labels[cloud.TagOwnership],
		Token:         i.Labels[cloud.TagToken],
		ProviderID:    providerID(d.account.ProjectID, zone, i.Name),
		FailureDomain: zone,
		State:         states[i.Status],
		Addresses:     addresses(i),
	}
	if i.CreationTimestamp != nil {
		r.CreatedAt = *i.CreationTimestamp
	}
	if s := i.Scheduling; s != nil {
		r.Interruptible = s.ProvisioningModel == string(infrav1.GCPProvisioningSpot) || s.Preemptible
	}
	switch r.State {
	case "":
		r.State = cloud.StatePending
	case cloud.StateStopped:
		r.Reason = "the instance is " + i.Status
		if i.StatusMessage != "" {
			r.Reason += ": " + d.api.Secrets.Clean(i.StatusMessage, 256)
		}
	}
	if s := i.ResourceStatus; s != nil && s.UpcomingMaintenance != nil {
		m := s.UpcomingMaintenance
		r.Notice = "Compute Engine maintains the host: " + d.api.Secrets.Clean(m.MaintenanceStatus, 32) + ", from " +
			d.api.Secrets.Clean(m.WindowStartTime, 64)
	}
	return r
}

// addresses returns the addresses of an instance, which has them from the beginning.
func addresses(i *instance) []clusterv1.MachineAddress {
	all := []clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: i.Name}}
	add := func(kind clusterv1.MachineAddressType, ip string) {
		if ip != "" {
			all = append(all, clusterv1.MachineAddress{Type: kind, Address: ip})
		}
	}
	for _, nic := range i.NetworkInterfaces {
		add(clusterv1.MachineInternalIP, nic.NetworkIP)
		add(clusterv1.MachineInternalIP, nic.IPv6Address)
		for _, c := range nic.AccessConfigs {
			add(clusterv1.MachineExternalIP, c.NATIP)
		}
		for _, c := range nic.IPv6AccessConfigs {
			add(clusterv1.MachineExternalIP, c.ExternalIPv6)
		}
	}
	return all
}

// leftover returns a disk that no instance uses.
func leftover(k *disk) cloud.Resource {
	r := cloud.Resource{
		Kind: cloud.KindDisk, ID: lastPart(k.Zone) + "/" + k.Name,
		OwnershipID: k.Labels[cloud.TagOwnership], Token: k.Labels[cloud.TagToken],
	}
	if k.CreationTimestamp != nil {
		r.CreatedAt = *k.CreationTimestamp
	}
	return r
}

// lastPart returns the last part of a resource's URL: its name. It is a copy, which does not keep
// the URL in memory.
func lastPart(url string) string { return strings.Clone(url[strings.LastIndexByte(url, '/')+1:]) }
