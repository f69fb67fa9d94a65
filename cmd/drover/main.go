// SPDX-License-Identifier: Apache-2.0

// Command drover is for people: it checks what machines need, shows orphans, takes machines over
// from other systems, and runs a simulated cloud. Each of its commands has a file. The program of
// the controllers is another one, in the top folder.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// version is set at build time: -ldflags "-X main.version=v0.1.0".
var version = "dev"

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "drover:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "drover",
		Short:         "Looks after the machines that Drover gives to Kubernetes clusters",
		Version:       version,
		SilenceErrors: true,
	}
	root.AddCommand(newCheckCommand(version), newOrphansCommand(version), newImportCommand(version), newSimulateCommand())
	return root
}
