// SPDX-License-Identifier: Apache-2.0

// Pause is what holds a Pod's namespaces in the guests of `make test-vm`, and what their one Pod
// runs: it says that it is there, waits to be ended, and collects the processes that are left to
// it, as the first of its namespace.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	fmt.Println("here")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
