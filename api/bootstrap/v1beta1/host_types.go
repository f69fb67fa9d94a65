// SPDX-License-Identifier: Apache-2.0

package v1beta1

// OperatingSystem is the operating system of a machine image. Which systems are known depends on
// the release of Drover, and not on the API.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
type OperatingSystem string

// Format is the format of user data.
// +kubebuilder:validation:Enum=CloudConfig;Ignition
type Format string

// The formats of user data. The key "format" of the data Secret has Cluster API's own words for
// them, "cloud-config" and "ignition".
const (
	// FormatCloudConfig is the format of cloud-init.
	FormatCloudConfig Format = "CloudConfig"
	// FormatIgnition is the format of Ignition, specification 3.3.0.
	FormatIgnition Format = "Ignition"
)

// SudoPolicy specifies whether a user account may run commands as root.
// +kubebuilder:validation:Enum=Allowed;Denied
type SudoPolicy string

// The policies for sudo.
const (
	// SudoAllowed permits any command, without a password.
	SudoAllowed SudoPolicy = "Allowed"
	// SudoDenied permits none.
	SudoDenied SudoPolicy = "Denied"
)

// SwapPolicy specifies what happens to swap.
// +kubebuilder:validation:Enum=Off;Unchanged
type SwapPolicy string

// The policies for swap.
const (
	// SwapOff disables swap permanently.
	SwapOff SwapPolicy = "Off"
	// SwapUnchanged leaves swap as in the image.
	SwapUnchanged SwapPolicy = "Unchanged"
)

// UpgradePolicy specifies whether the operating system upgrades itself.
// +kubebuilder:validation:Enum=On;Off
type UpgradePolicy string

// The policies for unattended upgrades.
const (
	// UpgradesOn enables unattended upgrades.
	UpgradesOn UpgradePolicy = "On"
	// UpgradesOff disables unattended upgrades.
	UpgradesOff UpgradePolicy = "Off"
)

// SecretKey names one key of a Secret in the config's namespace. The Secret must have the label
// "drover.io/machine-data".
type SecretKey struct {
	// name is the name of the Secret.
	// Example: "registry".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the key in the Secret.
	// Example: "motd".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// SecretName names a Secret in the config's namespace. The Secret must have the label
// "drover.io/machine-data".
type SecretName struct {
	// name is the name of the Secret.
	// Example: "registry".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// FileSource specifies where a file's content comes from.
type FileSource struct {
	// secret is the key of a Secret that holds the content.
	// Example: {"name":"motd","key":"text"}.
	// +required
	Secret SecretKey `json:"secret,omitempty,omitzero"`
}

// File is a file on the machine.
// +kubebuilder:validation:XValidation:rule="!(has(self.content) && has(self.contentFrom))",message="give content or contentFrom, not both"
type File struct {
	// path is the absolute path of the file.
	// Example: "/etc/motd".
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains('\\x00')",message="must be an absolute path such as /etc/motd"
	Path string `json:"path,omitempty"`

	// content is the content of the file. Default: that of contentFrom, or an empty file.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Content string `json:"content,omitempty"`

	// contentFrom takes the content from a Secret in the same namespace. Drover reads the Secret
	// once, when it creates the user data. Default: none, content is used.
	// +optional
	ContentFrom FileSource `json:"contentFrom,omitempty,omitzero"`

	// permissions are the file's permissions in octal. Default: "0644".
	// +optional
	// +kubebuilder:validation:Pattern=`^0[0-7]{3}$`
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=5
	Permissions string `json:"permissions,omitempty"`

	// owner is the owner of the file, as "user:group". The image or host.users must have both: a
	// machine that lacks one does not become a Node. Default: "root:root".
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-z_][-a-z0-9_]*:[a-z_][-a-z0-9_]*$`
	Owner string `json:"owner,omitempty"`
}

// User is a user account on the machine. It has no password: only SSH keys can log in.
type User struct {
	// name is the name of the user account.
	// Example: "alice".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z_][-a-z0-9_]*$`
	Name string `json:"name,omitempty"`

	// sshAuthorizedKeys are the SSH public keys that can log in. Default: none.
	// Example: ["ssh-ed25519 AAAA... alice@example.org"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=16
	// +kubebuilder:validation:items:MaxLength=8192
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`

	// sudo is "Allowed" for a user account that may run any command as root, without a password.
	// Default: "Denied".
	// +optional
	Sudo SudoPolicy `json:"sudo,omitempty"`
}

// Proxy is the HTTP proxy between the machine and the Internet. The installation, containerd and
// the kubelet use it.
// +kubebuilder:validation:MinProperties=1
type Proxy struct {
	// httpProxy is the proxy for http URLs. Default: none.
	// Example: "http://proxy.example.org:3128".
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~%:@\[\]-]+/?$`
	HTTPProxy string `json:"httpProxy,omitempty"`

	// httpsProxy is the proxy for https URLs. Default: none.
	// Example: "http://proxy.example.org:3128".
	// +optional
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9._~%:@\[\]-]+/?$`
	HTTPSProxy string `json:"httpsProxy,omitempty"`

	// noProxy lists the names, addresses and networks that are reached without the proxy. Drover
	// adds the clouds' metadata services, the API server's host, the cluster's domain, .svc and the
	// machine itself. Default: none.
	// Example: ["10.0.0.0/8",".example.org"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9._:/*-]+$`
	NoProxy []string `json:"noProxy,omitempty"`
}

