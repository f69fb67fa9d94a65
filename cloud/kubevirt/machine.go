// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/tagging"
)

const (
	// labelDomain is the label with the failure domain of a VM.
	labelDomain = "drover-failure-domain"
	// rootDisk and seedDisk are the names of the machine's own disks. API validation keeps other
	// disks from using them.
	rootDisk = "root"
	seedDisk = "cloudinit"
	// userDataKey and networkDataKey are the keys that KubeVirt reads in a Secret.
	userDataKey    = "userdata"
	networkDataKey = "networkdata"
)

// A machine's VM and Secret are named after the token, so that the API server itself ensures that
// there is only one of each.

// tags returns the labels that identify everything that belongs to a machine.
func tags(req cloud.Request) map[string]string {
	return map[string]string{cloud.TagOwnership: req.OwnershipID, cloud.TagToken: req.Token}
}

// checkTags refuses what can't be a name or label value, before anything is created.
func checkTags(req cloud.Request) error {
	if len(validation.IsDNS1123Label(req.Token)) > 0 || len(validation.IsValidLabelValue(req.OwnershipID)) > 0 || req.OwnershipID == "" {
		return cloud.Invalid("spec.creation.token must be a DNS label, and the ownership ID a label value")
	}
	if tagging.IsImportToken(req.Token) {
		return cloud.Errorf(cloud.Conflict, "the VirtualMachine was taken over from another system: Drover can't make it again")
	}
	return nil
}

// newSecret returns the Secret that the guest reads at boot.
func newSecret(req cloud.Request, namespace string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: req.Token, Namespace: namespace, Labels: tags(req),
			Annotations: map[string]string{cloud.TagMachine: req.Namespace + "/" + req.Name},
		},
		Type: corev1.SecretTypeOpaque,
		Data: secretData(req),
	}
}

func secretData(req cloud.Request) map[string][]byte {
	userData := bytes.ReplaceAll(req.UserData, []byte(providerID(instanceVariable)), []byte(providerID(req.Token)))
	data := map[string][]byte{userDataKey: userData}
	if network := req.Spec.Cloud.KubeVirt.NetworkData; network != "" {
		data[networkDataKey] = []byte(network)
	}
	return data
}

// newVM returns the complete VM.
func newVM(req cloud.Request, namespace string, domain infrav1.KubeVirtFailureDomain) *kubevirtv1.VirtualMachine {
	spec := req.Spec.Cloud.KubeVirt
	labels, annotations := map[string]string{}, map[string]string{}
	maps.Copy(labels, spec.Labels)
	maps.Copy(labels, tags(req))
	if domain.Name != "" {
		labels[labelDomain] = domain.Name
	}
	maps.Copy(annotations, spec.Annotations)
	annotations[cloud.TagMachine] = req.Namespace + "/" + req.Name

	vm := &kubevirtv1.VirtualMachine{
		TypeMeta:   metav1.TypeMeta{APIVersion: kubevirtv1.GroupVersion.String(), Kind: "VirtualMachine"},
		ObjectMeta: metav1.ObjectMeta{Name: req.Token, Namespace: namespace, Labels: labels, Annotations: annotations},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: ptr.To(runStrategy(spec)),
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec:       guest(req, domain),
			},
		},
	}
	if i := spec.Instancetype; i.Name != "" {
		vm.Spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Name: i.Name, Kind: string(cmp.Or(i.Kind, infrav1.KubeVirtClusterInstancetype))}
	}
	if p := spec.Preference; p.Name != "" {
		vm.Spec.Preference = &kubevirtv1.PreferenceMatcher{Name: p.Name, Kind: string(cmp.Or(p.Kind, infrav1.KubeVirtClusterPreference))}
	}
	addDisks(vm, req, namespace)
	return vm
}

// runStrategy returns the machine's run strategy. The default for a container disk is Once: the
// disk is fresh at every start, so the guest would bootstrap again with a used token.
func runStrategy(spec *infrav1.KubeVirtMachine) kubevirtv1.VirtualMachineRunStrategy {
	if spec.RunStrategy == "" && spec.RootDisk.ContainerDisk != nil {
		return kubevirtv1.RunStrategyOnce
	}
	return kubevirtv1.VirtualMachineRunStrategy(cmp.Or(spec.RunStrategy, infrav1.KubeVirtAlways))
}

