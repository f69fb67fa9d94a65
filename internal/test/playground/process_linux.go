// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// childAttributes puts a child into its own process group, so that Ctrl-C reaches only the parent,
// which then stops its children in order. The kernel also kills the child when the parent is gone,
// even after SIGKILL.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// maxrssUnit is the unit of Rusage.Maxrss in bytes.
const maxrssUnit = 1 << 10

// liveUsage reads the usage of a running process from /proc (see proc(5)).
func liveUsage(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The second field is the program's name in parentheses, which may contain spaces. User and
	// system time are fields 14 and 15, in hundredths of a second on every Linux that Go supports.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return Usage{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var u Usage
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		u.CPU += time.Duration(n) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			if err != nil {
				return Usage{}, fmt.Errorf("read /proc/%d/status: %w", pid, err)
			}
			u.PeakMemory = n << 10
		}
	}
	return u, nil
}
