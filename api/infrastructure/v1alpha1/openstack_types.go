// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// OpenStackAccount is a project in a region of an OpenStack cloud. Its credentials Secret has the
// key "clouds.yaml", and where the services want a client certificate, "tls.crt" and "tls.key";
// there are no ambient credentials.
// +kubebuilder:validation:XValidation:rule="has(self.region) == has(oldSelf.region) && (!has(self.region) || self.region == oldSelf.region)",message="region can't be changed, because the account's machines would look gone: make a new CloudAccount"
// +kubebuilder:validation:XValidation:rule="(has(self.regionalProviderIDs) && self.regionalProviderIDs) == (has(oldSelf.regionalProviderIDs) && oldSelf.regionalProviderIDs)",message="regionalProviderIDs can't be changed, because the account's machines would look gone: make a new CloudAccount"
// +kubebuilder:validation:XValidation:rule="!has(self.regionalProviderIDs) || !self.regionalProviderIDs || (has(self.region) && self.region.matches('^[A-Za-z0-9._-]+$'))",message="regionalProviderIDs needs a region, of letters, digits and . _ - alone"
type OpenStackAccount struct {
	// authURL is Keystone's address, in version 3. clouds.yaml must name the same one as its
	// auth_url. It can't be changed. Example: "https://keystone.example.com/v3".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="authURL can't be changed, because the account's machines would look gone: make a new CloudAccount"
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s?#@]+$`
	AuthURL string `json:"authURL,omitempty"`

	// projectID is the ID of the project in which machines are made. Credentials for another one
	// are refused. It can't be changed. Example: "8fe3a5a1c1f04e0b8c8b6f1d2d7f9a10".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="projectID can't be changed, because the account's machines would look gone: make a new CloudAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	ProjectID string `json:"projectID,omitempty"`

	// region whose services are used. It can't be changed. Default: the only one that the service
	// catalogue has. Example: "RegionOne".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Region string `json:"region,omitempty"`

	// regionalProviderIDs has the provider IDs of machines name the region,
	// "openstack://RegionOne/<server>": for workload clusters whose OpenStack cloud controller runs
	// with OS_CCM_REGIONAL=true. It needs region, and can't be changed. Default: false. Example:
	// true.
	// +optional
	RegionalProviderIDs bool `json:"regionalProviderIDs,omitempty"`

	// interface is the kind of the services' endpoints that are used. Default: "public".
	// +optional
	// +kubebuilder:default=public
	// +kubebuilder:validation:Enum=public;internal;admin
	Interface string `json:"interface,omitempty"`

	// cloud is the name of the entry in clouds.yaml. Default: the only one. Example: "openstack".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Cloud string `json:"cloud,omitempty"`

	// caBundle holds the certificates, as PEM, of the authorities that the services' certificates
	// are verified against. Default: the authorities of the manager's system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
}

