// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// A server that others made needs several writes to become Drover's. The first, its metadata, says
// whose it is, and the last, the tag by which the driver lists servers, makes it seen. The way back
// has the opposite order. So the metadata finds a server whose writes were interrupted.
//
// Nova keeps a port and a volume that it did not create itself, and any floating IP. A port is
// renamed, as the driver's own are named, because the driver must find it when the server is gone;
// its description has the machine's name, which was its own. What it was called otherwise, and its
// own description, are in the server's metadata from before they are overwritten until Untag. A
// floating IP has a description. A volume keeps its name: Nova deletes it, if its attachment says
// so.

// These are the metadata keys of a server for the names and descriptions that its ports had, each
// without the port's ID.
const (
	portNameKey        = "drover-port-name-"
	portDescriptionKey = "drover-port-description-"
)

// nameKey stands for a server's name among its tags.
const nameKey = "Name"

// Tagged implements tagging.Tagger. A server's tags are its metadata, and its name. Nova does not
// filter by metadata, so it lists all servers of the project.
func (d *driver) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	all, err := d.allServers(ctx, url.Values{}, nil)
	for i := range all {
		s := &all[i]
		if slices.ContainsFunc(keys, func(key string) bool { _, has := s.Metadata[key]; return !has && key != nameKey }) {
			continue
		}
		t := tagging.Instance{Resource: d.resource(s), Type: s.Flavor.Name, Tags: map[string]string{}, Partial: s.partial()}
		maps.Copy(t.Tags, s.Metadata)
		t.Tags[nameKey] = s.Name
		if image, is := s.Image.(map[string]any); is {
			t.ImageID, _ = image["id"].(string)
		}
		found = append(found, t)
	}
	return found, err
}

// partial reports whether Tag has begun, or Untag, and has not ended.
func (s *server) partial() bool {
	return s.Metadata[cloud.TagToken] != "" && !slices.Contains(s.Tags, markerTag)
}

// Tag implements tagging.Tagger. It omits writes that were made before.
func (d *driver) Tag(ctx context.Context, id string, tags map[string]string, own []string) error {
	s, err := d.getServer(ctx, compute, id)
	if err != nil {
		return err
	}
	parts, err := d.partsOf(ctx, &s, tags, own)
	if err != nil {
		return err
	}
	wanted := parts.names
	for key, value := range tags {
		wanted[key] = cloud.Clip(value, maxText)
	}
	maps.DeleteFunc(wanted, func(key, value string) bool { return s.Metadata[key] == value })
	server := "servers/" + url.PathEscape(id)
	if len(wanted) > 0 {
		err = d.write(ctx, "UpdateServerMetadata", http.MethodPost, compute, server+"/metadata", map[string]any{"metadata": wanted})
	}
	if err == nil {
		err = d.addServerTag(ctx, &s, tokenTag(tags[cloud.TagToken]))
	}
	if err == nil {
		err = d.takeParts(ctx, &s, parts, tags)
	}
	if err == nil {
		err = d.addServerTag(ctx, &s, markerTag)
	}
	return err
}

// ownParts are the parts of a server that Drover must delete, or have deleted, and does not yet.
type ownParts struct {
	// ports have the description that they get.
	ports     []port
	volumes   []volume
	addresses []floatingIP
	// names are the ports' names and descriptions, as metadata of the server.
	names map[string]string
}

// partsOf finds the server's own parts. It writes nothing, and refuses a text that would be lost.
func (d *driver) partsOf(ctx context.Context, s *server, tags map[string]string, own []string) (parts ownParts, err error) {
	parts.names = map[string]string{}
	if len(own) == 0 {
		return parts, nil
	}
	ports, err := d.allPorts(ctx, url.Values{"device_id": {s.ID}}, nil)
	if err != nil {
		return parts, err
	}
	n := 0
	for _, p := range ports {
		taken := p.Name == portName(tags[cloud.TagToken])
		if !taken && !slices.Contains(own, p.Name) && !slices.Contains(own, p.ID) {
			continue // another's
		}
		if !taken {
			parts.takePort(p, describePort(tags[cloud.TagOwnership], n, "", tags[cloud.TagMachine]), nameIn(tags[cloud.TagMachine]))
		}
		n++
	}
	if slices.ContainsFunc(s.Volumes, func(a attachment) bool { return !a.DeleteOnTermination }) {
		for _, name := range own {
			if uuidForm.MatchString(name) {
				continue // the ID of a port or a floating IP
			}
			found, err := d.attached(ctx, s, name)
			if err != nil {
				return parts, err
			}
			parts.volumes = append(parts.volumes, slices.DeleteFunc(found, func(v volume) bool { return s.deletes(v.ID) })...)
		}
	}
	addresses, err := d.floatingIPs(ctx, url.Values{"id": own}, nil)
	for _, f := range addresses {
		switch {
		case !slices.Contains(own, f.ID) || f.Description == portName(tags[cloud.TagToken]):
		case f.Description != "":
			return parts, cloud.Errorf(cloud.Conflict, "floating IP %s has a description, which would be lost: clear it first", f.ID)
		default:
			parts.addresses = append(parts.addresses, f)
		}
	}
	return parts, err
}

