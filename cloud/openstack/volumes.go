// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Nova creates and deletes volumes with the server, so a crash leaves no volume behind. But Nova's
// create can't set a volume's zone. If the machine sets it, the driver creates the volume with
// Cinder before the server, and after the first port, whose description announces volumes. Nova
// deletes that volume, too, and the port leads to any that it leaves behind.

// disk is an item of "block_device_mapping_v2" in Nova's API reference.
type disk struct {
	Source              string `json:"source_type"`
	Destination         string `json:"destination_type"`
	UUID                string `json:"uuid,omitempty"` // of the image or the volume
	BootIndex           int    `json:"boot_index"`     // 0 for the root disk, -1 for disks that are not bootable
	SizeGiB             int32  `json:"volume_size,omitempty"`
	VolumeType          string `json:"volume_type,omitempty"`
	DeleteOnTermination bool   `json:"delete_on_termination"`
}

// disksOf returns the machine's disks, or nil if it has only the flavor's. made maps the indices of
// volumes that exist already to their IDs.
func disksOf(machine *infrav1.OpenStackMachine, image string, made map[int]string) []disk {
	if machine.RootVolume.SizeGiB == 0 && len(machine.Volumes) == 0 {
		return nil
	}
	disks := []disk{{Source: "image", Destination: "local", UUID: image, DeleteOnTermination: true}}
	if v := machine.RootVolume; v.SizeGiB > 0 {
		disks[0] = disk{Source: "image", Destination: "volume", UUID: image, SizeGiB: v.SizeGiB, VolumeType: v.Type, DeleteOnTermination: true}
	}
	for _, v := range machine.Volumes {
		disks = append(disks, disk{Source: "blank", Destination: "volume", BootIndex: -1, SizeGiB: v.SizeGiB, VolumeType: v.Type,
			DeleteOnTermination: true})
	}
	for index, id := range made {
		disks[index] = disk{Source: "volume", Destination: "volume", UUID: id, BootIndex: disks[index].BootIndex, DeleteOnTermination: true}
	}
	return disks
}

// ownVolumes returns the volumes that Drover creates, by index: 0 is the root volume, the others
// follow. zone is the machine's.
func ownVolumes(machine *infrav1.OpenStackMachine, zone string) map[int]newVolume {
	own := map[int]newVolume{}
	add := func(index int, v *infrav1.OpenStackVolume) {
		switch {
		case v.InMachineZone == infrav1.FeatureEnabled:
			own[index] = newVolume{SizeGiB: v.SizeGiB, Type: v.Type, Zone: zone}
		case v.AvailabilityZone != "":
			own[index] = newVolume{SizeGiB: v.SizeGiB, Type: v.Type, Zone: v.AvailabilityZone}
		}
	}
	add(0, &machine.RootVolume)
	for i := range machine.Volumes {
		add(i+1, &machine.Volumes[i])
	}
	return own
}

// namesVolumeType reports whether one of the disks that Nova creates has a volume type.
func namesVolumeType(disks []disk) bool {
	return slices.ContainsFunc(disks, func(d disk) bool { return d.VolumeType != "" })
}

// newVolume is the body of "Create a volume" in Cinder's API reference.
type newVolume struct {
	SizeGiB  int32             `json:"size"`
	Type     string            `json:"volume_type,omitempty"`
	Zone     string            `json:"availability_zone,omitempty"`
	Image    string            `json:"imageRef,omitempty"`
	Name     string            `json:"name"`
	Metadata map[string]string `json:"metadata"`
}

// volume holds the fields of a Cinder volume that the driver reads. Its name is the portName.
type volume struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Status   string            `json:"status"`
	Zone     string            `json:"availability_zone"`
	Created  string            `json:"created_at"` // in UTC, without a zone
	Metadata map[string]string `json:"metadata"`
}

const volumeIndex = "drover-volume"

// adoptVolumes returns the machine's own volumes by index. A machine with a fresh first port has
// none.
func (d *driver) adoptVolumes(ctx context.Context, req cloud.Request, machine *infrav1.OpenStackMachine,
	fresh bool) (map[int]volume, error) {
	there, wanted := map[int]volume{}, ownVolumes(machine, "")
	if fresh || len(wanted) == 0 {
		return there, nil
	}
	found, err := d.volumes(ctx, url.Values{"name": {portName(req.Token)}}, nil)
	if err != nil {
		return nil, err
	}
	for _, v := range found {
		index, err := strconv.Atoi(v.Metadata[volumeIndex])
		if _, own := wanted[index]; err != nil || !own || v.Name != portName(req.Token) || v.Metadata[cloud.TagOwnership] != req.OwnershipID {
			continue
		}
		if other, twice := there[index]; twice {
			return nil, cloud.Errorf(cloud.Conflict, "volumes %s and %s both have the machine's index %d", other.ID, v.ID, index)
		}
		there[index] = v
	}
	return there, nil
}

