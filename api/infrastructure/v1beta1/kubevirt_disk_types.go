// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
)

// KubeVirtRootDisk is the disk that the machine boots from. Exactly one source must be set.
// +kubebuilder:validation:XValidation:rule="has(self.containerDisk) != has(self.dataVolume)",message="exactly one must be set: containerDisk or dataVolume"
// +kubebuilder:validation:XValidation:rule="!has(self.dataVolume) || !has(self.dataVolume.source.blank)",message="a machine can't boot from a blank disk"
// +kubebuilder:validation:MinProperties=1
type KubeVirtRootDisk struct {
	// containerDisk is an image that contains a disk, such as those at "quay.io/containerdisks".
	// What the guest writes is lost when the guest ends. Default: none.
	// +optional
	ContainerDisk *KubeVirtContainerDisk `json:"containerDisk,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// dataVolume is a volume of the machine that CDI fills. Default: none.
	// +optional
	DataVolume *KubeVirtDataVolume `json:"dataVolume,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// bus is the bus of the disk. Default: the preference's bus, otherwise "virtio".
	// +optional
	Bus KubeVirtDiskBus `json:"bus,omitempty"`
}

// KubeVirtDiskBus is the bus through which a guest accesses a disk.
// +kubebuilder:validation:Enum=virtio;scsi;sata
type KubeVirtDiskBus string

// KubeVirtContainerDisk is a disk in an OCI image.
type KubeVirtContainerDisk struct {
	// image is the image that contains the disk.
	// Example: "quay.io/containerdisks/ubuntu:24.04".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// pullSecret is the name of a Secret in the account's namespace with the registry's
	// credentials. Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PullSecret string `json:"pullSecret,omitempty"`

	// pullPolicy specifies when the image is pulled. Default: "Always" for the tag "latest",
	// otherwise "IfNotPresent".
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
}

// KubeVirtDataDisk is an additional disk. Exactly one source must be set.
// +kubebuilder:validation:XValidation:rule="[has(self.containerDisk), has(self.dataVolume), has(self.emptyGiB)].filter(x, x).size() == 1",message="exactly one must be set: containerDisk, dataVolume or emptyGiB"
type KubeVirtDataDisk struct {
	// name is the name of the disk. The guest sees it as the disk's serial number.
	// Example: "data".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['root', 'cloudinit'])",message="root and cloudinit are the machine's own disks"
	Name string `json:"name,omitempty"`

	// containerDisk is an image that contains a disk. What the guest writes is lost when the guest
	// ends. Default: none.
	// +optional
	ContainerDisk *KubeVirtContainerDisk `json:"containerDisk,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// dataVolume is a volume of the machine. Default: none.
	// +optional
	DataVolume *KubeVirtDataVolume `json:"dataVolume,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// emptyGiB is the size of an empty disk on the node, in GiB. The disk is lost when the guest
	// ends. Default: none.
	// Example: 20.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	EmptyGiB int32 `json:"emptyGiB,omitempty"`

	// bus is the bus of the disk. Default: the preference's bus, otherwise "virtio".
	// +optional
	Bus KubeVirtDiskBus `json:"bus,omitempty"`
}

// KubeVirtDataVolume is a volume that is created and deleted with the machine.
type KubeVirtDataVolume struct {
	// source specifies the initial content of the volume.
	// +required
	Source KubeVirtDataVolumeSource `json:"source,omitempty,omitzero"`

	// sizeGiB is the size of the volume in GiB. Default: the size of the source, if CDI can
	// determine it.
	// Example: 40.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// storageClassName is the name of the volume's StorageClass. Default: the cluster's default for
	// VMs.
	// Example: "fast".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	StorageClassName string `json:"storageClassName,omitempty"`

	// accessMode is the access mode of the volume. Live migration needs "ReadWriteMany". Default:
	// the mode in CDI's profile of the storage class.
	// +optional
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteMany
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode,omitempty"`

	// volumeMode is the mode of the volume. Default: the mode in CDI's profile of the storage
	// class.
	// +optional
	// +kubebuilder:validation:Enum=Block;Filesystem
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
}

