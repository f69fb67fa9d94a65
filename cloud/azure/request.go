// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"encoding/base64"
	"fmt"
	"strconv"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/naming"
)

// deleteToo makes Azure delete a part together with the machine. Azure's default is to keep it.
const deleteToo = "Delete"

// machine returns the request that creates the whole machine.
func (d *driver) machine(req cloud.Request, spec *infrav1.AzureMachine) *virtualMachine {
	name, tags := naming.NodeName(req.Name), tagsFor(req, spec)
	vm := &virtualMachine{
		Location: d.account.Location,
		Tags:     tags,
		Plan:     planOf(spec.Image),
		Identity: identityOf(spec.Identity),
		Properties: machineProperties{
			HardwareProfile: &hardwareProfile{VMSize: spec.VMSize},
			StorageProfile: &storageProfile{
				ImageReference: image(spec.Image), OSDisk: osDisk(spec.OSDisk), DataDisks: dataDisks(spec.DataDisks),
				DiskControllerType: string(spec.DiskController),
			},
			OSProfile: d.osProfile(name, req.UserData, spec),
			NetworkProfile: &networkProfile{
				NetworkAPIVersion:              inlineVersion,
				NetworkInterfaceConfigurations: inlineInterfaces(name, tags, spec.NetworkInterfaces),
			},
			SecurityProfile:         security(spec.Security),
			DiagnosticsProfile:      diagnostics(spec),
			AvailabilitySet:         optional(spec.AvailabilitySetID),
			VirtualMachineScaleSet:  optional(spec.ScaleSetID),
			ProximityPlacementGroup: optional(spec.ProximityPlacementGroupID),
			Host:                    optional(spec.HostID),
			HostGroup:               optional(spec.HostGroupID),
			PlatformFaultDomain:     spec.FaultDomain,
			LicenseType:             spec.LicenseType,
		},
	}
	if req.FailureDomain != "" && spec.AvailabilitySetID == "" {
		vm.Zones = []string{req.FailureDomain}
	}
	if group := spec.CapacityReservationGroupID; group != "" {
		vm.Properties.CapacityReservation = &capacityReservation{CapacityReservationGroup: reference{group}}
	}
	if spec.UltraSSD == infrav1.FeatureEnabled {
		vm.Properties.AdditionalCapabilities = &capabilities{UltraSSDEnabled: true}
	}
	if spot := spec.Spot; spot != nil {
		vm.Properties.Priority, vm.Properties.EvictionPolicy = "Spot", deleteToo
		if spot.EvictionPolicy != "" {
			vm.Properties.EvictionPolicy = string(spot.EvictionPolicy)
		}
		vm.Properties.BillingProfile = &billingProfile{MaxPrice: -1} // no limit of its own
		if price, err := strconv.ParseFloat(spot.MaxPriceUSD, 64); err == nil {
			vm.Properties.BillingProfile.MaxPrice = price
		}
	}
	return vm
}

func optional(id string) *reference {
	if id == "" {
		return nil
	}
	return &reference{id}
}

func references(ids []string) (all []reference) {
	for _, id := range ids {
		all = append(all, reference{id})
	}
	return all
}

// tagsFor returns the tags of the machine and all its parts. Azure copies them to the disks that it
// makes with the machine.
func tagsFor(req cloud.Request, spec *infrav1.AzureMachine) map[string]string {
	tags := map[string]string{
		cloud.TagOwnership: req.OwnershipID,
		cloud.TagToken:     req.Token,
		cloud.TagMachine:   cloud.Clip(req.Namespace+"/"+req.Name, maxTagValue),
	}
	for key, value := range spec.Tags {
		if _, own := tags[key]; !own {
			tags[key] = value
		}
	}
	return tags
}

func planOf(i infrav1.AzureImage) *plan {
	switch m := i.Marketplace; {
	case m != nil && m.Plan == infrav1.AzurePlanRequired:
		return &plan{Name: m.SKU, Product: m.Offer, Publisher: m.Publisher}
	case i.Plan.Name != "":
		return &plan{Name: i.Plan.Name, Product: i.Plan.Product, Publisher: i.Plan.Publisher}
	}
	return nil
}