// guest returns the VM's template without its disks.
func guest(req cloud.Request, domain infrav1.KubeVirtFailureDomain) kubevirtv1.VirtualMachineInstanceSpec {
	spec := req.Spec.Cloud.KubeVirt
	nodes := map[string]string{}
	maps.Copy(nodes, spec.NodeSelector)
	maps.Copy(nodes, domain.NodeSelector)
	g := kubevirtv1.VirtualMachineInstanceSpec{
		Hostname:                      driverkit.HostName(req.Name, 63),
		Architecture:                  string(cmp.Or(spec.Architecture, defaultArchitecture)),
		NodeSelector:                  nodes,
		Affinity:                      affinity(spec),
		TopologySpreadConstraints:     spread(spec, req.OwnershipID),
		Tolerations:                   tolerations(spec),
		PriorityClassName:             spec.PriorityClassName,
		TerminationGracePeriodSeconds: cmp.Or(spec.TerminationGraceSeconds, ptr.To[int64](30)),
		Domain:                        kubevirtv1.DomainSpec{Firmware: firmware(spec), Features: features(spec)},
	}
	if spec.EvictionStrategy != "" {
		g.EvictionStrategy = ptr.To(kubevirtv1.EvictionStrategy(spec.EvictionStrategy))
	}
	if c := spec.CPU; c.Cores != 0 {
		g.Domain.CPU = &kubevirtv1.CPU{
			Cores: uint32(c.Cores), Sockets: uint32(max(c.Sockets, 1)), Threads: uint32(max(c.Threads, 1)),
			Model: c.Model, DedicatedCPUPlacement: c.Placement == infrav1.KubeVirtCPUDedicated,
		}
	}
	if spec.MemoryMiB > 0 {
		g.Domain.Memory = &kubevirtv1.Memory{Guest: resource.NewQuantity(spec.MemoryMiB<<20, resource.BinarySI)}
	}
	devices := &g.Domain.Devices
	devices.Rng = &kubevirtv1.Rng{} // without it, a guest may block at boot for lack of entropy
	for i, gpu := range spec.GPUs {
		devices.GPUs = append(devices.GPUs, kubevirtv1.GPU{Name: fmt.Sprintf("gpu%d", i), DeviceName: gpu.DeviceName})
	}
	for i, device := range spec.HostDevices {
		devices.HostDevices = append(devices.HostDevices, kubevirtv1.HostDevice{Name: fmt.Sprintf("device%d", i), DeviceName: device.DeviceName})
	}
	if spec.TPM != "" {
		devices.TPM = &kubevirtv1.TPMDevice{Persistent: ptr.To(spec.TPM == infrav1.KubeVirtTPMPersistent)}
	}
	networks := spec.Networks
	if len(networks) == 0 {
		networks = []infrav1.KubeVirtNetwork{{Name: "default"}}
	}
	for _, n := range networks {
		g.Networks = append(g.Networks, network(n))
		devices.Interfaces = append(devices.Interfaces, card(n))
	}
	return g
}

func network(n infrav1.KubeVirtNetwork) kubevirtv1.Network {
	if n.Multus == "" {
		return kubevirtv1.Network{Name: n.Name, NetworkSource: kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}}
	}
	return kubevirtv1.Network{Name: n.Name, NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: n.Multus}}}
}

func card(n infrav1.KubeVirtNetwork) kubevirtv1.Interface {
	c := kubevirtv1.Interface{Name: n.Name, Model: string(n.Model)}
	switch {
	case n.Binding == infrav1.KubeVirtSRIOV:
		c.SRIOV = &kubevirtv1.InterfaceSRIOV{}
	case n.Binding == infrav1.KubeVirtBridge, n.Binding == "" && n.Multus != "":
		c.Bridge = &kubevirtv1.InterfaceBridge{}
	default:
		c.Masquerade = &kubevirtv1.InterfaceMasquerade{}
	}
	return c
}

func firmware(spec *infrav1.KubeVirtMachine) *kubevirtv1.Firmware {
	switch {
	case spec.Firmware.Bootloader == "":
		return nil
	case spec.Firmware.Bootloader == infrav1.KubeVirtUEFI:
		secure := spec.Firmware.SecureBoot == infrav1.FeatureEnabled
		return &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: &secure}}}
	}
	return &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{BIOS: &kubevirtv1.BIOS{}}}
}

// features returns the features that secure boot requires, or nil without secure boot.
func features(spec *infrav1.KubeVirtMachine) *kubevirtv1.Features {
	if spec.Firmware.SecureBoot != infrav1.FeatureEnabled {
		return nil
	}
	return &kubevirtv1.Features{SMM: &kubevirtv1.FeatureState{Enabled: ptr.To(true)}}
}

