// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// InstallMode says where a node's software comes from.
// +kubebuilder:validation:Enum=Prebuilt;Packages;Binaries
type InstallMode string

// The modes.
const (
	// InstallPrebuilt configures and starts what is in the image.
	InstallPrebuilt InstallMode = "Prebuilt"
	// InstallPackages takes containerd and the kubelet from package repositories, and holds them at
	// their version.
	InstallPackages InstallMode = "Packages"
	// InstallBinaries downloads each part, and checks it against a SHA-256 that the user gave.
	InstallBinaries InstallMode = "Binaries"
)

// Install says where containerd and the kubelet come from. The kubelet's version is the Machine's
// in all modes.
// +kubebuilder:validation:XValidation:rule="!has(self.packages) || (has(self.mode) && self.mode == 'Packages')",message="packages needs the mode Packages"
// +kubebuilder:validation:XValidation:rule="has(self.binaries) == (has(self.mode) && self.mode == 'Binaries')",message="binaries and the mode Binaries go together"
type Install struct {
	// mode: "Prebuilt" starts what is in the image, "Packages" installs from package repositories,
	// "Binaries" downloads single files. Default: "Prebuilt".
	// +optional
	Mode InstallMode `json:"mode,omitempty"`

	// packages belongs to the mode Packages. Default: the projects' own repositories.
	// +optional
	Packages PackagesInstall `json:"packages,omitempty,omitzero"`

	// binaries belongs to the mode Binaries, and is required there. Example: docs/bootstrap.md.
	// +optional
	Binaries *BinariesInstall `json:"binaries,omitempty"`
}

// PackagesInstall says which packages are installed, and from where.
// +kubebuilder:validation:MinProperties=1
type PackagesInstall struct {
	// containerdVersion is the version, or its beginning, of containerd's package. Default: the
	// operating system's in docs/bootstrap.md. Example: "2.2".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+(\.[0-9]+)?$`
	ContainerdVersion string `json:"containerdVersion,omitempty"`

	// kubernetesRepository is a copy of the Kubernetes project's repository, without the version's
	// folder. Default: "https://pkgs.k8s.io/core:/stable:".
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https://[A-Za-z0-9._~:/-]+[^/]$`
	KubernetesRepository string `json:"kubernetesRepository,omitempty"`

	// containerdRepository is a copy of Docker's repository, which holds containerd, without the
	// operating system's folder. Amazon Linux has containerd in its own. Default:
	// "https://download.docker.com/linux".
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https://[A-Za-z0-9._~:/-]+[^/]$`
	ContainerdRepository string `json:"containerdRepository,omitempty"`
}

// BinariesInstall says which files are downloaded.
type BinariesInstall struct {
	// architecture of the machine. Default: "amd64".
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture,omitempty"`

	// mirror is where copies of the files are, each below the host and path of the original.
	// Default: the originals. Example: "https://mirror.example.org", which holds
	// "https://mirror.example.org/dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubelet".
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~:/-]+[^/]$`
	Mirror string `json:"mirror,omitempty"`

	// kubelet is the file of dl.k8s.io at the Machine's version.
	// +required
	Kubelet Checksum `json:"kubelet,omitempty,omitzero"`

	// kubeadm is the file of dl.k8s.io at the Machine's version. It belongs to join.method Kubeadm,
	// and is required there.
	// +optional
	Kubeadm Checksum `json:"kubeadm,omitempty,omitzero"`

	// containerd is the archive of containerd's releases.
	// +required
	Containerd Release `json:"containerd,omitempty,omitzero"`

	// runc is the file of runc's releases.
	// +required
	Runc Release `json:"runc,omitempty,omitzero"`

	// cniPlugins is the archive of the releases of the CNI's reference plugins.
	// +required
	CNIPlugins Release `json:"cniPlugins,omitempty,omitzero"`

	// crictl is the archive of cri-tools' releases. Default: crictl is not installed; a node does
	// without.
	// +optional
	Crictl Release `json:"crictl,omitempty,omitzero"`
}

// Checksum is what a download must be.
type Checksum struct {
	// sha256 of the file, in hexadecimal. It is checked before the file is used.
	// Example: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// Release is one file of a project's release.
type Release struct {
	// version of the release, without "v". Example: "2.2.1".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$`
	Version string `json:"version,omitempty"`

	// sha256 of the file, in hexadecimal. It is checked before the file is used.
	// Example: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// JoinMethod says what brings a machine into its cluster.
// +kubebuilder:validation:Enum=Kubelet;Kubeadm
type JoinMethod string

// The methods.
const (
	// JoinKubelet starts the kubelet with a bootstrap kubeconfig and its whole configuration.
	JoinKubelet JoinMethod = "Kubelet"
	// JoinKubeadm runs "kubeadm join": the kubelet's configuration is the cluster's, with what the
	// spec says put over it.
	JoinKubeadm JoinMethod = "Kubeadm"
)

