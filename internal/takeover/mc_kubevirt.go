// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// mcKubeVirtSpec has the fields of a cloudProviderSpec for KubeVirt, v1.62.
type mcKubeVirtSpec struct {
	ClusterName mcVar `json:"clusterName"`
	ProjectID   mcVar `json:"projectID"`
	Auth        struct {
		Kubeconfig mcVar `json:"kubeconfig"`
	} `json:"auth"`
	VirtualMachine mcKubeVirtVM `json:"virtualMachine"`
	Affinity       struct {
		PodAffinityPreset     mcVar `json:"podAffinityPreset"`
		PodAntiAffinityPreset mcVar `json:"podAntiAffinityPreset"`
		NodeAffinityPreset    struct {
			Type   mcVar   `json:"type"`
			Key    mcVar   `json:"key"`
			Values []mcVar `json:"values"`
		} `json:"nodeAffinityPreset"`
	} `json:"affinity"`
	TopologySpreadConstraints []struct {
		MaxSkew           mcVar `json:"maxSkew"`
		TopologyKey       mcVar `json:"topologyKey"`
		WhenUnsatisfiable mcVar `json:"whenUnsatisfiable"`
	} `json:"topologySpreadConstraints"`
}

type (
	mcKubeVirtVM struct {
		Flavor struct {
			Name    mcVar `json:"name"`
			Profile mcVar `json:"profile"`
		} `json:"flavor"`
		Instancetype *mcKubeVirtMatcher `json:"instancetype"`
		Preference   *mcKubeVirtMatcher `json:"preference"`
		Template     struct {
			VCPUs struct {
				Cores int32 `json:"cores"`
			} `json:"vcpus"`
			CPUs           mcVar             `json:"cpus"`
			Memory         mcVar             `json:"memory"`
			PrimaryDisk    mcKubeVirtPrimary `json:"primaryDisk"`
			SecondaryDisks []mcKubeVirtDisk  `json:"secondaryDisks"`
		} `json:"template"`
		DNSPolicy mcVar          `json:"dnsPolicy"`
		DNSConfig map[string]any `json:"dnsConfig"`
		Location  *struct {
			Region string `json:"region"`
			Zone   string `json:"zone"`
		} `json:"location"`
		ProviderNetwork *struct {
			Name string `json:"name"`
			VPC  struct {
				Name   string `json:"name"`
				Subnet *struct {
					Name string `json:"name"`
				} `json:"subnet"`
			} `json:"vpc"`
		} `json:"providerNetwork"`
		EnableNetworkMultiQueue mcVar  `json:"enableNetworkMultiQueue"`
		EvictionStrategy        string `json:"evictionStrategy"`
	}
	mcKubeVirtMatcher struct {
		Name                         string `json:"name"`
		Kind                         string `json:"kind"`
		RevisionName                 string `json:"revisionName"`
		InferFromVolume              string `json:"inferFromVolume"`
		InferFromVolumeFailurePolicy string `json:"inferFromVolumeFailurePolicy"`
	}
	mcKubeVirtDisk struct {
		Size              mcVar `json:"size"`
		StorageClassName  mcVar `json:"storageClassName"`
		StorageAccessType mcVar `json:"storageAccessType"`
	}
	mcKubeVirtPrimary struct {
		mcKubeVirtDisk
		DataVolumeSecretRef   mcVar    `json:"dataVolumeSecretRef"`
		ExtraHeaders          []string `json:"extraHeaders"`
		ExtraHeadersSecretRef mcVar    `json:"extraHeadersSecretRef"`
		StorageTarget         mcVar    `json:"storageTarget"`
		OSImage               mcVar    `json:"osImage"`
		Source                mcVar    `json:"source"`
		PullMethod            mcVar    `json:"pullMethod"`
	}
)

// mcNamespace is the annotation that machine-controller itself adds to each pool on KubeVirt, with
// the namespace of the VMs.
const mcNamespace = "cluster.x-k8s.io/cluster-namespace"

// mcPool is the label by which machine-controller keeps a pool's VMs apart.
const mcPool = "md"

