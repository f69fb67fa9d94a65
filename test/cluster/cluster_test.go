// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/whole"
)

const (
	// patience bounds everything that must come true in the end.
	patience = 30 * time.Minute
	// second is a small cluster of a ClusterClass.
	second = "two"
)

// stage is a whole.Stage in a test.
type stage struct {
	*testing.T
	*whole.Stage
	ctx context.Context
}

// TestWholeCluster makes a cluster of three control-plane machines and two workers from the flavor
// kubeadm, has one machine of the control plane fail and be replaced, makes the control plane small
// again, and deletes the cluster. Meanwhile a client asks the endpoint. A second, small cluster is
// made from the ClusterClass.
func TestWholeCluster(t *testing.T) {
	s := start(t, whole.Options{})
	s.do(s.Create(s.ctx, "cluster-template-kubeadm.yaml", whole.Name, 3, 2))
	s.until("the first machine answers", s.Initialized)
	asker := s.ask()
	s.until("the control plane has three healthy machines", s.Healthy(3))
	s.until("the workers are ready", s.Workers(2))

	s.do(s.HurryRemediation(s.ctx))
	lost, err := s.PowerOff(s.ctx)
	s.do(err)
	s.until("the machine is replaced", s.Healthy(3, lost))
	s.do(s.Scale(s.ctx, 1))
	s.until("the control plane has one healthy machine", s.Healthy(1))

	t.Log(s.judge(asker))

	s.do(s.Create(s.ctx, "clusterclass-drover-kubeadm.yaml", second, 1, 1))
	s.do(s.Create(s.ctx, "cluster-template-topology-kubeadm.yaml", second, 1, 1))
	s.until("a cluster of the class is available", s.Available(second))

	s.do(scenario.Delete(s.ctx, s.Client, s.Cluster()))
	s.do(scenario.Delete(s.ctx, s.Client, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: whole.Namespace, Name: second}}))
	s.until("nothing is left", s.Gone)
}

// start starts a Stage for a test.
func start(t *testing.T, o whole.Options) *stage {
	t.Helper()
	if missing := whole.Missing(); missing != "" {
		t.Skip(missing)
	}
	s := &stage{T: t, ctx: t.Context()}
	var err error
	o.Dir, o.Progress = t.TempDir(), os.Stderr
	s.Stage, err = whole.Start(s.ctx, o)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.do(err)
	return s
}

// ask begins to ask the first cluster's endpoint.
func (s *stage) ask() *whole.Asker {
	s.Helper()
	asker, err := s.Ask(s.ctx)
	s.do(err)
	s.Cleanup(func() { asker.End() })
	return asker
}

// judge ends the asking. A request may fail, but not once more on a new connection.
func (s *stage) judge(asker *whole.Asker) whole.Answers {
	s.Helper()
	answers := asker.End()
	if answers.Asked < 300 || answers.Lost > 0 {
		s.Errorf("%d of %d requests failed, also on a new connection", answers.Lost, answers.Asked)
	}
	return answers
}

func (s *stage) do(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// until waits for a check. If it does not come true, the test fails, and prints what every machine
// says.
func (s *stage) until(what string, check scenario.Check) {
	s.Helper()
	took, err := scenario.Wait(s.ctx, patience, check)
	if err != nil {
		s.Errorf("waiting until %s: %v", what, err)
		s.consoles()
		s.FailNow()
	}
	s.Logf("%5.1fs until %s", took.Seconds(), what)
}

// consoles prints the machines' consoles.
func (s *stage) consoles() {
	books, err := s.Admin.Snapshot(s.ctx)
	if err != nil {
		s.Log(err)
		return
	}
	for _, r := range books.Resources {
		if report, err := s.Admin.Body(s.ctx, r.ID); err == nil {
			s.Logf("%s %s (%s):", r.ID, r.Name, report.Phase)
			for _, line := range report.Console {
				s.Log("  ", line)
			}
		}
	}
}
