// SPDX-License-Identifier: Apache-2.0

// Command drover is for people: it checks what machines need, shows orphans, takes machines over
// from other systems, collects what an issue needs, and runs a simulated cloud. Each of its
// commands has a file. The program of the controllers is another one, in the top folder.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// version is set at build time: -ldflags "-X main.version=v0.1.0".
var version = "dev"

func main() { os.Exit(run(command(), os.Stderr)) }

// run executes the command, and returns the exit code.
func run(root *cobra.Command, errs io.Writer) int {
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	fmt.Fprintln(errs, "drover:", err)
	if _, ok := errors.AsType[*resultError](err); !ok {
		fmt.Fprintf(errs, "See '%s --help'.\n", cmd.CommandPath())
	}
	return 1
}

// resultError says that a command did its work, and that its result is not a good one. The command
// line was right.
type resultError struct{ error }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "drover",
		Short:         "Looks after the machines that Drover gives to Kubernetes clusters",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(
		newCheckCommand(), newOrphansCommand(), newImportCommand(), newSimulateCommand(), newSupportCommand(), newVersionCommand(),
	)
	return root
}

// group makes a command that only has subcommands print its help, and refuse words that name none
// of them: cobra takes those for arguments, and succeeds.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = oneOf("command", func() []string { return namesOf(cmd) })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// namesOf returns the names of a command's subcommands.
func namesOf(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return names
}

// oneOf accepts one of the names, or nothing.
func oneOf(what string, names func() []string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		known := names()
		choice := &cobra.Command{SuggestionsMinimumDistance: 2}
		for _, name := range known {
			if name == args[0] {
				return cobra.MaximumNArgs(1)(cmd, args)
			}
			choice.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
		}
		text := fmt.Sprintf("unknown %s %q for %q: must be one of %s", what, args[0], cmd.CommandPath(), strings.Join(known, ", "))
		if near := choice.SuggestionsFor(args[0]); len(near) > 0 {
			text += "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t") + "\n"
		}
		return errors.New(text)
	}
}

// theName accepts exactly one argument, and says what it must be.
func theName(of string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%q needs the name of %s", cmd.CommandPath(), of)
		}
		return nil
	}
}