// mcKubeVirt maps a cloudProviderSpec to the fields of a machine. The kubeconfig is the account's.
func (s findings) mcKubeVirt(pool *Pool, config *mcProviderConfig, meta *metav1.ObjectMeta, target *Target) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec"
	spec := &mcKubeVirtSpec{}
	if !s.decode(map[string]any{at: config.CloudProviderSpec}, at, spec) {
		return
	}
	vm := &spec.VirtualMachine
	m := &infrav1.KubeVirtMachine{
		// what machine-controller gives every VM
		Networks: []infrav1.KubeVirtNetwork{{Name: "default", Binding: infrav1.KubeVirtBridge}}, RunStrategy: infrav1.KubeVirtOnce,
		EvictionStrategy: cmp.Or(infrav1.KubeVirtEvictionStrategy(vm.EvictionStrategy), infrav1.KubeVirtEvictionExternal),
		Labels:           map[string]string{mcPool: pool.Name, "cluster.x-k8s.io/role": "worker"},
		Annotations: map[string]string{
			"kubevirt.io/allow-pod-bridge-network-live-migration": "true", "ovn.kubernetes.io/allow_live_migration": "true",
		},
	}
	if m.EvictionStrategy == infrav1.KubeVirtEvictionExternal {
		s.addNote(at+".virtualMachine.evictionStrategy",
			"it is External: when a node of the infrastructure is drained, Drover replaces the machine, whose Node counts as interruptible")
	}
	if config.OperatingSystem == "flatcar" {
		m.CloudInit = infrav1.KubeVirtConfigDrive
		m.Annotations["kubevirt.io/placePCIDevicesOnRootComplex"] = "true"
		s.addNote(at+".virtualMachine", "new machines have their Ignition on a config drive, as Flatcar's image for KubeVirt reads it, and not in an annotation")
	}
	s.mcKubeVirtMeta(m, meta)
	s.mcKubeVirtSize(m, vm)
	s.mcKubeVirtDisks(m, vm)
	s.mcKubeVirtPlace(m, spec, pool)
	s.mcKubeVirtNames(pool, m, spec)
	s.mcKubeVirtRest(spec)
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: m}}), []string{nameKey}
}

// mcKubeVirtMeta gives VMs the labels and annotations of their Machines. Those of VMs win.
func (s findings) mcKubeVirtMeta(m *infrav1.KubeVirtMachine, meta *metav1.ObjectMeta) {
	var lost []string
	for key, value := range meta.Labels {
		if _, has := m.Labels[key]; !has {
			m.Labels[key] = value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		if strings.HasPrefix(key, "cdi.kubevirt.io") { // of the volumes
			lost = append(lost, key)
			continue
		}
		m.Annotations[key] = meta.Annotations[key]
	}
	if len(lost) > 0 {
		s.addLost("spec.template.metadata.annotations", "the volumes of new machines do not get %s", strings.Join(lost, ", "))
	}
}

// mcKubeVirtSize maps what CPU and memory a VM has.
func (s findings) mcKubeVirtSize(m *infrav1.KubeVirtMachine, vm *mcKubeVirtVM) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine."
	if p := vm.Preference; p != nil {
		m.Preference = infrav1.KubeVirtPreference{Name: p.Name,
			Kind: cmp.Or(infrav1.KubeVirtPreferenceKind(p.Kind), infrav1.KubeVirtClusterPreference)}
		s.mcKubeVirtMatched(at+"preference", p)
	}
	if i := vm.Instancetype; i != nil { // it alone counts
		m.Instancetype = infrav1.KubeVirtInstancetype{Name: i.Name,
			Kind: cmp.Or(infrav1.KubeVirtInstancetypeKind(i.Kind), infrav1.KubeVirtClusterInstancetype)}
		s.mcKubeVirtMatched(at+"instancetype", i)
		s.addNote(at+"instancetype", "machine-controller prefers a VirtualMachineInstancetype of the namespace, whatever the kind: new machines get the %s %s",
			m.Instancetype.Kind, i.Name)
		return
	}
	m.MemoryMiB = int64(s.quantity(at+"template.memory", s.text(at+"template.memory", vm.Template.Memory), 20))
	cores := vm.Template.VCPUs.Cores
	if cpus := s.text(at+"template.cpus", vm.Template.CPUs); cores == 0 && cpus != "" {
		cores = s.quantity(at+"template.cpus", cpus, 0)
		s.addLost(at+"template.cpus", "new machines have %d CPUs, of which KubeVirt reserves a part (cpuAllocationRatio), not all", cores)
	}
	if cores > 0 {
		m.CPU = infrav1.KubeVirtCPU{Cores: cores, Sockets: 1, Threads: 1}
	}
}

// mcKubeVirtMatched finds what a matcher says beside kind and name.
func (s findings) mcKubeVirtMatched(field string, is *mcKubeVirtMatcher) {
	if is.RevisionName != "" || is.InferFromVolume != "" || is.InferFromVolumeFailurePolicy != "" {
		s.addLost(field, "new machines know it by kind and name alone")
	}
}

