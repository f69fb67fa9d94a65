// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"slices"
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcInstanceKey is the label with the UID of the VM's Machine on Google Cloud.
const mcInstanceKey = "machine_uid"

// mcFamilies are the families of images that machine-controller takes for an operating system, by
// their projects.
var mcFamilies = map[string]infrav1.GCPImage{
	"ubuntu":  {Family: "ubuntu-2404-lts-amd64", Project: "ubuntu-os-cloud"},
	"flatcar": {Family: "flatcar-stable", Project: "kinvolk-public"},
}

// mcGCPSpec has the fields of a cloudProviderSpec for Google Cloud, v1.62.
type mcGCPSpec struct {
	ServiceAccount        mcVar             `json:"serviceAccount"`
	ProjectID             mcVar             `json:"projectID"`
	Zone                  mcVar             `json:"zone"`
	MachineType           mcVar             `json:"machineType"`
	DiskSize              int64             `json:"diskSize"`
	DiskType              mcVar             `json:"diskType"`
	Network               mcVar             `json:"network"`
	Subnetwork            mcVar             `json:"subnetwork"`
	Preemptible           mcVar             `json:"preemptible"`
	AutomaticRestart      *mcVar            `json:"automaticRestart"`
	ProvisioningModel     *mcVar            `json:"provisioningModel"`
	Labels                map[string]string `json:"labels"`
	Tags                  []string          `json:"tags"`
	AssignPublicIPAddress *mcVar            `json:"assignPublicIPAddress"`
	Multizone             mcVar             `json:"multizone"`
	Regional              mcVar             `json:"regional"`
	CustomImage           mcVar             `json:"customImage"`
	NoServiceAccount      mcVar             `json:"disableMachineServiceAccount"`
	NestedVirtualization  mcVar             `json:"enableNestedVirtualization"`
	MinCPUPlatform        mcVar             `json:"minCPUPlatform"`
	GuestOSFeatures       []string          `json:"guestOSFeatures"`
}

// mcGCP maps a cloudProviderSpec to the fields of a machine. Credentials are the DroverAccount's,
// and zones of load balancers the cloud controller's.
func (s findings) mcGCP(pool *Pool, config *mcProviderConfig, family string, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	spec := &mcGCPSpec{}
	if !s.decode(map[string]any{at: config.CloudProviderSpec}, at, spec) {
		return
	}
	text := func(field string, v mcVar) string { return s.text(at+"."+field, v) }
	optional := func(field string, v *mcVar, otherwise string) string {
		if v == nil {
			return otherwise
		}
		return text(field, *v)
	}
	if project, account := text("projectID", spec.ProjectID), target.Account.Spec.Cloud.GCP.ProjectID; project != "" && project != account {
		s.addRefused(at+".projectID", "it is %q, and the DroverAccount's is %q", project, account)
	}
	s.zone(pool, at+".zone", text("zone", spec.Zone), target)
	nic := infrav1.GCPNetworkInterface{}
	if nic.Subnetwork, nic.HostProject = target.afterPart(text("subnetwork", spec.Subnetwork), "/subnetworks/"); nic.Subnetwork == "" {
		network, project := target.afterPart(text("network", spec.Network), "/networks/")
		nic.Network, nic.HostProject = network, project
		if network == "" {
			nic.Network = "default"
		}
	}
	if optional("assignPublicIPAddress", spec.AssignPublicIPAddress, "true") == "true" {
		nic.PublicIP = &infrav1.GCPPublicIP{}
	}
	// networkInterfaces in pkg/cloudprovider/provider/gce/service.go of
	// https://github.com/kubermatic/machine-controller
	switch {
	case nic.PublicIP != nil && strings.Contains(family, "+"):
		nic.StackType, nic.PublicIPv6 = infrav1.GCPStackIPv4IPv6, infrav1.FeatureEnabled
	case strings.Contains(family, "IPv6"):
		s.addNote("spec.template.spec.providerSpec.value.network",
			"machine-controller sets up IPv6 beside IPv4 and a public address: new machines have only IPv4, as the old ones")
	}
	m := &infrav1.GCPMachine{
		MachineType: text("machineType", spec.MachineType), MinCPUPlatform: text("minCPUPlatform", spec.MinCPUPlatform),
		BootDisk:          infrav1.GCPDisk{SizeGiB: spec.DiskSize, Type: text("diskType", spec.DiskType)},
		NetworkInterfaces: []infrav1.GCPNetworkInterface{nic},
		Labels:            maps.Clone(spec.Labels), NetworkTags: slices.Clone(spec.Tags),
		NestedVirtualization: enabledIf(text("enableNestedVirtualization", spec.NestedVirtualization) == "true"),
	}
	image, known := mcFamilies[config.OperatingSystem]
	switch custom := text("customImage", spec.CustomImage); {
	case custom != "":
		m.Image = target.imageOnGCP(custom)
	case known:
		m.Image = image
		s.addNote(at+".customImage", "there is none: new machines get the family %s of project %s", image.Family, image.Project)
	default:
		s.addRefused(at+".customImage", "there is none, and Drover does not know that of %s", config.OperatingSystem)
	}
	s.mcGCPRuns(m, spec, text, optional)
	if len(spec.GuestOSFeatures) > 0 {
		s.addNote(at+".guestOSFeatures", "the image must have them")
	}
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{GCP: m}}), []string{mcInstanceKey}
}

// mcGCPRuns maps how machines are bought and what they may do.
func (s findings) mcGCPRuns(m *infrav1.GCPMachine, spec *mcGCPSpec, text func(string, mcVar) string,
	optional func(string, *mcVar, string) string) {
	if text("disableMachineServiceAccount", spec.NoServiceAccount) != "true" {
		s.addLost("spec.template.spec.providerSpec.value.cloudProviderSpec.disableMachineServiceAccount",
			"new machines have no service account, and the old ones that of machine-controller's key: if they need it, name it in the next template")
	}
	m.ProvisioningModel = infrav1.GCPProvisioningModel(optional("provisioningModel", spec.ProvisioningModel, ""))
	if text("preemptible", spec.Preemptible) == "true" {
		m.ProvisioningModel = infrav1.GCPProvisioningSpot
	}
	if restart := optional("automaticRestart", spec.AutomaticRestart, ""); restart != "" &&
		m.ProvisioningModel != infrav1.GCPProvisioningSpot {
		m.AutomaticRestart = stateOf(restart == "true")
	}
}
