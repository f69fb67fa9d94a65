// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// The network tags by which machine-controller-manager recognizes its VMs have these parts.
const (
	mcmNetworkClusterKey = "kubernetes-io-cluster-"
	mcmNetworkRoleKey    = "kubernetes-io-role-"
)

// These types have the fields of a MachineClass's providerSpec for Google Cloud, of mid-2026.
type (
	mcmGCP struct {
		APIVersion         string            `json:"apiVersion"`
		Kind               string            `json:"kind"`
		CanIPForward       bool              `json:"canIpForward"`
		DeletionProtection bool              `json:"deletionProtection"`
		Description        *string           `json:"description"`
		Disks              []mcmGCPDisk      `json:"disks"`
		GPU                *mcmGCPGPU        `json:"gpu"`
		Labels             map[string]string `json:"labels"`
		MachineType        string            `json:"machineType"`
		Metadata           []struct {
			Key   string  `json:"key"`
			Value *string `json:"value"`
		} `json:"metadata"`
		MinCPUPlatform    string            `json:"minCpuPlatform"`
		NetworkInterfaces []mcmGCPInterface `json:"networkInterfaces"`
		Region            string            `json:"region"`
		Scheduling        struct {
			AutomaticRestart  bool   `json:"automaticRestart"`
			OnHostMaintenance string `json:"onHostMaintenance"`
			Preemptible       bool   `json:"preemptible"`
		} `json:"scheduling"`
		ServiceAccounts []struct {
			Email  string   `json:"email"`
			Scopes []string `json:"scopes"`
		} `json:"serviceAccounts"`
		Tags     []string `json:"tags"`
		Zone     string   `json:"zone"`
		Shielded *struct {
			IntegrityMonitoring *bool `json:"integrityMonitoring"`
			SecureBoot          *bool `json:"secureBoot"`
			VTPM                *bool `json:"vtpm"`
		} `json:"shieldedInstanceConfiguration"`
		Advanced *struct {
			NestedVirtualization bool `json:"enableNestedVirtualization"`
		} `json:"advancedMachineFeatures"`
	}
	mcmGCPDisk struct {
		AutoDelete *bool  `json:"autoDelete"`
		Boot       bool   `json:"boot"`
		SizeGB     int64  `json:"sizeGb"`
		Type       string `json:"type"`
		Interface  string `json:"interface"`
		Image      string `json:"image"`
		Encryption *struct {
			KeyName        string `json:"kmsKeyName"`
			ServiceAccount string `json:"kmsKeyServiceAccount"`
		} `json:"encryption"`
		Labels      map[string]string `json:"labels"`
		IOPS        int64             `json:"provisionedIops"`
		Throughput  int64             `json:"provisionedThroughput"`
		StoragePool *string           `json:"storagePool"`
	}
	mcmGCPGPU struct {
		Type  string `json:"acceleratorType"`
		Count int32  `json:"count"`
	}
	mcmGCPInterface struct {
		DisableExternalIP bool   `json:"disableExternalIP"`
		Network           string `json:"network"`
		Subnetwork        string `json:"subnetwork"`
		StackType         string `json:"stackType"`
		IPv6Access        string `json:"ipv6accessType"`
		UseAliasIPs       bool   `json:"useAliasIPs"`
		AliasRange        string `json:"ipCidrRange"`
		AliasName         string `json:"subnetworkRangeName"`
	}
)

// gcp maps a class for Google Cloud.
func (s findings) gcp(pool *Pool, class *unstructured.Unstructured, target *Target) {
	const at = "providerSpec."
	spec := &mcmGCP{}
	if !s.decode(class.Object, "providerSpec", spec) {
		return
	}
	if spec.Region != target.Account.Spec.Cloud.GCP.Region {
		s.addRefused(at+"region", "it is %q, and the DroverAccount's is %q", spec.Region, target.Account.Spec.Cloud.GCP.Region)
	}
	s.zone(pool, at+"zone", spec.Zone, target)
	m := &infrav1.GCPMachine{
		IPForwarding: enabledIf(spec.CanIPForward), MinCPUPlatform: spec.MinCPUPlatform, Labels: maps.Clone(spec.Labels),
		NetworkTags: slices.DeleteFunc(slices.Clone(spec.Tags), func(tag string) bool { return strings.Contains(tag, mcmNetworkRoleKey) }),
	}
	m.MachineType, _ = target.afterPart(spec.MachineType, "machineTypes/")
	delete(m.Labels, "name")
	s.gcpDisks(m, spec, target)
	s.gcpInterfaces(m, spec.NetworkInterfaces, target)
	s.gcpRest(m, spec, target)
	pool.Machine = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{GCP: m}})
	tags := map[string]string{}
	for _, tag := range spec.Tags {
		tags[tag] = ""
	}
	pool.Keys = s.keys(at+"tags", tags, mcmNetworkClusterKey, mcmNetworkRoleKey)
}

