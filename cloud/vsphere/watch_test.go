// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
)

// listener collects what a driver has reported.
type listener struct {
	mu    sync.Mutex
	known map[string][]cloud.Resource // by token
	whole int                         // how often everything was reported
	signs int
	err   error // the error of Watch, once it has returned
	ended chan struct{}
}

// listen follows until the test ends, at a pace that suits tests.
func listen(t testing.TB, d *driver) *listener {
	t.Helper()
	d.pace = func() time.Duration { return 10 * time.Millisecond }
	d.idle = time.Second
	l := &listener{known: map[string][]cloud.Resource{}, ended: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(l.ended)
		err := d.Watch(ctx, l.take)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.err = err
	}()
	t.Cleanup(func() {
		stop()
		<-l.ended
		t.Logf("told all %d times, %d signs of life; in the end: %v", l.whole, l.signs, l.err)
	})
	return l
}

func (l *listener) take(c cloud.Update) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.All:
		l.known, l.whole = byToken(c.Resources), l.whole+1
	case c.Token == "":
		l.signs++
	case len(c.Resources) == 0:
		delete(l.known, c.Token)
	default:
		l.known[c.Token] = c.Resources
	}
}

// all returns what is known, and how often everything was reported.
func (l *listener) all() (all []cloud.Resource, whole int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, token := range slices.Sorted(maps.Keys(l.known)) {
		all = append(all, l.known[token]...)
	}
	return all, l.whole
}

// of returns a function that returns what is known of a token.
func (l *listener) of(token string) func() []cloud.Resource {
	return func() []cloud.Resource {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.known[token]
	}
}

func (l *listener) resources() []cloud.Resource {
	all, _ := l.all()
	return all
}

func (l *listener) wholes() int {
	_, n := l.all()
	return n
}

func (l *listener) lives() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.signs
}

// theirs runs do in another user's session.
func (v *vcsim) theirs(t testing.TB, do func(*session) error) {
	t.Helper()
	other, err := newDriver(cloud.Config{Account: v.account, Credentials: credentials(), Connect: conformance.Through(bystander{v})})
	if err == nil {
		err = other.(*driver).vcenter.withSession(t.Context(), do)
	}
	if err != nil {
		t.Fatal(err)
	}
	v.settle()
}

func (v *vcsim) powerOff(t testing.TB, ref types.ManagedObjectReference) {
	t.Helper()
	v.theirs(t, func(s *session) error {
		_, err := methods.PowerOffVM_Task(t.Context(), s, &types.PowerOffVM_Task{This: ref})
		return err
	})
}

func (v *vcsim) destroy(t testing.TB, ref types.ManagedObjectReference) {
	t.Helper()
	v.theirs(t, func(s *session) error {
		_, err := methods.Destroy_Task(t.Context(), s, &types.Destroy_Task{This: ref})
		return err
	})
}

// address sets the address of a VM's guest.
func (v *vcsim) address(m *simulator.VirtualMachine, address string) {
	v.turn.Lock()
	defer v.turn.Unlock()
	v.Context.WithLock(m, func() {
		v.Context.Update(m, []types.PropertyChange{{Name: "guest.net",
			Val: []types.GuestNicInfo{{DeviceConfigId: 4000, IpAddress: []string{address}}}}})
	})
}

// TestWatchFleet: 100 machines that nothing changes cost one waiting call and no listing. A VM
// that is powered off, is destroyed or gets another address is reported after one read. Changes of
// other VMs cause no read.
func TestWatchFleet(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 101)
	v.own()
	foreign := v.with(cloud.TagToken, "m-100")[0]
	v.Context.WithLock(foreign, func() { foreign.Config.ExtraConfig = nil })
	d := v.driver(t)
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	all, _ := l.all()
	g.Expect(all).To(HaveLen(100))
	listed, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(byToken(listed)).To(Equal(byToken(all)))

	rounds := func(n int) { // two begin after a change is made, or after all of its reads
		before := l.lives()
		g.Eventually(l.lives, "2m").Should(BeNumerically(">=", before+n))
	}
	rounds(2)
	var lives int
	calls := v.counted(func() {
		before := l.lives()
		rounds(3)
		lives = l.lives() - before
	})
	g.Expect(calls).To(HaveLen(1), "no listing, no look")
	g.Expect(calls["WaitForUpdatesEx"]).To(BeNumerically("~", lives, 1))

	calls = v.counted(func() {
		v.address(foreign, "192.0.2.99")
		rounds(2)
	})
	g.Expect(calls).NotTo(HaveKey("RetrievePropertiesEx"), "it is somebody else's")

	off, destroyed, moved := v.with(cloud.TagToken, "m-7")[0], v.with(cloud.TagToken, "m-50")[0], v.with(cloud.TagToken, "m-99")[0]
	calls = v.counted(func() {
		v.powerOff(t, off.Self)
		g.Eventually(l.of("m-7"), "2m").Should(ConsistOf(HaveField("State", cloud.StateStopped)))
	})
	g.Expect(calls["RetrievePropertiesEx"]).To(Equal(1), "one look: %v", calls)
	v.powerOff(t, destroyed.Self)
	v.destroy(t, destroyed.Self)
	g.Eventually(l.of("m-50"), "2m").Should(BeEmpty())
	rounds(2)
	calls = v.counted(func() {
		v.address(moved, "192.0.2.7")
		g.Eventually(l.of("m-99"), "2m").Should(ConsistOf(HaveField("Addresses", ContainElement(HaveField("Address", "192.0.2.7")))))
	})
	g.Expect(calls["RetrievePropertiesEx"]).To(Equal(1), "one look: %v", calls)
	all, whole := l.all()
	g.Expect(whole).To(Equal(1))
	listed, err = d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(byToken(listed)).To(Equal(byToken(all)))
}