// ensureVolumes creates the volumes missing in there, and returns nil once all are usable. zone is
// the machine's zone: that of an existing volume that must be in it, if there is one.
func (d *driver) ensureVolumes(ctx context.Context, req cloud.Request, machine *infrav1.OpenStackMachine, image string,
	there map[int]volume, mine *creation) (zone string, err error) {
	zone = zoneOf(req)
	for index, v := range there {
		if inMachineZone(machine, index) {
			zone = v.Zone
		}
	}
	wanted := ownVolumes(machine, zone)
	for index := range len(machine.Volumes) + 1 {
		body, own := wanted[index]
		if _, made := there[index]; made || !own {
			continue
		}
		if index == 0 {
			body.Image = image
		}
		made, err := d.createVolume(ctx, req, index, body)
		mine.recordError(err)
		if err != nil {
			return "", err
		}
		there[index] = made
	}
	for _, v := range there {
		if failed := v.usable(); failed != nil && (err == nil || cloud.CodeOf(failed) == cloud.NoCapacity) {
			err = failed
		}
	}
	return zone, err
}

func inMachineZone(machine *infrav1.OpenStackMachine, index int) bool {
	if index == 0 {
		return machine.RootVolume.InMachineZone == infrav1.FeatureEnabled
	}
	return machine.Volumes[index-1].InMachineZone == infrav1.FeatureEnabled
}

func (d *driver) createVolume(ctx context.Context, req cloud.Request, index int, body newVolume) (volume, error) {
	op := operation{"CreateVolume", cloud.ClassCreate, volumes, http.MethodPost}
	body.Name = portName(req.Token)
	body.Metadata = map[string]string{
		cloud.TagOwnership: req.OwnershipID,
		cloud.TagMachine:   cloud.Clip(req.Namespace+"/"+req.Name, maxText),
		volumeIndex:        strconv.Itoa(index),
	}
	var answer struct {
		Made volume `json:"volume"`
	}
	err := d.call(ctx, op, "volumes", map[string]any{"volume": body}, &answer)
	if err == nil && answer.Made.ID == "" {
		err = unexpectedResponse(op)
	}
	return answer.Made, err
}

// usable returns nil if a server can use the volume. The states are those of "Volumes" in Cinder's
// API reference.
func (v *volume) usable() error {
	switch v.Status {
	case "available":
		return nil
	case "error", "error_deleting", "error_managing", "error_restoring":
		return cloud.Errorf(cloud.NoCapacity, "Cinder failed to create volume %s in zone %s: its status is %s", v.ID, v.Zone, v.Status)
	}
	return cloud.Errorf(cloud.Unavailable, "waiting for volume %s, whose status is %s", v.ID, cmp.Or(cloud.Clip(v.Status, maxTag), "unknown"))
}

// disks returns the volumes that the ports announce.
func (d *driver) disks(ctx context.Context, ports []port, owners map[string]string, maxPages *int) (all []cloud.Resource, err error) {
	names := map[string]bool{}
	query := url.Values{}
	for _, p := range ports {
		if p.volumes() {
			names[p.Name] = true
			query.Set("name", p.Name)
		}
	}
	switch len(names) {
	case 0:
		return nil, nil
	case 1:
	default:
		query.Del("name") // Cinder accepts one
	}
	found, err := d.volumes(ctx, query, maxPages)
	if err != nil {
		return nil, err
	}
	for _, v := range found {
		if owner := owners[v.Name]; owner != "" && owner == v.Metadata[cloud.TagOwnership] {
			all = append(all, v.resource())
		}
	}
	return all, nil
}

func (v *volume) resource() cloud.Resource {
	created, _ := time.Parse("2006-01-02T15:04:05.999999", v.Created)
	r := cloud.Resource{Kind: cloud.KindDisk, ID: v.ID, Token: tokenOf(v.Name), OwnershipID: v.Metadata[cloud.TagOwnership],
		CreatedAt: created}
	if v.Status == "deleting" {
		r.State = cloud.StateStopping
	}
	return r
}

// volumes reads all pages of the project's volumes that match the query.
func (d *driver) volumes(ctx context.Context, query url.Values, maxPages *int) ([]volume, error) {
	op := operation{"ListVolumes", cloud.ClassRead, volumes, http.MethodGet}
	return pages(ctx, d, op, maxPages, func(ctx context.Context, marker string, limit int) ([]volume, bool, error) {
		var page struct {
			Volumes *[]volume `json:"volumes"`
			Links   []link    `json:"volumes_links"`
		}
		if err := d.call(ctx, op, "volumes/detail?"+pageOf(marker, limit, query).Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		return completePage(op, page.Volumes, page.Links)
	}, func(v volume) string { return v.ID })
}
