// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/rig"
)

// manager is a Drover manager that is restarted whenever it ends, as a kubelet would.
type manager struct {
	seat *rig.Seat

	mu      sync.Mutex
	process *playground.Process
	written []string
}

// keep runs the manager until ctx ends. running is called after each start.
func (m *manager) keep(ctx context.Context, running func()) {
	for ctx.Err() == nil {
		err := m.seat.Start(ctx,
			"--shutdown-timeout=10s", "--control-plane-probe-interval=10s", "--cloud-call-timeout=5s",
			"--machine-safety-orphan-vms-period=2s", "--machine-safety-orphan-vms-grace=6s", "--machine-safety-overshooting-period=2s",
			"--machine-safety-apiserver-statuscheck-period=4s", "--machine-safety-apiserver-statuscheck-timeout=2s")
		if err == nil {
			p := m.seat.Process
			m.mu.Lock()
			m.process = p
			m.written = append(m.written, p.Log)
			m.mu.Unlock()
			running()
			select {
			case <-p.Done():
			case <-ctx.Done():
				p.Kill()
				return
			}
		}
		waitUntil(ctx, time.Now().Add(300*time.Millisecond))
	}
}

// signal sends a signal to the process. resume continues the same process if it was stopped.
func (m *manager) signal(s syscall.Signal) (resume func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.process
	if p == nil {
		return func() {}
	}
	p.Signal(s)
	return func() { p.Signal(syscall.SIGCONT) }
}

func (m *manager) logs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.written)
}
