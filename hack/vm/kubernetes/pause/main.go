// SPDX-License-Identifier: Apache-2.0

// Pause holds a Pod's namespaces in the guests of `make test-vm`, and is the program of their only
// Pod. It prints a line, waits for a signal, and reaps orphaned processes, as the first process of
// its namespace.
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
