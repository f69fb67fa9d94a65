// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package playground

import (
	"errors"
	"syscall"
)

// childAttributes puts a child into its own process group, so that Ctrl-C reaches only the parent,
// which then stops its children in order. Only Linux can also kill a child whose parent was killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// maxrssUnit is the unit of Rusage.Maxrss in bytes on Darwin.
const maxrssUnit = 1

func liveUsage(int) (Usage, error) {
	return Usage{}, errors.New("only Linux tells what a running process has used")
}