// KubeVirtDataVolumeSource specifies where a volume's content comes from. Exactly one source must
// be set.
// +kubebuilder:validation:XValidation:rule="[has(self.registry), has(self.http), has(self.pvc), has(self.snapshot), has(self.dataSource), has(self.blank)].filter(x, x).size() == 1",message="exactly one source must be set: registry, http, pvc, snapshot, dataSource or blank"
// +kubebuilder:validation:MinProperties=1
type KubeVirtDataVolumeSource struct {
	// registry is a disk in an OCI image. Default: none.
	// +optional
	Registry *KubeVirtRegistrySource `json:"registry,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// http is a disk image at a URL. Default: none.
	// +optional
	HTTP *KubeVirtHTTPSource `json:"http,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// pvc is a PersistentVolumeClaim to clone. Default: none.
	// +optional
	PVC *KubeVirtObjectSource `json:"pvc,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// snapshot is a VolumeSnapshot to restore. Default: none.
	// +optional
	Snapshot *KubeVirtObjectSource `json:"snapshot,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// dataSource is a CDI DataSource, which specifies what to clone and is kept up to date outside
	// of Drover. Default: none.
	// +optional
	DataSource *KubeVirtObjectSource `json:"dataSource,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// blank is an empty volume. Default: none.
	// +optional
	Blank *KubeVirtBlankSource `json:"blank,omitempty"`
}

// KubeVirtBlankSource is an empty source. It has no fields.
type KubeVirtBlankSource struct{}

// KubeVirtPullMethod specifies who pulls an image.
// +kubebuilder:validation:Enum=node;pod
type KubeVirtPullMethod string

const (
	// KubeVirtPullByNode is the container runtime of a node.
	KubeVirtPullByNode KubeVirtPullMethod = "node"
	// KubeVirtPullByPod is the pod of CDI's importer.
	KubeVirtPullByPod KubeVirtPullMethod = "pod"
)

// KubeVirtRegistrySource is a disk in an OCI image.
type KubeVirtRegistrySource struct {
	// url is the URL of the image.
	// Example: "docker://quay.io/containerdisks/ubuntu:24.04".
	// +required
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(docker|oci-archive)://`
	URL string `json:"url,omitempty"`

	// pullMethod is "node" to pull with the node's container runtime, or "pod" to pull with CDI.
	// Default: CDI's default, which is "pod".
	// +optional
	PullMethod KubeVirtPullMethod `json:"pullMethod,omitempty"`

	// secretRef is the name of a Secret in the account's namespace with the registry's credentials.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretRef string `json:"secretRef,omitempty"`

	// certConfigMap is the name of a ConfigMap in the account's namespace with the certificate
	// authorities to trust. Default: the system's authorities.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CertConfigMap string `json:"certConfigMap,omitempty"`
}

// KubeVirtHTTPSource is a disk image at a URL.
type KubeVirtHTTPSource struct {
	// url is the URL of the image.
	// Example: "https://images.example.com/ubuntu-24.04.qcow2".
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://`
	URL string `json:"url,omitempty"`

	// checksum is the checksum of the image, with its algorithm. Default: none, and the image is
	// not verified.
	// Example: "sha256:9f86d0…".
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=160
	// +kubebuilder:validation:Pattern=`^(md5|sha1|sha256|sha512):[0-9a-f]+$`
	Checksum string `json:"checksum,omitempty"`

	// secretRef is the name of a Secret in the account's namespace with the server's credentials.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretRef string `json:"secretRef,omitempty"`

	// certConfigMap is the name of a ConfigMap in the account's namespace with the certificate
	// authorities to trust. Default: the system's authorities.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CertConfigMap string `json:"certConfigMap,omitempty"`
}

// KubeVirtObjectSource names an object of the cluster that runs the VMs. To use an object of
// another namespace, the account's user needs permission to create "datavolumes/source" there.
type KubeVirtObjectSource struct {
	// name is the name of the object.
	// Example: "ubuntu-2404".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// namespace is the namespace of the object. Default: the account's namespace.
	// Example: "images".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}