// mcKubeVirtDisks maps the disks, all of which begin as copies of the image.
func (s findings) mcKubeVirtDisks(m *infrav1.KubeVirtMachine, vm *mcKubeVirtVM) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template."
	primary := &vm.Template.PrimaryDisk
	mode, source := s.text(at+"primaryDisk.storageAccessType", primary.StorageAccessType), s.mcKubeVirtImage(at+"primaryDisk.", primary)
	if mode == "" {
		s.addNote(at+"primaryDisk.storageAccessType",
			"machine-controller uses ReadWriteMany where the storage has it; new machines' volumes have the mode that CDI's profile of the class prefers")
	}
	volume := func(field string, disk mcKubeVirtDisk) *infrav1.KubeVirtDataVolume {
		return &infrav1.KubeVirtDataVolume{
			Source: source, SizeGiB: s.quantity(field+".size", s.text(field+".size", disk.Size), 30),
			StorageClassName: s.text(field+".storageClassName", disk.StorageClassName), AccessMode: corev1.PersistentVolumeAccessMode(mode),
		}
	}
	m.RootDisk.DataVolume = volume(at+"primaryDisk", primary.mcKubeVirtDisk)
	for i, disk := range vm.Template.SecondaryDisks {
		m.DataDisks = append(m.DataDisks, infrav1.KubeVirtDataDisk{Name: fmt.Sprintf("secondarydisk%d", i),
			DataVolume: volume(at+"secondaryDisks", disk)})
	}
	if len(m.DataDisks) > 0 {
		s.addNote(at+"secondaryDisks", "they begin as copies of the image, as before: name another source in the next template")
	}
	if len(primary.ExtraHeaders) > 0 {
		s.addLost(at+"primaryDisk.extraHeaders", "the image is fetched without them")
	}
	if primary.ExtraHeadersSecretRef != (mcVar{}) {
		s.addLost(at+"primaryDisk.extraHeadersSecretRef", "the image is fetched without these headers")
	}
	if s.text(at+"primaryDisk.storageTarget", primary.StorageTarget) == "pvc" {
		s.addNote(at+"primaryDisk.storageTarget", "CDI makes new machines' claims from the class's profile, larger by what a file system needs")
	}
}

// mcKubeVirtImage returns where an image comes from. Without a source, its form tells.
func (s findings) mcKubeVirtImage(at string, disk *mcKubeVirtPrimary) (source infrav1.KubeVirtDataVolumeSource) {
	image, kind := s.text(at+"osImage", disk.OSImage), s.text(at+"source", disk.Source)
	if kind == "" {
		kind = "pvc"
		if u, err := url.ParseRequestURI(image); err == nil {
			kind = map[bool]string{true: "registry", false: "http"}[u.Scheme == "docker" || u.Scheme == "oci-archive"]
		}
	}
	switch kind {
	case "registry":
		source.Registry = &infrav1.KubeVirtRegistrySource{URL: image,
			PullMethod: cmp.Or(infrav1.KubeVirtPullMethod(s.text(at+"pullMethod", disk.PullMethod)), infrav1.KubeVirtPullByNode)}
	case "http":
		source.HTTP = &infrav1.KubeVirtHTTPSource{URL: image, SecretRef: s.text(at+"dataVolumeSecretRef", disk.DataVolumeSecretRef)}
	case "pvc":
		parts := strings.Split(image, "/")
		source.PVC = &infrav1.KubeVirtObjectSource{Name: parts[0]}
		if len(parts) > 1 {
			source.PVC = &infrav1.KubeVirtObjectSource{Namespace: parts[0], Name: parts[1]}
		}
	default:
		s.addRefused(at+"source", "it is %q: Drover knows http, registry and pvc", kind)
	}
	return source
}

// mcKubeVirtPlace maps on which nodes VMs run.
func (s findings) mcKubeVirtPlace(m *infrav1.KubeVirtMachine, spec *mcKubeVirtSpec, pool *Pool) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec."
	const affinity = at + "affinity.nodeAffinityPreset."
	preset := &spec.Affinity.NodeAffinityPreset
	var values []string
	for _, value := range preset.Values {
		values = append(values, s.text(affinity+"values", value))
	}
	condition := []infrav1.KubeVirtNodeCondition{nodes(s.text(affinity+"key", preset.Key), values...)}
	switch strings.ToLower(s.text(affinity+"type", preset.Type)) {
	case "hard":
		m.RequiredNodes = condition
	case "soft":
		m.PreferredNodes = condition
	}
	together := map[string]string{mcPool: pool.Name}
	for _, c := range spec.TopologySpreadConstraints {
		skew, err := strconv.ParseInt(s.text(at+"topologySpreadConstraints.maxSkew", c.MaxSkew), 10, 32)
		if err != nil {
			s.addRefused(at+"topologySpreadConstraints.maxSkew", "it is no number")
		}
		m.Spread = append(m.Spread, infrav1.KubeVirtSpread{
			TopologyKey: s.text(at+"topologySpreadConstraints.topologyKey", c.TopologyKey), MaxSkew: int32(skew), MatchLabels: together,
			WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(s.text(at+"topologySpreadConstraints.whenUnsatisfiable", c.WhenUnsatisfiable)),
		})
	}
	if len(m.Spread) == 0 {
		m.Spread = []infrav1.KubeVirtSpread{{TopologyKey: "kubernetes.io/hostname", MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway,
			MatchLabels: together}}
	}
}

