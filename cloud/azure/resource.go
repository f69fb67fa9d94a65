// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
)

// The provisioning states of Azure that mean something to the driver.
const (
	stateSucceeded = "Succeeded"
	stateUpdating  = "Updating"
	stateMigrating = "Migrating"
	stateFailed    = "Failed"
	stateDeleting  = "Deleting"
)

// How the codes in a machine's view begin that say whether it runs, and why it failed.
const (
	powerState  = "PowerState/"
	failedState = "ProvisioningState/failed/"
)

// idOf returns a resource's ID in the form that the driver uses: with the group in lower case,
// whatever case Azure answers in, because the provider ID must not change. Names that the driver
// gives are in lower case.
func (d *driver) idOf(kind, name string) string {
	return pathOf(d.account, kind) + "/" + strings.ToLower(name)
}

// instance returns a machine. view is nil if it is not known.
func (d *driver) instance(vm *virtualMachine, view *instanceView) cloud.Resource {
	p := &vm.Properties
	r := cloud.Resource{
		Kind:          cloud.KindInstance,
		ID:            d.idOf(virtualMachines, vm.Name),
		OwnershipID:   tag(vm.Tags, cloud.TagOwnership),
		Token:         tag(vm.Tags, cloud.TagToken),
		Interruptible: p.Priority == "Spot",
	}
	r.ProviderID = providerID(r.ID)
	if p.TimeCreated != nil {
		r.CreatedAt = *p.TimeCreated
	}
	if len(vm.Zones) > 0 {
		r.FailureDomain = vm.Zones[0]
	}
	if s := p.StorageProfile; s != nil && s.ImageReference != nil {
		r.ImageID = imageID(s.ImageReference)
	}
	d.setState(&r, p.ProvisioningState, view)
	return r
}

func imageID(i *imageReference) string {
	version := i.ExactVersion
	if version == "" {
		version = i.Version
	}
	switch {
	case i.ID != "":
		return i.ID
	case i.CommunityGalleryImageID != "":
		return i.CommunityGalleryImageID
	case i.SharedGalleryImageID != "":
		return i.SharedGalleryImageID
	case i.Publisher != "":
		return strings.Join([]string{i.Publisher, i.Offer, i.SKU, version}, ":")
	}
	return ""
}

// setState sets the state. An unknown state is Pending, so that nothing is concluded from it. The
// provisioning state is that of the last operation, so a machine that was created once runs while
// it is updated, for example while a disk is attached: https://github.com/hail-is/hail/pull/11160.
// Without a view, such a machine runs.
func (d *driver) setState(r *cloud.Resource, provisioning string, view *instanceView) {
	power, failed := "", status{}
	if view != nil {
		for _, s := range view.Statuses {
			if state, is := strings.CutPrefix(s.Code, powerState); is {
				power = state
			}
			if code, is := strings.CutPrefix(s.Code, failedState); is {
				failed = status{code, s.Message}
			}
		}
	}
	created := provisioning == stateSucceeded || provisioning == stateUpdating || provisioning == stateMigrating
	if created && time.Since(r.CreatedAt) <= creationPeriod { // failures of older machines are updates anyway
		d.created.Put(r.ID, r.CreatedAt, creationPeriod)
	}
	switch {
	case provisioning == stateDeleting:
		r.State = cloud.StateStopping
	case provisioning == stateFailed && power == "running" && d.isCreated(r):
		r.State, r.Notice = cloud.StateRunning, "Azure failed to update the virtual machine: "+d.failureMessage(failed)
	case provisioning == stateFailed:
		r.State, r.Code, r.Reason = cloud.StateFailed, codes[failed.Code], d.failureMessage(failed)
	case power == "running":
		r.State = cloud.StateRunning
	case power == "deallocating", power == "stopping":
		r.State = cloud.StateStopping
	case power == "deallocated", power == "stopped":
		r.State, r.Reason = cloud.StateStopped, "the virtual machine is "+power
	case created && power == "":
		r.State = cloud.StateRunning
	default:
		r.State = cloud.StatePending
	}
}

// isCreated reports whether a machine was created once: a failure after that is an update's.
func (d *driver) isCreated(r *cloud.Resource) bool {
	at, known := d.created.Get(r.ID)
	return time.Since(r.CreatedAt) > creationPeriod || known && at.Equal(r.CreatedAt) // a name may be used again
}

// failureMessage returns a failure for people.
func (d *driver) failureMessage(s status) string {
	if s.Code == "" {
		return "Azure does not say why"
	}
	return d.api.Secrets.Clean(s.Code, 64) + ": " + d.api.Secrets.Clean(s.Message, 512)
}

// parts are the network interfaces, disks and addresses of a resource group.
type parts struct {
	idOf                   func(kind, name string) string // the driver's
	nics, disks, addresses []dependant
}

