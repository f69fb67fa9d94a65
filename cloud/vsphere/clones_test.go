// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
)

// TestCrash: while a clone is not in the inventory yet, neither a new manager nor one that got no
// answer loses the machine or creates a second one.
func TestCrash(t *testing.T) {
	lost := func(v *vcsim) {
		v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
			resp, err := send()
			if operation == "CloneVM_Task" && err == nil {
				_ = resp.Body.Close()
				return nil, io.ErrUnexpectedEOF
			}
			return resp, err
		})
	}
	for name, test := range map[string]struct {
		spoil func(*vcsim)
		code  cloud.Code // of the first Ensure
		other bool       // a new manager takes over
	}{
		"a new manager":                 {spoil: func(*vcsim) {}, other: true},
		"a lost answer":                 {spoil: lost, code: cloud.Unavailable},
		"a new one after a lost answer": {spoil: lost, code: cloud.Unavailable, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			v := start(t)
			release := v.hold(t)
			d, req := v.driver(t), request("crash")
			ref := []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID, ProviderID: providerID(identityOf(req.Token))}}

			test.spoil(v)
			_, err := d.Ensure(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code))
			v.spoil(nil)
			req.MaybeSent = true
			if test.other {
				d = v.driver(t)
			}
			calls := v.counted(func() {
				_, err = d.Ensure(t.Context(), req)
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "a clone runs that may be its")
				_, err = d.Describe(t.Context(), ref)
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "it is not known to be absent")
			})
			g.Expect(calls["CloneVM_Task"]).To(BeZero())

			release()
			made, err := d.Ensure(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(made.ProviderID).To(Equal(ref[0].ProviderID))
			g.Expect(v.with(cloud.TagToken, req.Token)).To(HaveLen(1))
			g.Expect(d.Describe(t.Context(), ref)).To(HaveLen(1))
		})
	}
}

// TestCloneOfOthers: clones that others start after this manager's login delay no machine.
func TestCloneOfOthers(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	_, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	v.hold(t)
	_, err = v.driver(t).Ensure(t.Context(), request("theirs"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Ensure(t.Context(), request("first"))
	g.Expect(err).NotTo(HaveOccurred())
	calls := v.counted(func() { _, err = d.Ensure(t.Context(), request("second")) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls).To(Equal(map[string]int{"FindAllByUuid": 2, "CloneVM_Task": 1}), "what a machine costs to make")
}

// TestCloneBeforeRestart: a clone from before this manager's login delays the machines that it may
// belong to, and no others. It can't belong to a machine whose create was never sent, or if both
// its user and its template are others'.
func TestCloneBeforeRestart(t *testing.T) {
	for name, test := range map[string]struct {
		user      string
		template  bool // the task has the machine's template
		maybeSent bool
		code      cloud.Code // of a create
		read      cloud.Code // of a live read
	}{
		"never sent":   {template: true, read: cloud.Unavailable},
		"our user":     {maybeSent: true, code: cloud.Unavailable, read: cloud.Unavailable},
		"another user": {user: "VSPHERE.LOCAL\\backup", maybeSent: true},
		"another user and our template": {user: "VSPHERE.LOCAL\\backup", template: true, maybeSent: true, code: cloud.Unavailable,
			read: cloud.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			v := start(t)
			v.hold(t, func(h *heldVM) {
				if h.user = test.user; test.template {
					h.entity = &types.ManagedObjectReference{Type: h.Self.Type, Value: h.Self.Value}
				}
			})
			_, err := v.driver(t).Ensure(t.Context(), request("before"))
			g.Expect(err).NotTo(HaveOccurred())
			d := v.driver(t)
			req := request("new")
			req.MaybeSent = test.maybeSent
			_, err = d.Ensure(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			_, err = d.Describe(t.Context(), []cloud.Reference{referenceOf("other")})
			g.Expect(cloud.CodeOf(err)).To(Equal(test.read), "%v", err)
		})
	}
}

// TestCloneForgotten: if a listing updates a clone while a create reads it, the create does not
// fail, and a newer clone is not lost.
func TestCloneForgotten(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	v.replace(func(h *heldVM) { h.fault = &types.NoDiskSpace{} })
	d := v.driver(t)
	id := identityOf("m")
	_, err := d.Ensure(t.Context(), request("m"))
	g.Expect(err).NotTo(HaveOccurred())
	v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
		if operation == "FindAllByUuid" {
			d.clones.forget(id)
		}
		return send()
	})
	_, err = d.Ensure(t.Context(), request("m"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity))

	task := func(value string) types.ManagedObjectReference {
		return types.ManagedObjectReference{Type: "Task", Value: value}
	}
	d.clones.tasks[id] = &clone{task: task("older")}
	v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
		if operation == "RetrievePropertiesEx" {
			d.clones.record(id, task("newer"), cloud.Resource{}, nil)
		}
		return send()
	})
	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		_, err := d.clones.refresh(t.Context(), s, d.page, nil)
		return err
	})).To(Succeed())
	g.Expect(d.clones.task(id)).NotTo(BeNil())
	g.Expect(d.clones.task(id).task).To(Equal(task("newer")))
}

