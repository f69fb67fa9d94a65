// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestQuotaPerMinute has 40 machines made and deleted in a project that takes 20 changes a minute,
// which Google counts by its clock. Nothing runs in the machines. A slow computer, too, makes 20 in
// a minute, and so reaches the quota. How many minutes the computer needs is only printed.
func TestQuotaPerMinute(t *testing.T) {
	const (
		n, rate = 40, 20
		// refused is how many creates Google may refuse: those that are under way when it first
		// refuses one, as many as the manager has workers.
		refused = 20
	)
	s := startOn(t, "gcp", "busy")
	s.GCP.SetPower(nil)
	s.GCP.SetKeep(false) // the driver leaves nothing behind
	s.GCP.SetRate(rate)
	calls, throttled := s.GCP.Calls(), s.GCP.Throttled()
	// phase checks what was asked of the cloud since the last phase, which took minutes of quota.
	phase := func(what, operation string, began time.Time, most int) {
		t.Helper()
		now, nowThrottled := s.GCP.Calls(), s.GCP.Throttled()
		minutes := int(time.Now().Truncate(time.Minute).Sub(began.Truncate(time.Minute)).Minutes()) + 1
		asked, refusals := now[operation]-calls[operation], nowThrottled-throttled
		t.Logf("%s: in %s, of %d minutes of the quota: %d calls, %d of them refused", what, time.Since(began).Round(time.Second), minutes, asked,
			refusals)
		if asked > n+most || refusals > most || refusals == 0 {
			t.Errorf("%s: %d calls, %d of them refused, want at most %d and from 1 to %d", what, asked, refusals, n+most, most)
		}
		calls, throttled = now, nowThrottled
	}

	// Each phase begins with a minute, because what is left of another depends on the time of day.
	nextMinute := func() time.Time {
		scenario.Pause(s.Ctx, time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		return time.Now()
	}

	began := nextMinute()
	pool := s.NewPool("md", n)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("all run", func(ctx context.Context) (string, error) {
		list := &infrav1.DroverMachineList{}
		if err := s.Rig.View.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		running := 0
		for i := range list.Items {
			if ptr.Deref(list.Items[i].Status.Initialization.Provisioned, false) {
				running++
			}
		}
		if running == n {
			return "", nil
		}
		return fmt.Sprintf("%d run", running), nil
	})
	phase("to make them", "POST instances", began, refused)

	began = nextMinute()
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Until("all are gone", s.parts(0))
	phase("to delete them", "DELETE instances", began, n-rate) // they are sent in batches, each to its end
	s.Empty()
}
