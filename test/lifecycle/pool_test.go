// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"

	"github.com/drover-io/drover/test/scenario"
)

func TestPoolComesUpAndGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.until("the cluster is available", s.Available(env.view))
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 3}
	s.create(pool.Objects()...)
	s.until("three machines are ready", pool.Ready(env.view, 3))
	if n := len(s.live()); n != 3 {
		t.Errorf("the cloud has %d VMs, want 3", n)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}
