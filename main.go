// SPDX-License-Identifier: Apache-2.0

// Command manager runs Drover's infrastructure, bootstrap and control plane providers for Cluster
// API. Package internal/manager has its flags and controllers.
package main

import (
	"fmt"
	"os"

	"github.com/drover-io/drover/internal/manager"
)

// version and commit are set at build time: -ldflags "-X main.version=v0.1.0 -X main.commit=…".
var (
	version = "dev"
	commit  = ""
)

func main() {
	if err := manager.New(version, commit).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}