func (s findings) gcpDisks(m *infrav1.GCPMachine, spec *mcmGCP, target *Target) {
	const at = "providerSpec.disks."
	booted := false
	for _, d := range spec.Disks {
		if !ptr.Deref(d.AutoDelete, true) {
			s.addLost(at+"autoDelete", "the disks of new machines are deleted with them")
		}
		if len(d.Labels) > 0 && !maps.Equal(d.Labels, spec.Labels) {
			s.addNote(at+"labels", "the disks of new machines have the machine's labels")
		}
		if d.Type == "SCRATCH" {
			m.LocalSSDs = infrav1.GCPLocalSSDs{Interface: cmp.Or(m.LocalSSDs.Interface, infrav1.GCPDiskInterface(d.Interface)),
				Count: m.LocalSSDs.Count + 1}
			continue
		}
		disk := infrav1.GCPDisk{SizeGiB: d.SizeGB, Type: d.Type, IOPS: d.IOPS, ThroughputMiBps: d.Throughput}
		disk.StoragePool, _ = target.afterPart(ptr.Deref(d.StoragePool, ""), "storagePools/")
		if e := d.Encryption; e != nil && e.KeyName != "" {
			disk.KMSKey = infrav1.GCPKMSKey{Name: e.KeyName, ServiceAccount: e.ServiceAccount}
		}
		if d.Boot {
			m.BootDisk, m.Image, booted = disk, target.imageOnGCP(d.Image), true
			continue
		}
		data := infrav1.GCPDataDisk{GCPDisk: disk}
		if d.Image != "" {
			data.Source = target.imageOnGCP(d.Image)
		}
		m.Disks = append(m.Disks, data)
	}
	if !booted {
		s.addRefused(at+"boot", "no disk is for the boot")
	}
}

// gcpInterfaces maps the interfaces. Stack and ranges count there with IPV4_IPV6 or useAliasIPs:
// pkg/gcp/machine_controller_util.go of
// https://github.com/gardener/machine-controller-manager-provider-gcp
func (s findings) gcpInterfaces(m *infrav1.GCPMachine, interfaces []mcmGCPInterface, target *Target) {
	const at = "providerSpec.networkInterfaces"
	for _, i := range interfaces {
		nic, both := infrav1.GCPNetworkInterface{}, i.StackType == string(infrav1.GCPStackIPv4IPv6)
		nic.Subnetwork, nic.HostProject = target.afterPart(i.Subnetwork, "/subnetworks/")
		if nic.Subnetwork == "" { // a network with subnets of its own choice
			nic.Network, nic.HostProject = target.afterPart(i.Network, "/networks/")
		}
		if !i.DisableExternalIP {
			nic.PublicIP = &infrav1.GCPPublicIP{}
		}
		if both || i.UseAliasIPs {
			nic.StackType = infrav1.GCPStackType(i.StackType)
		}
		switch {
		case both:
			nic.PublicIPv6 = enabledIf(i.IPv6Access == "EXTERNAL")
		case i.IPv6Access != "":
			s.addNote(at+".ipv6accessType", "it needs stackType IPV4_IPV6: new machines have only IPv4")
		}
		switch {
		case i.AliasRange == "":
		case both || i.UseAliasIPs:
			nic.AliasIPRanges = []infrav1.GCPAliasIPRange{{Range: i.AliasRange, SecondaryRange: i.AliasName}}
		default:
			s.addNote(at+".ipCidrRange", "machine-controller-manager ignores it without useAliasIPs, and so do new machines")
		}
		m.NetworkInterfaces = append(m.NetworkInterfaces, nic)
	}
	if len(interfaces) == 0 {
		s.addRefused(at, "there is none")
	}
}

// gcpRest maps the other fields.
func (s findings) gcpRest(m *infrav1.GCPMachine, spec *mcmGCP, target *Target) {
	const at = "providerSpec."
	if spec.DeletionProtection {
		s.addRefused(at+"deletionProtection", "Google would refuse Drover's own deletions: end it, in the class and on its VMs")
	}
	if spec.GPU != nil {
		kind, _ := target.afterPart(spec.GPU.Type, "acceleratorTypes/")
		m.Accelerators = []infrav1.GCPAccelerator{{Type: kind, Count: spec.GPU.Count}}
	}
	for _, item := range spec.Metadata {
		if item.Key == "user-data" {
			continue // of the old machine
		}
		if m.Metadata == nil {
			m.Metadata = map[string]string{}
		}
		m.Metadata[item.Key] = ptr.Deref(item.Value, "")
	}
	m.OnHostMaintenance = infrav1.GCPHostMaintenance(spec.Scheduling.OnHostMaintenance)
	m.AutomaticRestart = stateOf(spec.Scheduling.AutomaticRestart)
	if spec.Scheduling.Preemptible {
		m.ProvisioningModel, m.AutomaticRestart = infrav1.GCPProvisioningSpot, ""
		s.addNote(at+"scheduling.preemptible", "new machines are spot machines, which may run longer than 24 hours")
	}
	for _, a := range spec.ServiceAccounts {
		m.ServiceAccount = &infrav1.GCPServiceAccount{Email: a.Email, Scopes: a.Scopes}
	}
	if len(spec.ServiceAccounts) > 1 {
		s.addRefused(at+"serviceAccounts", "there are %d, and a machine has one", len(spec.ServiceAccounts))
	}
	if shielded := spec.Shielded; shielded != nil {
		m.Shielded = infrav1.GCPShielded{SecureBoot: stateIfSet(shielded.SecureBoot), VTPM: stateIfSet(shielded.VTPM),
			IntegrityMonitoring: stateIfSet(shielded.IntegrityMonitoring)}
	}
	m.NestedVirtualization = enabledIf(spec.Advanced != nil && spec.Advanced.NestedVirtualization)
}
