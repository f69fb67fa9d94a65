// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// rights holds the objects on which, and below which, the driver's user has lost its privileges.
type rights struct {
	*vcsim
	mu   sync.Mutex
	lost map[types.ManagedObjectReference]bool
}

// guard makes the simulator check privileges. The driver's user has all of them at first.
func (v *vcsim) guard() *rights {
	r := &rights{vcsim: v, lost: map[types.ManagedObjectReference]bool{}}
	v.permissions.Hidden = r.hidden
	return r
}

func (r *rights) set(ref types.ManagedObjectReference, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost[ref] = lost
}

func (r *rights) hidden(ref types.ManagedObjectReference) bool {
	for {
		r.mu.Lock()
		lost := r.lost[ref]
		r.mu.Unlock()
		e, ok := r.Context.Map.Get(ref).(mo.Entity)
		if lost || !ok {
			return lost
		}
		var parent *types.ManagedObjectReference
		r.Context.WithLock(ref, func() { parent = e.Entity().Parent })
		if parent == nil {
			return false
		}
		ref = *parent
	}
}

// folder creates a folder for VMs.
func (v *vcsim) folder(t testing.TB, name string) (made types.ManagedObjectReference) {
	t.Helper()
	above := v.Context.Map.Any("Datacenter").(*simulator.Datacenter).VmFolder
	v.theirs(t, func(s *session) error {
		answer, err := methods.CreateFolder(t.Context(), s, &types.CreateFolder{This: above, Name: name})
		if err == nil {
			made = answer.Returnval
		}
		return err
	})
	return made
}

func (v *vcsim) move(t testing.TB, m, into types.ManagedObjectReference) {
	t.Helper()
	v.theirs(t, func(s *session) error {
		_, err := methods.MoveIntoFolder_Task(t.Context(), s, &types.MoveIntoFolder_Task{This: into, List: []types.ManagedObjectReference{m}})
		return err
	})
}

func within(folder string) func(*infrav1.VSphereMachine) {
	return func(m *infrav1.VSphereMachine) { m.Folder = folder }
}

// referenceOf returns the reference of a recorded machine.
func referenceOf(token string) cloud.Reference {
	return cloud.Reference{Token: token, OwnershipID: "blue", ProviderID: providerID(identityOf(token))}
}

// TestPermissionsLost: machines in a folder that the user may no longer see are not absent, neither
// in a listing nor in a live read of few or many. Visible machines are read as before.
func TestPermissionsLost(t *testing.T) {
	for name, listed := range map[string]bool{"listed before": true, "made and never seen": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			v := start(t)
			folder := v.folder(t, "blue")
			r := v.guard()
			d := v.driver(t)
			refs := []cloud.Reference{}
			for i := range 6 {
				req := request(fmt.Sprintf("m-%d", i), within("blue"))
				_, err := d.Ensure(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
				refs = append(refs, referenceOf(req.Token))
			}
			_, err := d.Ensure(t.Context(), request("elsewhere"))
			g.Expect(err).NotTo(HaveOccurred())
			if listed {
				g.Expect(d.List(t.Context())).To(HaveLen(7))
			}

			r.set(folder, true)
			if listed {
				_, err = d.List(t.Context())
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "the listing: %v", err)
				g.Expect(err).To(MatchError(ContainSubstring(folder.Value)))
			}
			_, err = d.Describe(t.Context(), refs[:1])
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "one: %v", err)
			_, err = d.Describe(t.Context(), refs)
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "many: %v", err)
			g.Expect(d.Describe(t.Context(), []cloud.Reference{referenceOf("elsewhere")})).To(HaveLen(1))
			for range 3 {
				_, err = d.Describe(t.Context(), refs[:1])
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "again")
			}

			r.set(folder, false)
			g.Expect(d.Describe(t.Context(), refs)).To(HaveLen(6))
			g.Expect(d.List(t.Context())).To(HaveLen(7))
		})
	}
}

