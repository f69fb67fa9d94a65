// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/vapi/library"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// faults maps each code to faults that vCenter may return for a clone.
var faults = map[cloud.Code][]types.BaseMethodFault{
	cloud.Unauthorized: {&types.NoPermission{PrivilegeId: "VirtualMachine.Provisioning.Clone"}},
	cloud.NoCapacity: {&types.InsufficientResourcesFault{}, &types.InsufficientMemoryResourcesFault{},
		&types.NoDiskSpace{Datastore: "san-a"}, &types.NoCompatibleHost{}},
	cloud.QuotaExceeded: {&types.NotEnoughLicenses{}},
	cloud.Conflict:      {&types.DuplicateName{Name: "m"}, &types.FileAlreadyExists{}},
	cloud.InvalidSpec: {&types.InvalidArgument{InvalidProperty: "spec.location"}, &types.InvalidVmConfig{Property: "memory"},
		&types.DatacenterMismatch{}, &types.NotSupported{}},
	cloud.Unavailable: {&types.ConcurrentAccess{}, &types.TaskInProgress{}, &types.HostNotConnected{}, &types.InvalidHostState{},
		&types.Timedout{}, &types.InaccessibleDatastore{}},
	cloud.Unknown: {&types.SystemErrorFault{Reason: "why"}},
}

// TestFaultsOfCalls: vcsim answers a clone call with each fault over the wire, and no VM is
// created.
func TestFaultsOfCalls(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	for code, all := range faults {
		for _, fault := range all {
			undo := v.refuse("CloneVM_Task", fault)
			_, err := d.Ensure(t.Context(), request("refused"))
			g.Expect(cloud.CodeOf(err)).To(Equal(code), "%T", fault)
			g.Expect(err).To(MatchError(ContainSubstring(nameOf(fault))))
			undo()
		}
	}
	v.refuse("CloneVM_Task", &types.ManagedObjectNotFound{})
	_, err := d.Ensure(t.Context(), request("refused"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "what was looked up before may have been replaced")
	v.ClearFaultRules()
	g.Expect(d.List(t.Context())).To(BeEmpty())
	_, err = d.Ensure(t.Context(), request("refused"))
	g.Expect(err).NotTo(HaveOccurred())
}

// TestFaultsOfTasks: a clone that starts and fails is Failed while it is remembered. The next
// attempt returns its fault, and the attempt after that can succeed.
func TestFaultsOfTasks(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	template := v.replace(func(*heldVM) {})
	for code, all := range faults {
		for _, fault := range all {
			template.fault = fault
			_, err := d.Ensure(t.Context(), request("failed"))
			g.Expect(err).NotTo(HaveOccurred(), "%T", fault)
			g.Expect(d.List(t.Context())).To(ConsistOf(And(HaveField("State", cloud.StateFailed),
				HaveField("Reason", ContainSubstring(nameOf(fault))))))
			_, err = d.Ensure(t.Context(), request("failed"))
			g.Expect(cloud.CodeOf(err)).To(Equal(code), "%T", fault)
			g.Expect(d.List(t.Context())).To(BeEmpty())
		}
	}
	template.fault = nil
	_, err := d.Ensure(t.Context(), request("failed"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.List(t.Context())).To(HaveLen(1))
}

// TestDomainRefuses: what a failure domain's hosts, pool or datastore are the reason for, another
// failure domain may not have, whether vCenter says so at once or by the task.
func TestDomainRefuses(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	template := v.replace(func(*heldVM) {})
	for code, all := range map[cloud.Code][]types.BaseMethodFault{
		cloud.NoCapacity: {&types.InaccessibleDatastore{}, &types.InvalidDatastore{}, &types.CannotAccessNetwork{}, &types.DatacenterMismatch{},
			&types.HostNotConnected{}, &types.InvalidHostState{}, &types.NoActiveHostInCluster{}},
		cloud.InvalidSpec: {&types.InvalidArgument{InvalidProperty: "spec.config"}, &types.NotSupported{}},
		cloud.Unavailable: {&types.TaskInProgress{}, &types.Timedout{}},
	} {
		for _, fault := range all {
			req := request("refused")
			req.FailureDomain = "rack-b"
			undo := v.refuse("CloneVM_Task", fault)
			_, err := d.Ensure(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(code), "%T", fault)
			g.Expect(err).To(MatchError(ContainSubstring(nameOf(fault))))
			undo()
			template.fault = fault
			_, err = d.Ensure(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred(), "%T", fault)
			g.Expect(d.List(t.Context())).To(ConsistOf(And(HaveField("State", cloud.StateFailed), HaveField("Code", code))))
			_, err = d.Ensure(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(code), "%T", fault)
			template.fault = nil
		}
	}
	v.account.Cloud.VSphere.FailureDomains = []infrav1.VSphereFailureDomain{
		{Name: "no-pool", ResourcePool: "DC0_C9/Resources"},
		{Name: "no-store", ResourcePool: "DC0_C0/Resources", Datastore: "LocalDS_9"},
	}
	d = v.driver(t)
	for _, domain := range []string{"no-pool", "no-store"} {
		req := request("refused")
		req.FailureDomain = domain
		_, err := d.Ensure(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity), "%v", err)
		req.Spec.Cloud.VSphere.Template = "nothing"
		_, err = d.Ensure(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), "%v", err)
	}
}