// mcKubeVirtNames maps what others know VMs by: labels, and the annotations of a network.
func (s findings) mcKubeVirtNames(pool *Pool, m *infrav1.KubeVirtMachine, spec *mcKubeVirtSpec) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec."
	cluster, project := s.text(at+"clusterName", spec.ClusterName), s.text(at+"projectID", spec.ProjectID)
	if cluster != "" {
		m.Labels["cluster.x-k8s.io/cluster-name"], m.Labels["kubermatic.k8c.io/cluster-id"] = cluster, cluster
	}
	if project != "" {
		m.Labels["kubermatic.k8c.io/project-id"] = project
	}
	s.addNote(at+"clusterName", "new machines have it in the labels by which load balancers find VMs; if machine-controller's environment has CLUSTER_ID or PROJECT_ID, which count more, "+
		"write these into the labels of the next template")
	if location := spec.VirtualMachine.Location; location != nil {
		for key, value := range map[string]string{"topology.kubernetes.io/region": location.Region,
			"topology.kubernetes.io/zone": location.Zone} {
			if value != "" {
				m.Labels[key] = value
				mcLabel(pool, key, value)
			}
		}
	}
	if network := spec.VirtualMachine.ProviderNetwork; network != nil && network.VPC.Subnet != nil && network.VPC.Subnet.Name != "" {
		m.Annotations["ovn.kubernetes.io/logical_switch"], m.RunStrategy = network.VPC.Subnet.Name, infrav1.KubeVirtAlways
	}
}

// mcKubeVirtRest notes the fields that Drover does not have, or machine-controller does not use.
func (s findings) mcKubeVirtRest(spec *mcKubeVirtSpec) {
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec."
	vm := &spec.VirtualMachine
	switch queues := vm.EnableNetworkMultiQueue; {
	case s.text(at+"virtualMachine.enableNetworkMultiQueue", queues) == "true":
		s.addLost(at+"virtualMachine.enableNetworkMultiQueue",
			"the network card of new machines has one queue, unless a preference says otherwise")
	case queues == (mcVar{}):
		s.addNote(at+"virtualMachine.enableNetworkMultiQueue",
			"it is true by default: the network card of new machines has one queue, unless a preference says otherwise")
	}
	if s.text(at+"virtualMachine.dnsPolicy", vm.DNSPolicy) != "" {
		s.addLost(at+"virtualMachine.dnsPolicy", "new machines have the policy ClusterFirst")
	}
	if len(vm.DNSConfig) > 0 {
		s.addLost(at+"virtualMachine.dnsConfig", "new machines have the name servers of the cluster that runs them")
	}
	unused := []struct {
		field string
		is    []mcVar
	}{
		{"virtualMachine.flavor", []mcVar{vm.Flavor.Name, vm.Flavor.Profile}},
		{"affinity.podAffinityPreset", []mcVar{spec.Affinity.PodAffinityPreset}},
		{"affinity.podAntiAffinityPreset", []mcVar{spec.Affinity.PodAntiAffinityPreset}},
	}
	for _, u := range unused {
		if slices.ContainsFunc(u.is, func(v mcVar) bool { return v != (mcVar{}) }) {
			s.addNote(at+u.field, "machine-controller does not use it any more")
		}
	}
}

// mcAnnotations returns a pool's own annotations of its Nodes. On KubeVirt, one is
// machine-controller's own, which names the namespace of the VMs.
func (s findings) mcAnnotations(field string, all map[string]string, target *Target) (own []string) {
	for key, value := range all {
		account := target.Account.Spec.Cloud.KubeVirt
		if account == nil || key != mcNamespace {
			own = append(own, key)
			continue
		}
		if value != account.Namespace {
			s.addRefused(field, "its VMs are in namespace %q, and the DroverAccount's in %q", value, account.Namespace)
		}
	}
	slices.Sort(own)
	return own
}
