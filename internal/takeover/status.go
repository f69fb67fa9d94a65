// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"io"

	"github.com/drover-io/drover/cloud/tagging"
)

// Status writes how far the takeover is.
func (t *Takeover) Status(ctx context.Context, out io.Writer) error {
	paused, err := t.paused(ctx)
	if err != nil {
		return err
	}
	s, err := t.staged(ctx)
	if err != nil {
		return err
	}
	tagged, err := t.ours(ctx)
	if err != nil {
		return err
	}
	held := 0
	for _, m := range s.machines {
		if _, has := m.Annotations[hook]; has {
			held++
		}
	}
	step := "nothing is staged"
	switch {
	case len(s.all()) == 0 && len(tagged) > 0 && paused:
		step = "it is being rolled back: run rollback again"
	case len(s.all()) == 0 && len(tagged) > 0:
		step = "it is complete"
	case len(s.all()) > 0 && paused:
		step = "it is staged, completely or in part: check says which"
	case len(s.all()) > 0:
		if step, err = t.switched(ctx, s, tagged); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "Cluster %s, paused: %t\nStaged: MachineDeployment %d, MachineSet %d, Machine %d, DroverMachine %d\nHeld: Machine %d\nTagged: VM %d\n%s\n",
		t.Cluster, paused, len(s.deployments), len(s.sets), len(s.machines), len(s.vms), held, len(tagged), step)
	return err
}

// switched says what is next in a Cluster whose pause has ended.
func (t *Takeover) switched(ctx context.Context, s *staged, tagged map[string]tagging.Instance) (string, error) {
	if back, err := t.mayRollBack(ctx, s, tagged); err != nil || back != "" {
		return back, err
	}
	if missing, err := t.notConverged(ctx); err != nil || missing != "" {
		return "it is switched, and waits: " + missing, err
	}
	return "it is switched: commit completes it, rollback undoes it", nil
}
