// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package playground

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C reaches only the parent, which then stops its
// children in order. Only Linux can also kill a child whose parent was killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
