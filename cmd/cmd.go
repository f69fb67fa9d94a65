// SPDX-License-Identifier: Apache-2.0

// Package cmd has Drover's commands, one file for each. Their options are plain structs that are
// passed down by value. manager.go lists the controllers, and setup.go sets up each of them.
package cmd

import "github.com/spf13/cobra"

// New returns the command line: the manager, with subcommands for the simulated cloud, for orphans,
// for a check before the first machine and for the takeover of machines.
func New(version string) *cobra.Command {
	root := manager(version)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(simulate(), orphans(version), check(version), newImportCommand(version))
	return root
}
