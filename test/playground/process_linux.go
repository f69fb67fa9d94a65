// SPDX-License-Identifier: Apache-2.0

package playground

import "syscall"

// childAttributes gives a child a process group of its own, so that Ctrl-C reaches only the parent, which then stops its
// children in order; and has the kernel kill it when the parent is gone, even by SIGKILL.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
