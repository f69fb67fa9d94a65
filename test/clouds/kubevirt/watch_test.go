// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	driver "github.com/drover-io/drover/cloud/kubevirt"
	"github.com/drover-io/drover/internal/test/engine"
	"github.com/drover-io/drover/test/internal/faultproxy"
)

// between starts a proxy in front of the infrastructure cluster's API server, and returns the proxy
// and credentials that use it.
func between(t testing.TB) (*faultproxy.Proxy, map[string][]byte) {
	t.Helper()
	g := NewWithT(t)
	proxy, err := faultproxy.Start(faultproxy.Options{Name: "infra", Upstream: infra.URL, CA: infra.CA(), Parse: faultproxy.Kubernetes})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(proxy.Close)
	kubeconfig, err := proxy.Kubeconfig(infra.kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	return proxy, map[string][]byte{"kubeconfig": kubeconfig}
}

// followed is an account with its inventory, as in the manager. It would list every second if it
// could not watch.
type followed struct {
	*fleet.Account
	proxy *faultproxy.Proxy
}

func followAccount(t testing.TB) followed {
	t.Helper()
	proxy, secret := between(t)
	spec := account()
	spec.Inventory = infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}
	a := engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{driver.Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall)},
		fleet.AccountConfig{Spec: *spec, Credentials: secret})
	return followed{a, proxy}
}

// calls counts the calls since the last reset, by verb. Watches last for minutes and are then
// restarted.
func (a followed) calls() map[string]int {
	n := map[string]int{}
	for _, c := range a.proxy.Calls() {
		n[c.Verb]++
	}
	return n
}

// make creates a machine as the controller does, and retries until the account accepts the create.
func (a followed) make(t testing.TB, owner string) cloud.Reference {
	req := request(owner, machine(nil))
	var made cloud.Resource
	NewWithT(t).Eventually(func() (err error) { made, err = a.Ensure(t.Context(), req, nil); return err }, "5m", "100ms").Should(Succeed())
	return cloud.Reference{Token: req.Token, OwnershipID: owner, ProviderID: made.ProviderID}
}

func (a followed) state(ref cloud.Reference) cloud.State {
	if seen := a.Observe(ref, true); seen.Instance != nil && !seen.Gone {
		return seen.Instance.State
	}
	return ""
}

// quiet waits until the account is followed by watches, and not listed.
func (a followed) quiet(t testing.TB) {
	t.Helper()
	a.proxy.Reset()
	NewWithT(t).Eventually(func() bool {
		defer a.proxy.Reset()
		return a.calls()["list"] == 0 && a.Inventory().Fresh && a.Inventory().ReceiveErr == nil
	}, "5m", "3s").Should(BeTrue(), "the account is followed")
}

// halt stops a VM as a tenant would, without the proxy.
func halt(t testing.TB, token string) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		vm := &kubevirtv1.VirtualMachine{}
		if err := infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: token}, vm); err != nil {
			return err
		}
		before := vm.DeepCopy()
		vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
		return infra.Admin.Patch(t.Context(), vm, client.MergeFrom(before))
	}, "2m", "500ms").Should(Succeed())
}

// makeAll creates machines in parallel, and returns when all of them run.
func (a followed) makeAll(t testing.TB, owner string, machines int) []cloud.Reference {
	t.Helper()
	refs := make([]cloud.Reference, machines)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i := range refs {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			refs[i] = a.make(t, owner)
		})
	}
	wg.Wait()
	until(t, "all run", func() bool {
		return !slices.ContainsFunc(refs, func(r cloud.Reference) bool { return a.state(r) != cloud.StateRunning })
	})
	return refs
}

// TestPool tests that 300 machines, created in parallel, run, idle and are deleted without
// leftovers, and counts the calls.
func TestPool(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	a := followAccount(t)
	const machines = 300
	refs := a.makeAll(t, owner, machines)
	g.Expect(infra.left(t, owner)).To(HaveLen(3 * machines))
	t.Logf("calls to make %d machines and see them run: %v", machines, a.calls())
	g.Expect(a.calls()).To(HaveKeyWithValue("create", 2*machines), "the Secret and the VM")
	g.Expect(a.calls()).To(HaveKeyWithValue("list", 7), "the probe's, and everything once")

	a.proxy.Reset()
	g.Consistently(a.calls, "10s", "1s").ShouldNot(HaveKey("list"), "ten times the interval of listings")
	g.Expect(a.Inventory().Fresh).To(BeTrue())
	g.Expect(a.Inventory().Instances).To(BeNumerically(">=", machines))

	for _, ref := range refs {
		a.Delete(ref, time.Now())
	}
	until(t, "all are gone", func() bool {
		return !slices.ContainsFunc(refs, func(r cloud.Reference) bool { return !a.Delete(r, time.Now()).Gone })
	})
	g.Expect(infra.left(t, owner)).To(BeEmpty())
	t.Logf("calls to delete them: %v", a.calls())
	g.Expect(a.calls()).To(HaveKeyWithValue("delete", machines), "one for each machine")
	g.Expect(a.calls()["deletecollection"]).To(BeNumerically("<", machines/10), "Secrets go many at a time, as their VMs are seen gone")
}

