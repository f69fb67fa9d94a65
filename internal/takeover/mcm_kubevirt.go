// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcmKubeVirt has the fields of a MachineClass's providerSpec for KubeVirt, of the archived
// provider. Of KubeVirt's and CDI's own types, it has the fields that Drover maps; the others are
// lost by name.
type mcmKubeVirt struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Region     string `json:"region"`
	Zone       string `json:"zone"`
	Resources  struct {
		Requests                map[string]any `json:"requests"`
		Limits                  map[string]any `json:"limits"`
		OvercommitGuestOverhead bool           `json:"overcommitGuestOverhead"`
	} `json:"resources"`
	Devices *struct {
		Disks                      []map[string]any `json:"disks"`
		Rng                        map[string]any   `json:"rng"`
		BlockMultiQueue            bool             `json:"blockMultiQueue"`
		NetworkInterfaceMultiQueue bool             `json:"networkInterfaceMultiqueue"`
	} `json:"devices"`
	RootVolume        map[string]any       `json:"rootVolume"`
	AdditionalVolumes []mcmKubeVirtVolume  `json:"additionalVolumes"`
	SSHKeys           []string             `json:"sshKeys"`
	Networks          []mcmKubeVirtNetwork `json:"networks"`
	CPU               map[string]any       `json:"cpu"`
	Memory            map[string]any       `json:"memory"`
	DNSPolicy         corev1.DNSPolicy     `json:"dnsPolicy"`
	DNSConfig         map[string]any       `json:"dnsConfig"`
	Tags              map[string]string    `json:"tags"`
}

type (
	mcmKubeVirtVolume struct {
		Name         string         `json:"name"`
		DataVolume   map[string]any `json:"dataVolume"`
		VolumeSource map[string]any `json:"volumeSource"`
	}
	mcmKubeVirtNetwork struct {
		Name    string `json:"name"`
		Default bool   `json:"default"`
	}
)

// mcmNetworkData is how the guests of a class with networks get addresses on all their interfaces.
const mcmNetworkData = "version: 2\nethernets:\n  all:\n    match: {name: \"e*\"}\n    dhcp4: true\n"

// mcmNowhere is the name of a region or zone that stands for nodes without one.
const mcmNowhere = "default"

// kubevirt maps a class for KubeVirt.
func (s findings) kubevirt(pool *Pool, class *unstructured.Unstructured, target *Target) {
	const at = "providerSpec."
	spec := &mcmKubeVirt{}
	if !s.decode(class.Object, "providerSpec", spec) {
		return
	}
	m := &infrav1.KubeVirtMachine{RunStrategy: infrav1.KubeVirtAlways}
	for key, value := range spec.Tags {
		if key == mcmRole {
			continue
		}
		if m.Labels == nil {
			m.Labels = map[string]string{}
		}
		m.Labels[key] = value
	}
	s.kubevirtSize(m, spec)
	s.kubevirtDisks(m, spec)
	s.kubevirtNetworks(m, spec)
	for key, value := range map[string]string{corev1.LabelTopologyRegion: spec.Region, corev1.LabelTopologyZone: spec.Zone} {
		switch {
		case value == "" || spec.Region == "":
		case value == mcmNowhere:
			m.RequiredNodes = append(m.RequiredNodes, infrav1.KubeVirtNodeCondition{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist})
		default:
			m.RequiredNodes = append(m.RequiredNodes, nodes(key, value))
		}
	}
	slices.SortFunc(m.RequiredNodes, func(a, b infrav1.KubeVirtNodeCondition) int { return cmp.Compare(a.Key, b.Key) })
	s.kubevirtRest(spec)
	pool.Machine = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: m}})
	pool.Keys, pool.cluster = s.keys(at+"tags", spec.Tags, mcmCluster, mcmRole), spec.Tags[mcmCluster]
}