// TestPermissionsMoved: a VM that was moved to a folder that the user may not see is not absent. A
// VM that was moved to a visible folder stays the same machine.
func TestPermissionsMoved(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	dark, light := v.folder(t, "dark"), v.folder(t, "light")
	r := v.guard()
	r.set(dark, true)
	d := v.driver(t)
	_, err := d.Ensure(t.Context(), request("m"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.List(t.Context())).To(HaveLen(1))
	ref := v.with(cloud.TagToken, "m")[0].Self
	v.move(t, ref, light)
	g.Expect(d.List(t.Context())).To(HaveLen(1))
	v.move(t, ref, dark)
	_, err = d.Describe(t.Context(), []cloud.Reference{referenceOf("m")})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	_, err = d.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(err).To(MatchError(ContainSubstring(ref.Value)))
	v.move(t, ref, light)
	g.Expect(d.List(t.Context())).To(HaveLen(1))
}

// TestPermissionsFollow: a stream that can no longer see machines ends with an error, and reports
// none of them as gone.
func TestPermissionsFollow(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	folder := v.folder(t, "blue")
	r := v.guard()
	d := v.driver(t)
	for _, token := range []string{"a", "b"} {
		_, err := d.Ensure(t.Context(), request(token, within("blue")))
		g.Expect(err).NotTo(HaveOccurred())
	}
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	all, _ := l.all()
	g.Expect(all).To(HaveLen(2))
	r.set(folder, true)
	g.Eventually(l.ended, "2m").Should(BeClosed())
	g.Expect(cloud.CodeOf(l.err)).To(Equal(cloud.Unauthorized))
	all, _ = l.all()
	g.Expect(all).To(HaveLen(2))
	r.set(folder, false)
	l = listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	all, _ = l.all()
	g.Expect(all).To(HaveLen(2))
}

// TestVanished: a VM that another user destroyed is absent, even if its folder is gone too. The
// proof is requested once.
func TestVanished(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	folder := v.folder(t, "blue")
	v.guard()
	d := v.driver(t)
	for _, token := range []string{"a", "b", "c"} {
		_, err := d.Ensure(t.Context(), request(token, within("blue")))
		g.Expect(err).NotTo(HaveOccurred())
		v.powerOff(t, v.with(cloud.TagToken, token)[0].Self)
	}
	g.Expect(d.List(t.Context())).To(HaveLen(3))
	v.destroy(t, v.with(cloud.TagToken, "a")[0].Self)
	calls := v.counted(func() { g.Expect(d.List(t.Context())).To(HaveLen(2)) })
	g.Expect(calls["HasPrivilegeOnEntities"]).To(Equal(2), "whether the VM is there, and then the folder and the datacenter")
	calls = v.counted(func() { g.Expect(d.List(t.Context())).To(HaveLen(2)) })
	g.Expect(calls).To(Equal(map[string]int{"RetrievePropertiesEx": 2}))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{referenceOf("a")})).To(BeEmpty())

	v.destroy(t, v.with(cloud.TagToken, "b")[0].Self)
	v.destroy(t, v.with(cloud.TagToken, "c")[0].Self)
	v.theirs(t, func(s *session) error {
		_, err := methods.Destroy_Task(t.Context(), s, &types.Destroy_Task{This: folder})
		return err
	})
	g.Expect(v.Context.Map.Get(folder)).To(BeNil())
	g.Expect(d.Describe(t.Context(), []cloud.Reference{referenceOf("b")})).To(BeEmpty())
	g.Expect(d.List(t.Context())).To(BeEmpty())
}

// TestPlace: vCenter itself identifies an account's place. Another vCenter at the same address does
// not get the credentials.
func TestPlace(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	instance := v.Context.Map.Get(vim25.ServiceInstance).(*simulator.ServiceInstance)
	datacenter := v.Context.Map.Any("Datacenter").Reference()
	info, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Place).To(Equal("vsphere:" + instance.Content.About.InstanceUuid + ":" + datacenter.Value))
	v.endSessions(t)
	g.Expect(d.Probe(t.Context())).To(HaveField("Place", info.Place))

	v.endSessions(t)
	v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
		resp, err := send()
		if operation != "RetrieveServiceContent" || err != nil {
			return resp, err
		}
		answer, err := io.ReadAll(resp.Body)
		answer = bytes.ReplaceAll(answer, []byte(instance.Content.About.InstanceUuid), []byte("11111111-2222-3333-4444-555555555555"))
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(answer)), int64(len(answer))
		return resp, err
	})
	calls := v.counted(func() {
		_, err = d.Probe(t.Context())
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
		g.Expect(err).To(MatchError(ContainSubstring("11111111-2222-3333-4444-555555555555")))
		_, err = d.List(t.Context())
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	})
	g.Expect(calls).NotTo(HaveKey("Login"), "the other one does not get the credentials")
}