func identityOf(i *infrav1.AzureIdentity) *identity {
	if i == nil || i.System != infrav1.FeatureEnabled && len(i.UserIDs) == 0 {
		return nil
	}
	out := &identity{Type: "UserAssigned"}
	if i.System == infrav1.FeatureEnabled {
		out.Type = "SystemAssigned"
		if len(i.UserIDs) > 0 {
			out.Type = "SystemAssigned, UserAssigned"
		}
	}
	for _, id := range i.UserIDs {
		if out.UserAssignedIdentities == nil {
			out.UserAssignedIdentities = map[string]struct{}{}
		}
		out.UserAssignedIdentities[id] = struct{}{}
	}
	return out
}

func image(i infrav1.AzureImage) *imageReference {
	out := &imageReference{ID: i.ID, CommunityGalleryImageID: i.CommunityGalleryImageID, SharedGalleryImageID: i.SharedGalleryImageID}
	if m := i.Marketplace; m != nil {
		out.Publisher, out.Offer, out.SKU, out.Version = m.Publisher, m.Offer, m.SKU, m.Version
		if out.Version == "" {
			out.Version = "latest"
		}
	}
	return out
}

func osDisk(spec *infrav1.AzureOSDisk) *disk {
	out := &disk{CreateOption: "FromImage", DeleteOption: deleteToo, Caching: string(infrav1.AzureCachingReadWrite)}
	if spec == nil {
		return out
	}
	out.DiskSizeGB, out.ManagedDisk = spec.SizeGiB, managed(string(spec.Type), spec.DiskEncryptionSetID)
	if kind := spec.SecurityEncryptionType; kind != "" {
		out.ManagedDisk = managed(string(spec.Type), "") // a confidential disk has its key in another place
		if out.ManagedDisk == nil {
			out.ManagedDisk = &managedDisk{}
		}
		out.ManagedDisk.SecurityProfile = &diskSecurity{SecurityEncryptionType: string(kind),
			DiskEncryptionSet: optional(spec.DiskEncryptionSetID)}
	}
	if ephemeral := spec.Ephemeral; ephemeral != nil {
		out.Caching, out.DiffDiskSettings = string(infrav1.AzureCachingReadOnly),
			&diffSettings{Option: "Local", Placement: string(ephemeral.Placement)}
	}
	if spec.Caching != "" {
		out.Caching = string(spec.Caching)
	}
	return out
}

func dataDisks(specs []infrav1.AzureDataDisk) (all []disk) {
	for i := range specs {
		spec := &specs[i]
		out := disk{
			LUN: spec.LUN, CreateOption: "Empty", DeleteOption: deleteToo, DiskSizeGB: spec.SizeGiB, Caching: string(infrav1.AzureCachingNone),
			ManagedDisk: managed(string(spec.Type), spec.DiskEncryptionSetID), SourceResource: optional(spec.SnapshotID),
			DiskIOPSReadWrite: spec.IOPS, DiskMBpsReadWrite: spec.MBPS,
		}
		if spec.SnapshotID != "" {
			out.CreateOption = "Copy"
		}
		if spec.Caching != "" {
			out.Caching = string(spec.Caching)
		}
		all = append(all, out)
	}
	return all
}

func managed(kind, encryptionSet string) *managedDisk {
	if kind == "" && encryptionSet == "" {
		return nil
	}
	return &managedDisk{StorageAccountType: kind, DiskEncryptionSet: optional(encryptionSet)}
}

func (d *driver) osProfile(name string, userData []byte, spec *infrav1.AzureMachine) *osProfile {
	user, keys := spec.AdminUsername, spec.SSHKeys
	if user == "" {
		user = "azureuser"
	}
	if len(keys) == 0 {
		keys = []string{d.unusedSSHKey}
	}
	login := &ssh{}
	for _, key := range keys {
		login.PublicKeys = append(login.PublicKeys, sshKey{Path: "/home/" + user + "/.ssh/authorized_keys", KeyData: key})
	}
	return &osProfile{
		ComputerName:             name,
		AdminUsername:            user,
		CustomData:               base64.StdEncoding.EncodeToString(userData),
		AllowExtensionOperations: spec.Extensions == infrav1.FeatureEnabled,
		LinuxConfiguration:       &linuxSet{DisablePasswordAuthentication: true, ProvisionVMAgent: true, SSH: login},
	}
}

