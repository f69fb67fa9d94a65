// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/faultproxy"
)

// Settings returns settings of the simulated cloud that keep a test short.
func Settings() simulator.Settings {
	ms := func(n int) simulator.Duration {
		return simulator.Duration{Duration: time.Duration(n) * time.Millisecond}
	}
	return simulator.Settings{BootMin: ms(100), BootMax: ms(200), Stop: ms(200), Throttle: simulator.ThrottleNone}
}

// simulated is the simulated cloud as a process.
type simulated struct{ rig *Rig }

func (s *simulated) start(ctx context.Context, r *Rig) (err error) {
	s.rig = r
	if r.Cloud, err = playground.StartSimulator(ctx, playground.SimulatorOptions{}); err != nil {
		return err
	}
	r.Admin = simulator.Admin{URL: r.Cloud.URL}
	return r.Admin.SetSettings(ctx, Settings())
}

func (s *simulated) open(ctx context.Context, t *Tenant) (faultproxy.Options, error) {
	err := s.rig.Admin.SetAccount(ctx, simulator.AccountOptions{Name: t.Name, Tokens: []string{t.Token}})
	return faultproxy.Options{Upstream: s.rig.Cloud.URL, Parse: faultproxy.Cloud}, err
}

func (s *simulated) books(ctx context.Context) (simulator.Snapshot, error) {
	return s.rig.Admin.Snapshot(ctx)
}

func (s *simulated) remember(ctx context.Context, d time.Duration) error {
	settings := Settings()
	settings.TerminatedVisible.Duration = d
	return s.rig.Admin.SetSettings(ctx, settings)
}

func (s *simulated) stop() error {
	if s.rig == nil || s.rig.Cloud == nil {
		return nil
	}
	return s.rig.Cloud.Stop()
}
