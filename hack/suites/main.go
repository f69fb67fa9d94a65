// SPDX-License-Identifier: Apache-2.0

// Command suites runs the test targets that "make test" leaves out, as many as fit into a budget of
// minutes: those that the change can affect, and those whose turn it is.
//
//	suites plan [-minutes N] [-since COMMIT]  print which suites would run, which not, and why
//	suites run [-minutes N] [-since COMMIT]   run them, two at a time if both mostly wait
//	suites list                               print the make arguments of all suites as JSON, for a matrix
//
// The change is everything since the commit of -since. By default, this is where the branch left
// origin/main, or, on main itself and where origin/main is not known, the commit before.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: suites plan|run|list [-minutes N] [-since COMMIT]")
	}
	flags := flag.NewFlagSet("suites "+args[0], flag.ExitOnError)
	minutes := flags.Int("minutes", 60, "the budget in minutes, on 2 cores")
	since := flags.String("since", "", "the last tested commit")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] == "list" {
		return list(out)
	}
	affected, err := affectedSuites(ctx, out, *since)
	if err != nil {
		return err
	}
	chosen, left := choose(suites, facts{
		day:      int(time.Now().Unix() / (24 * 60 * 60)),
		root:     mayBeRoot(ctx),
		affected: affected,
	})
	switch args[0] {
	case "plan":
		show(out, append(fit(chosen, *minutes), left...))
		return nil
	case "run":
		show(out, left)
		return runAll(ctx, out, chosen, time.Duration(*minutes)*time.Minute)
	}
	return fmt.Errorf("there is no command %q: use plan, run or list", args[0])
}

// mayBeRoot reports whether this process may make the namespaces that some suites run in.
func mayBeRoot(ctx context.Context) bool {
	return os.Geteuid() == 0 && exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "true").Run() == nil
}

func show(out io.Writer, choices []choice) {
	for _, c := range choices {
		verb := "left out"
		if c.runs {
			verb = "runs"
		}
		fmt.Fprintf(out, "suites: %-15s %-8s  %s\n", c.name, verb, c.why)
	}
}

// list prints the suites' make arguments: "plain" need nothing, "root" need root on Debian 12.
func list(out io.Writer) error {
	matrix := map[string][]string{}
	for _, s := range suites {
		key := "plain"
		if s.root {
			key = "root"
		}
		matrix[key] = append(matrix[key], s.make)
	}
	return json.NewEncoder(out).Encode(matrix)
}
