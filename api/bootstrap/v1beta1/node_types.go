// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// InstallMode specifies where a node's software comes from.
// +kubebuilder:validation:Enum=Prebuilt;Packages;Binaries
type InstallMode string

// The install modes.
const (
	// InstallPrebuilt configures and starts the software in the image.
	InstallPrebuilt InstallMode = "Prebuilt"
	// InstallPackages installs containerd and the kubelet from package repositories, and holds them
	// at their version.
	InstallPackages InstallMode = "Packages"
	// InstallBinaries downloads each file, and verifies it against a SHA-256 checksum from the
	// user.
	InstallBinaries InstallMode = "Binaries"
)

// Install specifies where containerd and the kubelet come from. In all modes, the kubelet has the
// version of the Machine.
// +kubebuilder:validation:XValidation:rule="!has(self.packages) || (has(self.mode) && self.mode == 'Packages')",message="packages needs the mode Packages"
// +kubebuilder:validation:XValidation:rule="has(self.binaries) == (has(self.mode) && self.mode == 'Binaries')",message="binaries and the mode Binaries go together"
// +kubebuilder:validation:MinProperties=1
type Install struct {
	// mode is "Prebuilt" to start the software in the image, "Packages" to install from package
	// repositories, or "Binaries" to download single files. Default: "Prebuilt".
	// +optional
	Mode InstallMode `json:"mode,omitempty"`

	// packages configures the mode Packages. Default: the projects' own repositories.
	// +optional
	Packages PackagesInstall `json:"packages,omitempty,omitzero"`

	// binaries configures the mode Binaries, and is required in that mode.
	// Example: docs/bootstrap.md.
	// +optional
	Binaries BinariesInstall `json:"binaries,omitempty,omitzero"`
}

// PackagesInstall specifies which packages are installed, and from where.
// +kubebuilder:validation:MinProperties=1
type PackagesInstall struct {
	// containerdVersion is the version of the containerd package, or the beginning of the version.
	// Default: the version in docs/bootstrap.md for the operating system.
	// Example: "2.2".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+(\.[0-9]+)?$`
	ContainerdVersion string `json:"containerdVersion,omitempty"`

	// kubernetesRepository is the URL of a copy of the Kubernetes project's repository, without the
	// version's folder. Default: "https://pkgs.k8s.io/core:/stable:".
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https://[A-Za-z0-9._~:/-]+[^/]$`
	KubernetesRepository string `json:"kubernetesRepository,omitempty"`

	// containerdRepository is the URL of a copy of Docker's repository, which contains containerd,
	// without the operating system's folder. Amazon Linux has containerd in its own repository.
	// Default: "https://download.docker.com/linux".
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https://[A-Za-z0-9._~:/-]+[^/]$`
	ContainerdRepository string `json:"containerdRepository,omitempty"`
}

// Architecture is the CPU architecture of a machine.
// +kubebuilder:validation:Enum=amd64;arm64
type Architecture string

// The architectures have their names in Go and in Kubernetes' downloads.
const (
	// ArchitectureAMD64 is x86-64.
	ArchitectureAMD64 Architecture = "amd64"
	// ArchitectureARM64 is AArch64.
	ArchitectureARM64 Architecture = "arm64"
)

// BinariesInstall specifies which files are downloaded.
type BinariesInstall struct {
	// architecture is the CPU architecture of the machine, by the name in the files' URLs. Default:
	// "amd64".
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`

	// mirror is the base URL of copies of the files. Each copy is below the host and path of the
	// original. Default: the originals.
	// Example: "https://mirror.example.org", which holds
	// "https://mirror.example.org/dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubelet".
	// +optional
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~:/-]+[^/]$`
	Mirror string `json:"mirror,omitempty"`

	// kubelet is the file from dl.k8s.io at the Machine's version.
	// +required
	Kubelet Checksum `json:"kubelet,omitempty,omitzero"`

	// kubeadm is the file from dl.k8s.io at the Machine's version. It is required with join.method
	// Kubeadm, and can't be set otherwise.
	// +optional
	Kubeadm Checksum `json:"kubeadm,omitempty,omitzero"`

	// containerd is the archive of a containerd release: on the systems of the Red Hat family and
	// Amazon Linux, whose glibc is older than 2.35, the statically linked one,
	// containerd-static-<version>-linux-<architecture>.tar.gz, and on the others
	// containerd-<version>-linux-<architecture>.tar.gz.
	// +required
	Containerd Release `json:"containerd,omitempty,omitzero"`

	// runc is the binary of a runc release.
	// +required
	Runc Release `json:"runc,omitempty,omitzero"`

	// cniPlugins is the archive of a release of the CNI reference plugins.
	// +required
	CNIPlugins Release `json:"cniPlugins,omitempty,omitzero"`

	// crictl is the archive of a cri-tools release. Default: none, crictl is not installed. A node
	// does not need it.
	// +optional
	Crictl Release `json:"crictl,omitempty,omitzero"`
}

