// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcmVSphere has the fields of a MachineClass's providerSpec for vSphere, of the archived provider.
type mcmVSphere struct {
	APIVersion                   string            `json:"apiVersion"`
	Kind                         string            `json:"kind"`
	Region                       string            `json:"region"`
	Datacenter                   string            `json:"datacenter"`
	DatastoreCluster             string            `json:"datastoreCluster"`
	Datastore                    string            `json:"datastore"`
	ComputeCluster               string            `json:"computeCluster"`
	ResourcePool                 string            `json:"resourcePool"`
	HostSystem                   string            `json:"hostSystem"`
	Folder                       string            `json:"folder"`
	NumCPUs                      int32             `json:"numCpus"`
	Memory                       int64             `json:"memory"`
	MemoryReservationLockedToMax *bool             `json:"memoryReservationLockedToMax"`
	SystemDisk                   *mcmVSphereDisk   `json:"systemDisk"`
	ExtraConfig                  map[string]string `json:"extraConfig"`
	Network                      string            `json:"network"`
	SwitchUUID                   string            `json:"switchUuid"`
	TemplateVM                   string            `json:"templateVM"`
	GuestID                      string            `json:"guestId"`
	VApp                         *mcmVSphereVApp   `json:"vapp"`
	Force                        bool              `json:"force"`
	WaitForIP                    bool              `json:"waitForIP"`
	Customization                string            `json:"customization"`
	SSHKeys                      []string          `json:"sshKeys"`
	Tags                         map[string]string `json:"tags"`
}

type (
	mcmVSphereDisk struct {
		Size int32 `json:"size"`
	}
	mcmVSphereVApp struct {
		Properties map[string]string `json:"properties"`
	}
)

// The custom attributes by which machine-controller-manager recognizes its VMs, with the class's
// values. Its older ones have the form of AWS's, and count with any value.
const (
	mcmCluster = "mcm.gardener.cloud/cluster"
	mcmRole    = "mcm.gardener.cloud/role"
)

// mcmHardware is the hardware version to which machine-controller-manager upgrades each VM.
const mcmHardware = "vmx-15"

// vsphere maps a class for vSphere.
func (s findings) vsphere(pool *Pool, class *unstructured.Unstructured, target *Target) {
	const at = "providerSpec."
	spec := &mcmVSphere{}
	if !s.decode(class.Object, "providerSpec", spec) {
		return
	}
	s.datacenter(at+"datacenter", spec.Datacenter, target)
	m := &infrav1.VSphereMachine{
		Template: s.below(at+"templateVM", spec.TemplateVM, "vm", target), Folder: s.below(at+"folder", spec.Folder, "vm", target),
		CPUs: spec.NumCPUs, MemoryMiB: spec.Memory, HardwareVersion: mcmHardware,
	}
	s.guestinfo(at + "templateVM")
	s.vspherePlace(m, spec, target)
	if spec.SystemDisk != nil {
		m.DiskGiB = spec.SystemDisk.Size
	}
	if spec.Network != "" {
		m.Networks = []infrav1.VSphereNetwork{{Name: s.below(at+"network", spec.Network, "network", target)}}
		s.addNote(at+"network", "it is the only one of new machines, also if the template has more adapters")
	}
	for _, key := range slices.Sorted(maps.Keys(spec.ExtraConfig)) {
		m.ExtraConfig = append(m.ExtraConfig, infrav1.VSphereOption{Key: key, Value: spec.ExtraConfig[key]})
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Tags)) {
		switch {
		case strings.HasPrefix(key, mcmClusterKey), strings.HasPrefix(key, mcmRoleKey):
			s.addRefused(at+"tags", "machine-controller-manager looks only whether a VM has the attribute %s, and vCenter can't take it off one VM: give the class and its VMs %s and %s instead, "+
				"and remove the attribute from vCenter", key, mcmCluster, mcmRole)
		case key != mcmRole && spec.Tags[key] != "": // an attribute without a value is none
			m.CustomAttributes = append(m.CustomAttributes, infrav1.VSphereAttribute{Name: key, Value: spec.Tags[key]})
		}
	}
	s.vsphereRest(spec)
	pool.Machine = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{VSphere: m}})
	pool.Keys, pool.cluster = s.keys(at+"tags", spec.Tags, mcmCluster, mcmRole), spec.Tags[mcmCluster]
}

// vspherePlace maps where VMs are. A host counts before a cluster, and that before a pool.
func (s findings) vspherePlace(m *infrav1.VSphereMachine, spec *mcmVSphere, target *Target) {
	const at = "providerSpec."
	switch {
	case spec.HostSystem != "":
		m.Host = s.under(at+"hostSystem", spec.HostSystem, "host", target)
		if m.Host != "" && !strings.Contains(m.Host, "/") {
			s.addRefused(at+"hostSystem", "it is %q, without its cluster: name it as CLUSTER/HOST", m.Host)
		}
		m.ResourcePool = path.Join(path.Dir(m.Host), "Resources")
	case spec.ComputeCluster != "":
		m.ResourcePool = path.Join(s.below(at+"computeCluster", spec.ComputeCluster, "host", target), "Resources")
	default:
		m.ResourcePool = s.pool(at+"resourcePool", spec.ResourcePool, target)
	}
	switch {
	case spec.DatastoreCluster != "":
		m.DatastoreCluster = s.below(at+"datastoreCluster", spec.DatastoreCluster, "datastore", target)
	case spec.ComputeCluster != "":
		s.addNote(at+"computeCluster", "DRS has chosen the datastores: new machines are in that of the template, or of the failure domain")
	default:
		m.Datastore = s.below(at+"datastore", spec.Datastore, "datastore", target)
	}
}

// vsphereRest notes the fields that Drover does not have.
func (s findings) vsphereRest(spec *mcmVSphere) {
	const at = "providerSpec."
	if ptr.Deref(spec.MemoryReservationLockedToMax, false) {
		s.addLost(at+"memoryReservationLockedToMax", "the memory of new machines is not reserved")
	}
	if spec.SwitchUUID != "" {
		s.addLost(at+"switchUuid", "new machines find their network by its path alone, which must be that of one network")
	}
	if spec.GuestID != "" {
		s.addLost(at+"guestId", "new machines have the template's guest ID")
	}
	if spec.VApp != nil {
		s.addLost(at+"vapp", "new machines have the template's vApp properties")
	}
	if spec.Customization != "" {
		s.addLost(at+"customization", "cloud-init or Ignition sets new machines up, and no customization specification")
	}
	if len(spec.SSHKeys) > 0 {
		s.addNote(at+"sshKeys", "the DroverConfigTemplate says which keys new machines accept")
	}
	if spec.Force {
		s.addNote(at+"force", "Drover never overwrites a VM of another owner")
	}
	if spec.WaitForIP {
		s.addNote(at+"waitForIP", "Drover waits for nothing, and shows addresses when there are any")
	}
}