// takePort adds a port, and records what its new description does not say: a name other than the
// machine's, and its old description.
func (parts *ownParts) takePort(p port, description, machine string) {
	if p.Name != machine || len(description) > maxText {
		parts.names[portNameKey+p.ID] = p.Name
	}
	if p.Description != "" {
		parts.names[portDescriptionKey+p.ID] = p.Description
	}
	p.Description = cloud.Clip(description, maxText)
	parts.ports = append(parts.ports, p)
}

// nameIn returns the name in a namespace and a name.
func nameIn(machine string) string { return machine[strings.LastIndex(machine, "/")+1:] }

// attached returns the server's volumes of a name.
func (d *driver) attached(ctx context.Context, s *server, name string) ([]volume, error) {
	found, err := d.volumes(ctx, url.Values{"name": {name}}, nil)
	return slices.DeleteFunc(found, func(v volume) bool {
		return v.Name != name || !slices.ContainsFunc(s.Volumes, func(a attachment) bool { return a.ID == v.ID })
	}), err
}

// deletes reports whether Nova deletes the volume with the server.
func (s *server) deletes(volume string) bool {
	return slices.ContainsFunc(s.Volumes, func(a attachment) bool { return a.ID == volume && a.DeleteOnTermination })
}

// takeParts makes a server's own parts Drover's. The mark of a volume says that it is Drover who
// has Nova delete it.
func (d *driver) takeParts(ctx context.Context, s *server, parts ownParts, tags map[string]string) error {
	name := portName(tags[cloud.TagToken])
	for _, p := range parts.ports {
		if err := d.describePort(ctx, p.ID, name, p.Description); err != nil {
			return err
		}
	}
	for _, v := range parts.volumes {
		mark := map[string]string{cloud.TagOwnership: tags[cloud.TagOwnership], cloud.TagMachine: cloud.Clip(tags[cloud.TagMachine], maxText)}
		if v.Metadata[cloud.TagOwnership] != mark[cloud.TagOwnership] || v.Metadata[cloud.TagMachine] != mark[cloud.TagMachine] {
			err := d.write(ctx, "UpdateVolumeMetadata", http.MethodPost, volumes, "volumes/"+url.PathEscape(v.ID)+"/metadata",
				map[string]any{"metadata": mark})
			if err != nil {
				return err
			}
		}
		if err := d.deleteWithServer(ctx, s, v.ID, true); err != nil {
			return err
		}
	}
	for _, f := range parts.addresses {
		if err := d.describeFloatingIP(ctx, f.ID, name); err != nil {
			return err
		}
	}
	return nil
}