// kubevirtSize maps CPUs and memory, which the guest has as the pod asks for them, unless the class
// says otherwise.
func (s findings) kubevirtSize(m *infrav1.KubeVirtMachine, spec *mcmKubeVirt) {
	const at = "providerSpec."
	text := func(from map[string]any, key string) string {
		if from[key] == nil {
			return ""
		}
		return fmt.Sprint(from[key])
	}
	cpus := cmp.Or(text(spec.Resources.Limits, "cpu"), text(spec.Resources.Requests, "cpu"))
	m.CPU = infrav1.KubeVirtCPU{Cores: s.quantity(at+"resources", cpus, 0), Sockets: 1, Threads: 1}
	cpu, dedicated := infrav1.KubeVirtCPU{}, false
	if s.known(at+"cpu", spec.CPU, map[string]any{
		"cores": &cpu.Cores, "sockets": &cpu.Sockets, "threads": &cpu.Threads, "model": &cpu.Model, "dedicatedCpuPlacement": &dedicated,
	}); cpu.Cores+cpu.Sockets+cpu.Threads > 0 {
		m.CPU.Cores, m.CPU.Sockets, m.CPU.Threads = max(cpu.Cores, 1), max(cpu.Sockets, 1), max(cpu.Threads, 1)
	}
	if m.CPU.Model = cpu.Model; dedicated {
		m.CPU.Placement = infrav1.KubeVirtCPUDedicated
	}
	var guest string
	s.known(at+"memory", spec.Memory, map[string]any{"guest": &guest})
	m.MemoryMiB = int64(s.quantity(at+"resources", cmp.Or(guest, text(spec.Resources.Requests, "memory")), 20))
	s.addNote(at+"resources.requests", "of new machines' CPUs, KubeVirt reserves a part (cpuAllocationRatio), unless they are dedicated")
	if len(spec.Resources.Limits) > 0 {
		s.addLost(at+"resources.limits", "new machines' pods have no limits, but those that KubeVirt sets")
	}
	if spec.Resources.OvercommitGuestOverhead {
		s.addLost(at+"resources.overcommitGuestOverhead", "KubeVirt also reserves the memory that it needs beside the guest")
	}
}

// known reads the fields of one of KubeVirt's or CDI's own types that Drover has, and loses the
// others by name. An empty one is none.
func (s findings) known(field string, from map[string]any, into map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		switch target := into[key]; {
		case target != nil:
			s.decode(map[string]any{field + "." + key: from[key]}, field+"."+key, target)
		case !isEmpty(from[key]):
			s.addLost(field+"."+key, "new machines do not have it")
		}
	}
}

func isEmpty(value any) bool {
	switch is := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(is) == 0
	case []any:
		return len(is) == 0
	case string:
		return is == ""
	case bool:
		return !is
	}
	return false
}

// kubevirtDisks maps the volumes, and the bus of each.
func (s findings) kubevirtDisks(m *infrav1.KubeVirtMachine, spec *mcmKubeVirt) {
	const at = "providerSpec."
	buses := map[string]infrav1.KubeVirtDiskBus{}
	if spec.Devices != nil {
		for _, disk := range spec.Devices.Disks {
			var name string
			var device map[string]any
			s.known(at+"devices.disks", disk, map[string]any{"name": &name, "disk": &device})
			var bus infrav1.KubeVirtDiskBus
			s.known(at+"devices.disks.disk", device, map[string]any{"bus": &bus})
			buses[name] = bus
		}
	}
	m.RootDisk = infrav1.KubeVirtRootDisk{DataVolume: s.kubevirtVolume(at+"rootVolume", spec.RootVolume), Bus: buses["root-disk"]}
	for i, v := range spec.AdditionalVolumes {
		if v.DataVolume == nil {
			s.addLost(at+"additionalVolumes.volumeSource", "new machines do not have the volume %s, which is not the machine's own", v.Name)
			continue
		}
		m.DataDisks = append(m.DataDisks, infrav1.KubeVirtDataDisk{
			Name: fmt.Sprintf("disk%d", i), DataVolume: s.kubevirtVolume(at+"additionalVolumes.dataVolume", v.DataVolume), Bus: buses[v.Name],
		})
	}
}