// TestWatchClones: a running clone is reported before it has a VM. Its end is reported, and so is
// its failure, which changes no VM. Verified to fail without the clones, and without the second
// read for the VM of a clone that has just ended.
func TestWatchClones(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	release := v.hold(t)
	_, err := d.Ensure(t.Context(), request("slow"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(l.of("slow"), "2m").Should(ConsistOf(HaveField("State", cloud.StatePending)))
	gap := make(chan struct{})
	go func() { // from here on, the machine is always present
		defer close(gap)
		for range 200 {
			if len(l.of("slow")()) != 1 {
				t.Error("told to be absent between the clone's end and the VM")
				return
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	release()
	g.Eventually(l.of("slow"), "2m").Should(ConsistOf(HaveField("State", cloud.StateRunning)))
	<-gap

	template := v.replace(func(h *heldVM) { h.fault = &types.NoDiskSpace{Datastore: "san-a"} })
	_, err = d.Ensure(t.Context(), request("full"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(l.of("full"), "2m").Should(ConsistOf(And(HaveField("State", cloud.StateFailed),
		HaveField("Reason", ContainSubstring("NoDiskSpace")))))
	_, err = d.Ensure(t.Context(), request("full"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity))
	g.Eventually(l.of("full"), "2m").Should(BeEmpty(), "nothing is left of the attempt")
	template.fault = nil
	_, whole := l.all()
	g.Expect(whole).To(Equal(1))
}

// TestWatchGroups: watched machines are kept apart as listed ones are. A failure is reported, and
// so is its end. Verified to fail without the check of groups.
func TestWatchGroups(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	cluster := v.Context.Map.Any("ClusterComputeResource").(*simulator.ClusterComputeResource)
	members := func() (n int) {
		v.turn.Lock()
		defer v.turn.Unlock()
		for _, rule := range cluster.ConfigurationEx.(*types.ClusterConfigInfoEx).Rule {
			n += len(rule.(*types.ClusterAntiAffinityRuleSpec).Vm)
		}
		return n
	}
	undo := v.refuse("ReconfigureComputeResource_Task", &types.NoPermission{PrivilegeId: "Host.Inventory.EditCluster"})
	for _, token := range []string{"a1", "a2"} {
		_, err := d.Ensure(t.Context(), request(token, func(m *infrav1.VSphereMachine) { m.AntiAffinityGroup = "workers" }))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(l.of("a1"), "2m").Should(ConsistOf(HaveField("Notice", ContainSubstring("Host.Inventory.EditCluster"))))
	undo()
	v.address(v.with(cloud.TagToken, "a1")[0], "192.0.2.7")
	g.Eventually(members, "2m").Should(Equal(2))
	g.Eventually(l.of("a1"), "2m").Should(ConsistOf(HaveField("Notice", "")))
	g.Eventually(l.of("a2"), "2m").Should(ConsistOf(HaveField("Notice", "")))
}

// TestWatchRestarts: after vCenter ends a session or a collector, Watch reports everything again,
// with one login, and misses no change. If vCenter does not answer, Watch returns an error, and
// the next Watch watches a new vCenter. Verified to fail when a version unknown to vCenter was an
// error at once.
func TestWatchRestarts(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 3)
	v.own()
	d := v.driver(t)
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	alive := func() {
		before := l.lives()
		g.Eventually(l.lives, "2m").Should(BeNumerically(">", before))
	}
	alive()
	calls := v.counted(func() {
		v.endSessions(t)
		v.powerOff(t, v.with(cloud.TagToken, "m-1")[0].Self)
		g.Eventually(l.wholes, "2m").Should(Equal(2))
		alive()
	})
	g.Expect(calls["Login"]).To(Equal(1))
	g.Expect(l.of("m-1")()).To(ConsistOf(HaveField("State", cloud.StateStopped)))

	undo := v.refuse("WaitForUpdatesEx", &types.InvalidCollectorVersion{})
	g.Eventually(l.ended, "2m").Should(BeClosed(), "a collector that serves not even once is no use")
	g.Expect(l.err).To(MatchError(ContainSubstring("InvalidCollectorVersion")))
	undo()
	l = listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	alive()
	refused := false
	v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
		if operation == "WaitForUpdatesEx" && !refused {
			refused = true
			defer v.refuse("WaitForUpdatesEx", &types.InvalidCollectorVersion{})()
		}
		return send()
	})
	g.Eventually(l.wholes, "2m").Should(Equal(2))
	v.spoil(nil)
	alive()

	v.stop()
	g.Eventually(l.ended, "2m").Should(BeClosed())
	g.Expect(cloud.CodeOf(l.err)).To(Equal(cloud.Unavailable))
	again := startAt(t, v.account.Cloud.VSphere.Server, 3) // the simulator assigns new references: with fewer VMs, they would collide
	again.own()
	l = listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	all, _ := l.all()
	g.Expect(all).To(HaveLen(3))
}

// TestWatchStartsOver: the simulator's collector starts over when a VM is created, and does not
// report the VMs that left just before. The machines that are gone are reported, even if no machine
// is left that could enter a second time.
func TestWatchStartsOver(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 3)
	v.own()
	template := v.named("DC0_C0_RP1_VM0")
	v.Context.WithLock(template, func() { template.Config.ExtraConfig = nil })
	d := v.driver(t)
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	held, hold := make(chan struct{}, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
		if operation == "WaitForUpdatesEx" {
			select {
			case held <- struct{}{}:
			default:
			}
			<-hold
		}
		return send()
	})
	<-held // from here on, the collector is not asked
	for _, m := range v.vms() {
		if m != template {
			v.powerOff(t, m.Self)
			v.destroy(t, m.Self)
		}
	}
	_, err := d.Ensure(t.Context(), request("new"))
	g.Expect(err).NotTo(HaveOccurred())
	release()
	g.Eventually(l.of("new"), "2m").Should(HaveLen(1))
	g.Eventually(l.resources, "2m").Should(HaveLen(1), "the others are gone")
	g.Expect(l.wholes()).To(Equal(1))
}

// TestWatchMatchesList: after each of many random changes, the reports match a listing. Verified to
// fail when the stream trusted what the simulator's collector says about VMs that left: it starts
// over whenever a VM is created.
func TestWatchMatchesList(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	d := v.driver(t)
	l := listen(t, d)
	g.Eventually(l.wholes, "2m").Should(Equal(1))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ours := func() []*simulator.VirtualMachine {
		return slices.DeleteFunc(v.vms(), func(m *simulator.VirtualMachine) bool { return !strings.HasPrefix(m.Name, "m-") })
	}
	for step := range 40 {
		machines := ours()
		slices.SortFunc(machines, func(a, b *simulator.VirtualMachine) int { return strings.Compare(a.Self.Value, b.Self.Value) })
		what := random.IntN(6)
		if len(machines) == 0 {
			what = 0
		}
		var m *simulator.VirtualMachine
		if what > 0 {
			m = machines[random.IntN(len(machines))]
		}
		on := m != nil && m.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
		switch {
		case what < 2:
			_, err := d.Ensure(t.Context(), request(fmt.Sprintf("r%d", step)))
			g.Expect(err).NotTo(HaveOccurred())
		case what == 2 && on:
			v.powerOff(t, m.Self)
		case what == 2:
			v.theirs(t, func(s *session) error {
				_, err := methods.PowerOnVM_Task(t.Context(), s, &types.PowerOnVM_Task{This: m.Self})
				return err
			})
		case what == 3 && !on:
			v.destroy(t, m.Self)
		case what == 4:
			v.address(m, fmt.Sprintf("192.0.2.%d", step))
		case what == 5: // another user removes the tags or restores them
			token := v.options(m)[cloud.TagToken]
			owner := map[bool]string{true: "", false: "blue"}[v.options(m)[cloud.TagOwnership] == "blue"]
			v.theirs(t, func(s *session) error {
				_, err := methods.ReconfigVM_Task(t.Context(), s,
					&types.ReconfigVM_Task{This: m.Self, Spec: types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{
						&types.OptionValue{Key: cloud.TagToken, Value: token}, &types.OptionValue{Key: cloud.TagOwnership, Value: owner}}}})
				return err
			})
		}
		if m != nil {
			t.Logf("step %d: %d of %s, on: %t", step, what, m.Name, on)
		}
		if random.IntN(3) > 0 {
			continue // several changes at once
		}
		listed, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(l.resources, "2m").Should(ConsistOf(listed), "step %d", step)
	}
	g.Expect(l.wholes()).To(Equal(1))
}
