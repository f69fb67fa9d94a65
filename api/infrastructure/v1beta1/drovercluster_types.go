// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
)

// DroverClusterFields are the fields of a cluster that a template can set.
type DroverClusterFields struct {
	// accountRefs names the DroverAccounts, in this namespace, whose zones are offered as failure
	// domains. Machines may refer to other accounts as well. Default: none, and there are no
	// failure domains.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	AccountRefs []LocalReference `json:"accountRefs,omitempty"`

	// endpoint specifies what Drover creates for clients to reach the API servers of a control
	// plane whose machines are DroverMachines. It is immutable. Default: nothing, and
	// controlPlaneEndpoint comes from somebody else.
	// +optional
	Endpoint Endpoint `json:"endpoint,omitempty,omitzero"`
}

// Endpoint specifies how clients reach the API servers of a cluster.
// +kubebuilder:validation:XValidation:rule="has(self.loadBalancer) != has(self.virtualIP)",message="exactly one of loadBalancer and virtualIP must be set"
// +kubebuilder:validation:MinProperties=1
type Endpoint struct {
	// loadBalancer is a load balancer of TCP connections, which forwards them to the machines of
	// the control plane. Its address becomes controlPlaneEndpoint. If somebody deletes it in the
	// cloud, it is not created again, because its address would be another one.
	// +optional
	LoadBalancer LoadBalancer `json:"loadBalancer,omitempty,omitzero"`

	// virtualIP is an address that one machine of the control plane after the other has, as a
	// program on them arranges, such as kube-vip. It becomes controlPlaneEndpoint. The addresses of
	// machines never include it.
	// +optional
	VirtualIP VirtualIP `json:"virtualIP,omitempty,omitzero"`
}

// VirtualIP specifies an address that moves among machines.
// +kubebuilder:validation:XValidation:rule="has(self.address) != has(self.poolRef)",message="exactly one of address and poolRef must be set"
// +kubebuilder:validation:MinProperties=1
type VirtualIP struct {
	// address is an IP address that nobody else uses, in the machines' network.
	// Example: "192.0.2.10".
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address,omitempty"`

	// poolRef names the pool, in this namespace, of an IPAM provider of Cluster API. Drover claims
	// one address with an IPAddressClaim that has the DroverCluster's name and belongs to it.
	// +optional
	PoolRef ipamv1.IPPoolReference `json:"poolRef,omitempty,omitzero"` //nolint:kubeapilinter // The type has required fields, which the linter does not see in another module.

	// port is the TCP port of the API servers. Default: 6443.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// LoadBalancerCloud specifies a load balancer in one cloud. At most one member can be set: that of
// the cloud of the account.
// +kubebuilder:validation:AtMostOneOf=aws;azure;gcp;kubevirt;openstack
// +kubebuilder:validation:MinProperties=1
type LoadBalancerCloud struct {
	// aws specifies a Network Load Balancer.
	// +optional
	AWS *AWSLoadBalancer `json:"aws,omitempty"`

	// azure specifies a Standard Load Balancer.
	// +optional
	Azure *AzureLoadBalancer `json:"azure,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// gcp specifies a proxy Network Load Balancer, which the internet can reach.
	// +optional
	GCP *GCPLoadBalancer `json:"gcp,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// openstack specifies a load balancer of Octavia.
	// +optional
	OpenStack *OpenStackLoadBalancer `json:"openstack,omitempty"` //nolint:kubeapilinter // A pointer, because a union's member is set or nil.

	// kubevirt specifies a Service of the cluster that runs the VMs.
	// +optional
	KubeVirt *KubeVirtLoadBalancer `json:"kubevirt,omitempty"`
}

// LoadBalancer specifies a load balancer.
type LoadBalancer struct {
	// accountRef names the DroverAccount, in this namespace, in whose cloud the load balancer is
	// created. It must be the account of the control plane's machines: those of other accounts get
	// no connections, and only this account's zones are offered to the control plane.
	// +required
	AccountRef LocalReference `json:"accountRef,omitzero"`

	// cloud specifies the load balancer in the cloud of the account. Default: no fields, as in the
	// simulated cloud, whose load balancers have none.
	// +optional
	Cloud LoadBalancerCloud `json:"cloud,omitempty,omitzero"`

	// port is the TCP port of the load balancer and of the API servers. Default: 6443.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// IsSet reports whether Drover provides the endpoint.
func (e *Endpoint) IsSet() bool { return *e != Endpoint{} }

// HasLoadBalancer reports whether Drover creates a load balancer.
func (e *Endpoint) HasLoadBalancer() bool { return e.LoadBalancer != LoadBalancer{} }

// HasVirtualIP reports whether the endpoint is an address that moves among machines.
func (e *Endpoint) HasVirtualIP() bool { return e.VirtualIP != VirtualIP{} }

// DroverClusterSpec specifies the infrastructure of a cluster.
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == has(oldSelf.endpoint) && (!has(self.endpoint) || self.endpoint == oldSelf.endpoint)",message="endpoint is immutable: create a new cluster"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.controlPlaneEndpoint) || (has(self.controlPlaneEndpoint) && self.controlPlaneEndpoint == oldSelf.controlPlaneEndpoint)",message="controlPlaneEndpoint is set once: machines and kubeconfigs have it"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.creation) || (has(self.creation) && self.creation.ownershipID == oldSelf.creation.ownershipID)",message="creation.ownershipID is set once: it is in the tags of every VM of this cluster"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.creation) || !has(oldSelf.creation.loadBalancerToken) || (has(self.creation) && has(self.creation.loadBalancerToken) && self.creation.loadBalancerToken == oldSelf.creation.loadBalancerToken)",message="creation.loadBalancerToken is set once: it is in the tags of the load balancer"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.creation) || !has(oldSelf.creation.loadBalancerZones) || (has(self.creation) && has(self.creation.loadBalancerZones) && self.creation.loadBalancerZones == oldSelf.creation.loadBalancerZones)",message="creation.loadBalancerZones is set once: it is recorded with the load balancer's address"
type DroverClusterSpec struct {
	DroverClusterFields `json:",inline"`

	// controlPlaneEndpoint is the address of the cluster's API server. It is immutable once set.
	// Default: that of endpoint, or copied from the control plane object,
	// once that has it.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"` //nolint:kubeapilinter // The type has MinProperties=1, which the linter does not see in another module.

	// creation is Drover's record of what everything in the clouds that belongs to this cluster is
	// created with. Drover sets it before it creates anything. It is immutable once set. It is in
	// spec so that it survives "clusterctl move".
	// +optional
	Creation DroverClusterCreation `json:"creation,omitempty,omitzero"`
}

