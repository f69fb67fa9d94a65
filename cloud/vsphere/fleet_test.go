// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/test/engine"
)

// connected returns an account as the manager has it, with its limiter, and runs its loops until
// the test ends.
func (v *vcsim) connected(t testing.TB) *fleet.Account {
	t.Helper()
	row := Cloud()
	row.New = v.unpinned // the transport verifies the certificate
	return engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{row}, Times: fleet.TimesFor(5 * time.Minute), Transport: v,
		OnMachines: func(_ types.NamespacedName, tokens []string) {
			for _, token := range tokens {
				select {
				case v.wakeup(token) <- struct{}{}:
				default:
				}
			}
		}}, fleet.AccountConfig{Spec: *v.account, Credentials: credentials()})
}

// wakeup returns what wakes a machine whose turn has come.
func (v *vcsim) wakeup(token string) chan struct{} {
	wakeup, _ := v.wakeups.LoadOrStore(token, make(chan struct{}, 1))
	return wakeup.(chan struct{})
}

// manage creates machines concurrently, as the controllers do. Each one tries again when its answer
// says so, or when it is woken.
func (v *vcsim) manage(t testing.TB, a *fleet.Account, machines int, made func(cloud.Reference)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range machines {
		wg.Go(func() {
			req := request(fmt.Sprintf("m-%d", i))
			r, err := a.Ensure(t.Context(), req, nil)
			for queued := (*cloud.Queued)(nil); errors.As(err, &queued) && t.Context().Err() == nil; {
				select {
				case <-time.After(queued.After):
				case <-v.wakeup(req.Token):
				case <-t.Context().Done():
				}
				r, err = a.Ensure(t.Context(), req, nil)
			}
			if err != nil {
				t.Errorf("machine %d: %v", i, err)
				return
			}
			made(cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID, ProviderID: r.ProviderID})
		})
	}
}

// work plays vCenter: it ends the running clones of all these machines, one after the other,
// whenever as many run as the limit allows or as are left. It returns the most that ran at once.
func (v *vcsim) work(ctx context.Context, template *heldVM, machines, most int) (ran int) {
	for left := machines; ctx.Err() == nil; {
		if template.running() >= min(most, left) {
			v.turn.Lock() // no call arrives in between
			running := template.running()
			ran = max(ran, running)
			for range running {
				v.release(template)
			}
			left -= running
			v.turn.Unlock()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return ran
}

// TestClonesAtOnce: of 40 machines that are created at once, only as many are cloned at a time as
// the account's limit allows, and a waiting machine costs no call. Verified to fail without the
// limit: of 300, 246 ran at once.
func TestClonesAtOnce(t *testing.T) {
	const machines, atOnce = 40, 8
	g := NewWithT(t)
	v := start(t)
	v.account.RateLimits.Create.Burst = atOnce
	v.account.RateLimits.Read = infrav1.RateLimit{PerSecond: "1000", Burst: 1000}
	v.account.Inventory.ActiveSeconds = 1
	template := v.replace(func(h *heldVM) { h.released = make(chan struct{}) })
	v.held = true
	working, rest := context.WithCancel(t.Context())
	ran := make(chan int, 1)
	go func() { ran <- v.work(working, template, machines, atOnce) }()
	a := v.connected(t)
	calls := v.counted(func() { v.manage(t, a, machines, func(cloud.Reference) {}) })
	g.Eventually(template.running).Should(BeZero())
	rest()
	g.Expect(<-ran).To(Equal(atOnce))
	g.Expect(v.with(cloud.TagOwnership, "blue")).To(HaveLen(machines))
	g.Expect(calls["CloneVM_Task"]).To(Equal(machines))
	g.Expect(calls["FindAllByUuid"]).To(Equal(2 * machines))
	t.Logf("calls: %v", calls)
}

// TestWatchedFleet: machines that are created while the account is watched cost three calls each,
// plus at most six for all together each time the changes are read. So 300 machines, at Drover's
// default rate and pace, cost at most four calls each. After that, they cost only the call that
// stays open. Verified to fail when changed VMs were read one by one.
func TestWatchedFleet(t *testing.T) {
	const machines, look, first = 40, 6, 25
	const pace = 3 * time.Second
	limit := Cloud().Limits.Create
	if each := 3 + look/(limit.PerSecond*defaultPace.Seconds()) + first/300.; each > 4 {
		t.Errorf("%.2f calls for each of 300 machines", each)
	}
	g := NewWithT(t)
	v := start(t)
	v.account.RateLimits.Create.Burst = int32(limit.Burst)
	v.account.RateLimits.Read = infrav1.RateLimit{PerSecond: "1000", Burst: 1000}
	v.account.Inventory.ActiveSeconds = int32(pace.Seconds())
	a := v.connected(t)
	var all sync.Map
	running := func() (n int) {
		for ref := range all.Range {
			if o := a.Observe(ref.(cloud.Reference), true); o.Instance != nil && o.Instance.State == cloud.StateRunning {
				n++
			}
		}
		return n
	}
	began := time.Now()
	calls := v.counted(func() {
		v.manage(t, a, machines, func(ref cloud.Reference) {
			all.Store(ref, true)
			a.Observe(ref, true)
		})
		g.Eventually(running, "5m", "100ms").Should(Equal(machines))
	})
	looks := int(time.Since(began)/pace) + 1
	sum := 0
	for _, n := range calls {
		sum += n
	}
	t.Logf("%d calls, %d looks at most: %v", sum, looks, calls)
	g.Expect(calls["Login"]).To(BeZero(), "the probe has logged in")
	g.Expect(calls["CloneVM_Task"]).To(Equal(machines))
	g.Expect(calls["FindAllByUuid"]).To(Equal(2 * machines))
	waits, reads := calls["WaitForUpdatesEx"], calls["RetrievePropertiesEx"]
	g.Expect(waits).To(BeNumerically("<=", 2*looks), "one for news, and one where a clone has ended")
	g.Expect(reads).To(BeNumerically("<=", 2*waits+looks+first),
		"what has changed, the clones, and once more whether one has ended, all together")
	g.Expect(sum - 3*machines - waits - reads).To(BeNumerically("<=", first))
	g.Eventually(func() map[string]int { return v.counted(func() { <-time.After(5 * time.Second) }) }, "2m", "1ms").
		Should(Or(BeEmpty(), Equal(one("WaitForUpdatesEx"))), "an idle fleet")
}