// Untag implements tagging.Tagger.
func (d *driver) Untag(ctx context.Context, ids, keys []string) error {
	var calls cloud.Group
	calls.SetLimit(maxParallelCalls)
	for _, id := range ids {
		calls.Go(func() error {
			if slices.Contains(keys, cloud.TagToken) {
				return d.giveBack(ctx, id, keys)
			}
			for _, key := range keys {
				if err := d.remove(ctx, "DeleteServerMetadata", compute, "servers/"+url.PathEscape(id)+"/metadata/"+url.PathEscape(key)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return calls.Wait()
}

// giveBack makes a server and its parts what they were before Tag, in the opposite order.
func (d *driver) giveBack(ctx context.Context, id string, keys []string) error {
	s, err := d.getServer(ctx, compute, id)
	if cloud.CodeOf(err) == cloud.NotFound {
		return nil
	}
	token := s.Metadata[cloud.TagToken]
	if err != nil || token == "" {
		return err
	}
	if err := d.removeServerTag(ctx, &s, markerTag); err != nil {
		return err
	}
	addresses, err := d.floatingIPs(ctx, url.Values{"description": {portName(token)}}, nil)
	if err != nil {
		return err
	}
	for _, f := range addresses {
		if err := d.describeFloatingIP(ctx, f.ID, ""); err != nil {
			return err
		}
	}
	if err := d.giveVolumesBack(ctx, &s); err != nil {
		return err
	}
	ports, err := d.ports(ctx, portsOf([]string{token}), nil)
	if err != nil {
		return err
	}
	for _, p := range ports {
		name, recorded := s.Metadata[portNameKey+p.ID]
		if !recorded {
			name = nameIn(p.marker(cloud.TagMachine))
		}
		if err := d.describePort(ctx, p.ID, name, s.Metadata[portDescriptionKey+p.ID]); err != nil {
			return err
		}
	}
	if err := d.removeServerTag(ctx, &s, tokenTag(token)); err != nil {
		return err
	}
	// in one step, so that no key is left which nobody looks for; read again, to lose nobody's
	if s, err = d.getServer(ctx, compute, id); err != nil {
		return err
	}
	maps.DeleteFunc(s.Metadata, func(key, _ string) bool {
		return slices.Contains(keys, key) || strings.HasPrefix(key, portNameKey) || strings.HasPrefix(key, portDescriptionKey)
	})
	return d.write(ctx, "ReplaceServerMetadata", http.MethodPut, compute, "servers/"+url.PathEscape(id)+"/metadata",
		map[string]any{"metadata": s.Metadata})
}

// giveVolumesBack has Nova keep the volumes that Tag had it delete. Their mark goes last.
func (d *driver) giveVolumesBack(ctx context.Context, s *server) error {
	if len(s.Volumes) == 0 {
		return nil
	}
	found, err := d.attached(ctx, s, nameIn(s.Metadata[cloud.TagMachine]))
	if err != nil {
		return err
	}
	for _, v := range found {
		if v.Metadata[cloud.TagOwnership] != s.Metadata[cloud.TagOwnership] {
			continue
		}
		if s.deletes(v.ID) {
			if err := d.deleteWithServer(ctx, s, v.ID, false); err != nil {
				return err
			}
		}
		for _, key := range []string{cloud.TagMachine, cloud.TagOwnership} {
			if _, has := v.Metadata[key]; !has {
				continue
			}
			if err := d.remove(ctx, "DeleteVolumeMetadata", volumes, "volumes/"+url.PathEscape(v.ID)+"/metadata/"+key); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteWithServer sets whether Nova deletes a volume with its server: "Update a volume attachment"
// in its API reference.
func (d *driver) deleteWithServer(ctx context.Context, s *server, id string, is bool) error {
	err := d.write(ctx, "UpdateVolumeAttachment", http.MethodPut, computeUssuri,
		"servers/"+url.PathEscape(s.ID)+"/os-volume_attachments/"+url.PathEscape(id),
		map[string]any{"volumeAttachment": map[string]any{"volumeId": id, "delete_on_termination": is}})
	if isTooOld(err) {
		return cloud.Errorf(cloud.InvalidSpec, "Nova is to delete volume %s with server %s, which needs its release Ussuri (2020) or newer",
			id, s.ID)
	}
	return err
}

func (d *driver) describePort(ctx context.Context, id, name, description string) error {
	return d.write(ctx, "UpdatePort", http.MethodPut, network, "ports/"+url.PathEscape(id),
		map[string]any{"port": map[string]string{"name": name, "description": description}})
}

func (d *driver) describeFloatingIP(ctx context.Context, id, description string) error {
	return d.write(ctx, "UpdateFloatingIP", http.MethodPut, network, "floatingips/"+url.PathEscape(id),
		map[string]any{"floatingip": map[string]string{"description": description}})
}

func (d *driver) addServerTag(ctx context.Context, s *server, tag string) error {
	if slices.Contains(s.Tags, tag) {
		return nil
	}
	return d.write(ctx, "AddServerTag", http.MethodPut, compute, serverTagPath(s, tag), nil)
}

func (d *driver) removeServerTag(ctx context.Context, s *server, tag string) error {
	if !slices.Contains(s.Tags, tag) {
		return nil
	}
	return d.remove(ctx, "DeleteServerTag", compute, serverTagPath(s, tag))
}

func serverTagPath(s *server, tag string) string {
	return "servers/" + url.PathEscape(s.ID) + "/tags/" + url.PathEscape(tag)
}

// write changes something that exists. It counts as a create in the rate limit.
func (d *driver) write(ctx context.Context, name, method, service, path string, body any) error {
	return d.call(ctx, operation{name, cloud.ClassCreate, service, method}, path, body, nil)
}

// remove deletes a property. One that is not there is no error.
func (d *driver) remove(ctx context.Context, name, service, path string) error {
	err := d.call(ctx, operation{name, cloud.ClassDelete, service, http.MethodDelete}, path, nil, nil)
	if cloud.CodeOf(err) == cloud.NotFound {
		return nil
	}
	return err
}

// takenAddresses returns the floating IPs that Tag has described. No port leads to them: Nova
// deletes the port that it created with the server.
func (d *driver) takenAddresses(ctx context.Context, refs []cloud.Reference) (all []cloud.Resource, err error) {
	owners := map[string]cloud.Reference{} // by description
	for _, ref := range refs {
		id := serverID(ref.ProviderID)
		if id != "" && (tagging.IsImportToken(ref.Token) || strings.HasSuffix(ref.Token, "-"+id)) { // the latter before tokens had a digest
			owners[portName(ref.Token)] = ref
		}
	}
	return d.describedAddresses(ctx, owners, func(floatingIP) bool { return true })
}
