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
	"github.com/drover-io/drover/test/internal/scenario"
)

// House is a rig with one manager on it, which all tests of a package share, or which is one test's
// own.
type House struct {
	Rig  *Rig
	Seat *Seat
	// Patience is the timeout for everything that must come true in the end.
	Patience time.Duration
	// CallTimeout is the manager's timeout for a call to the cloud. 0: 10 s.
	CallTimeout time.Duration
	// Args are appended to the manager's command line.
	Args []string
}

// Main is the body of the package's TestMain. It returns the exit code.
func (h *House) Main(m *testing.M, begin Begin) int {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	defer func() { _ = h.close() }()
	if err := h.open(ctx, begin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Begin is Start, or another function that starts a rig.
type Begin = func(ctx context.Context, controllerManagerArgs ...string) (*Rig, error)

// Own opens the house for one test, and closes it when the test ends.
func (h *House) Own(t *testing.T, begin Begin) {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	t.Cleanup(func() {
		if err := h.close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.open(t.Context(), begin); err != nil {
		t.Fatal(err)
	}
}

func (h *House) open(ctx context.Context, begin Begin) (err error) {
	if h.Rig, err = begin(ctx); err != nil {
		return err
	}
	if h.Seat, err = h.Rig.NewSeat(ctx, "management"); err != nil {
		return err
	}
	return h.StartManager(ctx)
}

func (h *House) close() error {
	if h.Seat != nil {
		h.Seat.Close()
	}
	if h.Rig == nil {
		return nil
	}
	return h.Rig.Stop()
}

// StartManager starts the manager, which must not be running.
func (h *House) StartManager(ctx context.Context) error {
	args := []string{"--leader-elect=false", "--cloud-call-timeout=" + cmp.Or(h.CallTimeout, 10*time.Second).String()}
	return h.Seat.Start(ctx, append(args, h.Args...)...)
}

// Stage is a test's adopted cluster, in its own namespace and with its own account.
type Stage struct {
	*testing.T
	*Tenant
	*House
	Ctx context.Context
}

// Stage creates a stage with this name, and waits until its cluster is available.
func (h *House) Stage(t *testing.T, name string) *Stage {
	t.Helper()
	s, objects := h.Bare(t, name)
	s.Do(scenario.Create(s.Ctx, h.Rig.Client, objects...))
	s.Until("the cluster is there", s.Available(h.Rig.View))
	return s
}

// Bare returns a stage and its objects, which the test may change and must create.
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

// Until waits for a check, and fails the test if it does not come true within Patience.
func (s *Stage) Until(what string, check scenario.Check) {
	s.Helper()
	took, err := scenario.Wait(s.Ctx, s.Patience, check)
	if err != nil {
		s.Fatalf("waiting until %s: %v", what, err)
	}
	s.Logf("%5.1fs until %s", took.Seconds(), what)
}

// Do fails the test if err is not nil.
func (s *Stage) Do(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Books returns the cloud's own current records.
func (s *Stage) Books() simulator.Snapshot {
	s.Helper()
	books, err := s.Rig.Snapshot(s.Ctx)
	s.Do(err)
	return books
}

// Empty waits until nothing is left of any machine, in the cloud or in either cluster, and checks
// that no machine was ever created twice.
func (s *Stage) Empty() {
	s.Helper()
	s.Until("nothing is left", func(ctx context.Context) (string, error) { return s.Left(ctx, Except{}) })
	s.Do(s.Twice(s.Books()))
}

// Nodes checks that there are n Nodes, all Ready. The provider ID of each has this prefix and ends
// with the ID of a live instance. No other instance is alive.
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

// Life takes a pool of three machines through its life: they become ready, roll, lose one instance
// to lose, which is replaced, and are scaled to zero. Each time there are three, good must come
// true, too. In the end nothing is left.
func (s *Stage) Life(pool scenario.Pool, good scenario.Check, lose func(id string)) {
	s.Helper()
	three := scenario.All(pool.Ready(s.Rig.Client, 3), good)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.HealthCheck(30)))
	s.Until("three machines are ready", three)

	s.Do(pool.Roll(s.Ctx, s.Rig.Client, pool.Name+"-2", pool.Machine))
	s.Until("all have rolled", scenario.All(pool.Current(s.Rig.Client), three))

	lost := s.Live(s.Books())[0]
	if lost.Kind != wire.Instance {
		lost.ID = lost.AttachedTo
	}
	lose(lost.ID)
	s.Until("the one that was lost is replaced", func(ctx context.Context) (string, error) {
		for _, r := range s.Live(s.Books()) { // the books are refreshed only from time to time
			if r.ID == lost.ID {
				return lost.ID + " is there", nil
			}
		}
		return three(ctx)
	})

	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}
