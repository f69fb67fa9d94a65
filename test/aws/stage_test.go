// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/rig"
	"github.com/drover-io/drover/test/scenario"
)

// patience is for whatever must come true in the end: a busy computer takes minutes.
const patience = 5 * time.Minute

// stage is a cluster that is adopted, with an account of AWS and a manager.
type stage struct {
	*testing.T
	*rig.Tenant
	ctx  context.Context
	rig  *rig.Rig
	seat *rig.Seat
}

// start sets the stage. dress may change the account before it is there.
func start(t *testing.T, dress func(*infrav1.CloudAccount)) *stage {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	r, err := rig.StartOnAWS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{T: t, ctx: t.Context(), rig: r}
	t.Cleanup(s.end)
	if s.seat, err = r.NewSeat(s.ctx, "management"); err != nil {
		t.Fatal(err)
	}
	if s.Tenant, err = r.NewTenant(s.ctx, "blue"); err != nil {
		t.Fatal(err)
	}
	s.startManager()
	objects, err := s.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if account, ok := o.(*infrav1.CloudAccount); ok && dress != nil {
			dress(account)
		}
	}
	if err := scenario.Create(s.ctx, r.Client, objects...); err != nil {
		t.Fatal(err)
	}
	s.until("the cluster is there", s.Available(r.View))
	return s
}

func (s *stage) end() {
	if s.Failed() {
		s.Log(s.rig.Dump(context.Background(), "blue"))
		if err := s.rig.Save(s.ArtifactDir()); err != nil {
			s.Log(err)
		}
	}
	if s.Tenant != nil {
		s.Close()
	}
	if s.seat != nil {
		s.seat.Close()
	}
	if err := s.rig.Stop(); err != nil {
		s.Error(err)
	}
}

func (s *stage) startManager() {
	s.Helper()
	if err := s.seat.Start(s.ctx, "--leader-elect=false", "--cloud-call-timeout=10s"); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) until(what string, check scenario.Check) {
	s.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	var missing string
	var err error
	if wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		missing, err = check(ctx)
		return missing == "" && err == nil, nil
	}) != nil {
		s.Fatalf("waiting until %s: %s %v", what, missing, err)
	}
	s.Logf("%5.1fs until %s", time.Since(begin).Seconds(), what)
}

// do ends the test if a step of it did not succeed.
func (s *stage) do(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// books are the cloud's own, of this moment.
func (s *stage) books() simulator.Snapshot {
	s.Helper()
	books, err := s.rig.Snapshot(s.ctx)
	s.do(err)
	return books
}

// empty: nothing is left of any machine, in the cloud or in either cluster, and none was ever made twice.
func (s *stage) empty() {
	s.Helper()
	s.until("nothing is left", func(ctx context.Context) (string, error) { return s.Left(ctx, rig.Except{}) })
	s.do(s.Twice(s.books()))
}
