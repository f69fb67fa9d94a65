// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// place is the cloud that the machines are created in.
type place interface {
	start(ctx context.Context, o Options) error
	// adopt sets the cluster's account to this place.
	adopt(*scenario.Adopted)
	// calls returns the calls received, by operation, and how many of them were throttled.
	calls(ctx context.Context) (byOperation map[string]int, throttled int, err error)
	books(ctx context.Context) (books, error)
	// terminate terminates a VM without Drover's knowledge.
	terminate(ctx context.Context, id string) error
	// processes returns the processes of the place, if it has any.
	processes() map[string]*playground.Process
	stop() error
}

// books holds what a place knows of its machines.
type books struct {
	vms  int       // created in total
	last time.Time // creation time of the last VM
	live int       // billed VMs and dependants
}

// simulated is the simulated cloud, as a process.
type simulated struct {
	process *playground.Simulator
	admin   simulator.Admin
}

func (s *simulated) start(ctx context.Context, o Options) (err error) {
	config, err := cloudConfig(o)
	if err != nil {
		return err
	}
	file := filepath.Join(o.Dir, "cloud.yaml")
	if err := write(file, config); err != nil {
		return err
	}
	s.process, err = playground.StartSimulator(ctx, playground.SimulatorOptions{Dir: o.Dir, Args: []string{"--config=" + file}})
	if err == nil {
		s.admin = simulator.Admin{URL: s.process.URL}
	}
	return err
}

func cloudConfig(o Options) (string, error) {
	d := func(d time.Duration) simulator.Duration { return simulator.Duration{Duration: d} }
	var s simulator.Options
	s.Settings.BootMin, s.Settings.BootMax = d(o.Joins), d(o.Joins)
	s.Settings.Latency = simulator.Latency{Min: d(o.Latency), Mean: d(o.Latency), Max: d(o.Latency)}
	s.Settings.Throttle = o.Throttle
	s.Bodies = quietBodies()
	text, err := yaml.Marshal(s)
	return string(text), err
}

func (s *simulated) adopt(a *scenario.Adopted) {
	a.Endpoint, a.Token = s.process.URL, s.process.Token
}

func (s *simulated) calls(ctx context.Context) (map[string]int, int, error) {
	audit, err := s.admin.Audit(ctx)
	if err != nil {
		return nil, 0, err
	}
	calls := map[string]int{}
	for _, row := range audit.Rows {
		calls[row.Operation] += row.Calls
	}
	return calls, audit.Calls("", wire.RequestLimitExceeded), nil
}

func (s *simulated) books(ctx context.Context) (books, error) {
	snapshot, err := s.admin.Snapshot(ctx)
	if err != nil {
		return books{}, err
	}
	b := books{live: len(snapshot.Live())}
	for _, i := range snapshot.Instances() {
		b.vms++
		if i.CreatedAt.After(b.last) {
			b.last = i.CreatedAt
		}
	}
	return b, nil
}

func (s *simulated) terminate(ctx context.Context, id string) error {
	return s.admin.Act(ctx, id, simulator.ActTerminate)
}

func (s *simulated) processes() map[string]*playground.Process {
	return map[string]*playground.Process{"simulated-cloud": s.process.Process}
}

func (s *simulated) stop() error {
	if s.process == nil {
		return nil
	}
	return s.process.Stop()
}
