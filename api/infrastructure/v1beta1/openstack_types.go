// SPDX-License-Identifier: Apache-2.0

package v1beta1

// OpenStackInterface specifies which endpoints of the catalog are used.
// +kubebuilder:validation:Enum=public;internal;admin
type OpenStackInterface string

const (
	// OpenStackInterfacePublic is the endpoint for all users.
	OpenStackInterfacePublic OpenStackInterface = "public"
	// OpenStackInterfaceInternal is the endpoint inside the cloud.
	OpenStackInterfaceInternal OpenStackInterface = "internal"
	// OpenStackInterfaceAdmin is the endpoint for administrators.
	OpenStackInterfaceAdmin OpenStackInterface = "admin"
)

// OpenStackAccount is a project in a region of an OpenStack cloud. Its credentials Secret has the
// key "clouds.yaml", plus "tls.crt" and "tls.key" if the services require a client certificate.
// There are no ambient credentials.
// +kubebuilder:validation:XValidation:rule="has(self.region) == has(oldSelf.region) && (!has(self.region) || self.region == oldSelf.region)",message="region can't be changed, because the account's machines would look gone: make a new DroverAccount"
// +kubebuilder:validation:XValidation:rule="(has(self.regionalProviderIDs) && self.regionalProviderIDs == 'Enabled') == (has(oldSelf.regionalProviderIDs) && oldSelf.regionalProviderIDs == 'Enabled')",message="regionalProviderIDs can't be changed, because the account's machines would look gone: make a new DroverAccount"
// +kubebuilder:validation:XValidation:rule="!has(self.regionalProviderIDs) || self.regionalProviderIDs == 'Disabled' || (has(self.region) && self.region.matches('^[A-Za-z0-9._-]+$'))",message="regionalProviderIDs needs a region that has only letters, digits and . _ -"
type OpenStackAccount struct {
	// authURL is the URL of Keystone, in version 3. The auth_url in clouds.yaml must be the same.
	// It is immutable.
	// Example: "https://keystone.example.com/v3".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="authURL can't be changed, because the account's machines would look gone: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s?#@]+$`
	AuthURL string `json:"authURL,omitempty"`

	// projectID is the ID of the project in which machines are created. Credentials for another
	// project are rejected. It is immutable.
	// Example: "8fe3a5a1c1f04e0b8c8b6f1d2d7f9a10".
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="projectID can't be changed, because the account's machines would look gone: make a new DroverAccount"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+$`
	ProjectID string `json:"projectID,omitempty"`

	// region is the region whose services are used. It is immutable. Default: the only region in
	// the service catalog.
	// Example: "RegionOne".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Region string `json:"region,omitempty"`

	// regionalProviderIDs is "Enabled" to put the region into the provider IDs of machines,
	// "openstack://RegionOne/<server>". It is for workload clusters whose OpenStack cloud
	// controller runs with OS_CCM_REGIONAL=true. It needs region, and is immutable. Default:
	// "Disabled".
	// +optional
	RegionalProviderIDs FeatureState `json:"regionalProviderIDs,omitempty"`

	// interface is the kind of the service endpoints to use. Default: "public".
	// +optional
	Interface OpenStackInterface `json:"interface,omitempty"`

	// cloud is the name of the entry in clouds.yaml. Default: the only entry.
	// Example: "openstack".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Cloud string `json:"cloud,omitempty"`

	// caBundle holds the PEM certificates of the authorities with which the services' certificates
	// are verified. Default: the authorities of the manager's system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
}

// OpenStackMachine is a Nova server.
// +kubebuilder:validation:XValidation:rule="has(self.ports) || !has(self.rootVolume) || !(has(self.rootVolume.availabilityZone) || (has(self.rootVolume.inMachineZone) && self.rootVolume.inMachineZone == 'Enabled'))",message="a machine with a volume in a specified zone needs ports, because Drover finds the volume by a port"
// +kubebuilder:validation:XValidation:rule="has(self.ports) || !has(self.volumes) || !self.volumes.exists(v, has(v.availabilityZone) || (has(v.inMachineZone) && v.inMachineZone == 'Enabled'))",message="a machine with a volume in a specified zone needs ports, because Drover finds the volume by a port"
type OpenStackMachine struct {
	// flavor is the ID or name of the flavor.
	// Example: "m1.large".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Flavor string `json:"flavor,omitempty"`

	// image is the image to boot.
	// +required
	Image OpenStackImage `json:"image,omitempty,omitzero"`

	// ports are the machine's network interfaces, in order. They are created and deleted with the
	// machine. If all ports set only network, and the same securityGroups, Nova creates them
	// together with the server, which needs the fewest calls. Default: one port in the project's
	// only network, or in the network that Neutron creates for the project.
	// Example: [{"network": "nodes", "securityGroups": ["nodes"]}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Ports []OpenStackPort `json:"ports,omitempty"`

	// rootVolume makes the machine boot from a volume, which Nova creates from the image and
	// deletes with the machine. Default: none. The root disk is then on the host, as the flavor
	// specifies.
	// +optional
	RootVolume OpenStackVolume `json:"rootVolume,omitempty,omitzero"`

	// volumes are additional, empty volumes, which Nova creates and deletes with the machine. The
	// machine usually sees them as /dev/vdb, /dev/vdc and so on. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Volumes []OpenStackVolume `json:"volumes,omitempty"`

	// availabilityZone is the zone of the machine. Default: the Machine's failure domain, otherwise
	// one of the account's zones, and another one if that has no capacity.
	// Example: "nova".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AvailabilityZone string `json:"availabilityZone,omitempty"`

	// serverGroupID is the ID of the server group that the machine joins. Default: none.
	// Example: "616fb98f-46ca-475e-917e-2563e5a8cd19".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MinLength=36
	// +kubebuilder:validation:MaxLength=64
	ServerGroupID string `json:"serverGroupID,omitempty"`

	// schedulerHints are additional hints for Nova's scheduler, as text.
	// Example: {"build_near_host_ip": "192.0.2.1"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="!('group' in self)",message="set serverGroupID instead of the hint \"group\""
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 255 && size(self[k]) <= 255)",message="a key has at most 255 characters, a value 255"
	SchedulerHints map[string]string `json:"schedulerHints,omitempty"`

	// keyName is the name of the key pair whose public key can log in. The key pair must belong to
	// the user of the credentials. Default: none.
	// Example: "operators".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	KeyName string `json:"keyName,omitempty"`

	// configDrive is "Enabled" to provide the machine's metadata and user data also as a disk, for
	// networks without a metadata service. Default: the cloud's setting.
	// +optional
	ConfigDrive FeatureState `json:"configDrive,omitempty"`

	// metadata is the metadata of the server. Keys that begin with "drover-" are reserved for
	// Drover. Default: none.
	// Example: {"cost-center": "4711"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 255 && size(self[k]) <= 255)",message="a key has at most 255 characters, a value 255"
	Metadata map[string]string `json:"metadata,omitempty"`

	// tags are the tags of the server. Tags that begin with "drover" are reserved for Drover.
	// Default: none.
	// Example: ["worker"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=48
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=60
	// +kubebuilder:validation:items:Pattern=`^[^,/]+$`
	Tags []string `json:"tags,omitempty"`
}

// OpenStackImage is a Glance image: the one with the ID, or the newest active image with the name
// and all the tags.
// +kubebuilder:validation:XValidation:rule="has(self.id) != (has(self.name) || has(self.tags))",message="set either id, or name, tags or both"
// +kubebuilder:validation:MinProperties=1
type OpenStackImage struct {
	// id is the ID of the image.
	// Example: "155d900f-4e14-4e4c-a73d-069cbf4541e6".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MinLength=36
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id,omitempty"`

	// name is the exact name of the image.
	// Example: "ubuntu-24.04-v1.36.3".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Name string `json:"name,omitempty"`

	// tags are the tags that the image must have, all of them.
	// Example: ["kubernetes-v1.36.3"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Tags []string `json:"tags,omitempty"`
}

