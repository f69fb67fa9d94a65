// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// deleting is the deletion of one machine.
type deleting struct {
	*WithT
	t    *testing.T
	v    *vcsim
	d    *driver
	made cloud.Resource
}

func newDeleting(t *testing.T, edit ...func(*infrav1.VSphereMachine)) *deleting {
	x := &deleting{WithT: NewWithT(t), t: t, v: start(t)}
	x.d = x.v.driver(t)
	var err error
	x.made, err = x.d.Ensure(t.Context(), request("m", edit...))
	x.Expect(err).NotTo(HaveOccurred())
	return x
}

// step moves the deletion one step on, and returns the calls that change something.
func (x *deleting) step() map[string]int {
	x.t.Helper()
	calls := x.v.counted(func() {
		x.Expect(x.d.Delete(x.t.Context(), []cloud.Resource{x.made})).To(ConsistOf(BeNil()))
	})
	for operation := range calls {
		if classOf(operation) == cloud.ClassRead {
			delete(calls, operation)
		}
	}
	return calls
}

func (x *deleting) vm() *simulator.VirtualMachine { return x.v.with(cloud.TagToken, x.made.Token)[0] }

func (x *deleting) wantGone() {
	x.t.Helper()
	x.Expect(x.v.with(cloud.TagToken, x.made.Token)).To(BeEmpty())
	x.Expect(x.d.List(x.t.Context())).To(BeEmpty())
	x.Expect(x.step()).To(BeEmpty(), "nothing is left to do")
}

func one(operation string) map[string]int { return map[string]int{operation: 1} }

func trySoft(m *infrav1.VSphereMachine) {
	m.PowerOffMode = infrav1.VSpherePowerOffTrySoft
}

