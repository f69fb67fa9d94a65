// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

// place is where the machines are made, with its own books.
type place interface {
	start(ctx context.Context, o Options) error
	// adopt makes the cluster's account one of this place.
	adopt(*scenario.Adopted)
	// calls are those that came, by operation; throttled of them were refused.
	calls(ctx context.Context) (byOperation map[string]int, throttled int, err error)
	books(ctx context.Context) (books, error)
	// terminate ends a VM behind Drover's back.
	terminate(ctx context.Context, id string) error
	// processes are what it runs in, where that is measured.
	processes() map[string]*playground.Process
	stop() error
}

// books are what a place knows of its machines.
type books struct {
	vms  int       // ever made
	last time.Time // when the last one was
	live int       // VMs, and what belongs to them, that are on the bill
}

// simulated is the simulated cloud as a process.
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
	s.process, err = playground.StartSimulator(ctx, playground.SimulatorOptions{Binary: o.Binary, Dir: o.Dir, Args: []string{"--config=" + file}})
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