// TestTogether: of many concurrent creates of one machine, one clones.
func TestTogether(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	calls := v.counted(func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := d.Ensure(t.Context(), request("one")); err != nil && cloud.CodeOf(err) != cloud.Unavailable {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	g.Expect(calls["CloneVM_Task"]).To(Equal(1))
	g.Expect(d.List(t.Context())).To(HaveLen(1))
}

// TestPending: a running clone is in every listing. Once it is a VM, it is powered on.
func TestPending(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	release := v.hold(t)
	d, req := v.driver(t), request("slow")
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.State).To(Equal(cloud.StatePending))
	g.Expect(d.List(t.Context())).To(ConsistOf(made))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})).To(ConsistOf(made))
	again, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(made))
	release()
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(And(HaveField("State", cloud.StateRunning), HaveField("ID", made.ID))))
	g.Expect(v.with(cloud.TagToken, req.Token)[0].Config.Uuid).To(Equal(identityOf(req.Token)))
}

// TestNotPoweredOn: a clone that fails when its VM exists already says why, with the code, so that
// the machine can go elsewhere.
func TestNotPoweredOn(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	for _, e := range v.Context.Map.All("HostSystem") {
		e.(*simulator.HostSystem).Runtime.InMaintenanceMode = true
	}
	d, req := v.driver(t), request("off")
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred(), "the task fails by itself")
	g.Expect(v.with(cloud.TagToken, req.Token)).To(HaveLen(1), "vCenter keeps the VM")
	failed := And(HaveField("State", cloud.StateFailed), HaveField("Code", cloud.Unavailable),
		HaveField("Reason", ContainSubstring("InvalidState")))
	g.Expect(d.List(t.Context())).To(ConsistOf(failed))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{referenceOf(req.Token)})).To(ConsistOf(failed))
	g.Expect(d.Ensure(t.Context(), req)).To(failed)
}

// TestDuplicates: vcsim accepts a UUID twice. Two VMs of one machine are a conflict, and a person's
// copy is not Drover's.
func TestDuplicates(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d, req := v.driver(t), request("twin")
	id := identityOf(req.Token)
	second := func(name string, edit func(*types.VirtualMachineConfigSpec)) {
		g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
			p, err := d.plan(t.Context(), s, req.Spec.Cloud.VSphere, "")
			g.Expect(err).NotTo(HaveOccurred())
			spec, err := p.cloneSpec(req, id)
			g.Expect(err).NotTo(HaveOccurred())
			edit(spec.Config)
			_, err = methods.CloneVM_Task(t.Context(), s, &types.CloneVM_Task{This: p.template.ref, Folder: p.folder, Name: name, Spec: *spec})
			return err
		})).To(Succeed())
	}
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())

	second("copy", func(c *types.VirtualMachineConfigSpec) { c.Uuid, c.InstanceUuid = "", "" })
	g.Expect(d.List(t.Context())).To(HaveLen(1), "a copy has our options and its own UUIDs")

	second("twin", func(*types.VirtualMachineConfigSpec) {})
	_, err = d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	both, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(both).To(HaveLen(2))
	g.Expect(both[0].ID).To(Equal(made.ID))
	g.Expect(both[1].ID).To(HavePrefix(made.ID + "/"))

	for range 2 { // power off, then destroy
		g.Expect(d.Delete(t.Context(), both[1:])).To(ConsistOf(BeNil()))
	}
	g.Expect(d.List(t.Context())).To(HaveLen(1), "the one that was named is gone")

	other := request("untagged")
	id = identityOf(other.Token)
	second("untagged", func(c *types.VirtualMachineConfigSpec) { c.Uuid, c.InstanceUuid, c.ExtraConfig = id, id, nil })
	_, err = d.Ensure(t.Context(), other)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "a VM with our UUID and without our options is not adopted")
	g.Expect(d.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: id, Token: other.Token,
		OwnershipID: "blue"}})).To(ConsistOf(BeNil()))
	g.Expect(v.vms()).To(ContainElement(HaveField("Name", "untagged")), "nor deleted")
}

