// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// KubeVirtRootDisk is the disk that the machine boots from. Exactly one source must be set.
// +kubebuilder:validation:XValidation:rule="has(self.containerDisk) != has(self.dataVolume)",message="exactly one must be set: containerDisk or dataVolume"
// +kubebuilder:validation:XValidation:rule="!has(self.dataVolume) || !has(self.dataVolume.source.blank)",message="a machine can't boot from a blank disk"
type KubeVirtRootDisk struct {
	// containerDisk is an image that holds a disk, as "quay.io/containerdisks" has them. What the
	// guest writes is lost when it ends. Default: none.
	// +optional
	ContainerDisk *KubeVirtContainerDisk `json:"containerDisk,omitempty"`

	// dataVolume is a volume of the machine's own, which CDI fills. Default: none.
	// +optional
	DataVolume *KubeVirtDataVolume `json:"dataVolume,omitempty"`

	// bus of the disk. Default: the preference's, else "virtio".
	// +optional
	Bus KubeVirtDiskBus `json:"bus,omitempty"`
}

// KubeVirtDiskBus is how a guest sees a disk.
// +kubebuilder:validation:Enum=virtio;scsi;sata
type KubeVirtDiskBus string

// KubeVirtContainerDisk is a disk in an OCI image.
type KubeVirtContainerDisk struct {
	// image with the disk. Example: "quay.io/containerdisks/ubuntu:24.04".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// pullSecret names a Secret in the account's namespace with the registry's credentials.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PullSecret string `json:"pullSecret,omitempty"`

	// pullPolicy says when the image is pulled. Default: "Always" for the tag "latest", otherwise
	// "IfNotPresent".
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy string `json:"pullPolicy,omitempty"`
}

// KubeVirtDataDisk is a further disk. Exactly one source must be set.
// +kubebuilder:validation:XValidation:rule="[has(self.containerDisk), has(self.dataVolume), has(self.emptyGiB)].filter(x, x).size() == 1",message="exactly one must be set: containerDisk, dataVolume or emptyGiB"
type KubeVirtDataDisk struct {
	// name of the disk; the guest sees it as its serial number. Example: "data".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['root', 'cloudinit'])",message="root and cloudinit are the machine's own disks"
	Name string `json:"name,omitempty"`

	// containerDisk is an image that holds a disk. What the guest writes is lost when it ends.
	// Default: none.
	// +optional
	ContainerDisk *KubeVirtContainerDisk `json:"containerDisk,omitempty"`

	// dataVolume is a volume of the machine's own. Default: none.
	// +optional
	DataVolume *KubeVirtDataVolume `json:"dataVolume,omitempty"`

	// emptyGiB is the size in GiB of an empty disk on the node, which is lost when the guest ends.
	// Default: none. Example: 20.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	EmptyGiB int32 `json:"emptyGiB,omitempty"`

	// bus of the disk. Default: the preference's, else "virtio".
	// +optional
	Bus KubeVirtDiskBus `json:"bus,omitempty"`
}

// KubeVirtDataVolume is a volume that is made with the machine and deleted with it.
type KubeVirtDataVolume struct {
	// source of what the volume holds at first.
	// +required
	Source KubeVirtDataVolumeSource `json:"source,omitzero"`

	// sizeGiB is the size in GiB. Default: the source's, where CDI can tell it. Example: 40.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// storageClassName of the volume. Default: the cluster's default for VMs. Example: "fast".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	StorageClassName string `json:"storageClassName,omitempty"`

	// accessMode of the volume; live migration needs "ReadWriteMany". Default: the storage class's,
	// by CDI's profile of it.
	// +optional
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteMany
	AccessMode string `json:"accessMode,omitempty"`

	// volumeMode of the volume. Default: the storage class's, by CDI's profile of it.
	// +optional
	// +kubebuilder:validation:Enum=Block;Filesystem
	VolumeMode string `json:"volumeMode,omitempty"`
}

// KubeVirtDataVolumeSource is where a volume's content comes from. Exactly one must be set.
// +kubebuilder:validation:XValidation:rule="[has(self.registry), has(self.http), has(self.pvc), has(self.snapshot), has(self.dataSource), has(self.blank)].filter(x, x).size() == 1",message="exactly one source must be set: registry, http, pvc, snapshot, dataSource or blank"
type KubeVirtDataVolumeSource struct {
	// registry is a disk in an OCI image. Default: none.
	// +optional
	Registry *KubeVirtRegistrySource `json:"registry,omitempty"`

	// http is a disk image behind a URL. Default: none.
	// +optional
	HTTP *KubeVirtHTTPSource `json:"http,omitempty"`

	// pvc is a PersistentVolumeClaim to clone. Default: none.
	// +optional
	PVC *KubeVirtObjectSource `json:"pvc,omitempty"`

	// snapshot is a VolumeSnapshot to restore. Default: none.
	// +optional
	Snapshot *KubeVirtObjectSource `json:"snapshot,omitempty"`

	// dataSource is a DataSource of CDI's, which says what to clone and is kept up to date by
	// others. Default: none.
	// +optional
	DataSource *KubeVirtObjectSource `json:"dataSource,omitempty"`

	// blank is an empty volume. Default: none.
	// +optional
	Blank *KubeVirtBlankSource `json:"blank,omitempty"`
}

// KubeVirtBlankSource is no content. It has no fields.
type KubeVirtBlankSource struct{}

// KubeVirtRegistrySource is a disk in an OCI image.
type KubeVirtRegistrySource struct {
	// url of the image. Example: "docker://quay.io/containerdisks/ubuntu:24.04".
	// +required
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(docker|oci-archive)://`
	URL string `json:"url,omitempty"`

	// pullMethod is "node", by the node's container runtime, or "pod", by CDI. Default: CDI's,
	// which is "pod".
	// +optional
	// +kubebuilder:validation:Enum=node;pod
	PullMethod string `json:"pullMethod,omitempty"`

	// secretRef names a Secret in the account's namespace with the registry's credentials. Default:
	// none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretRef string `json:"secretRef,omitempty"`

	// certConfigMap names a ConfigMap in the account's namespace with the authorities to trust.
	// Default: the system's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CertConfigMap string `json:"certConfigMap,omitempty"`
}

// KubeVirtHTTPSource is a disk image behind a URL.
type KubeVirtHTTPSource struct {
	// url of the image. Example: "https://images.example.com/ubuntu-24.04.qcow2".
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://`
	URL string `json:"url,omitempty"`

	// checksum of the image, with its algorithm. Default: not checked. Example: "sha256:9f86d0…".
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=160
	// +kubebuilder:validation:Pattern=`^(md5|sha1|sha256|sha512):[0-9a-f]+$`
	Checksum string `json:"checksum,omitempty"`

	// secretRef names a Secret in the account's namespace with the server's credentials. Default:
	// none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretRef string `json:"secretRef,omitempty"`

	// certConfigMap names a ConfigMap in the account's namespace with the authorities to trust.
	// Default: the system's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CertConfigMap string `json:"certConfigMap,omitempty"`
}

// KubeVirtObjectSource names an object of the cluster that runs the VMs. To take it from another
// namespace, the account's user needs the right to create "datavolumes/source" there.
type KubeVirtObjectSource struct {
	// name of the object. Example: "ubuntu-2404".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// namespace of the object. Default: the account's namespace. Example: "images".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}