// addDisks adds the root disk, the seed with the user data, and the data disks, each with its
// volume.
func addDisks(vm *kubevirtv1.VirtualMachine, req cloud.Request, namespace string) {
	spec := req.Spec.Cloud.KubeVirt
	root := spec.RootDisk
	add(vm, req, namespace, infrav1.KubeVirtDataDisk{Name: rootDisk, ContainerDisk: root.ContainerDisk, DataVolume: root.DataVolume,
		Bus: root.Bus})
	inGuest := &vm.Spec.Template.Spec
	inGuest.Domain.Devices.Disks[0].BootOrder = ptr.To(uint(1))
	inGuest.Domain.Devices.Disks = append(inGuest.Domain.Devices.Disks, disk(seedDisk, root.Bus))
	inGuest.Volumes = append(inGuest.Volumes, kubevirtv1.Volume{Name: seedDisk, VolumeSource: seed(req)})
	for _, d := range spec.DataDisks {
		add(vm, req, namespace, d)
		inGuest.Domain.Devices.Disks[len(inGuest.Domain.Devices.Disks)-1].Serial = d.Name
	}
}

// add adds one disk with its volume.
func add(vm *kubevirtv1.VirtualMachine, req cloud.Request, namespace string, d infrav1.KubeVirtDataDisk) {
	inGuest := &vm.Spec.Template.Spec
	inGuest.Domain.Devices.Disks = append(inGuest.Domain.Devices.Disks, disk(d.Name, d.Bus))
	volume := kubevirtv1.Volume{Name: d.Name}
	switch {
	case d.ContainerDisk != nil:
		volume.ContainerDisk = &kubevirtv1.ContainerDiskSource{
			Image: d.ContainerDisk.Image, ImagePullSecret: d.ContainerDisk.PullSecret, ImagePullPolicy: d.ContainerDisk.PullPolicy,
		}
	case d.DataVolume != nil:
		made := dataVolume(req, namespace, d)
		vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates, made)
		volume.DataVolume = &kubevirtv1.DataVolumeSource{Name: made.Name}
	default:
		volume.EmptyDisk = &kubevirtv1.EmptyDiskSource{Capacity: gib(d.EmptyGiB)}
	}
	inGuest.Volumes = append(inGuest.Volumes, volume)
}

func disk(name string, bus infrav1.KubeVirtDiskBus) kubevirtv1.Disk {
	return kubevirtv1.Disk{Name: name, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBus(cmp.Or(bus,
		"virtio"))}}}
}

// seed returns the source of the disk that KubeVirt creates from the Secret.
func seed(req cloud.Request) kubevirtv1.VolumeSource {
	secret := &corev1.LocalObjectReference{Name: req.Token}
	var networkData *corev1.LocalObjectReference
	if req.Spec.Cloud.KubeVirt.NetworkData != "" {
		networkData = secret
	}
	if req.Spec.Cloud.KubeVirt.CloudInit == infrav1.KubeVirtConfigDrive {
		return kubevirtv1.VolumeSource{CloudInitConfigDrive: &kubevirtv1.CloudInitConfigDriveSource{UserDataSecretRef: secret,
			NetworkDataSecretRef: networkData}}
	}
	return kubevirtv1.VolumeSource{CloudInitNoCloud: &kubevirtv1.CloudInitNoCloudSource{UserDataSecretRef: secret,
		NetworkDataSecretRef: networkData}}
}

// dataVolumeName returns the name of a volume, which identifies its machine.
func dataVolumeName(token, disk string) string { return token + "-" + disk }

func dataVolume(req cloud.Request, namespace string, d infrav1.KubeVirtDataDisk) kubevirtv1.DataVolumeTemplateSpec {
	v := d.DataVolume
	storage := &cdiv1.StorageSpec{}
	if v.StorageClassName != "" {
		storage.StorageClassName = &v.StorageClassName
	}
	if v.AccessMode != "" {
		storage.AccessModes = []corev1.PersistentVolumeAccessMode{v.AccessMode}
	}
	if v.VolumeMode != "" {
		storage.VolumeMode = &v.VolumeMode
	}
	if v.SizeGiB > 0 {
		storage.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: gib(v.SizeGiB)}
	}
	made := kubevirtv1.DataVolumeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Name: dataVolumeName(req.Token, d.Name), Labels: tags(req)},
		Spec:       cdiv1.DataVolumeSpec{Storage: storage},
	}
	made.Spec.Source, made.Spec.SourceRef = content(v.Source, namespace)
	return made
}

