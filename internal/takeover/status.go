// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"io"

	"github.com/drover-io/drover/cloud/tagging"
)

// Status is how far a takeover is.
type Status struct {
	Cluster string         `json:"cluster"`
	Paused  bool           `json:"paused"`
	Staged  map[string]int `json:"staged"`
	// Held counts the Machines whose deletion is held, and Tagged the VMs.
	Held   int    `json:"held"`
	Tagged int    `json:"tagged"`
	Next   string `json:"next"`
}

// Print writes the status for people.
func (s *Status) Print(out io.Writer) error {
	_, err := fmt.Fprintf(out, "Cluster %s, paused: %t\nStaged: %s\nHeld: Machine %d\nTagged: VM %d\n%s\n",
		s.Cluster, s.Paused, Counts(s.Staged), s.Held, s.Tagged, s.Next)
	return err
}

// Status returns how far the takeover is.
func (t *Takeover) Status(ctx context.Context) (*Status, error) {
	paused, committing, err := t.state(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.staged(ctx)
	if err != nil {
		return nil, err
	}
	tagged, err := t.ours(ctx)
	if err != nil {
		return nil, err
	}
	others, err := t.others(ctx)
	if err != nil {
		return nil, err
	}
	unfinished := 0
	for _, vm := range tagged {
		if !others[vm.Token] {
			unfinished++
		}
	}
	held := 0
	for _, m := range s.machines {
		if _, has := m.Annotations[hook]; has {
			held++
		}
	}
	step := "nothing is staged"
	switch {
	case committing:
		step = begun
	case len(s.all()) == 0 && unfinished > 0 && paused:
		step = "it is being rolled back: run rollback again"
	case len(s.all()) == 0 && paused:
		step = "nothing is staged, and the Cluster is paused: rollback ends that"
	case len(s.all()) == 0 && len(tagged) > 0:
		step = "it is complete"
	case len(s.all()) > 0 && paused:
		step = "it is staged, completely or in part: check says which"
	case len(s.all()) > 0:
		if step, err = t.switched(ctx, s, tagged); err != nil {
			return nil, err
		}
	}
	return &Status{
		Cluster: t.Cluster, Paused: paused, Held: held, Tagged: len(tagged), Next: step,
		Staged: map[string]int{"MachineDeployment": len(s.deployments), "MachineSet": len(s.sets), "Machine": len(s.machines),
			"DroverMachine": len(s.vms)},
	}, nil
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
