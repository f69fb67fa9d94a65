// SPDX-License-Identifier: Apache-2.0

package v1beta1

// SimulatedAccount is a region of a simulated cloud that runs as a separate process ("drover
// simulate"). Its credentials Secret has the key "token".
// +kubebuilder:validation:XValidation:rule="has(self.endpoint) == has(oldSelf.endpoint) && (!has(self.endpoint) || self.endpoint == oldSelf.endpoint)",message="endpoint can't be changed, because the account's machines would look gone: make a new DroverAccount"
// +kubebuilder:validation:XValidation:rule="(has(self.region) ? self.region : 'sim-1') == (has(oldSelf.region) ? oldSelf.region : 'sim-1')",message="region can't be changed: make a new DroverAccount"
type SimulatedAccount struct {
	// endpoint is the URL of the simulated cloud. It is immutable. Default: the URL in the
	// manager's flag --simulated-endpoint.
	// Example: "http://127.0.0.1:8080".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^\s/?#@]+$`
	Endpoint string `json:"endpoint,omitempty"`

	// region is the region of the simulated cloud. It is immutable: in a listing of another region,
	// all machines of this account would be gone. Default: "sim-1".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Region string `json:"region,omitempty"`
}

// SimulatedMachine is a machine of the simulated cloud.
type SimulatedMachine struct {
	// instanceType is the name of an instance type in the cloud's catalog. Default: "small".
	// Example: "small" (2 CPUs, 4 GiB).
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	InstanceType string `json:"instanceType,omitempty"`

	// image is the name of a disk image in the cloud's catalog. Default: "node-image".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Image string `json:"image,omitempty"`

	// zone is the zone of the machine. Default: the Machine's failure domain, otherwise one of the
	// account's zones, and another one if that has no capacity.
	// Example: "sim-1a".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`

	// diskGiB is the size of the root disk, in GiB. Default: 20.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	DiskGiB int32 `json:"diskGiB,omitempty"`

	// dataDisks are additional disks. They are deleted with the machine. Default: none.
	// Example: [{"sizeGiB": 100}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	DataDisks []SimulatedDataDisk `json:"dataDisks,omitempty"`

	// market specifies how the machine is purchased. Default: on demand.
	// +optional
	Market SimulatedMarket `json:"market,omitempty,omitzero"`
}

// SimulatedDataDisk is a disk in addition to the root disk.
type SimulatedDataDisk struct {
	// sizeGiB is the size of the disk in GiB.
	// Example: 100.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	SizeGiB int32 `json:"sizeGiB,omitempty"`
}

// SimulatedMarketType is how a machine is bought.
// +kubebuilder:validation:Enum=spot
type SimulatedMarketType string

// SimulatedMarketSpot is capacity that the cloud may take back.
const SimulatedMarketSpot SimulatedMarketType = "spot"

// SimulatedMarket specifies how the machine is purchased.
type SimulatedMarket struct {
	// type is "spot" for a cheaper machine that the cloud may interrupt at any time.
	// +required
	Type SimulatedMarketType `json:"type,omitempty"`
}