// OpenStackVolume is a Cinder volume. Nova creates it with the machine, in the zone that Cinder
// chooses, or in the machine's zone if Nova's operator has configured that. If the volume specifies
// a zone, Drover creates it before the machine, with a separate call. Such a machine needs ports.
// +kubebuilder:validation:XValidation:rule="!has(self.availabilityZone) || !has(self.inMachineZone) || self.inMachineZone == 'Disabled'",message="availabilityZone and inMachineZone exclude each other: set one of them"
type OpenStackVolume struct {
	// sizeGiB is the size of the volume in GiB.
	// Example: 50.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`

	// type is the ID or name of the volume type. It needs Nova of the release Stein (2019) or
	// later. Default: the cloud's default type.
	// Example: "ssd".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Type string `json:"type,omitempty"`

	// availabilityZone is the Cinder zone in which the volume is created. Default: the choice of
	// Cinder, or of Nova's operator.
	// Example: "nova".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AvailabilityZone string `json:"availabilityZone,omitempty"`

	// inMachineZone is "Enabled" to create the volume in the zone of the machine, if Cinder has the
	// same zones as Nova. Default: "Disabled".
	// +optional
	InMachineZone FeatureState `json:"inMachineZone,omitempty"`
}

// OpenStackVNICType is the type of a port's virtual network card.
// +kubebuilder:validation:Enum=normal;macvtap;direct;direct-physical;baremetal;virtio-forwarder;vdpa;remote-managed
type OpenStackVNICType string

