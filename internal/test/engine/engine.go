// SPDX-License-Identifier: Apache-2.0

// Package engine runs an account with the engine, as the manager has it. Only tests import it.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// Start returns an account with its limiter and a pinned place. Its loops run until the test ends.
func Start(t testing.TB, options fleet.Options, config fleet.AccountConfig) *fleet.Account {
	t.Helper()
	accounts := fleet.NewAccounts(options)
	key := types.NamespacedName{Namespace: "team", Name: "account"}
	a, err := accounts.Set(key, config)
	if err != nil {
		t.Fatal(err)
	}
	info, err := a.Probe(t.Context()) // as the controller does
	if err != nil {
		t.Fatal(err)
	}
	config.Place = info.Place
	if a, err = accounts.Set(key, config); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = accounts.Start(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return a
}

// Create creates a machine as the controller does: it tries again when the account, a cloud that
// throttles, or one that needs more than one step, says so.
func Create(t testing.TB, a *fleet.Account, req cloud.Request, domains []string) (cloud.Reference, error) {
	ref := cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID}
	for {
		made, err := a.Ensure(t.Context(), req, domains)
		var queued *cloud.Queued
		var step *cloud.Error
		var wait time.Duration
		switch {
		case errors.As(err, &queued):
			wait = queued.After
		case errors.As(err, &step) && (step.Code == cloud.Unavailable && step.RetryAfter > 0 || step.Code == cloud.Throttled):
			wait = cmp.Or(step.RetryAfter, time.Second)
		default:
			ref.ProviderID = made.ProviderID
			return ref, err
		}
		select {
		case <-time.After(wait):
		case <-t.Context().Done():
			return ref, t.Context().Err()
		}
	}
}

// Live takes n machines through their lives: they are created side by side, run with their
// addresses, and are deleted. domains returns the failure domains of a machine. made is called
// between, and Live returns when all are gone.
func Live(t testing.TB, a *fleet.Account, n int, spec *infrav1.DroverMachineFields, owner string, domains func(i int) []string,
	made func()) {
	t.Helper()
	g := gomega.NewWithT(t)
	refs := make([]cloud.Reference, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			name := fmt.Sprintf("m-%03d", i)
			req := cloud.Request{Token: "token-" + name, OwnershipID: owner, Namespace: "team", Name: name, Spec: spec,
				UserData: []byte("#cloud-config\n")}
			var err error
			if refs[i], err = Create(t, a, req, domains(i)); err != nil {
				t.Errorf("machine %d: %v", i, err)
			}
			a.Observe(refs[i], true)
		})
	}
	wg.Wait()
	g.Eventually(func() (running int) {
		for _, ref := range refs {
			if o := a.Observe(ref, true); o.Instance != nil && o.Instance.State == cloud.StateRunning && len(o.Instance.Addresses) > 0 {
				running++
				a.NodeJoined(ref.Token)
			}
		}
		return running
	}, "3m", "500ms").Should(gomega.Equal(n))
	made()
	asked := time.Now()
	g.Eventually(func() (left int) {
		for _, ref := range refs {
			if !a.Delete(ref, asked).Gone {
				left++
			}
		}
		return left
	}, "3m", "500ms").Should(gomega.BeZero())
}

// LateListings returns how many calls of listings a slow computer may add to those that are counted
// since began: a fleet that takes longer than a minute is listed more often, every five seconds, by
// at most three calls.
func LateListings(began time.Time) int {
	return 3 * int(max(0, time.Since(began)-time.Minute)/(5*time.Second))
}
