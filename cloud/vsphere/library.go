// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"

	"github.com/vmware/govmomi/vapi/library"
	"github.com/vmware/govmomi/vapi/rest"
	vapi "github.com/vmware/govmomi/vapi/vcenter"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// libraryTemplate finds the VM template in a content library item. It is also in the inventory
// (VmTemplate LibraryItems Info, vm_template: its identifier in the SOAP API), and is cloned like
// any other template. The library's own deploy call could set neither the machine's UUID nor its
// tags.
func (s *session) libraryTemplate(ctx context.Context, from infrav1.VSphereLibraryItem) (ref types.ManagedObjectReference, err error) {
	libraries, err := query(ctx, s, "FindLibrary", func(ctx context.Context, c *rest.Client) ([]string, error) {
		return library.NewManager(c).FindLibrary(ctx, library.Find{Name: from.Library})
	})
	if err == nil {
		err = onlyOne(libraries, "contentLibrary.library", from.Library)
	}
	if err != nil {
		return ref, err
	}
	items, err := query(ctx, s, "FindLibraryItem", func(ctx context.Context, c *rest.Client) ([]string, error) {
		return library.NewManager(c).FindLibraryItems(ctx, library.FindItem{LibraryID: libraries[0], Name: from.Item})
	})
	if err == nil {
		err = onlyOne(items, "contentLibrary.item", from.Item)
	}
	if err != nil {
		return ref, err
	}
	found, err := query(ctx, s, "GetLibraryTemplate", func(ctx context.Context, c *rest.Client) (*vapi.TemplateInfo, error) {
		return vapi.NewManager(c).GetLibraryTemplateInfo(ctx, items[0])
	})
	if code := cloud.CodeOf(err); code == cloud.InvalidSpec || err == nil && (found == nil || found.VmTemplate == "") {
		return ref, cloud.Errorf(cloud.InvalidSpec, "contentLibrary.item: %q is not a VM template; for an OVF, deploy it once and clone the VM to a template in the library", cloud.Clip(from.Item, 255))
	}
	if err != nil {
		return ref, err
	}
	return types.ManagedObjectReference{Type: "VirtualMachine", Value: found.VmTemplate}, nil
}

// onlyOne returns an error unless the name leads to exactly one ID.
func onlyOne(ids []string, field, name string) error {
	switch len(ids) {
	case 0:
		return cloud.Errorf(cloud.NotFound, "%s: %q does not exist, or the account's user may not see it", field, cloud.Clip(name, 255))
	case 1:
		return nil
	}
	return cloud.Errorf(cloud.Conflict, "%s: %d have the name %q; rename one, or set template to a path", field, len(ids),
		cloud.Clip(name, 255))
}

// query makes one read call to the Automation API.
func query[T any](ctx context.Context, s *session, operation string,
	f func(context.Context, *rest.Client) (T, error)) (found T, err error) {
	err = s.automate(ctx, operation, cloud.ClassRead, func(ctx context.Context, c *rest.Client) error {
		found, err = f(ctx, c)
		return err
	})
	return found, err
}