func TestDeleteHard(t *testing.T) {
	x := newDeleting(t)
	x.Expect(x.step()).To(Equal(one("PowerOffVM_Task")))
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

func TestDeleteSoft(t *testing.T) {
	x := newDeleting(t, trySoft)
	x.Expect(x.step()).To(Equal(one("ShutdownGuest")))
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

func TestDeleteSoftInVain(t *testing.T) {
	x := newDeleting(t, trySoft)
	x.Expect(x.step()).To(Equal(one("ShutdownGuest")))
	m := x.vm()
	x.v.Context.WithLock(m, func() { m.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOn }) // the guest ignores the shutdown
	x.Expect(x.step()).To(BeEmpty(), "the guest has its time")
	x.d.removals.set(x.made.ID, removal{shutdownAt: time.Now().Add(-301 * time.Second)})
	x.Expect(x.step()).To(Equal(one("PowerOffVM_Task")))
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

func TestDeleteSoftWithoutTools(t *testing.T) {
	x := newDeleting(t, trySoft)
	undo := x.v.refuse("ShutdownGuest", &types.ToolsUnavailable{})
	x.Expect(x.step()).To(Equal(map[string]int{"ShutdownGuest": 1, "PowerOffVM_Task": 1}), "nobody hears")
	undo()
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

// TestDeleteOnlySoft: a guest that does not shut down is asked again, and its power is never cut.
// Missing VMware Tools are reported.
func TestDeleteOnlySoft(t *testing.T) {
	x := newDeleting(t, trySoft, func(m *infrav1.VSphereMachine) { m.PowerOffMode = infrav1.VSpherePowerOffSoft })
	undo := x.v.refuse("ShutdownGuest", &types.ToolsUnavailable{})
	calls := x.v.counted(func() {
		errs := x.d.Delete(t.Context(), []cloud.Resource{x.made})
		x.Expect(cloud.CodeOf(errs[0])).To(Equal(cloud.Unavailable))
		x.Expect(errs[0]).To(MatchError(ContainSubstring("VMware Tools")))
	})
	x.Expect(calls).NotTo(HaveKey("PowerOffVM_Task"))
	undo()
	m := x.vm()
	busy := func() {
		x.v.Context.WithLock(m, func() { m.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOn })
	}
	x.Expect(x.step()).To(Equal(one("ShutdownGuest")))
	busy()
	x.Expect(x.step()).To(BeEmpty(), "the guest has its time")
	x.d.removals.set(x.made.ID, removal{shutdownAt: time.Now().Add(-301 * time.Second)})
	x.Expect(x.step()).To(Equal(one("ShutdownGuest")), "it is asked again")
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

// TestDeleteKeepsClaims: a first-class disk that a CSI driver attached is detached and outlives the
// VM.
func TestDeleteKeepsClaims(t *testing.T) {
	x := newDeleting(t)
	m := x.vm()
	root := x.v.Context.Map.Get(m.Datastore[0]).(*simulator.Datastore).Info.GetDatastoreInfo().Url
	file := filepath.Join(root, "fcd", "claim.vmdk")
	x.Expect(os.MkdirAll(filepath.Dir(file), 0o700)).To(Succeed())
	x.Expect(os.WriteFile(file, []byte("data"), 0o600)).To(Succeed())
	x.v.Context.WithLock(m, func() {
		m.Config.Hardware.Device = append(m.Config.Hardware.Device, &types.VirtualDisk{
			VirtualDevice: types.VirtualDevice{Key: 2999, Backing: &types.VirtualDiskFlatVer2BackingInfo{
				VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: "[LocalDS_0] fcd/claim.vmdk"},
			}},
			VDiskId: &types.ID{Id: "claim"},
		})
	})
	x.Expect(x.step()).To(Equal(one("PowerOffVM_Task")))
	x.Expect(x.step()).To(Equal(one("ReconfigVM_Task")))
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
	x.Expect(file).To(BeARegularFile())
}

// TestDeleteUnreadable: a VM is not destroyed while vCenter can't read its configuration, because
// the disks of a CSI driver would be destroyed with it.
func TestDeleteUnreadable(t *testing.T) {
	x := newDeleting(t)
	x.Expect(x.step()).To(Equal(one("PowerOffVM_Task")))
	x.v.spoil(withoutConfig)
	calls := x.v.counted(func() {
		errs := x.d.Delete(t.Context(), []cloud.Resource{x.made})
		x.Expect(cloud.CodeOf(errs[0])).To(Equal(cloud.Unavailable), "%v", errs[0])
	})
	x.Expect(calls).NotTo(HaveKey("Destroy_Task"))
	x.v.spoil(nil)
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

// config matches the properties of a VM's configuration in an answer.
var config = regexp.MustCompile(`(?s)<propSet><name>config\..*?</propSet>`)

// withoutConfig answers as vCenter does if it can't read the VMs' configuration.
func withoutConfig(operation string, send func() (*http.Response, error)) (*http.Response, error) {
	resp, err := send()
	if err != nil || operation != "RetrievePropertiesEx" {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	body = config.ReplaceAll(body, nil)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, err
}

// TestDeleteDuringClone: the clone is canceled. If it creates a VM anyway, as in vcsim, the VM is
// found and deleted.
func TestDeleteDuringClone(t *testing.T) {
	x := &deleting{WithT: NewWithT(t), t: t, v: start(t)}
	release := x.v.hold(t)
	x.d = x.v.driver(t)
	var err error
	x.made, err = x.d.Ensure(t.Context(), request("m"))
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(x.step()).To(Equal(one("CancelTask")))
	release()
	for range 2 { // power off, then destroy
		found, err := x.d.List(t.Context())
		x.Expect(err).NotTo(HaveOccurred())
		x.Expect(x.d.Delete(t.Context(), found)).To(HaveEach(BeNil()))
	}
	x.wantGone()
}

// TestDeleteFails: the next step reports the fault of a task, and the one after it retries.
func TestDeleteFails(t *testing.T) {
	x := newDeleting(t)
	x.step()
	m := x.vm()
	x.v.Context.WithLock(m, func() { m.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOff })
	task := simulator.CreateTask(m, "destroy", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		return nil, &types.NoPermission{PrivilegeId: "VirtualMachine.Inventory.Delete"}
	})
	ref := task.Run(x.v.Context)
	task.Wait()
	x.d.removals.set(x.made.ID, removal{task: ref})
	errs := x.d.Delete(t.Context(), []cloud.Resource{x.made})
	x.Expect(cloud.CodeOf(errs[0])).To(Equal(cloud.Unauthorized))
	x.Expect(errs[0]).To(MatchError(ContainSubstring("VirtualMachine.Inventory.Delete")))
	x.Expect(x.step()).To(Equal(one("Destroy_Task")))
	x.wantGone()
}

// TestDeleteForeign: another cluster's VM is left alone, whatever the resource says.
func TestDeleteForeign(t *testing.T) {
	x := newDeleting(t)
	theirs := x.made
	theirs.OwnershipID = "red"
	errs := x.d.Delete(t.Context(), []cloud.Resource{theirs})
	x.Expect(cloud.CodeOf(errs[0])).To(Equal(cloud.Conflict))
	x.Expect(x.vm().Runtime.PowerState).To(Equal(types.VirtualMachinePowerStatePoweredOn))
}

// TestDeleteMany: a deletion of many machines reads only their VMs, and never all VMs of the
// datacenter. A live read that finds them gone asks once for the user's privileges.
func TestDeleteMany(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 120)
	refs := v.own()
	d := v.driver(t)
	d.page = 50
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Describe(t.Context(), []cloud.Reference{referenceOf("nobody")})).To(
		BeEmpty()) // checks that no clone of an earlier process runs
	batch, left := []cloud.Resource{}, []cloud.Reference{}
	for _, ref := range refs[:maxBatch] {
		batch = append(batch, found[slices.IndexFunc(found, func(r cloud.Resource) bool { return r.Token == ref.Token })])
		left = append(left, referenceOf(ref.Token))
	}
	calls := v.counted(func() { g.Expect(d.Delete(t.Context(), batch)).To(HaveEach(BeNil())) })
	g.Expect(calls).To(Equal(map[string]int{"RetrievePropertiesEx": 1, "PowerOffVM_Task": maxBatch}))
	calls = v.counted(func() { g.Expect(d.Delete(t.Context(), batch)).To(HaveEach(BeNil())) })
	g.Expect(calls).To(Equal(map[string]int{"RetrievePropertiesEx": 2, "Destroy_Task": maxBatch}), "the VMs, and how the tasks ended")
	calls = v.counted(func() { g.Expect(d.Describe(t.Context(), left)).To(BeEmpty()) })
	g.Expect(calls).To(Equal(map[string]int{"RetrievePropertiesEx": 1, "HasPrivilegeOnEntities": 1}))
}