// OpenStackMachine is a server of Nova's. Its network interfaces are described by networks, by
// ports, or not at all: then Nova takes the project's only network, or the one that Neutron makes
// for it.
// +kubebuilder:validation:XValidation:rule="!has(self.networks) || !has(self.ports)",message="say networks, or ports"
// +kubebuilder:validation:XValidation:rule="!has(self.securityGroups) || !has(self.ports)",message="with ports, each port says its own securityGroups"
// +kubebuilder:validation:XValidation:rule="has(self.ports) || !has(self.rootVolume) || !(has(self.rootVolume.availabilityZone) || (has(self.rootVolume.inMachineZone) && self.rootVolume.inMachineZone))",message="a machine whose volumes say their zone needs ports: it is by a port that they are found"
// +kubebuilder:validation:XValidation:rule="has(self.ports) || !has(self.volumes) || !self.volumes.exists(v, has(v.availabilityZone) || (has(v.inMachineZone) && v.inMachineZone))",message="a machine whose volumes say their zone needs ports: it is by a port that they are found"
type OpenStackMachine struct {
	// flavor is the size, by ID or by name. Example: "m1.large".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Flavor string `json:"flavor,omitempty"`

	// image to boot.
	// +required
	Image OpenStackImage `json:"image,omitzero"`

	// networks that the machine is in, in the order of its interfaces, by ID or by name. Nova makes
	// a port in each, and deletes it with the machine: this is what costs the fewest calls.
	// Example: ["nodes"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Networks []string `json:"networks,omitempty"`

	// securityGroups of the ports that Nova makes, by ID or by name. Default: the project's group
	// "default".
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// ports that are made for the machine and deleted after it, in the order of its interfaces: for
	// whatever networks can't say. All of a machine's are made by one call. Default: none. Example:
	// [{"network": "nodes", "portSecurity": false}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Ports []OpenStackPort `json:"ports,omitempty"`

	// rootVolume has the machine boot from a volume, which Nova makes from the image and deletes
	// with the machine. Default: none; the root disk is on the host, as the flavor has it.
	// +optional
	RootVolume *OpenStackVolume `json:"rootVolume,omitempty"`

	// volumes are further, empty ones, which Nova makes with the machine and deletes with it. The
	// machine finds them as /dev/vdb, /dev/vdc and so on, as a rule. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Volumes []OpenStackVolume `json:"volumes,omitempty"`

	// availabilityZone to put the machine in. Default: the Machine's failure domain, or else one of
	// the account's zones, and another one when that has no capacity. Example: "nova".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AvailabilityZone string `json:"availabilityZone,omitempty"`

	// serverGroupID is the ID of the server group that the machine joins. Default: none.
	// Example: "616fb98f-46ca-475e-917e-2563e5a8cd19".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	ServerGroupID string `json:"serverGroupID,omitempty"`

	// schedulerHints are further hints for Nova's scheduler, as text. Example:
	// {"build_near_host_ip": "192.0.2.1"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="!('group' in self)",message="the hint group is serverGroupID's"
	SchedulerHints map[string]string `json:"schedulerHints,omitempty"`

	// keyName names the key pair, of the user whose credentials these are, whose public key is let
	// in. Default: none. Example: "operators".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	KeyName string `json:"keyName,omitempty"`

	// configDrive gives the machine its metadata and user data as a disk, too: for networks without
	// a metadata service. Default: as the cloud has it.
	// +optional
	ConfigDrive *bool `json:"configDrive,omitempty"`

	// metadata of the server. Keys that begin with "drover-" are Drover's. Default: none. Example:
	// {"cost-center": "4711"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	Metadata map[string]string `json:"metadata,omitempty"`

	// tags of the server. Those that begin with "drover" are Drover's. Default: none. Example:
	// ["worker"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=48
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=60
	// +kubebuilder:validation:items:Pattern=`^[^,/]+$`
	Tags []string `json:"tags,omitempty"`
}

// OpenStackImage is an image of Glance's: by its ID, or the newest of the active ones that have the
// name and all the tags.
// +kubebuilder:validation:XValidation:rule="has(self.id) != (has(self.name) || has(self.tags))",message="an image is named by its id, or by name and tags"
type OpenStackImage struct {
	// id of the image. Example: "155d900f-4e14-4e4c-a73d-069cbf4541e6".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	ID string `json:"id,omitempty"`

	// name of the image, exactly. Example: "ubuntu-24.04-v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name,omitempty"`

	// tags that the image has, all of them. Example: ["kubernetes-v1.36.3"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Tags []string `json:"tags,omitempty"`
}