// TestWatched tests that changes of machines are noticed whatever happens to the watches, and that
// the account is listed if nothing can be watched.
func TestWatched(t *testing.T) {
	a := followAccount(t)
	refs := a.makeAll(t, newOwner(t), 5)
	next := func() (ref cloud.Reference) { ref, refs = refs[0], refs[1:]; return ref }

	t.Run("hand", func(t *testing.T) {
		a.proxy.Reset()
		ref := next()
		vm := &kubevirtv1.VirtualMachine{}
		vm.Namespace, vm.Name = namespace, ref.Token
		NewWithT(t).Expect(infra.Admin.Delete(t.Context(), vm)).To(Succeed())
		until(t, "the VM is gone", func() bool { return a.Observe(ref, true).Gone })
		NewWithT(t).Expect(a.calls()["list"]).To(Equal(8),
			"two live reads, as the cloud must say it twice: all that a listing misses is looked for")
	})
	t.Run("cut", func(t *testing.T) {
		a.proxy.Reset()
		a.proxy.CutStreams()
		ref := next()
		halt(t, ref.Token)
		until(t, "the VM is stopped", func() bool { return a.state(ref) == cloud.StateStopped })
		NewWithT(t).Expect(a.calls()["list"]).To(BeZero(), "nothing can have been missed: %+v", a.proxy.Calls())
		NewWithT(t).Expect(a.calls()["watch"]).To(Equal(6))
	})
	t.Run("right", func(t *testing.T) {
		g := NewWithT(t)
		giveBack := withoutWatches(t)
		a.proxy.CutStreams()
		until(t, "the right is missed", func() bool { return cloud.CodeOf(a.Inventory().ReceiveErr) == cloud.Unauthorized })
		ref := next()
		halt(t, ref.Token)
		until(t, "a listing shows the stopped VM", func() bool { return a.state(ref) == cloud.StateStopped })
		g.Expect(a.Inventory().Fresh).To(BeTrue())
		g.Expect(a.Inventory().Err).NotTo(HaveOccurred())
		giveBack()
		a.quiet(t)
	})
	t.Run("restart", func(t *testing.T) {
		infra.restart(t)
		ref := next()
		halt(t, ref.Token)
		until(t, "the VM is stopped", func() bool { return a.state(ref) == cloud.StateStopped })
		a.quiet(t)
	})
	t.Run("silence", func(t *testing.T) {
		a.proxy.SetLag(func(faultproxy.Call) time.Duration { return time.Hour }) // the streams are open, but silent
		ref := next()
		halt(t, ref.Token)
		a.proxy.Reset()
		began := time.Now()
		until(t, "a listing shows the stopped VM", func() bool { return a.state(ref) == cloud.StateStopped })
		t.Logf("the silence was noticed after %s", time.Since(began).Round(time.Second))
		NewWithT(t).Expect(a.calls()["list"]).NotTo(BeZero())
		a.proxy.SetLag(nil)
		a.proxy.CutStreams()
		a.quiet(t)
	})
}

// TestUnlabelled tests that a VM whose labels were taken off is shown and kept, with its guest and
// its Secret, also when its machine is deleted. When the labels are back, it is deleted.
func TestUnlabelled(t *testing.T) {
	g := NewWithT(t)
	a := followAccount(t)
	ref := a.makeAll(t, newOwner(t), 1)[0]
	guest := func() *kubevirtv1.VirtualMachineInstance {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: ref.Token}, vmi)).To(Succeed())
		return vmi
	}
	label := func(token, owner any) {
		vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ref.Token}}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{cloud.TagToken: token,
			cloud.TagOwnership: owner}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(infra.Admin.Patch(t.Context(), vm, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
	}
	before := guest()
	label(nil, nil)
	until(t, "the machine says so", func() bool { return cloud.CodeOf(a.Observe(ref, true).Err) == cloud.Conflict })
	g.Expect(a.Observe(ref, true).Gone).To(BeFalse())
	until(t, "its deletion asks", func() bool { return cloud.CodeOf(a.Delete(ref, time.Now()).Err) == cloud.Conflict })
	g.Consistently(func() bool { return a.Delete(ref, time.Now()).Gone }, "10s", "1s").Should(BeFalse())
	after := guest()
	g.Expect(after.UID).To(Equal(before.UID))
	g.Expect(after.DeletionTimestamp.IsZero()).To(BeTrue())
	secret := &corev1.Secret{}
	g.Expect(infra.Admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: ref.Token}, secret)).To(Succeed())
	label(ref.Token, ref.OwnershipID)
	until(t, "the deletion ends", func() bool { return a.Delete(ref, time.Now()).Gone })
}

