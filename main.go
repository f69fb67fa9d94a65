// SPDX-License-Identifier: Apache-2.0

// Command drover is the manager of Drover's infrastructure, bootstrap and control plane providers
// for Cluster API. Package cmd has its subcommands.
package main

import (
	"fmt"
	"os"

	"github.com/drover-io/drover/cmd"
)

// version is set at build time: -ldflags "-X main.version=v0.1.0".
var version = "dev"

func main() {
	if err := cmd.New(version).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "drover:", err)
		os.Exit(1)
	}
}