// kubevirtVolume maps a volume that CDI fills.
func (s findings) kubevirtVolume(field string, from map[string]any) *infrav1.KubeVirtDataVolume {
	v := &infrav1.KubeVirtDataVolume{}
	var source, pvc map[string]any
	var content string
	s.known(field, from, map[string]any{"source": &source, "pvc": &pvc, "contentType": &content})
	if content != "" && content != "kubevirt" {
		s.addLost(field+".contentType", "it is %q: new machines' disks are images", content)
	}
	var modes []corev1.PersistentVolumeAccessMode
	resources := struct {
		Requests struct {
			Storage string `json:"storage"`
		} `json:"requests"`
	}{}
	s.known(field+".pvc", pvc, map[string]any{"accessModes": &modes, "storageClassName": &v.StorageClassName, "volumeMode": &v.VolumeMode,
		"resources": &resources})
	if len(modes) > 0 {
		v.AccessMode = modes[0]
	}
	v.SizeGiB = s.quantity(field+".pvc.resources", resources.Requests.Storage, 30)
	v.Source = s.kubevirtSource(field+".source", source)
	return v
}

// kubevirtSource maps what a volume is filled with.
func (s findings) kubevirtSource(field string, from map[string]any) (source infrav1.KubeVirtDataVolumeSource) {
	for _, kind := range slices.Sorted(maps.Keys(from)) {
		of, _ := from[kind].(map[string]any)
		at := field + "." + kind
		switch kind {
		case "http":
			h := &infrav1.KubeVirtHTTPSource{}
			s.known(at, of, map[string]any{"url": &h.URL, "secretRef": &h.SecretRef, "certConfigMap": &h.CertConfigMap})
			source.HTTP = h
		case "registry":
			r := &infrav1.KubeVirtRegistrySource{}
			s.known(at, of, map[string]any{"url": &r.URL, "secretRef": &r.SecretRef, "certConfigMap": &r.CertConfigMap})
			source.Registry = r
		case "pvc":
			p := &infrav1.KubeVirtObjectSource{}
			s.known(at, of, map[string]any{"name": &p.Name, "namespace": &p.Namespace})
			source.PVC = p
		case "blank":
			source.Blank = &infrav1.KubeVirtBlankSource{}
		default:
			s.addRefused(field, "it is %q: Drover knows blank, http, pvc and registry", kind)
		}
	}
	return source
}

// kubevirtNetworks maps the interfaces. Without a default one, the first is in the pod network.
func (s findings) kubevirtNetworks(m *infrav1.KubeVirtMachine, spec *mcmKubeVirt) {
	const at = "providerSpec.networks"
	if !slices.ContainsFunc(spec.Networks, func(n mcmKubeVirtNetwork) bool { return n.Default }) {
		m.Networks = []infrav1.KubeVirtNetwork{{Name: "default", Binding: infrav1.KubeVirtBridge}}
	}
	for i, n := range spec.Networks {
		m.Networks = append(m.Networks, infrav1.KubeVirtNetwork{Name: fmt.Sprintf("net%d", i), Multus: n.Name, Binding: infrav1.KubeVirtBridge})
		if n.Default {
			s.addNote(at+".default", "the pods of new machines are in the cluster's network, too; their guests are not")
		}
	}
	if len(spec.Networks) > 0 {
		m.NetworkData = mcmNetworkData
	}
}

// kubevirtRest notes the fields that Drover does not have.
func (s findings) kubevirtRest(spec *mcmKubeVirt) {
	const at = "providerSpec."
	if spec.Devices != nil && spec.Devices.BlockMultiQueue {
		s.addLost(at+"devices.blockMultiQueue", "the disks of new machines have one queue")
	}
	if spec.Devices != nil && spec.Devices.NetworkInterfaceMultiQueue {
		s.addLost(at+"devices.networkInterfaceMultiqueue", "the network card of new machines has one queue, unless a preference says otherwise")
	}
	if spec.DNSPolicy != "" && spec.DNSPolicy != corev1.DNSClusterFirst {
		s.addLost(at+"dnsPolicy", "new machines have the policy ClusterFirst")
	}
	if len(spec.DNSConfig) > 0 {
		s.addLost(at+"dnsConfig", "new machines have the name servers of the cluster that runs them")
	}
	if len(spec.SSHKeys) > 0 {
		s.addNote(at+"sshKeys", "the DroverConfigTemplate says which keys new machines accept")
	}
}
