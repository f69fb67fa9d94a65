// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// These types have the fields of a MachineClass's providerSpec for Azure, v0.22.
type (
	mcmAzure struct {
		APIVersion    string            `json:"apiVersion"`
		Kind          string            `json:"kind"`
		Location      string            `json:"location"`
		ResourceGroup string            `json:"resourceGroup"`
		Tags          map[string]string `json:"tags"`
		SubnetInfo    struct {
			VnetName          string `json:"vnetName"`
			VnetResourceGroup string `json:"vnetResourceGroup"`
			SubnetName        string `json:"subnetName"`
		} `json:"subnetInfo"`
		Cloud *struct {
			Name string `json:"name"`
		} `json:"cloudConfiguration"`
		Properties mcmAzureProperties `json:"properties"`
	}
	mcmAzureProperties struct {
		Hardware struct {
			VMSize string `json:"vmSize"`
		} `json:"hardwareProfile"`
		Storage struct {
			Image          mcmAzureImage  `json:"imageReference"`
			DiskController string         `json:"diskControllerType"`
			OSDisk         mcmAzureDisk   `json:"osDisk"`
			DataDisks      []mcmAzureDisk `json:"dataDisks"`
		} `json:"storageProfile"`
		OS struct {
			ComputerName  string `json:"computerName"`
			AdminUsername string `json:"adminUsername"`
			AdminPassword string `json:"adminPassword"`
			CustomData    string `json:"customData"`
			Linux         struct {
				NoPassword bool `json:"disablePasswordAuthentication"`
				SSH        struct {
					Keys struct {
						Path string `json:"path"`
						Data string `json:"keyData"`
					} `json:"publicKeys"`
				} `json:"ssh"`
			} `json:"linuxConfiguration"`
		} `json:"osProfile"`
		Network struct {
			Interfaces  any   `json:"networkInterfaces"` // deprecated, and not read
			Accelerated *bool `json:"acceleratedNetworking"`
		} `json:"networkProfile"`
		AvailabilitySet *mcmAzureID `json:"availabilitySet"`
		ScaleSet        *mcmAzureID `json:"virtualMachineScaleSet"`
		MachineSet      *struct {
			ID   string `json:"id"`
			Kind string `json:"kind"`
		} `json:"machineSet"`
		IdentityID  *string `json:"identityID"`
		Zone        *int    `json:"zone"`
		Diagnostics *struct {
			Enabled    bool    `json:"enabled"`
			StorageURI *string `json:"storageURI"`
		} `json:"diagnosticsProfile"`
		Security *struct {
			Type *string `json:"securityType"`
			UEFI *struct {
				VTPM       *bool `json:"vtpmEnabled"`
				SecureBoot *bool `json:"secureBootEnabled"`
			} `json:"uefiSettings"`
		} `json:"securityProfile"`
		Reservation *struct {
			Group *string `json:"capacityReservationGroupID"`
		} `json:"capacityReservation"`
	}
	mcmAzureID struct {
		ID string `json:"id"`
	}
	mcmAzureImage struct {
		ID               string  `json:"id"`
		URN              *string `json:"urn"`
		SkipAgreement    bool    `json:"skipMarketplaceAgreement"`
		CommunityGallery *string `json:"communityGalleryImageID"`
		SharedGallery    *string `json:"sharedGalleryImageID"`
	}
	// mcmAzureDisk is an OS disk or a data disk.
	mcmAzureDisk struct {
		Name    string `json:"name"`
		LUN     *int32 `json:"lun"`
		Caching string `json:"caching"`
		Managed struct {
			ID       string `json:"id"`
			Type     string `json:"storageAccountType"`
			Security *struct {
				EncryptionType *string `json:"securityEncryptionType"`
			} `json:"securityProfile"`
		} `json:"managedDisk"`
		Type         string         `json:"storageAccountType"`
		SizeGB       int32          `json:"diskSizeGB"`
		CreateOption string         `json:"createOption"`
		Image        *mcmAzureImage `json:"imageRef"`
	}
)

// azure maps a class for Azure.
func (s findings) azure(pool *Pool, class *unstructured.Unstructured, target *Target) {
	const at = "providerSpec."
	spec := &mcmAzure{}
	if !s.decode(class.Object, "providerSpec", spec) {
		return
	}
	s.azureAccount(at, spec.Location, spec.ResourceGroup, target)
	if c, account := spec.Cloud, target.Account.Spec.Cloud.Azure; c != nil && account.Custom == (infrav1.AzureCustomCloud{}) &&
		!strings.EqualFold(c.Name, string(account.Cloud)) && (account.Cloud != "" || c.Name != "AzurePublic") {
		s.addRefused(at+"cloudConfiguration.name", "it is %q, and the DroverAccount's is %q", c.Name, account.Cloud)
	}
	p := &spec.Properties
	nic := infrav1.AzureNetworkInterface{
		SubnetID: target.onAzure(spec.SubnetInfo.VnetResourceGroup, "Microsoft.Network/virtualNetworks",
			spec.SubnetInfo.VnetName+"/subnets/"+spec.SubnetInfo.SubnetName),
		AcceleratedNetworking: enabledIf(ptr.Deref(p.Network.Accelerated, false)), IPForwarding: infrav1.FeatureEnabled, // always, there
	}
	m := &infrav1.AzureMachine{
		VMSize: p.Hardware.VMSize, Image: s.mcmAzureImage(&p.Storage.Image), NetworkInterfaces: []infrav1.AzureNetworkInterface{nic},
		DiskController: infrav1.AzureDiskController(p.Storage.DiskController),
		AdminUsername:  p.OS.AdminUsername, Tags: maps.Clone(spec.Tags),
	}
	maps.DeleteFunc(m.Tags, func(key, _ string) bool { return strings.Contains(key, mcmServerRoleKey) })
	if key := strings.TrimSpace(p.OS.Linux.SSH.Keys.Data); key != "" {
		m.SSHKeys = []string{key}
	}
	s.azureDisks(m, p)
	s.azurePlace(pool, m, p)
	s.azureRest(m, p)
	pool.Machine = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Azure: m}})
	pool.Keys = s.keys(at+"tags", spec.Tags, mcmServerClusterKey, mcmServerRoleKey)
}

