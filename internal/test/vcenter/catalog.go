// SPDX-License-Identifier: Apache-2.0

package vcenter

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
)

// MakeTag creates a tag in a new category, as an administrator does.
func (v *VCenter) MakeTag(ctx context.Context, category, name string) error {
	_, c, err := v.administrator(ctx)
	if err != nil {
		return err
	}
	m := tags.NewManager(c)
	id, err := m.CreateCategory(ctx, &tags.Category{Name: category, Cardinality: "MULTIPLE"})
	if err == nil {
		_, err = m.CreateTag(ctx, &tags.Tag{Name: name, CategoryID: id})
	}
	return err
}

// Tagged returns the UUIDs of the VMs with the tag of this name.
func (v *VCenter) Tagged(ctx context.Context, name string) (uuids []string, err error) {
	_, c, err := v.administrator(ctx)
	if err != nil {
		return nil, err
	}
	all, err := tags.NewManager(c).ListAttachedObjects(ctx, name)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range all {
		if vm, known := v.seen[o.Reference()]; known && !vm.Gone { // vcsim keeps the tags of deleted VMs
			uuids = append(uuids, vm.UUID)
		}
	}
	return uuids, nil
}

// MakeAttribute creates a custom attribute for VMs.
func (v *VCenter) MakeAttribute(ctx context.Context, name string) error {
	c, _, err := v.administrator(ctx)
	if err != nil {
		return err
	}
	m, err := object.GetCustomFieldsManager(c)
	if err == nil {
		_, err = m.Add(ctx, name, "VirtualMachine", nil, nil)
	}
	return err
}

// SetAttribute sets a custom attribute of a VM.
func (v *VCenter) SetAttribute(ctx context.Context, uuid, name, value string) error {
	c, _, err := v.administrator(ctx)
	if err != nil {
		return err
	}
	m, err := object.GetCustomFieldsManager(c)
	if err != nil {
		return err
	}
	key, err := m.FindKey(ctx, name)
	if err != nil {
		return err
	}
	vm, err := object.NewSearchIndex(c).FindByUuid(ctx, nil, uuid, true, nil)
	if err != nil || vm == nil {
		return fmt.Errorf("finding VM %s: %w", uuid, err)
	}
	return m.Set(ctx, vm.Reference(), key, value)
}

// attributes returns the names of custom attributes by key.
func (v *VCenter) attributes() map[int32]string {
	names := map[int32]string{}
	for _, f := range v.model.Service.Context.Map.CustomFieldsManager().Field {
		names[f.Key] = f.Name
	}
	return names
}

// administrator logs in to both APIs.
func (v *VCenter) administrator(ctx context.Context) (*vim25.Client, *rest.Client, error) {
	v.mu.Lock()
	user := url.UserPassword(v.options.Username, v.options.Password)
	v.mu.Unlock()
	return Administrate(ctx, v.URL, v.CA, user)
}

// Administrate logs in to both APIs of the vCenter at the URL, and verifies its certificate with
// ca.
func Administrate(ctx context.Context, endpoint string, ca []byte, user *url.Userinfo) (*vim25.Client, *rest.Client, error) {
	u, err := url.Parse(endpoint + vim25.Path)
	if err != nil {
		return nil, nil, err
	}
	plain := soap.NewClient(u, false)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	plain.DefaultTransport().TLSClientConfig.RootCAs = roots
	c, err := vim25.NewClient(ctx, plain)
	if err == nil {
		err = session.NewManager(c).Login(ctx, user)
	}
	var r *rest.Client
	if err == nil {
		r = rest.NewClient(c)
		err = r.Login(ctx, user)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("log in to vCenter: %w", err)
	}
	return c, r, nil
}
