// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/rig"
	"github.com/drover-io/drover/test/scenario"
)

// patience is for whatever must come true in the end: hundreds of machines on a busy computer take minutes.
const patience = 10 * time.Minute

// bench is what all tests share, with one manager on it.
var (
	bench *rig.Rig
	seat  *rig.Seat
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var err error
	if bench, err = rig.StartOnAWS(ctx); err == nil {
		defer bench.Stop()
		if seat, err = bench.NewSeat(ctx, "management"); err == nil {
			defer seat.Close()
			err = startManager(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func startManager(ctx context.Context) error {
	return seat.Start(ctx, "--leader-elect=false", "--cloud-call-timeout=10s")
}

// stage is a cluster that is adopted, in a namespace of its own, with an account of AWS.
type stage struct {
	*testing.T
	*rig.Tenant
	ctx context.Context
	rig *rig.Rig
}

// start sets a stage of this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	s := &stage{T: t, ctx: t.Context(), rig: bench}
	t.Cleanup(s.end)
	var err error
	s.Tenant, err = s.rig.NewTenant(s.ctx, name)
	s.do(err)
	objects, err := s.Objects()
	s.do(err)
	s.do(scenario.Create(s.ctx, s.rig.Client, objects...))
	s.until("the cluster is there", s.Available(s.rig.View))
	return s
}

func (s *stage) end() {
	if s.Tenant == nil {
		return
	}
	ctx := context.Background()
	if s.Failed() {
		s.Log(s.rig.Dump(ctx, s.Namespace))
		if err := s.rig.Save(s.ArtifactDir()); err != nil {
			s.Log(err)
		}
	}
	if err := scenario.Delete(ctx, s.rig.Client, s.Cluster()); err != nil {
		s.Error(err)
	}
}

func (s *stage) until(what string, check scenario.Check) {
	s.Helper()
	took, err := scenario.Wait(s.ctx, patience, check)
	if err != nil {
		s.Fatalf("waiting until %s: %v", what, err)
	}
	s.Logf("%5.1fs until %s", took.Seconds(), what)
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