// TestNameTaken: another user's VM of the same name stays as it is, and every method reports the
// task's fault.
func TestNameTaken(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 2)
	d, req := v.driver(t), request("taken")
	theirs := v.named("DC0_C0_RP1_VM1")
	v.Context.WithLock(theirs, func() { theirs.Name = vmName(req.Name, req.Token) })
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred(), "the clone's task begins, and fails by itself")
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].State).To(Equal(cloud.StateFailed))
	g.Expect(found[0].Reason).To(ContainSubstring("DuplicateName"))
	_, err = d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	g.Expect(d.List(t.Context())).To(BeEmpty(), "the next attempt is free to succeed")

	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.List(t.Context())).To(HaveLen(1))
	g.Expect(d.Delete(t.Context(), []cloud.Resource{made})).To(ConsistOf(BeNil()))
	g.Expect(d.List(t.Context())).To(BeEmpty())
	g.Expect(v.Context.Map.Get(theirs.Self)).To(BeIdenticalTo(theirs))
}

// TestReplacedTemplate: a template that was replaced by one of the same name is found again.
func TestReplacedTemplate(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	_, err := d.Ensure(t.Context(), request("before"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		p, err := d.plan(t.Context(), s, machine().Cloud.VSphere, "")
		if err == nil {
			p.template.ref.Value = "vm-0"
		}
		return err
	})).To(Succeed())
	_, err = d.Ensure(t.Context(), request("after"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	_, err = d.Ensure(t.Context(), request("after"))
	g.Expect(err).NotTo(HaveOccurred())
}

// TestSession: many callers share one login. This includes a new login after vCenter has ended the
// session with everything that belonged to it.
func TestSession(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	together := func() map[string]int {
		return v.counted(func() {
			var wg sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				wg.Go(func() { _, errs[i] = d.List(t.Context()) })
			}
			wg.Wait()
			g.Expect(errs).To(HaveEach(BeNil()))
		})
	}
	g.Expect(together()["Login"]).To(Equal(1))
	g.Expect(together()).To(Equal(map[string]int{"RetrievePropertiesEx": 8}), "an idle fleet costs a listing")

	v.AddFaultRule(&simulator.FaultInjectionRule{MethodName: "FindAllByUuid", ObjectType: "*", ObjectName: "*", Probability: 1, MaxCount: 1,
		FaultType: simulator.FaultTypeNotAuthenticated, Enabled: true})
	calls := v.counted(func() {
		_, err := d.Ensure(t.Context(), request("m"))
		g.Expect(err).NotTo(HaveOccurred())
	})
	g.Expect(calls["Login"]).To(Equal(1))
	g.Expect(calls["CloneVM_Task"]).To(Equal(1))

	v.endSessions(t)
	calls = together()
	g.Expect(calls["Login"]).To(Equal(1), "one caller logs in, the others wait for it")
	g.Expect(calls["CreateContainerView"]).To(Equal(1))
}

// endSessions ends all other sessions, as their timeout would.
func (v *vcsim) endSessions(t testing.TB) {
	t.Helper()
	other, err := newDriver(cloud.Config{Account: v.account, Credentials: credentials(), Connect: conformance.Through(bystander{v})})
	if err != nil {
		t.Fatal(err)
	}
	err = other.(*driver).vcenter.withSession(t.Context(), func(s *session) error {
		managers, err := s.readObjects(t.Context(), 0, []types.ManagedObjectReference{*s.content.SessionManager},
			[]string{"sessionList", "currentSession"})
		if err != nil {
			return err
		}
		self := managers[0].properties["currentSession"].(types.UserSession).Key
		for _, other := range managers[0].properties["sessionList"].(types.ArrayOfUserSession).UserSession {
			if other.Key == self {
				continue
			}
			if _, err := methods.TerminateSession(t.Context(), s,
				&types.TerminateSession{This: *s.content.SessionManager, SessionId: []string{other.Key}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRefusedLogin: wrong credentials are tried once, not for every machine, because vCenter locks
// out users.
func TestRefusedLogin(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	made, err := newDriver(cloud.Config{Account: v.account, Connect: conformance.Through(v),
		Credentials: map[string][]byte{usernameKey: []byte(username), passwordKey: []byte("marked-wrong")}})
	g.Expect(err).NotTo(HaveOccurred())
	calls := v.counted(func() {
		for range 10 {
			_, err := made.List(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
		}
	})
	g.Expect(calls["Login"]).To(Equal(1))
}

// TestPace: another pace of reads holds at once.
func TestPace(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := start(t)
	var active time.Duration
	made, err := newDriver(cloud.Config{Account: v.account, Connect: conformance.Through(v),
		ActiveInterval: func() time.Duration { return active },
		Credentials:    map[string][]byte{usernameKey: []byte(username), passwordKey: []byte(password)}})
	g.Expect(err).NotTo(HaveOccurred())
	d := made.(*driver)
	g.Expect(d.pace()).To(Equal(defaultPace))
	active = 3 * time.Second
	g.Expect(d.pace()).To(Equal(active))
}