// Join says how a machine joins the cluster.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.ignorePreflightErrors) || (has(self.method) && self.method == 'Kubeadm')",message="ignorePreflightErrors needs the method Kubeadm"
type Join struct {
	// method: "Kubelet" starts the kubelet with a configuration of Drover's, and needs nothing of
	// the cluster. "Kubeadm" runs "kubeadm join", which takes the kubelet's configuration from the
	// cluster's ConfigMap kubelet-config; the fields of kubelet, clusterDNS and clusterDomain here
	// are put over it. It needs a cluster that kubeadm made, a Machine with a version, and kubeadm
	// in a prebuilt image; docs/bootstrap.md says more. Default: "Kubelet".
	// +optional
	Method JoinMethod `json:"method,omitempty"`

	// ignorePreflightErrors are checks of kubeadm's whose failure is a warning only, or "all". They
	// belong to the method Kubeadm. Default: none. Example: ["SystemVerification"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
}

// Kubelet holds settings of the kubelet. Names and meanings are those of KubeletConfiguration
// (kubelet.config.k8s.io/v1beta1).
// +kubebuilder:validation:MinProperties=1
type Kubelet struct {
	// nodeIPFamily says which of the machine's addresses is the Node's: "IPv4", "IPv6", or
	// "DualStack" for the address of each family that the default route has. Default: the kubelet's
	// choice, IPv4 before IPv6.
	// +optional
	// +kubebuilder:validation:Enum=IPv4;IPv6;DualStack
	NodeIPFamily string `json:"nodeIPFamily,omitempty"`

	// maxPods is how many pods the Node takes. Default: 110.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxPods *int32 `json:"maxPods,omitempty"`

	// featureGates by name. Default: Kubernetes' own. Example: {"NodeSwap":true}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	FeatureGates map[string]bool `json:"featureGates,omitempty"`

	// systemReserved is kept for the system's daemons: cpu, memory, ephemeral-storage, pid.
	// Default: nothing. Example: {"cpu":"100m","memory":"200Mi"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	SystemReserved map[string]string `json:"systemReserved,omitempty"`

	// kubeReserved is kept for kubelet and containerd: cpu, memory, ephemeral-storage, pid.
	// Default: nothing. Example: {"cpu":"100m","memory":"300Mi"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	KubeReserved map[string]string `json:"kubeReserved,omitempty"`

	// evictionHard are the thresholds at which pods are evicted at once: a signal's name, and an
	// amount or a percentage. Default: the kubelet's. Example:
	// {"memory.available":"200Mi","nodefs.available":"10%"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	EvictionHard map[string]string `json:"evictionHard,omitempty"`

	// evictionSoft are the thresholds at which pods are evicted after a time of grace. Default:
	// none.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	EvictionSoft map[string]string `json:"evictionSoft,omitempty"`

	// evictionSoftGracePeriod is the time of grace of each signal in evictionSoft. Default: none.
	// Example: {"memory.available":"1m30s"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	EvictionSoftGracePeriod map[string]string `json:"evictionSoftGracePeriod,omitempty"`

	// containerLogMaxSize is how large a container's log may grow before it is rotated. Default:
	// "10Mi".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	ContainerLogMaxSize string `json:"containerLogMaxSize,omitempty"`

	// containerLogMaxFiles is how many log files a container may have. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=1000
	ContainerLogMaxFiles *int32 `json:"containerLogMaxFiles,omitempty"`

	// configuration holds further fields of KubeletConfiguration. Unknown fields are refused, and
	// so are those that have a field here or that Drover sets: how the kubelet joins, whom it
	// trusts, which runtime it uses. Default: none. Example: {"serializeImagePulls":false}.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Configuration *apiextensionsv1.JSON `json:"configuration,omitempty"`
}

// Registry says where images of one registry are pulled from.
type Registry struct {
	// host of the registry as it stands in image names, with its port if there is one; "_default"
	// stands for all that are not listed. Example: "docker.io".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(_default|[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?)$`
	Host string `json:"host,omitempty"`

	// mirrors are asked first, in order; the registry itself comes last. An address with "/v2" in
	// it is used as it is. Example:
	// ["https://mirror.example.org","https://harbor.example.org/v2/hub"].
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=8
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:Pattern=`^https?://[A-Za-z0-9._~:/\[\]-]+$`
	Mirrors []string `json:"mirrors,omitempty"`
}

// Containerd holds settings of the container runtime.
// +kubebuilder:validation:MinProperties=1
type Containerd struct {
	// pauseImage is the image that holds a pod's namespaces. Only where Drover installs containerd:
	// a prebuilt image brings its own. Default: containerd's. Example:
	// "registry.example.org/pause:3.10.1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`
	PauseImage string `json:"pauseImage,omitempty"`

	// registries with mirrors. They are written into /etc/containerd/certs.d. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=host
	// +kubebuilder:validation:MaxItems=32
	Registries []Registry `json:"registries,omitempty"`

	// credentials names a Secret of type kubernetes.io/dockerconfigjson, by which the kubelet pulls
	// images for all pods of the Node. Default: none.
	// +optional
	Credentials SecretName `json:"credentials,omitempty,omitzero"`
}