func (s findings) mcmAzureImage(i *mcmAzureImage) infrav1.AzureImage {
	const at = "providerSpec.properties.storageProfile.imageReference."
	image := infrav1.AzureImage{ID: i.ID, CommunityGalleryImageID: ptr.Deref(i.CommunityGallery, ""),
		SharedGalleryImageID: ptr.Deref(i.SharedGallery, "")}
	if urn := ptr.Deref(i.URN, ""); urn != "" {
		if image.Marketplace = marketplaceImage(urn); image.Marketplace == nil {
			s.addRefused(at+"urn", "it is %q, and must be PUBLISHER:OFFER:SKU:VERSION", urn)
			image.Marketplace = &infrav1.AzureMarketplaceImage{} // not any VM's
		}
		s.addNote(at+"urn", "if the image has a purchase plan, the next template must say so, with image.marketplace.plan, and somebody must have accepted its terms")
	}
	return image
}

func (s findings) azureDisks(m *infrav1.AzureMachine, p *mcmAzureProperties) {
	const at = "providerSpec.properties.storageProfile."
	root := &p.Storage.OSDisk
	m.OSDisk = &infrav1.AzureOSDisk{SizeGiB: root.SizeGB, Type: infrav1.AzureOSDiskType(root.Managed.Type),
		Caching: infrav1.AzureCaching(root.Caching)}
	if root.Managed.Security != nil {
		m.OSDisk.SecurityEncryptionType = infrav1.AzureDiskSecurity(ptr.Deref(root.Managed.Security.EncryptionType, ""))
	}
	if root.CreateOption != "" && root.CreateOption != "FromImage" {
		s.addLost(at+"osDisk.createOption", "the disks of new machines are made from the image")
	}
	for _, d := range p.Storage.DataDisks {
		kind := infrav1.AzureDataDiskType(d.Type)
		m.DataDisks = append(m.DataDisks, infrav1.AzureDataDisk{
			LUN: ptr.To(ptr.Deref(d.LUN, 0)), SizeGiB: d.SizeGB, Type: kind, Caching: infrav1.AzureCaching(d.Caching),
		})
		if kind == infrav1.AzureDataDiskUltraSSDLRS {
			m.UltraSSD = infrav1.FeatureEnabled
		}
		if d.Image != nil {
			s.addLost(at+"dataDisks.imageRef", "the data disks of new machines are empty")
		}
	}
}

// azurePlace maps where VMs are.
func (s findings) azurePlace(pool *Pool, m *infrav1.AzureMachine, p *mcmAzureProperties) {
	if p.Zone != nil {
		pool.FailureDomain = strconv.Itoa(*p.Zone)
	}
	if p.AvailabilitySet != nil {
		m.AvailabilitySetID = p.AvailabilitySet.ID
	}
	if p.ScaleSet != nil {
		m.ScaleSetID = p.ScaleSet.ID
	}
	switch set := p.MachineSet; {
	case set == nil:
	case set.Kind == "availabilityset":
		m.AvailabilitySetID = set.ID
	case set.Kind == "vmo":
		m.ScaleSetID = set.ID
	default:
		s.addRefused("providerSpec.properties.machineSet.kind", "it is %q", set.Kind)
	}
	if p.Reservation != nil {
		m.CapacityReservationGroupID = ptr.Deref(p.Reservation.Group, "")
	}
}

// azureRest maps the other fields.
func (s findings) azureRest(m *infrav1.AzureMachine, p *mcmAzureProperties) {
	if id := ptr.Deref(p.IdentityID, ""); id != "" {
		m.Identity = &infrav1.AzureIdentity{UserIDs: []string{id}}
	}
	m.BootDiagnostics = infrav1.FeatureDisabled
	if d := p.Diagnostics; d != nil && d.Enabled {
		m.BootDiagnostics, m.BootDiagnosticsStorageURI = infrav1.FeatureEnabled, ptr.Deref(d.StorageURI, "")
	}
	if security := p.Security; security != nil {
		of := infrav1.AzureSecurity{Type: infrav1.AzureSecurityType(ptr.Deref(security.Type, ""))}
		if security.UEFI != nil {
			of.SecureBoot, of.VTPM = stateIfSet(security.UEFI.SecureBoot), stateIfSet(security.UEFI.VTPM)
		}
		m.Security = of
	}
}
