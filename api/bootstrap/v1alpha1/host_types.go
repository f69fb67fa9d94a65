// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// OperatingSystem is a machine image's operating system.
// +kubebuilder:validation:Enum=ubuntu-20.04;ubuntu-22.04;ubuntu-24.04;debian-12;debian-13;rhel-8;rhel-9;rocky-8;rocky-9;amazon-linux-2;amazon-linux-2023;flatcar
type OperatingSystem string

// Format is how user data are written down.
// +kubebuilder:validation:Enum=cloud-config;ignition
type Format string

// The formats. The data Secret's key "format" holds one of them, as Cluster API's own bootstrap
// provider has it.
const (
	// FormatCloudConfig is cloud-init's.
	FormatCloudConfig Format = "cloud-config"
	// FormatIgnition is Ignition's, specification 3.3.0.
	FormatIgnition Format = "ignition"
)

// SecretKey names one value in a Secret of the config's own namespace, which has the label
// "bootstrap.cluster.x-k8s.io/machine-data".
type SecretKey struct {
	// name of the Secret. Example: "registry".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key within the Secret. Example: "motd".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// SecretName names a Secret of the config's own namespace, which has the label
// "bootstrap.cluster.x-k8s.io/machine-data".
type SecretName struct {
	// name of the Secret. Example: "registry".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// FileSource is where a file's content comes from.
type FileSource struct {
	// secret holds the content. Example: {"name":"motd","key":"text"}.
	// +required
	Secret SecretKey `json:"secret,omitempty,omitzero"`
}

// File is a file on the machine.
// +kubebuilder:validation:XValidation:rule="!(has(self.content) && has(self.contentFrom))",message="give content or contentFrom, not both"
type File struct {
	// path is absolute. Example: "/etc/motd".
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^\x00]+$`
	Path string `json:"path"`

	// content of the file. Default: an empty file.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Content string `json:"content,omitempty"`

	// contentFrom takes the content from a Secret in the same namespace. It is read once, when the
	// user data are made. Default: content.
	// +optional
	ContentFrom FileSource `json:"contentFrom,omitempty,omitzero"`

	// permissions in octal. Default: "0644".
	// +optional
	// +kubebuilder:default="0644"
	// +kubebuilder:validation:Pattern=`^0[0-7]{3}$`
	Permissions string `json:"permissions,omitempty"`

	// owner of the file, "user:group". Default: "root:root".
	// +optional
	// +kubebuilder:default="root:root"
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-z_][-a-z0-9_]*:[a-z_][-a-z0-9_]*$`
	Owner string `json:"owner,omitempty"`
}

// User is a person's account on the machine. It has no password: keys alone let in.
type User struct {
	// name of the account. Example: "alice".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z_][-a-z0-9_]*$`
	Name string `json:"name,omitempty"`

	// sshAuthorizedKeys let in. Default: none. Example: ["ssh-ed25519 AAAA... alice@example.org"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=16
	// +kubebuilder:validation:items:MaxLength=8192
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// sudo is "Allowed" for an account that may do everything, without a password. Default:
	// "Denied".
	// +optional
	// +kubebuilder:validation:Enum=Allowed;Denied
	Sudo string `json:"sudo,omitempty"`
}

// Proxy is the HTTP proxy between the machine and the Internet. The installation, containerd and
// the kubelet use it.
type Proxy struct {
	// httpProxy is for addresses of http. Default: none. Example: "http://proxy.example.org:3128".
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~%:@\[\]-]+/?$`
	HTTPProxy string `json:"httpProxy,omitempty"`

	// httpsProxy is for addresses of https. Default: none. Example:
	// "http://proxy.example.org:3128".
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~%:@\[\]-]+/?$`
	HTTPSProxy string `json:"httpsProxy,omitempty"`

	// noProxy lists what is reached without the proxy: names, addresses, networks. The API server's
	// host, the cluster's domain, .svc and the machine itself are added. Default: none. Example:
	// ["10.0.0.0/8",".example.org"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9._:/*-]+$`
	NoProxy []string `json:"noProxy,omitempty"`
}

// Host holds settings of the operating system.
type Host struct {
	// proxy between the machine and the Internet. Default: none.
	// +optional
	Proxy Proxy `json:"proxy,omitempty,omitzero"`

	// caBundle holds certificates in PEM that the machine trusts in addition to its own list: of a
	// proxy, a mirror or a registry. Needs operatingSystem. Default: none. Example: "-----BEGIN
	// CERTIFICATE-----...".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`

	// ntpServers replace the image's. chrony is set up where the image has it, systemd-timesyncd
	// otherwise. Default: the image's. Example: ["ntp1.example.org","10.0.0.1"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	NTPServers []string `json:"ntpServers,omitempty"`

	// users are made in addition to the image's default user. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Users []User `json:"users,omitempty"`

	// swap is "Off" to switch it off for good, or "Unchanged". A kubelet does not start beside swap
	// unless it is told to. Default: "Off" where Drover installs the kubelet, "Unchanged" for
	// prebuilt images.
	// +optional
	// +kubebuilder:validation:Enum=Off;Unchanged
	Swap string `json:"swap,omitempty"`

	// sysctls are set at each start. Default: forwarding and bridged traffic through the packet
	// filter where Drover installs the kubelet; none for prebuilt images. Example:
	// {"fs.inotify.max_user_watches":"1048576"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Sysctls map[string]string `json:"sysctls,omitempty"`

	// kernelModules are loaded at each start. Default: overlay and br_netfilter where Drover
	// installs the kubelet; none for prebuilt images. Example: ["ip_vs"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_-]+$`
	KernelModules []string `json:"kernelModules,omitempty"`

	// unattendedUpgrades switches the operating system's own upgrades "On" or "Off". The node's
	// software is held at its version either way. Needs operatingSystem. Default: the image's
	// setting.
	// +optional
	// +kubebuilder:validation:Enum=On;Off
	UnattendedUpgrades string `json:"unattendedUpgrades,omitempty"`

	// subscription names a Secret with the keys "organization" and "activationKey", by which a
	// machine of RHEL registers with Red Hat or a Satellite server. It unregisters when it is
	// powered off, and not when it restarts. Default: none, the image comes with its repositories.
	// +optional
	Subscription SecretName `json:"subscription,omitempty,omitzero"`
}