// unattached returns those that carry an ownership ID and are in use by nothing.
func (p parts) unattached() (all []cloud.Resource) {
	add := func(kind cloud.Kind, path string, found []dependant, used func(*dependant) bool) {
		seen := map[string]bool{}
		for i := range found {
			dep := &found[i]
			r := cloud.Resource{Kind: kind, ID: p.idOf(path, dep.Name), OwnershipID: tag(dep.Tags, cloud.TagOwnership),
				Token: tag(dep.Tags, cloud.TagToken)}
			if at := dep.Properties.TimeCreated; at != nil {
				r.CreatedAt = *at
			}
			if dep.Name != "" && r.OwnershipID != "" && !seen[r.ID] && !used(dep) {
				all = append(all, r)
			}
			seen[r.ID] = true
		}
	}
	add(cloud.KindNIC, networkInterfaces, p.nics, func(n *dependant) bool { return n.Properties.VirtualMachine != nil })
	add(cloud.KindDisk, disks, p.disks, func(k *dependant) bool { return k.ManagedBy != "" || k.Properties.DiskState == "Reserved" })
	add(cloud.KindAddress, publicAddresses, p.addresses, func(a *dependant) bool { return a.Properties.IPConfiguration != nil })
	return all
}

// powers are the views of the machines that were stopped at a time, by ID.
type powers struct {
	at    time.Time
	views map[string]*instanceView
}

// get returns the view of a machine if it was stopped; nil if it was not, or was created since: a
// name may be used again.
func (p powers) get(id string, created *time.Time) *instanceView {
	if created != nil && created.After(p.at) {
		return nil
	}
	return p.views[id]
}

// isStopped reports whether a view says that the machine does not run, or not for long.
func (v *instanceView) isStopped() bool {
	return v != nil && slices.ContainsFunc(v.Statuses, func(s status) bool {
		return strings.HasPrefix(s.Code, powerState+"stop") || strings.HasPrefix(s.Code, powerState+"dealloc")
	})
}

// essence returns what a view says of the machine's power and failure, to be remembered.
func (d *driver) essence(v *instanceView) *instanceView {
	last := map[string]status{}
	for _, s := range v.Statuses {
		for _, prefix := range []string{powerState, failedState} {
			if strings.HasPrefix(s.Code, prefix) {
				last[prefix] = status{cloud.Clip(s.Code, 128), d.api.Secrets.Clean(s.Message, 512)}
			}
		}
	}
	return &instanceView{Statuses: slices.Collect(maps.Values(last))}
}

// addressBook has the addresses of machines, by their ID. A name may be used again, so it also
// records which machine it was asked for.
type addressBook struct {
	mu      sync.Mutex
	all     map[string][]clusterv1.MachineAddress
	created map[string]time.Time
}

// get returns the addresses of a machine, or none if they are another machine's.
func (b *addressBook) get(r *cloud.Resource) []clusterv1.MachineAddress {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[r.ID] == nil {
		return nil
	}
	if at, known := b.created[r.ID]; known && !at.Equal(r.CreatedAt) {
		delete(b.all, r.ID)
		delete(b.created, r.ID)
		return nil
	}
	if b.created == nil {
		b.created = map[string]time.Time{}
	}
	b.created[r.ID] = r.CreatedAt
	return b.all[r.ID]
}

// learn replaces the addresses by those of a complete listing of the network interfaces.
func (b *addressBook) learn(d *driver, nics, public []dependant) {
	ips := map[string]string{} // of the public addresses, by ID
	for i := range public {
		ips[strings.ToLower(public[i].ID)] = public[i].Properties.IPAddress
	}
	all := map[string][]clusterv1.MachineAddress{}
	for i := range nics {
		nic := &nics[i]
		if nic.Properties.VirtualMachine == nil {
			continue
		}
		name := lastPart(nic.Properties.VirtualMachine.ID)
		id := d.idOf(virtualMachines, name)
		if all[id] == nil {
			all[id] = []clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: strings.ToLower(name)}}
		}
		for _, c := range nic.Properties.IPConfigurations {
			if ip := c.Properties.PrivateIPAddress; ip != "" {
				all[id] = append(all[id], clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: ip})
			}
			if at := c.Properties.PublicIPAddress; at != nil && ips[strings.ToLower(at.ID)] != "" {
				all[id] = append(all[id], clusterv1.MachineAddress{Type: clusterv1.MachineExternalIP, Address: ips[strings.ToLower(at.ID)]})
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = all
	maps.DeleteFunc(b.created, func(id string, _ time.Time) bool { return all[id] == nil })
}

// hasPublic reports whether a network interface has a public address.
func hasPublic(nic dependant) bool {
	for _, c := range nic.Properties.IPConfigurations {
		if c.Properties.PublicIPAddress != nil {
			return true
		}
	}
	return false
}
