// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"slices"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcVSphereSpec has the fields of a cloudProviderSpec for vSphere, v1.62.
type mcVSphereSpec struct {
	TemplateVMName   mcVar          `json:"templateVMName"`
	VMNetName        mcVar          `json:"vmNetName"`
	Networks         []mcVar        `json:"networks"`
	Username         mcVar          `json:"username"`
	Password         mcVar          `json:"password"`
	VSphereURL       mcVar          `json:"vsphereURL"`
	Datacenter       mcVar          `json:"datacenter"`
	Cluster          mcVar          `json:"cluster"`
	Folder           mcVar          `json:"folder"`
	ResourcePool     mcVar          `json:"resourcePool"`
	DatastoreCluster mcVar          `json:"datastoreCluster"`
	Datastore        mcVar          `json:"datastore"`
	CPUs             int32          `json:"cpus"`
	MemoryMB         int64          `json:"memoryMB"`
	DiskSizeGB       *int32         `json:"diskSizeGB"`
	Tags             []mcVSphereTag `json:"tags"`
	AllowInsecure    mcVar          `json:"allowInsecure"`
	VMAntiAffinity   mcVar          `json:"vmAntiAffinity"`
	VMGroup          mcVar          `json:"vmGroup"`
}

type mcVSphereTag struct {
	Description string `json:"description"`
	ID          string `json:"id"`
	Name        string `json:"name"`
	CategoryID  string `json:"categoryID"`
}

// mcVSphere maps a cloudProviderSpec to the fields of a machine. Server and credentials are the
// DroverAccount's. The cluster is only for the rule that keeps VMs apart: Drover finds it by
// itself.
func (s findings) mcVSphere(pool *Pool, config *mcProviderConfig, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	spec := &mcVSphereSpec{}
	if !s.decode(map[string]any{at: config.CloudProviderSpec}, at, spec) {
		return
	}
	text := func(field string, v mcVar) string { return s.text(at+"."+field, v) }
	below := func(field string, v mcVar, kind string) string {
		return s.below(at+"."+field, text(field, v), kind, target)
	}
	s.datacenter(at+".datacenter", text("datacenter", spec.Datacenter), target)
	m := &infrav1.VSphereMachine{
		Template: below("templateVMName", spec.TemplateVMName, "vm"), Folder: below("folder", spec.Folder, "vm"),
		ResourcePool:     s.pool(at+".resourcePool", text("resourcePool", spec.ResourcePool), target),
		Datastore:        below("datastore", spec.Datastore, "datastore"),
		DatastoreCluster: below("datastoreCluster", spec.DatastoreCluster, "datastore"),
		CPUs:             spec.CPUs, MemoryMiB: spec.MemoryMB,
	}
	s.guestinfo(at + ".templateVMName")
	if config.OperatingSystem != "flatcar" {
		s.addNote(at+".templateVMName", "the datastore keeps the file cloud-init.iso in the folder of each old machine, with its user data, when the machine goes: delete it then")
	}
	if spec.DiskSizeGB != nil {
		m.DiskGiB = *spec.DiskSizeGB
	}
	var names []string
	for i, network := range append([]mcVar{spec.VMNetName}, spec.Networks...) {
		field := map[bool]string{true: "vmNetName", false: "networks"}[i == 0]
		if name := below(field, network, "network"); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		m.Networks = append(m.Networks, infrav1.VSphereNetwork{Name: name})
	}
	if len(spec.Tags) > 0 {
		s.addLost(at+".tags", "Drover knows tags by the names of tag and category: new machines get none, unless the next template names them")
	}
	if text("vmAntiAffinity", spec.VMAntiAffinity) == "true" {
		m.AntiAffinityGroup = pool.Name
		s.addNote(at+".vmAntiAffinity", "new machines are kept apart by a rule of Drover's: delete that of %s when its machines are gone",
			pool.Name)
	}
	if text("vmGroup", spec.VMGroup) != "" {
		s.addLost(at+".vmGroup", "new machines are in no group of VMs")
	}
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{VSphere: m}}), []string{nameKey}
}
