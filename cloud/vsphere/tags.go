// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// tagBatch is how many VMs one call tags. A conservative guess: vCenter documents no limit.
const tagBatch = 100

// maxNameAge is how long the names are remembered that a lookup has read before it is complete: at
// the rate of reads, long enough for 9,000.
const maxNameAge = planTTL + 10*time.Minute

// maxName limits the ID and name of a category or tag, in bytes: what is remembered of them counts
// against no share of the memory. vCenter takes 256 characters.
const maxName = 2 << 10

// tagIDs returns the IDs of the tags that a machine names, sorted.
func (d *driver) tagIDs(ctx context.Context, s *session, wanted []infrav1.VSphereTag) (ids []string, err error) {
	for i, tag := range wanted {
		known, err := d.tagsOf(ctx, s, tag.Category)
		if err != nil {
			return nil, err
		}
		id, ok := known[tag.Name]
		if !ok {
			return nil, cloud.Errorf(cloud.NotFound, "tags[%d]: tag %q of category %q does not exist, or the account's user may not see it", i,
				cloud.Clip(tag.Name, 256), cloud.Clip(tag.Category, 256))
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// tagsOf returns the IDs of a category's tags, by name. vCenter can't look up a tag by its name, so
// tagsOf reads them one by one.
func (d *driver) tagsOf(ctx context.Context, s *session, category string) (map[string]string, error) {
	return d.tags.Get(ctx, category, func(ctx context.Context) (map[string]string, error) {
		found, read, err := d.readTags(ctx, s, category)
		if err == nil || cloud.CodeOf(err) == cloud.NotFound { // it is complete: the next one reads the names anew
			for _, id := range read {
				d.names.Forget(id)
			}
		}
		return found, err
	})
}

// readTags returns the IDs of a category's tags, by name, and of everything whose name it needed.
func (d *driver) readTags(ctx context.Context, s *session, category string) (found map[string]string, read []string, err error) {
	read, err = query(ctx, s, "ListTagCategories", func(ctx context.Context, c *rest.Client) ([]string, error) {
		return tags.NewManager(c).ListCategories(ctx)
	})
	if err != nil {
		return nil, nil, err
	}
	for _, id := range read {
		name, err := d.nameOf(ctx, s, id, "GetTagCategory", func(ctx context.Context, m *tags.Manager) (string, error) {
			c, err := m.GetCategory(ctx, id)
			if err != nil {
				return "", err
			}
			return c.Name, nil
		})
		if err != nil {
			return nil, read, err
		}
		if name == category {
			found, ids, err := d.tagsIn(ctx, s, id)
			return found, append(read, ids...), err
		}
	}
	return nil, read, cloud.Errorf(cloud.NotFound, "tag category %q does not exist, or the account's user may not see it",
		cloud.Clip(category, 256))
}

// tagsIn returns the IDs of the tags of the category with this ID, by name, and all of them.
func (d *driver) tagsIn(ctx context.Context, s *session, category string) (found map[string]string, ids []string, err error) {
	ids, err = query(ctx, s, "ListTags", func(ctx context.Context, c *rest.Client) ([]string, error) {
		return tags.NewManager(c).ListTagsForCategory(ctx, category)
	})
	found = map[string]string{}
	for _, id := range ids {
		name, err := d.nameOf(ctx, s, id, "GetTag", func(ctx context.Context, m *tags.Manager) (string, error) {
			tag, err := m.GetTag(ctx, id)
			if err != nil {
				return "", err
			}
			return tag.Name, nil
		})
		if err != nil {
			return nil, ids, err
		}
		if name != "" {
			found[name] = id
		}
	}
	return found, ids, err
}

// nameOf returns the name of a category or tag, or "" if it was deleted just now. It remembers the
// name: one call may have no time to read all, and the next one continues.
func (d *driver) nameOf(ctx context.Context, s *session, id, operation string,
	read func(context.Context, *tags.Manager) (string, error)) (string, error) {
	if name, known := d.names.Get(id); known {
		return name, nil
	}
	name, err := query(ctx, s, operation, func(ctx context.Context, c *rest.Client) (string, error) {
		return read(ctx, tags.NewManager(c))
	})
	switch {
	case cloud.CodeOf(err) == cloud.NotFound:
		return "", nil
	case err != nil:
		return "", err
	}
	if len(id)+len(name) > maxName {
		return "", cloud.Errorf(cloud.Unknown, "%s: the response holds a name of %d bytes, which is too long: check the account's server",
			operation, len(name))
	}
	d.names.Put(id, name, maxNameAge)
	return name, nil
}

// attachTags attaches missing tags, with one call for each tag and batch. A failure is shown with
// the machines, does not fail the listing, and is retried by the next one.
func (d *driver) attachTags(ctx context.Context, s *session, vms []vm, shown []cloud.Resource) {
	waiting := map[string][]vm{}
	for _, m := range d.tagged.pending(vms, optionTags) {
		for _, id := range strings.Fields(m.text(option(optionTags))) {
			waiting[id] = append(waiting[id], m)
		}
	}
	failed := map[types.ManagedObjectReference]bool{}
	for _, id := range slices.Sorted(maps.Keys(waiting)) {
		for batch := range slices.Chunk(waiting[id], tagBatch) {
			err := s.attach(ctx, id, batch)
			if err == nil {
				continue
			}
			for _, m := range batch {
				failed[m.ref] = true
			}
			if queued := (*cloud.Queued)(nil); !errors.As(err, &queued) {
				addNotice(shown, batch, fmt.Sprintf("a vSphere tag is missing: %v", err))
			}
		}
	}
	for _, batch := range waiting {
		for _, m := range batch {
			if !failed[m.ref] {
				d.tagged.markDone(m.ref)
			}
		}
	}
}

// attach attaches a tag to the VMs. It is no error if a VM already has the tag.
func (s *session) attach(ctx context.Context, tag string, vms []vm) error {
	type object struct {
		Type string `json:"type"`
		ID   string `json:"id"`
	}
	var wanted struct {
		Objects []object `json:"object_ids"`
	}
	for _, m := range vms {
		wanted.Objects = append(wanted.Objects, object{m.ref.Type, m.ref.Value})
	}
	var told struct { // BatchResult, which tags.Manager does not read
		Value struct {
			Errors []rest.LocalizableMessage `json:"error_messages"`
		} `json:"value"`
	}
	err := s.automate(ctx, "AttachTag", cloud.ClassDelete, func(ctx context.Context, c *rest.Client) error {
		var body bytes.Buffer
		err := c.Do(ctx, c.Resource("/com/vmware/cis/tagging/tag-association").WithID(tag).WithAction("attach-tag-to-multiple-objects").Request(
			http.MethodPost, wanted), &body)
		if err != nil || body.Len() == 0 {
			return err
		}
		return json.Unmarshal(body.Bytes(), &told)
	})
	if err == nil && len(told.Value.Errors) > 0 {
		return cloud.Errorf(cloud.Conflict, "AttachTag: %s", s.redactor.Clean(told.Value.Errors[0].DefaultMessage, maxWords))
	}
	return err
}
