// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"slices"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// disk is one of "block_device_mapping_v2" in Nova's API reference. Nova makes a volume and deletes it with the server: so there is
// nothing of Cinder's that a crash of ours could leave behind.
type disk struct {
	Source              string `json:"source_type"`
	Destination         string `json:"destination_type"`
	UUID                string `json:"uuid,omitempty"` // of the image
	BootIndex           int    `json:"boot_index"`     // 0 for the root disk, -1 for those that nothing boots from
	SizeGiB             int32  `json:"volume_size,omitempty"`
	VolumeType          string `json:"volume_type,omitempty"`
	DeleteOnTermination bool   `json:"delete_on_termination"`
}

// disksOf are the machine's: none where it has only the flavor's own.
func disksOf(machine *infrav1.OpenStackMachine, image string) []disk {
	if machine.RootVolume == nil && len(machine.Volumes) == 0 {
		return nil
	}
	root := disk{Source: "image", Destination: "local", UUID: image, DeleteOnTermination: true}
	if v := machine.RootVolume; v != nil {
		root.Destination, root.SizeGiB, root.VolumeType = "volume", v.SizeGiB, v.Type
	}
	disks := []disk{root}
	for _, v := range machine.Volumes {
		disks = append(disks, disk{Source: "blank", Destination: "volume", BootIndex: -1, SizeGiB: v.SizeGiB, VolumeType: v.Type, DeleteOnTermination: true})
	}
	return disks
}

// hasVolumeType tells whether the machine names a type of volume.
func hasVolumeType(machine *infrav1.OpenStackMachine) bool {
	return machine.RootVolume != nil && machine.RootVolume.Type != "" ||
		slices.ContainsFunc(machine.Volumes, func(v infrav1.OpenStackVolume) bool { return v.Type != "" })
}