// content returns the source of a volume's initial content.
func content(s infrav1.KubeVirtDataVolumeSource, namespace string) (*cdiv1.DataVolumeSource, *cdiv1.DataVolumeSourceRef) {
	switch {
	case s.Registry != nil:
		from := &cdiv1.DataVolumeSourceRegistry{URL: &s.Registry.URL, SecretRef: orNil(s.Registry.SecretRef),
			CertConfigMap: orNil(s.Registry.CertConfigMap)}
		if s.Registry.PullMethod != "" {
			from.PullMethod = ptr.To(cdiv1.RegistryPullMethod(s.Registry.PullMethod))
		}
		return &cdiv1.DataVolumeSource{Registry: from}, nil
	case s.HTTP != nil:
		return &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{
			URL: s.HTTP.URL, Checksum: s.HTTP.Checksum, SecretRef: s.HTTP.SecretRef, CertConfigMap: s.HTTP.CertConfigMap,
		}}, nil
	case s.PVC != nil:
		return &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Name: s.PVC.Name, Namespace: cmp.Or(s.PVC.Namespace, namespace)}}, nil
	case s.Snapshot != nil:
		return &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Name: s.Snapshot.Name,
			Namespace: cmp.Or(s.Snapshot.Namespace, namespace)}}, nil
	case s.DataSource != nil:
		return nil, &cdiv1.DataVolumeSourceRef{Kind: "DataSource", Name: s.DataSource.Name,
			Namespace: ptr.To(cmp.Or(s.DataSource.Namespace, namespace))}
	}
	return &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}, nil
}

func gib(n int32) resource.Quantity { return *resource.NewQuantity(int64(n)<<30, resource.BinarySI) }

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// affinity returns the affinity for the conditions on nodes, or nil without conditions.
func affinity(spec *infrav1.KubeVirtMachine) *corev1.Affinity {
	if len(spec.RequiredNodes) == 0 && len(spec.PreferredNodes) == 0 {
		return nil
	}
	nodes := &corev1.NodeAffinity{}
	if len(spec.RequiredNodes) > 0 {
		term := corev1.NodeSelectorTerm{}
		for _, c := range spec.RequiredNodes {
			term.MatchExpressions = append(term.MatchExpressions, expression(c))
		}
		nodes.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
	}
	for _, c := range spec.PreferredNodes {
		nodes.PreferredDuringSchedulingIgnoredDuringExecution = append(nodes.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{
				Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{expression(c)}},
			})
	}
	return &corev1.Affinity{NodeAffinity: nodes}
}

func expression(c infrav1.KubeVirtNodeCondition) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: c.Key, Operator: c.Operator, Values: c.Values}
}

func spread(spec *infrav1.KubeVirtMachine, owner string) (all []corev1.TopologySpreadConstraint) {
	for _, s := range spec.Spread {
		counted := map[string]string{cloud.TagOwnership: owner}
		maps.Copy(counted, s.MatchLabels)
		all = append(all, corev1.TopologySpreadConstraint{
			MaxSkew: max(s.MaxSkew, 1), TopologyKey: s.TopologyKey,
			WhenUnsatisfiable: cmp.Or(s.WhenUnsatisfiable, corev1.ScheduleAnyway),
			LabelSelector:     &metav1.LabelSelector{MatchLabels: counted},
		})
	}
	return all
}

func tolerations(spec *infrav1.KubeVirtMachine) (all []corev1.Toleration) {
	for _, t := range spec.Tolerations {
		all = append(all, corev1.Toleration{
			Key: t.Key, Operator: cmp.Or(t.Operator, corev1.TolerationOpEqual), Value: t.Value, Effect: t.Effect, TolerationSeconds: t.Seconds,
		})
	}
	return all
}

// domain returns the failure domain of that name.
func (d *driver) domain(name string) (infrav1.KubeVirtFailureDomain, error) {
	if name == "" {
		return infrav1.KubeVirtFailureDomain{}, nil
	}
	i := slices.IndexFunc(d.domains, func(f infrav1.KubeVirtFailureDomain) bool { return f.Name == name })
	if i < 0 {
		return infrav1.KubeVirtFailureDomain{}, cloud.Invalid("the account has no failure domain %q", cloud.Clip(name, 63))
	}
	return d.domains[i], nil
}