// TestFleet: 300 machines, 20 at a time and with one ended session, cost two logins and at most
// four calls each, including listings and look-ups. After that, a listing costs two reads, whatever
// the number of machines.
func TestFleet(t *testing.T) {
	const machines, atOnce = 300, 20
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	var made sync.Map
	create := func(from, to int) {
		var wg sync.WaitGroup
		turns := make(chan int)
		for range atOnce {
			wg.Go(func() {
				for i := range turns {
					r, err := d.Ensure(t.Context(), request(fmt.Sprintf("m-%d", i)))
					if err != nil {
						t.Errorf("machine %d: %v", i, err)
					}
					made.Store(r.ProviderID, i)
				}
			})
		}
		for i := from; i < to; i++ {
			turns <- i
		}
		close(turns)
		wg.Wait()
	}
	var found []cloud.Resource
	calls := v.counted(func() {
		create(0, machines/2)
		v.endSessions(t)
		create(machines/2, machines)
		for range 3 { // until all are seen running
			var err error
			found, err = d.List(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
		}
	})
	g.Expect(found).To(HaveLen(machines))
	g.Expect(found).To(HaveEach(HaveField("State", cloud.StateRunning)))
	for _, r := range found {
		_, ok := made.LoadAndDelete(r.ProviderID)
		g.Expect(ok).To(BeTrue(), r.ProviderID)
	}
	sum := 0
	for _, n := range calls {
		sum += n
	}
	t.Logf("%d calls: %v", sum, calls)
	g.Expect(calls["Login"]).To(Equal(2), "one, and one after the session's end")
	g.Expect(calls["CloneVM_Task"]).To(Equal(machines))
	g.Expect(sum).To(BeNumerically("<=", 4*machines))
	idle := v.counted(func() {
		_, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
	})
	g.Expect(idle).To(Equal(map[string]int{"RetrievePropertiesEx": 2}))
}

// life is one machine from its first call to its last, as a manager handles it.
type life struct {
	*vcsim
	t        *testing.T
	req      cloud.Request
	deleting bool   // the machine is to be deleted
	release  func() // releases its clone
	tag      string // the tag that it must have before it is deleted
}

// lead moves the machine on until it is gone or a call fails.
func (l *life) lead(d *driver) error {
	ctx := l.t.Context()
	ref := []cloud.Reference{{Token: l.req.Token, OwnershipID: l.req.OwnershipID}}
	for step := 0; !l.deleting; step++ {
		r, err := d.Ensure(ctx, l.req)
		if err != nil && (step > 1 || cloud.CodeOf(err) != cloud.Unavailable || !strings.Contains(err.Error(), "running clones")) {
			return err
		}
		if step > 6 {
			return fmt.Errorf("the machine does not run: it is %s, %s", r.State, r.Reason)
		}
		l.release()
		if r.State != cloud.StateRunning {
			continue
		}
		all, err := d.List(ctx)
		if err != nil {
			return err
		}
		if all[0].Notice != "" || len(l.values(l.req.Token)) != 1 || len(l.bearers(l.t, l.tag)) != 1 {
			return fmt.Errorf("the machine lacks its tag or its attribute: %s", all[0].Notice)
		}
		l.deleting = true
	}
	for range 6 {
		found, err := d.Describe(ctx, ref)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, err := range d.Delete(ctx, found) {
			if err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("the machine does not go")
}

// TestCrashAtEveryCall: one manager dies at its first call, before or after vCenter receives it,
// another one at its second call, and so on through the life of a machine from a content library,
// with a tag and an attribute. The next manager finds or creates the machine, creates no second
// one, completes it, and leaves nothing behind.
func TestCrashAtEveryCall(t *testing.T) {
	v := start(t)
	v.keep(t, "images", "ubuntu", library.ItemTypeVMTX)
	v.holds(v.named("DC0_C0_RP1_VM0").Self)
	v.attribute(t, v.driver(t), "cost-center", "")
	tag := v.tags(t, "team", "blue")[0]
	for point := 1; ; point++ {
		for _, done := range []bool{false, true} {
			req := request(fmt.Sprintf("crash-%d-%t", point, done), fromLibrary("images", "ubuntu"), withTags("team", "blue"),
				withAttributes("cost-center", "4711"))
			l := &life{vcsim: v, t: t, req: req, release: v.hold(t), tag: tag}
			calls, cloned, last := 0, 0, ""
			count := func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
				if operation == "CloneVM_Task" {
					cloned++
				}
				return send()
			}
			v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
				calls++
				if calls < point || calls == point && done {
					resp, err := count(operation, send)
					if calls < point || err != nil {
						return resp, err
					}
					_ = resp.Body.Close()
				}
				if calls == point {
					last = operation
				}
				return nil, io.ErrUnexpectedEOF
			})
			err := l.lead(v.driver(t))
			v.spoil(count)
			if calls < point {
				if err != nil || point < 30 {
					t.Fatalf("a life without a crash has %d calls: %v", calls, err)
				}
				return
			}
			if err == nil {
				t.Errorf("call %d, %s: a manager without an answer went on", point, last)
			}
			l.req.MaybeSent = true
			if err := l.lead(v.driver(t)); err != nil {
				t.Errorf("call %d, %s, done %t: the next manager: %v", point, last, done, err)
			}
			if left := v.with(cloud.TagToken, l.req.Token); len(left) > 0 {
				t.Errorf("call %d, %s, done %t: %d VMs are left", point, last, done, len(left))
			}
			if cloned != 1 {
				t.Errorf("call %d, %s, done %t: cloned %d times", point, last, done, cloned)
			}
		}
	}
}
