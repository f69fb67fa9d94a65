// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// uuidForm matches an ID. IDs of Nova's flavors may have other forms.
var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

type flavor struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	VCPUs int64  `json:"vcpus"`
	// RAM in MiB, Disk in GiB. Disk 0 means as large as the image requires.
	RAM  int64 `json:"ram"`
	Disk int64 `json:"disk"`
	// Extra are the flavor's extra specs.
	Extra map[string]string `json:"extra_specs"`
}

type glanceImage struct {
	ID           string    `json:"id"`
	Status       string    `json:"status"`
	CreatedAt    time.Time `json:"created_at"`
	Architecture string    `json:"architecture"`
	OSType       string    `json:"os_type"`
}

// named is a Neutron resource that has a name.
type named struct {
	ID string `json:"id"`
}

// flavor returns the flavor with the ID, else the one with the name. All calls share one listing.
func (d *driver) flavor(ctx context.Context, wanted string) (flavor, error) {
	all, err := d.flavors.Get(ctx, "", d.listFlavors)
	if err != nil {
		return flavor{}, err
	}
	for _, is := range []func(flavor) bool{
		func(f flavor) bool { return f.ID == wanted },
		func(f flavor) bool { return f.Name == wanted },
	} {
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i], nil
		}
	}
	d.flavors.Reset() // it may be created meanwhile
	return flavor{}, cloud.Errorf(cloud.InvalidSpec, "flavor %q does not exist in the project", wanted)
}

func (d *driver) listFlavors(ctx context.Context) ([]flavor, error) {
	op := operation{"ListFlavors", cloud.ClassRead, compute, http.MethodGet}
	return pages(ctx, d, op, nil, func(ctx context.Context, marker string, limit int) ([]flavor, bool, error) {
		var page struct {
			Flavors *[]flavor `json:"flavors"`
			Links   []link    `json:"flavors_links"`
		}
		if err := d.call(ctx, op, "flavors/detail?"+pageOf(marker, limit, nil).Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		return completePage(op, page.Flavors, page.Links)
	}, func(f flavor) string { return f.ID })
}

// image returns the machine's image.
func (d *driver) image(ctx context.Context, wanted infrav1.OpenStackImage) (glanceImage, error) {
	if wanted.ID != "" {
		return d.images.Get(ctx, wanted.ID, func(ctx context.Context) (glanceImage, error) { return d.getImage(ctx, wanted.ID) })
	}
	query := url.Values{"status": {"active"}, "sort": {"created_at:desc"}, "limit": {"1"}}
	if wanted.Name != "" {
		query.Set("name", wanted.Name)
	}
	for _, tag := range wanted.Tags {
		query.Add("tag", tag)
	}
	return d.images.Get(ctx, "?"+query.Encode(), func(ctx context.Context) (glanceImage, error) { return d.findImage(ctx, query) })
}

func (d *driver) getImage(ctx context.Context, id string) (glanceImage, error) {
	op := operation{"GetImage", cloud.ClassRead, image, http.MethodGet}
	var found glanceImage
	err := d.call(ctx, op, "images/"+id, nil, &found)
	switch {
	case cloud.CodeOf(err) == cloud.NotFound:
		return found, cloud.Errorf(cloud.InvalidSpec, "image %s does not exist in the project", id)
	case err != nil:
		return found, err
	case found.ID != id:
		return found, unexpectedResponse(op)
	case found.Status != "active":
		return found, cloud.Errorf(cloud.NotFound, "image %s is %s, not active", id, cloud.Clip(found.Status, 64))
	}
	return found, nil
}

func (d *driver) findImage(ctx context.Context, query url.Values) (glanceImage, error) {
	op := operation{"ListImages", cloud.ClassRead, image, http.MethodGet}
	var page struct {
		Images *[]glanceImage `json:"images"`
	}
	if err := d.call(ctx, op, "images?"+query.Encode(), nil, &page); err != nil {
		return glanceImage{}, err
	}
	if page.Images == nil {
		return glanceImage{}, unexpectedResponse(op)
	}
	if len(*page.Images) == 0 {
		return glanceImage{}, cloud.Errorf(cloud.NotFound, "no active image has the name %q and the tags %q", query.Get("name"), query["tag"])
	}
	return (*page.Images)[0], nil
}

// neutronKind is a kind of resource of Neutron.
type neutronKind struct {
	path, list, noun string
	missing          cloud.Code // the code if none has the name
}

// networkID, groupID, subnetID and policyID return the ID of a Neutron resource by its name, in
// this project or shared with it.
func (d *driver) networkID(ctx context.Context, wanted string) (string, error) {
	return d.neutronID(ctx, neutronKind{"networks", "ListNetworks", "network", cloud.NotFound}, wanted, url.Values{"name": {wanted}})
}

func (d *driver) groupID(ctx context.Context, wanted string) (string, error) {
	return d.neutronID(ctx, neutronKind{"security-groups", "ListSecurityGroups", "security group", cloud.NotFound}, wanted,
		url.Values{"name": {wanted}, "project_id": {d.account.ProjectID}})
}

// subnetID returns InvalidSpec for a missing subnet: it is a load balancer's, and NotFound would be
// about that.
func (d *driver) subnetID(ctx context.Context, wanted string) (string, error) {
	return d.neutronID(ctx, neutronKind{"subnets", "ListSubnets", "subnet", cloud.InvalidSpec}, wanted, url.Values{"name": {wanted}})
}

func (d *driver) policyID(ctx context.Context, wanted string) (string, error) {
	return d.neutronID(ctx, neutronKind{"qos/policies", "ListQoSPolicies", "QoS policy", cloud.NotFound}, wanted, url.Values{"name": {wanted}})
}

func (d *driver) neutronID(ctx context.Context, kind neutronKind, wanted string, query url.Values) (string, error) {
	if uuidForm.MatchString(wanted) {
		return wanted, nil
	}
	return d.ids.Get(ctx, kind.path+"/"+wanted, func(ctx context.Context) (string, error) {
		op := operation{kind.list, cloud.ClassRead, network, http.MethodGet}
		query.Set("fields", "id")
		var page map[string]*[]named
		if err := d.call(ctx, op, kind.path+"?"+query.Encode(), nil, &page); err != nil {
			return "", err
		}
		found := page[strings.ReplaceAll(path.Base(kind.path), "-", "_")]
		switch {
		case found == nil:
			return "", unexpectedResponse(op)
		case len(*found) == 0:
			return "", cloud.Errorf(kind.missing, "%s %q does not exist in the project", kind.noun, wanted)
		case len(*found) > 1:
			return "", cloud.Errorf(cloud.Conflict, "%d resources of the kind %s have the name %q: set an ID", len(*found), kind.noun, wanted)
		}
		return (*found)[0].ID, nil
	})
}

// unexpectedResponse returns the error for an answer that lacks the requested content.
func unexpectedResponse(op operation) error {
	return cloud.Errorf(cloud.Unknown, "%s: unexpected response without the requested content (not OpenStack): check spec.cloud.openstack.authURL", op.name)
}
