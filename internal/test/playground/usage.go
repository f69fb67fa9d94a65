// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"fmt"
	"syscall"
	"time"
)

// Usage holds the resources that a process has used since it started.
type Usage struct {
	// CPU is user and system time.
	CPU time.Duration
	// PeakMemory is the highest resident memory so far, in bytes.
	PeakMemory int64
}

// Usage returns what the process has used so far, or in total once it has ended. For a running
// process it works only on Linux.
func (p *Process) Usage() (Usage, error) {
	select {
	case <-p.done:
	default:
		u, err := liveUsage(p.PID())
		if err != nil {
			return Usage{}, fmt.Errorf("measure %s: %w", p.Name, err)
		}
		return u, nil
	}
	state := p.cmd.ProcessState
	u := Usage{CPU: state.UserTime() + state.SystemTime()}
	if r, ok := state.SysUsage().(*syscall.Rusage); ok {
		u.PeakMemory = r.Maxrss * maxrssUnit
	}
	return u, nil
}
