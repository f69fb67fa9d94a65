// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// place is where a failure domain's machines go: the names that the account has for it, or the
// objects with its tag. If it is empty, the machine's own fields decide.
type place struct {
	infrav1.VSphereFailureDomain
	Pool, Store *types.ManagedObjectReference
}

// zone holds the objects with one tag of the account's zone category.
type zone struct {
	pools, stores []types.ManagedObjectReference
}

// withPlacement returns the machine's fields with the failure domain's names in place of its own.
func (p place) withPlacement(spec *infrav1.VSphereMachine) *infrav1.VSphereMachine {
	if p.Name == "" {
		return spec
	}
	spec = spec.DeepCopy()
	spec.ResourcePool, spec.Host = p.ResourcePool, ""
	if p.Datastore != "" || p.Store != nil {
		spec.Datastore, spec.DatastoreCluster = p.Datastore, ""
	}
	return spec
}

// place returns the place of the failure domain with that name.
func (d *driver) place(ctx context.Context, s *session, name string) (place, error) {
	switch i := slices.IndexFunc(d.domains, func(f infrav1.VSphereFailureDomain) bool { return f.Name == name }); {
	case name == "":
		return place{}, nil
	case d.category != "":
		return d.placeByTag(ctx, s, name)
	case i < 0:
		return place{}, cloud.Invalid("the account has no failure domain %q", cloud.Clip(name, 63))
	default:
		return place{VSphereFailureDomain: d.domains[i]}, nil
	}
}

// refusal returns NoCapacity in place of an error about what the failure domain itself names: other
// failure domains may have theirs.
func (p place) refusal(err error) error {
	e, ok := errors.AsType[*cloud.Error](err)
	if ok && p.Name != "" && (e.Code == cloud.NotFound || e.Code == cloud.InvalidSpec) {
		return &cloud.Error{Code: cloud.NoCapacity, Message: e.Message, Err: e.Err}
	}
	return err
}

// domainRefusal returns NoCapacity in place of a fault that may be the failure domain's own: hosts
// that do not answer, or that lack a datastore or a network of the machine.
func domainRefusal(domain string, e *cloud.Error) *cloud.Error {
	if domain != "" && (isFault[types.BaseInvalidDatastore](e) || isFault[types.BaseCannotAccessVmComponent](e) ||
		isFault[types.BaseMigrationFault](e) ||
		isFault[types.BaseHostCommunication](e) || isFault[types.BaseHostConnectFault](e) || isFault[*types.InvalidHostState](e)) {
		return &cloud.Error{Code: cloud.NoCapacity, Message: e.Message, Err: e.Err}
	}
	return e
}

// placeNames returns the names of the failure domains, sorted.
func (d *driver) placeNames(ctx context.Context, s *session) (names []string, err error) {
	for _, f := range d.domains {
		names = append(names, f.Name)
	}
	if d.category != "" {
		var all map[string]zone
		all, err = d.zonesByTag(ctx, s)
		names = slices.Collect(maps.Keys(all))
	}
	slices.Sort(names)
	return names, err
}

// placeByTag returns the place of the tag with that name.
func (d *driver) placeByTag(ctx context.Context, s *session, name string) (p place, err error) {
	all, err := d.zonesByTag(ctx, s)
	if err != nil {
		return p, err
	}
	z, known := all[name]
	shown := cloud.Clip(name, 256)
	switch {
	case !known:
		return p, cloud.Errorf(cloud.NotFound, "zoneCategory: no compute cluster of the datacenter has a tag %q of category %q", shown,
			d.category)
	case len(z.pools) > 1:
		return p, cloud.Errorf(cloud.Conflict, "zoneCategory: %d compute clusters have the tag %q: only one may have it, or set the account's failureDomains", len(z.pools), shown)
	case len(z.stores) > 1:
		return p, cloud.Errorf(cloud.Conflict, "zoneCategory: %d datastores have the tag %q: at most one may have it", len(z.stores), shown)
	}
	p.Name, p.Pool = name, &z.pools[0]
	if len(z.stores) == 1 {
		p.Store = &z.stores[0]
	}
	return p, nil
}

// zonesByTag returns the failure domains: the tags of the account's category that are on compute
// clusters of its datacenter.
func (d *driver) zonesByTag(ctx context.Context, s *session) (map[string]zone, error) {
	return d.zones.Get(ctx, "", func(ctx context.Context) (map[string]zone, error) {
		ids, err := d.tagsOf(ctx, s, d.category)
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		bearers, err := query(ctx, s, "ListTaggedObjects", func(ctx context.Context, c *rest.Client) ([]tags.AttachedObjects, error) {
			return tags.NewManager(c).ListAttachedObjectsOnTags(ctx, slices.Collect(maps.Values(ids)))
		})
		if err != nil {
			return nil, err
		}
		pools, stores, err := s.places(ctx, d.page)
		if err != nil {
			return nil, err
		}
		found := map[string]zone{}
		for name, id := range ids {
			var z zone
			for _, bearer := range bearers {
				for _, object := range bearer.ObjectIDs {
					ref := object.Reference()
					if pool, ok := pools[ref]; ok && bearer.TagID == id {
						z.pools = append(z.pools, pool)
					}
					if slices.Contains(stores, ref) && bearer.TagID == id {
						z.stores = append(z.stores, ref)
					}
				}
			}
			if len(z.pools) > 0 {
				found[name] = z
			}
		}
		return found, nil
	})
}

// places returns the datacenter's compute clusters and standalone hosts, with the resource pool of
// each, and the datacenter's datastores.
func (s *session) places(ctx context.Context,
	page int32) (pools map[types.ManagedObjectReference]types.ManagedObjectReference, stores []types.ManagedObjectReference, err error) {
	below := &types.SelectionSpec{Name: "below"}
	clusters, err := s.retrieve(ctx, page, "ComputeResource", []types.ObjectSpec{{
		Obj: s.datacenter, Skip: ptr.To(true),
		SelectSet: []types.BaseSelectionSpec{
			&types.TraversalSpec{Type: "Datacenter", Path: "hostFolder", SelectSet: []types.BaseSelectionSpec{below}},
			&types.TraversalSpec{SelectionSpec: *below, Type: "Folder", Path: "childEntity", SelectSet: []types.BaseSelectionSpec{below}},
		},
	}}, []string{"resourcePool"})
	if err != nil {
		return nil, nil, err
	}
	pools = map[types.ManagedObjectReference]types.ManagedObjectReference{}
	for _, cluster := range clusters {
		pools[cluster.ref], _ = cluster.properties["resourcePool"].(types.ManagedObjectReference)
	}
	found, err := s.retrieve(ctx, page, "Datacenter", []types.ObjectSpec{{Obj: s.datacenter}}, []string{"datastore"})
	for _, datacenter := range found {
		all, _ := datacenter.properties["datastore"].(types.ArrayOfManagedObjectReference)
		stores = append(stores, all.ManagedObjectReference...)
	}
	return pools, stores, err
}