// withoutWatches removes the permission to watch, and keeps the others.
func withoutWatches(t testing.TB) (giveBack func()) {
	t.Helper()
	role := &rbacv1.Role{}
	key := client.ObjectKey{Namespace: namespace, Name: "drover"}
	NewWithT(t).Expect(infra.Admin.Get(t.Context(), key, role)).To(Succeed())
	set := func(rules []rbacv1.PolicyRule) {
		now := &rbacv1.Role{}
		NewWithT(t).Expect(infra.Admin.Get(withoutEnd(t), key, now)).To(Succeed())
		now.Rules = rules
		NewWithT(t).Expect(infra.Admin.Update(withoutEnd(t), now)).To(Succeed())
	}
	giveBack = func() { set(role.Rules) }
	t.Cleanup(giveBack) // the other tests need the permission in any case
	reduced := role.DeepCopy().Rules
	for i := range reduced {
		reduced[i].Verbs = slices.DeleteFunc(reduced[i].Verbs, func(verb string) bool { return verb == "watch" })
	}
	set(reduced)
	return giveBack
}

// TestForgotten tests that the same Watch reads everything again if it missed changes that the API
// server no longer has.
func TestForgotten(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	proxy, secret := between(t)
	d, _ := connectBy(t, account(), secret)
	kept, lost := request(owner, machine(nil)), request(owner, machine(nil))
	for _, req := range []cloud.Request{kept, lost} {
		_, err := d.Ensure(t.Context(), req)
		g.Expect(err).NotTo(HaveOccurred())
		runs(t, d, req.Token)
	}

	var mu sync.Mutex
	var told []cloud.Update
	of := func(n int) (tokens []string) { // those of the nth complete change
		mu.Lock()
		defer mu.Unlock()
		for _, c := range told {
			if !c.All {
				continue
			}
			if n--; n > 0 {
				continue
			}
			for _, r := range c.Resources {
				if r.Kind == cloud.KindInstance && r.OwnershipID == owner {
					tokens = append(tokens, r.Token)
				}
			}
			return tokens
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.(cloud.Watcher).Watch(ctx, func(c cloud.Update) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, c)
		})
	}()
	t.Cleanup(func() { cancel(); g.Eventually(ended, "1m").Should(Receive()) })
	until(t, "everything is told", func() bool { return len(of(1)) == 2 })
	watching := time.Now()
	halt(t, kept.Token) // so that the streams of VMs and guests have sent something
	until(t, "the watches run", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(told, func(c cloud.Update) bool {
			return c.Token == kept.Token && slices.ContainsFunc(c.Resources, func(r cloud.Resource) bool { return r.State == cloud.StateStopped })
		})
	})
	until(t, "the watches have lived, for one that ends within a second is given up",
		func() bool { return time.Since(watching) > 2*time.Second })

	var shut atomic.Bool
	shut.Store(true)
	open := make(chan struct{})
	proxy.SetRule(func(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		if c.Verb == "watch" && at == faultproxy.Before && shut.Load() {
			select {
			case <-open:
			case <-ctx.Done():
			}
		}
		return faultproxy.Verdict{}
	})
	proxy.CutStreams()
	vm := &kubevirtv1.VirtualMachine{}
	vm.Namespace, vm.Name = namespace, lost.Token
	g.Expect(infra.Admin.Delete(t.Context(), vm)).To(Succeed())
	until(t, "the VM is gone", func() bool {
		return client.IgnoreNotFound(infra.Admin.Get(t.Context(), client.ObjectKeyFromObject(vm), vm)) == nil && vm.UID == "" ||
			theInstance(t, d, lost.Token).ID == ""
	})
	infra.restart(t) // it has no memory of earlier changes
	shut.Store(false)
	close(open)
	until(t, "everything is told again", func() bool { return len(of(2)) == 1 })
	g.Expect(of(2)).To(Equal([]string{kept.Token}))
	g.Expect(ended).NotTo(Receive(), "it goes on")
}