const (
	// OpenStackVNICNormal is a card that the hypervisor emulates.
	OpenStackVNICNormal OpenStackVNICType = "normal"
	// OpenStackVNICMacvtap is a macvtap device.
	OpenStackVNICMacvtap OpenStackVNICType = "macvtap"
	// OpenStackVNICDirect is a virtual function of a card.
	OpenStackVNICDirect OpenStackVNICType = "direct"
	// OpenStackVNICDirectPhysical is a physical function of a card.
	OpenStackVNICDirectPhysical OpenStackVNICType = "direct-physical"
	// OpenStackVNICBaremetal is a port of a bare metal server.
	OpenStackVNICBaremetal OpenStackVNICType = "baremetal"
	// OpenStackVNICVirtioForwarder is a virtio forwarder.
	OpenStackVNICVirtioForwarder OpenStackVNICType = "virtio-forwarder"
	// OpenStackVNICVDPA is a vDPA device.
	OpenStackVNICVDPA OpenStackVNICType = "vdpa"
	// OpenStackVNICRemoteManaged is a port of a SmartNIC.
	OpenStackVNICRemoteManaged OpenStackVNICType = "remote-managed"
)

// OpenStackPort is a Neutron port.
// +kubebuilder:validation:XValidation:rule="!has(self.portSecurity) || self.portSecurity == 'Enabled' || (!has(self.securityGroups) && !has(self.allowedAddressPairs))",message="securityGroups and allowedAddressPairs need port security: remove them, or set portSecurity to Enabled"
type OpenStackPort struct {
	// network is the ID or name of the port's network.
	// Example: "nodes".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Network string `json:"network,omitempty"`

	// fixedIPs are the addresses of the port, one for each item. Default: Neutron's choice.
	// Example: [{"subnetID": "616fb98f-46ca-475e-917e-2563e5a8cd19"}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	FixedIPs []OpenStackFixedIP `json:"fixedIPs,omitempty"`

	// macAddress is the MAC address of the port, for a pool of one machine. Default: Neutron's
	// choice.
	// Example: "fa:16:3e:00:00:01".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	// +kubebuilder:validation:MinLength=17
	// +kubebuilder:validation:MaxLength=17
	MACAddress string `json:"macAddress,omitempty"`

	// securityGroups are the IDs or names of the port's security groups. Default: the project's
	// group "default".
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// allowedAddressPairs are the addresses that the port may send from in addition to its own,
	// such as those of pods. Default: none.
	// Example: [{"ipAddress": "10.244.0.0/16"}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	AllowedAddressPairs []OpenStackAddressPair `json:"allowedAddressPairs,omitempty"`

	// vnicType specifies how the port is bound to the host, such as "direct" for SR-IOV. Default:
	// Neutron's default, which is "normal".
	// +optional
	VNICType OpenStackVNICType `json:"vnicType,omitempty"`

	// floatingNetwork is the ID or name of the network from which the port gets a floating IP. The
	// floating IP is deleted with the machine. The port's own network must be routed to
	// floatingNetwork. Default: none.
	// Example: "public".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	FloatingNetwork string `json:"floatingNetwork,omitempty"`

	// trunk is "Enabled" to make the port the parent of a trunk, so that the machine can have
	// additional VLAN-tagged networks on it. Software on the machine, such as Kuryr, adds the
	// subports. The trunk is deleted with the machine, and the ports of its subports remain.
	// Default: "Disabled".
	// +optional
	Trunk FeatureState `json:"trunk,omitempty"`

	// bindingProfile is passed to the port's mechanism driver, as text. Neutron allows only its
	// operators to set it, unless they have configured otherwise. Default: none.
	// Example: {"trusted": "true"}.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 255 && size(self[k]) <= 1024)",message="a key has at most 255 characters, a value 1024"
	BindingProfile map[string]string `json:"bindingProfile,omitempty"`

	// tags are the tags of the port. Neutron accepts them only if its operator has enabled the
	// extension driver tag_ports_during_bulk_creation, and otherwise refuses the port.
	// Example: ["team-a"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=60
	// +kubebuilder:validation:items:Pattern=`^[^,/]+$`
	Tags []string `json:"tags,omitempty"`

	// qosPolicy is the ID or name of the port's QoS policy. Default: the network's policy.
	// Example: "bronze".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	QoSPolicy string `json:"qosPolicy,omitempty"`

	// portSecurity is "Enabled" to filter the traffic of the port, by security groups and against
	// forged addresses. Default: the network's setting.
	// +optional
	PortSecurity FeatureState `json:"portSecurity,omitempty"`
}