// DroverClusterCreation is the record of what a cluster's resources are created with.
type DroverClusterCreation struct {
	// ownershipID marks everything in any cloud that belongs to this cluster. Drover sets it to a
	// random value.
	// Example: "d3x2k9q4m7w1".
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	OwnershipID string `json:"ownershipID,omitempty"`

	// loadBalancerToken is the identity of the endpoint's load balancer in the cloud. Drover sets
	// it to a random value. It is in the tags of the load balancer and all its parts.
	// Example: "5f0c2a91d3b84e6f7a90c1d2e3f40516".
	// +optional
	// +kubebuilder:validation:MinLength=16
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	LoadBalancerToken string `json:"loadBalancerToken,omitempty"`

	// loadBalancerZones are the failure domains in which the load balancer reaches machines. Only
	// these are offered to the control plane. Drover records them together with the load balancer's
	// address. Default: all of the account. Example: ["us-east-1a", "us-east-1b"].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	LoadBalancerZones []string `json:"loadBalancerZones,omitempty"`
}

// DroverClusterInitialization holds the fields that Cluster API reads only once.
// +kubebuilder:validation:MinProperties=1
type DroverClusterInitialization struct {
	// provisioned is true when machines can be created for this cluster.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"` //nolint:kubeapilinter // Cluster API's contract has a bool.
}

// DroverClusterStatus is the observed state of the cluster's infrastructure.
// +kubebuilder:validation:MinProperties=1
type DroverClusterStatus struct {
	// conditions are Ready, EndpointReady, Reachable and Paused. docs/conditions.md lists every
	// reason and its remedy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization is what Cluster API reads while the cluster is provisioned.
	// +optional
	Initialization DroverClusterInitialization `json:"initialization,omitempty,omitzero"`

	// failureDomains are the zones of the accounts in spec.accountRefs.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
}

// DroverCluster is the infrastructure of a Cluster: its identity in the clouds, and the load
// balancer of its API servers, if endpoint asks for one. It creates no networks. The fields of each
// machine specify where it is placed.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=droverclusters,scope=Namespaced,categories=cluster-api,shortName=drc
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:selectablefield:JSONPath=`.spec.creation.loadBalancerToken`
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="The Cluster it belongs to"
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.controlPlaneEndpoint.host",description="The address of the API server"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason",description="Why it is ready or not"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].message",description="What keeps it from being ready",priority=1
type DroverCluster struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the cluster's identity and endpoint.
	// +optional
	Spec DroverClusterSpec `json:"spec,omitempty,omitzero"` //nolint:kubeapilinter // {} is valid: a cluster may need no settings.

	// status is the observed state of the cluster's infrastructure.
	// +optional
	Status DroverClusterStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions, for Cluster API's condition utilities.
func (c *DroverCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions, for Cluster API's condition utilities.
func (c *DroverCluster) SetConditions(conds []metav1.Condition) { c.Status.Conditions = conds }

// DroverClusterList is a list of DroverClusters.
// +kubebuilder:object:root=true
type DroverClusterList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverClusters.
	Items []DroverCluster `json:"items"`
}

// DroverClusterTemplateResource is the template from which a ClusterClass creates DroverClusters.
type DroverClusterTemplateResource struct {
	// metadata is copied to each DroverCluster that is created from the template.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"` //nolint:kubeapilinter // The type has MinProperties=1, which the linter does not see in another module.

	// spec is the part of the DroverClusters' spec that clusters of one class can share.
	// +required
	Spec DroverClusterFields `json:"spec"` //nolint:kubeapilinter // {} is valid: a cluster may need no settings.
}

// DroverClusterTemplateSpec wraps the template.
type DroverClusterTemplateSpec struct {
	// template is the template from which DroverClusters are created. It is immutable. To change
	// it, create a new template.
	// +required
	Template DroverClusterTemplateResource `json:"template"` //nolint:kubeapilinter // {} is valid: a cluster may need no settings.
}

// DroverClusterTemplate is the template from which a ClusterClass creates DroverClusters.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=droverclustertemplates,scope=Namespaced,categories=cluster-api,shortName=drct
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type DroverClusterTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the template.
	// +required
	Spec DroverClusterTemplateSpec `json:"spec"` //nolint:kubeapilinter // {} is valid: a cluster may need no settings.
}

// DroverClusterTemplateList is a list of DroverClusterTemplates.
// +kubebuilder:object:root=true
type DroverClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the DroverClusterTemplates.
	Items []DroverClusterTemplate `json:"items"`
}
