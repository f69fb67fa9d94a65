// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
)

// House is what all tests of a package share: a rig with one manager on it.
type House struct {
	Rig  *Rig
	Seat *Seat
	// Patience is for whatever must come true in the end.
	Patience time.Duration
	// CallTimeout is how long the manager gives a call to the cloud. 0: 10 s.
	CallTimeout time.Duration
}

// Main is the package's TestMain.
func (h *House) Main(m *testing.M, begin func(context.Context, ...string) (*Rig, error)) int {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var err error
	if h.Rig, err = begin(ctx); err == nil {
		defer h.Rig.Stop()
		if h.Seat, err = h.Rig.NewSeat(ctx, "management"); err == nil {
			defer h.Seat.Close()
			err = h.StartManager(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// StartManager starts the manager, which does not run.
func (h *House) StartManager(ctx context.Context) error {
	return h.Seat.Start(ctx, "--leader-elect=false", "--cloud-call-timeout="+cmp.Or(h.CallTimeout, 10*time.Second).String())
}

// Stage is a test's cluster, which is adopted, in a namespace of its own, with an account of its
// own.
type Stage struct {
	*testing.T
	*Tenant
	*House
	Ctx context.Context
}

// Stage sets a stage of this name.
func (h *House) Stage(t *testing.T, name string) *Stage {
	t.Helper()
	s, objects := h.Bare(t, name)
	s.Do(scenario.Create(s.Ctx, h.Rig.Client, objects...))
	s.Until("the cluster is there", s.Available(h.Rig.View))
	return s
}

// Bare is a stage whose objects are for the test to create, and to change before.
func (h *House) Bare(t *testing.T, name string) (*Stage, []client.Object) {
	t.Helper()
	s := &Stage{T: t, House: h, Ctx: t.Context()}
	t.Cleanup(s.end)
	var err error
	s.Tenant, err = h.Rig.NewTenant(s.Ctx, name)
	s.Do(err)
	objects, err := s.Objects()
	s.Do(err)
	return s, objects
}

func (s *Stage) end() {
	if s.Tenant == nil {
		return
	}
	ctx := context.Background()
	if s.Failed() {
		s.Log(s.Rig.Dump(ctx, s.Namespace))
		if err := s.Rig.Save(s.ArtifactDir()); err != nil {
			s.Log(err)
		}
	}
	if err := scenario.Delete(ctx, s.Rig.Client, s.Cluster()); err != nil {
		s.Error(err)
	}
}

// Until waits, and ends the test if it does not come true.
func (s *Stage) Until(what string, check scenario.Check) {
	s.Helper()
	took, err := scenario.Wait(s.Ctx, s.Patience, check)
	if err != nil {
		s.Fatalf("waiting until %s: %v", what, err)
	}
	s.Logf("%5.1fs until %s", took.Seconds(), what)
}

// Do ends the test if a step of it did not succeed.
func (s *Stage) Do(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Books are the cloud's own, of this moment.
func (s *Stage) Books() simulator.Snapshot {
	s.Helper()
	books, err := s.Rig.Snapshot(s.Ctx)
	s.Do(err)
	return books
}

// Empty waits until nothing is left of any machine, in the cloud or in either cluster; and none was
// ever made twice.
func (s *Stage) Empty() {
	s.Helper()
	s.Until("nothing is left", func(ctx context.Context) (string, error) { return s.Left(ctx, Except{}) })
	s.Do(s.Twice(s.Books()))
}

// Nodes checks that there are so many Nodes, all Ready, each by the provider ID of an instance that
// lives, which has this prefix and ends with the instance's ID; and that no other instance lives.
func (s *Stage) Nodes(n int, prefix string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.NodeList{}
		if err := s.Rig.Nodes.List(ctx, list); err != nil {
			return "", err
		}
		alive := map[string]bool{}
		for _, r := range s.Live(s.Books()) {
			if r.Kind == wire.Instance {
				alive[r.ID] = true
			}
		}
		all, ready := 0, 0
		for _, node := range list.Items {
			if !strings.HasPrefix(node.Name, s.Tenant.Name+"-") {
				continue
			}
			all++
			id := node.Spec.ProviderID[strings.LastIndex(node.Spec.ProviderID, "/")+1:]
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && alive[id] && strings.HasPrefix(node.Spec.ProviderID, prefix) {
					ready++
				}
			}
		}
		if ready != n || all != n || len(alive) != n {
			return fmt.Sprintf("of %d Nodes and %d instances, %d are Ready", all, len(alive), ready), nil
		}
		return "", nil
	}
}