// Host holds settings of the operating system.
// +kubebuilder:validation:MinProperties=1
type Host struct {
	// proxy is the proxy between the machine and the Internet. Default: none.
	// +optional
	Proxy Proxy `json:"proxy,omitempty,omitzero"`

	// caBundle holds PEM certificates that the machine trusts in addition to its own list, such as
	// that of a proxy, a mirror or a registry. It needs operatingSystem. Default: none.
	// Example: "-----BEGIN CERTIFICATE-----...".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`

	// ntpServers replace the image's NTP servers. Drover configures chrony if the image has it, and
	// systemd-timesyncd otherwise. Default: the image's servers.
	// Example: ["ntp1.example.org","10.0.0.1"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	NTPServers []string `json:"ntpServers,omitempty"`

	// users are created in addition to the image's default user. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Users []User `json:"users,omitempty"`

	// swap is "Off" to disable swap permanently, or "Unchanged". A kubelet does not start on a
	// machine with swap unless it is configured to. Default: "Off" if Drover installs the kubelet,
	// "Unchanged" for prebuilt images.
	// +optional
	Swap SwapPolicy `json:"swap,omitempty"`

	// sysctls are the kernel parameters that are set at each boot. Default: those for forwarding
	// and for passing bridged traffic through the packet filter if Drover installs the kubelet,
	// none for prebuilt images.
	// Example: {"fs.inotify.max_user_watches":"1048576"}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 253 && size(self[k]) <= 1024)",message="a key has at most 253 characters, a value 1024"
	Sysctls map[string]string `json:"sysctls,omitempty"`

	// kernelModules are the kernel modules that are loaded at each boot. Default: overlay and
	// br_netfilter if Drover installs the kubelet, none for prebuilt images.
	// Example: ["ip_vs"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_-]+$`
	KernelModules []string `json:"kernelModules,omitempty"`

	// unattendedUpgrades turns the operating system's own upgrades "On" or "Off". The node's
	// software is held at its version in both cases. It needs operatingSystem. Default: the image's
	// setting.
	// +optional
	UnattendedUpgrades UpgradePolicy `json:"unattendedUpgrades,omitempty"`

	// subscription names a Secret with the keys "organization" and "activationKey", with which a
	// RHEL machine registers with Red Hat or a Satellite server. The machine unregisters when it is
	// powered off, but not when it restarts. Default: none, the image contains its repositories.
	// +optional
	Subscription SecretName `json:"subscription,omitempty,omitzero"`
}
