// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"fmt"
	"path"
	"strings"

	"github.com/google/uuid"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// below is under for what Drover finds by its path alone. The old systems look for a name without
// a path in all folders: https://github.com/vmware/govmomi/blob/main/find/recurser.go
func (s findings) below(field, name, kind string, target *Target) string {
	if name != "" && !strings.Contains(name, "/") {
		s.addNote(field, "the old system finds %s in any folder, Drover only as %s: if it is deeper, write its path into the next template before commit",
			name, path.Join("/", target.Account.Spec.Cloud.VSphere.Datacenter, kind, name))
	}
	return s.under(field, name, kind, target)
}

// under returns an inventory path below the datacenter's folder of a kind, as Drover has it. The
// old systems also take absolute paths.
func (s findings) under(field, name, kind string, target *Target) string {
	if !strings.HasPrefix(name, "/") {
		return name
	}
	folder := path.Join("/", target.Account.Spec.Cloud.VSphere.Datacenter, kind)
	if name == folder {
		return ""
	}
	rest, is := strings.CutPrefix(name, folder+"/")
	if !is {
		s.addRefused(field, "%s is not below %s", name, folder)
	}
	return rest
}

// pool returns the path of a resource pool, which Drover needs in full. Without one, the failure
// domains must have theirs.
func (s findings) pool(field, name string, target *Target) string {
	name = s.under(field, name, "host", target)
	account := target.Account.Spec.Cloud.VSphere
	switch {
	case name == "" && len(account.FailureDomains) == 0 && account.ZoneCategory == "":
		s.addRefused(field, "there is none: name the pool, or failure domains of the DroverAccount")
	case name != "" && !strings.Contains(name, "/"):
		s.addRefused(field, "it is %q, without a path: name it as CLUSTER/Resources/POOL", name)
	}
	return name
}

// datacenter refuses a datacenter that is not the account's.
func (s findings) datacenter(field, name string, target *Target) {
	if account := target.Account.Spec.Cloud.VSphere.Datacenter; name != "" && path.Join("/", name) != path.Join("/", account) {
		s.addRefused(field, "it is %q, and the DroverAccount's is %q", name, account)
	}
}

// guestinfo notes how new machines get their user data.
func (s findings) guestinfo(field string) {
	s.addNote(field, "new machines read their user data from the VM's options: its cloud-init must have the VMware data source, or it must have Ignition")
}

// sizeOnVSphere returns a machine's size as the driver has it, or "" for that of the template.
func sizeOnVSphere(m *infrav1.VSphereMachine) string {
	if m.CPUs == 0 || m.MemoryMiB == 0 {
		return ""
	}
	return fmt.Sprintf("%d CPUs, %d MiB", m.CPUs, m.MemoryMiB)
}

// instanceOnVSphere returns the BIOS UUID in a Node's provider ID, or "".
func instanceOnVSphere(providerID string) string {
	id, ok := strings.CutPrefix(providerID, "vsphere://")
	if id = strings.ToLower(id); !ok || len(id) != len(uuid.Nil.String()) || uuid.Validate(id) != nil {
		return ""
	}
	return id
}