func inlineInterfaces(name string, tags map[string]string, specs []infrav1.AzureNetworkInterface) (all []inlineResource) {
	for i := range specs {
		spec, primary := &specs[i], i == 0
		nic := inlineResource{Name: fmt.Sprintf("%s-nic%d", name, i), Tags: tags, Properties: inlineProperties{
			Primary: &primary, DeleteOption: deleteToo,
			EnableAcceleratedNetworking: spec.AcceleratedNetworking == infrav1.FeatureEnabled,
			EnableIPForwarding:          spec.IPForwarding == infrav1.FeatureEnabled,
			NetworkSecurityGroup:        optional(spec.SecurityGroupID),
		}}
		if len(spec.DNSServers) > 0 {
			nic.Properties.DNSSettings = &dnsSettings{DNSServers: spec.DNSServers}
		}
		nic.Properties.IPConfigurations = append(nic.Properties.IPConfigurations, inlineAddress(nic.Name, "IPv4", tags, spec))
		if spec.IPv6 == infrav1.FeatureEnabled {
			nic.Properties.IPConfigurations = append(nic.Properties.IPConfigurations, inlineAddress(nic.Name, "IPv6", tags, spec))
		}
		all = append(all, nic)
	}
	return all
}

// inlineAddress returns an IP configuration. Only the IPv4 one has a public address and is in
// backend pools.
func inlineAddress(nic, version string, tags map[string]string, spec *infrav1.AzureNetworkInterface) inlineResource {
	primary := version == "IPv4"
	out := inlineResource{Name: map[bool]string{true: "ipv4", false: "ipv6"}[primary], Properties: inlineProperties{
		Primary: &primary, Subnet: &reference{spec.SubnetID}, PrivateIPAddressVersion: version,
		ApplicationSecurityGroups: references(spec.ApplicationSecurityGroupIDs),
	}}
	if !primary {
		return out
	}
	out.Properties.LoadBalancerBackendAddressPools = references(spec.LoadBalancerBackendPoolIDs)
	out.Properties.ApplicationGatewayBackendAddressPools = references(spec.ApplicationGatewayBackendPoolIDs)
	if public := spec.PublicIP; public != nil {
		out.Properties.PublicIPAddressConfiguration = &inlineResource{
			Name: nic + "-ip", Tags: tags, SKU: &publicSKU{Name: "Standard", Tier: "Regional"},
			Properties: inlineProperties{DeleteOption: deleteToo, PublicIPAllocationMethod: "Static", PublicIPPrefix: optional(public.PrefixID)},
		}
	}
	return out
}

func security(spec infrav1.AzureSecurity) *securityProfile {
	if spec == (infrav1.AzureSecurity{}) {
		return nil
	}
	out := &securityProfile{EncryptionAtHost: spec.EncryptionAtHost == infrav1.FeatureEnabled}
	if spec.Type != infrav1.AzureSecurityStandard { // Azure's default has no name in every version
		out.SecurityType = string(spec.Type)
	}
	if spec.SecureBoot != "" || spec.VTPM != "" {
		out.UEFISettings = &uefiSettings{SecureBootEnabled: driverkit.Bool(spec.SecureBoot), VTPMEnabled: driverkit.Bool(spec.VTPM)}
	}
	return out
}

func diagnostics(spec *infrav1.AzureMachine) *diagnosticsProfile {
	enabled := spec.BootDiagnostics != infrav1.FeatureDisabled
	return &diagnosticsProfile{BootDiagnostics: bootDiagnostics{Enabled: enabled, StorageURI: spec.BootDiagnosticsStorageURI}}
}