// Checksum is the checksum that a download must have.
type Checksum struct {
	// sha256 is the SHA-256 checksum of the file, in hexadecimal. It is verified before the file is
	// used.
	// Example: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// Release is one file of a project's release.
type Release struct {
	// version is the version of the release, without "v".
	// Example: "2.2.1".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$`
	Version string `json:"version,omitempty"`

	// sha256 is the SHA-256 checksum of the file, in hexadecimal. It is verified before the file is
	// used.
	// Example: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".
	// +required
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// JoinMethod specifies how a machine joins its cluster.
// +kubebuilder:validation:Enum=Kubelet;Kubeadm
type JoinMethod string

// The join methods.
const (
	// JoinKubelet starts the kubelet with a bootstrap kubeconfig and its whole configuration.
	JoinKubelet JoinMethod = "Kubelet"
	// JoinKubeadm runs "kubeadm join". The kubelet uses the cluster's configuration, and settings
	// in the spec override it.
	JoinKubeadm JoinMethod = "Kubeadm"
)

// Join specifies how a machine joins the cluster.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.ignorePreflightErrors) || (has(self.method) && self.method == 'Kubeadm')",message="ignorePreflightErrors needs the method Kubeadm"
type Join struct {
	// method is "Kubelet" or "Kubeadm". "Kubelet" starts the kubelet with Drover's configuration,
	// and needs nothing from the cluster. "Kubeadm" runs "kubeadm join", which takes the kubelet's
	// configuration from the cluster's ConfigMap kubelet-config. The fields of kubelet, clusterDNS
	// and clusterDomain in this config override that configuration. "Kubeadm" needs a cluster that
	// kubeadm created, a Machine with a version, and kubeadm in a prebuilt image. See
	// docs/bootstrap.md. Default: "Kubelet".
	// +optional
	Method JoinMethod `json:"method,omitempty"`

	// ignorePreflightErrors are the kubeadm checks whose failure is only a warning, or "all". It
	// needs the method Kubeadm. Default: none.
	// Example: ["SystemVerification"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
}

// FeatureState specifies whether a feature is in use.
// +kubebuilder:validation:Enum=Enabled;Disabled
type FeatureState string

// The states of a feature.
const (
	// FeatureEnabled enables the feature.
	FeatureEnabled FeatureState = "Enabled"
	// FeatureDisabled disables the feature.
	FeatureDisabled FeatureState = "Disabled"
)

// FeatureGate enables or disables one feature of the kubelet.
type FeatureGate struct {
	// name is the name of the feature.
	// Example: "NodeSwap".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	Name string `json:"name,omitempty"`

	// state is "Enabled" or "Disabled".
	// Example: "Enabled".
	// +required
	State FeatureState `json:"state,omitempty"`
}

// NodeIPFamily specifies the families of a Node's addresses.
// +kubebuilder:validation:Enum=IPv4;IPv6;DualStack
type NodeIPFamily string

// The families of a Node's addresses.
const (
	// NodeIPv4 is an address of IPv4 only.
	NodeIPv4 NodeIPFamily = "IPv4"
	// NodeIPv6 is an address of IPv6 only.
	NodeIPv6 NodeIPFamily = "IPv6"
	// NodeDualStack is an address of each family.
	NodeDualStack NodeIPFamily = "DualStack"
)

// Kubelet holds settings of the kubelet. Names and meanings are those of KubeletConfiguration
// (kubelet.config.k8s.io/v1beta1).
// +kubebuilder:validation:MinProperties=1
type Kubelet struct {
	// nodeIPFamily specifies which of the machine's addresses the Node uses: "IPv4", "IPv6", or
	// "DualStack" for the default route's address of each family. Default: the kubelet's choice,
	// IPv4 before IPv6.
	// +optional
	NodeIPFamily NodeIPFamily `json:"nodeIPFamily,omitempty"`

	// maxPods is the maximum number of pods on the Node. Default: that of the cluster's
	// kubelet-config with join.method Kubeadm, otherwise the kubelet's own, 110.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxPods int32 `json:"maxPods,omitempty"`

	// featureGates enables or disables features by name. Default: the defaults of Kubernetes.
	// Example: [{"name":"NodeSwap","state":"Enabled"}].
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	FeatureGates []FeatureGate `json:"featureGates,omitempty"`

	// systemReserved is reserved for system daemons: cpu, memory, ephemeral-storage, pid. Default:
	// none.
	// Example: {"cpu":"100m","memory":"200Mi"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="a key has at most 63 characters, a value 63"
	SystemReserved map[string]string `json:"systemReserved,omitempty"`

	// kubeReserved is reserved for the kubelet and containerd: cpu, memory, ephemeral-storage, pid.
	// Default: none.
	// Example: {"cpu":"100m","memory":"300Mi"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="a key has at most 63 characters, a value 63"
	KubeReserved map[string]string `json:"kubeReserved,omitempty"`

	// evictionHard specifies the thresholds at which pods are evicted immediately: the name of a
	// signal, and an amount or a percentage. Default: the kubelet's thresholds.
	// Example: {"memory.available":"200Mi","nodefs.available":"10%"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="a key has at most 63 characters, a value 63"
	EvictionHard map[string]string `json:"evictionHard,omitempty"`

	// evictionSoft specifies the thresholds at which pods are evicted after a grace period.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="a key has at most 63 characters, a value 63"
	EvictionSoft map[string]string `json:"evictionSoft,omitempty"`

	// evictionSoftGracePeriod is the grace period of each signal in evictionSoft. Default: none.
	// Example: {"memory.available":"1m30s"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="a key has at most 63 characters, a value 63"
	EvictionSoftGracePeriod map[string]string `json:"evictionSoftGracePeriod,omitempty"`

	// containerLogMaxSize is the size at which a container's log is rotated. Default: that of the
	// cluster's kubelet-config with join.method Kubeadm, otherwise the kubelet's own, "10Mi".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	ContainerLogMaxSize string `json:"containerLogMaxSize,omitempty"`

	// containerLogMaxFiles is the maximum number of log files of a container. Default: that of the
	// cluster's kubelet-config with join.method Kubeadm, otherwise the kubelet's own, 5.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=1000
	ContainerLogMaxFiles int32 `json:"containerLogMaxFiles,omitempty"`

	// configuration is an escape hatch: it holds fields of KubeletConfiguration that have no field
	// here. Drover passes them on unchanged, and their meaning depends on the kubelet's version.
	// Unknown fields are rejected. So are those with a field in this spec: clusterDNS,
	// clusterDomain, containerLogMaxFiles, containerLogMaxSize, evictionHard, evictionSoft,
	// evictionSoftGracePeriod, featureGates, kubeReserved, maxPods, registerWithTaints (nodeTaints)
	// and systemReserved. And so are those that decide how the kubelet joins, which authorities it
	// trusts, and which runtime it uses: apiVersion, authentication, authorization, cgroupDriver,
	// containerRuntimeEndpoint, imageServiceEndpoint, kind, providerID, readOnlyPort, registerNode,
	// resolvConf, rotateCertificates, serverTLSBootstrap, staticPodURL, tlsCertFile and
	// tlsPrivateKeyFile. Default: none.
	// Example: {"serializeImagePulls":false}.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Configuration *apiextensionsv1.JSON `json:"configuration,omitempty"`
}

// Registry specifies where images of one registry are pulled from.
type Registry struct {
	// host is the host of the registry as in image names, with its port if it has one. "_default"
	// stands for all registries that are not listed.
	// Example: "docker.io".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(_default|[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?)$`
	Host string `json:"host,omitempty"`

	// mirrors are tried first, in order, and then the registry itself.
	// Example: [{"url": "https://mirror.example.org"}].
	// +required
	// +listType=map
	// +listMapKey=url
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// Mirror is a server that has copies of a registry's images.
type Mirror struct {
	// url is the URL of the mirror. If it contains "/v2", containerd uses it as it is.
	// Example: "https://harbor.example.org/v2/hub".
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~:/\[\]-]+$`
	URL string `json:"url,omitempty"`
}

// Containerd holds settings of the container runtime.
// +kubebuilder:validation:MinProperties=1
type Containerd struct {
	// pauseImage is the image that holds a pod's namespaces. It can be set only if Drover installs
	// containerd, because a prebuilt image contains its own. Default: containerd's image.
	// Example: "registry.example.org/pause:3.10.1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`
	PauseImage string `json:"pauseImage,omitempty"`

	// registries are the registries with mirrors. Drover writes them to /etc/containerd/certs.d.
	// Default: none.
	// +optional
	// +listType=map
	// +listMapKey=host
	// +kubebuilder:validation:MaxItems=32
	Registries []Registry `json:"registries,omitempty"`

	// credentials names a Secret of type kubernetes.io/dockerconfigjson, with which the kubelet
	// pulls images for all pods of the Node. Default: none.
	// +optional
	Credentials SecretName `json:"credentials,omitempty,omitzero"`
}