// OpenStackVolume is a volume of Cinder's. Nova makes it with the machine, in the zone that Cinder
// chooses, or in the machine's where Nova's operator wants that. Where it says a zone, Drover makes
// it before the machine, by a call of its own; such a machine needs ports.
// +kubebuilder:validation:XValidation:rule="!has(self.availabilityZone) || !has(self.inMachineZone) || !self.inMachineZone",message="say availabilityZone, or inMachineZone"
type OpenStackVolume struct {
	// sizeGiB is how large it is. Example: 50.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// type of the volume, by ID or by name. It needs Nova of the release Stein (2019). Default: the
	// cloud's own. Example: "ssd".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Type string `json:"type,omitempty"`

	// availabilityZone of Cinder's that the volume is made in. Default: as Cinder, or Nova's
	// operator, has it. Example: "nova".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AvailabilityZone string `json:"availabilityZone,omitempty"`

	// inMachineZone has the volume made in the zone that the machine is put into: where Cinder has
	// the same zones as Nova. Default: false. Example: true.
	// +optional
	InMachineZone bool `json:"inMachineZone,omitempty"`
}

// OpenStackPort is a port of Neutron's.
// +kubebuilder:validation:XValidation:rule="!has(self.portSecurity) || self.portSecurity || (!has(self.securityGroups) && !has(self.allowedAddressPairs))",message="a port without port security has neither securityGroups nor allowedAddressPairs"
type OpenStackPort struct {
	// network that the port is in, by ID or by name. Example: "nodes".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Network string `json:"network,omitempty"`

	// subnetIDs are subnets of the network, in each of which the port gets an address. Default: as
	// Neutron chooses.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	SubnetIDs []string `json:"subnetIDs,omitempty"`

	// fixedIPs are addresses that the port gets: since no two ports have the same one, they fit a
	// pool of one machine. Default: as Neutron chooses. Example: ["10.0.0.10"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=45
	FixedIPs []string `json:"fixedIPs,omitempty"`

	// macAddress of the port, for a pool of one machine. Default: as Neutron chooses. Example:
	// "fa:16:3e:00:00:01".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	MACAddress string `json:"macAddress,omitempty"`

	// securityGroups of the port, by ID or by name. Default: the project's group "default".
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// allowedAddressPairs are addresses or networks that the port may send from beside its own,
	// such as those of pods. Example: ["10.244.0.0/16"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=49
	AllowedAddressPairs []string `json:"allowedAddressPairs,omitempty"`

	// vnicType is how the port is bound to the host, such as "direct" for SR-IOV. Default:
	// "normal".
	// +optional
	// +kubebuilder:validation:Enum=normal;macvtap;direct;direct-physical;baremetal;virtio-forwarder;vdpa;remote-managed
	VNICType string `json:"vnicType,omitempty"`

	// floatingNetwork is the network, by ID or by name, of which the port gets a floating IP, which
	// is deleted with the machine. The port's own network must be routed to it. Default: none.
	// Example: "public".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	FloatingNetwork string `json:"floatingNetwork,omitempty"`

	// trunk makes the port the parent of a trunk, so that the machine can have further networks on
	// it, tagged by VLAN: whoever runs there, such as Kuryr, adds subports. The trunk is deleted
	// with the machine, and its subports' own ports stay. Default: false. Example: true.
	// +optional
	Trunk bool `json:"trunk,omitempty"`

	// bindingProfile is what the port's mechanism driver is told, as text. Neutron lets none but
	// its operators write it, where they did not say otherwise. Default: none. Example: {"trusted":
	// "true"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	BindingProfile map[string]string `json:"bindingProfile,omitempty"`

	// tags of the port. Neutron takes them with the port where its operator has the extension
	// driver tag_ports_during_bulk_creation, and refuses the port elsewhere. Example: ["team-a"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=60
	// +kubebuilder:validation:items:Pattern=`^[^,/]+$`
	Tags []string `json:"tags,omitempty"`

	// qosPolicy of the port, by ID or by name. Default: the network's. Example: "bronze".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	QoSPolicy string `json:"qosPolicy,omitempty"`

	// portSecurity filters what the port sends and gets, by security groups and against forged
	// addresses. Default: as the network has it.
	// +optional
	PortSecurity *bool `json:"portSecurity,omitempty"`
}