// OpenStackFixedIP is an address of a port. If it has only a subnetID, Neutron chooses the address.
// +kubebuilder:validation:MinProperties=1
type OpenStackFixedIP struct {
	// subnetID is the ID of the address's subnet, which must be in the port's network. Default: the
	// subnet that contains ipAddress.
	// Example: "616fb98f-46ca-475e-917e-2563e5a8cd19".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MinLength=36
	// +kubebuilder:validation:MaxLength=36
	SubnetID string `json:"subnetID,omitempty"`

	// ipAddress is the address. It is for a pool of one machine, because no two ports can have the
	// same address. Default: a free address of the subnet.
	// Example: "10.0.0.10".
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	IPAddress string `json:"ipAddress,omitempty"`
}

// OpenStackAddressPair is an address that a port may send from in addition to its own.
type OpenStackAddressPair struct {
	// ipAddress is the address, or a network.
	// Example: "10.244.0.0/16".
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=49
	IPAddress string `json:"ipAddress,omitempty"`

	// macAddress is the MAC address that belongs to ipAddress. Default: the port's.
	// Example: "fa:16:3e:00:00:01".
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`
	// +kubebuilder:validation:MinLength=17
	// +kubebuilder:validation:MaxLength=17
	MACAddress string `json:"macAddress,omitempty"`
}

// OpenStackLoadBalancer is a load balancer of Octavia for the API servers of a cluster.
type OpenStackLoadBalancer struct {
	// subnet is the name or ID of the subnet in which the load balancer has its address. It must
	// reach the machines.
	// Example: "nodes-v4".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Subnet string `json:"subnet,omitempty"`

	// floatingNetwork is the name or ID of the external network of the load balancer's floating IP,
	// which becomes the endpoint. Default: none, and the endpoint is the address in subnet.
	// Example: "public".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	FloatingNetwork string `json:"floatingNetwork,omitempty"`

	// provider is Octavia's provider. With "ovn", API servers are checked by a TCP connection; with
	// any other, by a request to /readyz. Set "ovn" also if that is Octavia's default. Default:
	// Octavia's, which must not be "ovn".
	// Example: "amphora".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Provider string `json:"provider,omitempty"`

	// flavorID is the ID of one of Octavia's flavors. Default: that of the provider.
	// Example: "5f2e9f0a-54a6-4a3a-9a1f-2b0c7d8e4f61".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	FlavorID string `json:"flavorID,omitempty"`

	// availabilityZone is one of Octavia's, which are not Nova's. Default: that of the provider.
	// Example: "az-1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	AvailabilityZone string `json:"availabilityZone,omitempty"`
}
