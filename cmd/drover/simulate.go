// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator"
)

// parentPoll is the interval of checks for the parent process.
const parentPoll = 500 * time.Millisecond

// simulateOptions are the flags of the simulated cloud. Their zero value leaves --config as it is.
type simulateOptions struct {
	listen, addressFile, config, token, adminToken, throttle string
	seed                                                     uint64
	stopWithParent                                           bool
	latency, leaseInterval                                   time.Duration
	noPods                                                   bool
}

func (o *simulateOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "Address to listen on. Port 0 selects a free port.")
	f.StringVar(&o.addressFile, "address-file", "", "File to write the cloud's address to when the cloud is ready.")
	f.Uint64Var(&o.seed, "seed", 0, "Seed of the random numbers. 0 selects a new seed at each start.")
	f.StringVar(&o.config, "config", "", "YAML file with regions, catalog, accounts, settings and bodies.")
	f.StringVar(&o.token, "token", "", "Token of the account \"default\". Default: "+simulator.DefaultToken+", or the accounts in --config.")
	f.StringVar(&o.adminToken, "admin-token", "", "Token of the admin API. Default: none; the API accepts only callers on this machine.")
	f.StringVar(&o.throttle, "throttle", "", "Rate limits: generous, ec2 or none. Default: generous, or the value in --config.")
	f.DurationVar(&o.latency, "latency", 0, "Mean latency of a call. Default: none, or the value in --config.")
	f.DurationVar(&o.leaseInterval, "lease-interval", 0,
		"Interval between two renewals of a Node's Lease. Default: 10s, or the value in --config.")
	f.BoolVar(&o.noPods, "no-pods", false, "Ignore pods: neither set them to Running nor finalize them.")
	f.BoolVar(&o.stopWithParent, "stop-with-parent", false, "Stop when the parent process ends.")
}

// newSimulateCommand returns the command "drover simulate".
func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run a simulated cloud, or break one that runs",
		Long: `Run a simulated cloud: an HTTP API with machines that read their user data and join the cluster it names.
The first line on standard output is the cloud's address. State is in memory and ends with the process.
The subcommands break a cloud that runs, and repair it.`,
		Example: `  # Run a cloud at port 8080
  drover simulate --listen :8080

  # Take a machine of it away
  drover simulate kill one-md-0-x2b4c-9wz7k`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if o.stopWithParent {
				ctx = whileParentLives(ctx)
			}
			return serve(ctx, cmd.OutOrStdout(), o)
		},
	}
	cmd.AddCommand(breakCommands()...)
	cmd.Args = oneOf("command", func() []string { return namesOf(cmd) })
	o.flags(cmd.Flags())
	return cmd
}

// simulatorOptions reads the config file and applies the flags on top of it.
func simulatorOptions(o simulateOptions) (simulator.Options, error) {
	var options simulator.Options
	if o.config != "" {
		text, err := os.ReadFile(o.config)
		if err != nil {
			return options, fmt.Errorf("reading --config: %w", err)
		}
		if err := yaml.UnmarshalStrict(text, &options); err != nil {
			return options, fmt.Errorf("reading --config %s: %w", o.config, err)
		}
	}
	if o.seed != 0 {
		options.Seed = o.seed
	}
	if o.token != "" {
		options.Accounts = withToken(options.Accounts, o.token)
	}
	if o.adminToken != "" {
		options.AdminToken = o.adminToken
	}
	if o.throttle != "" {
		options.Settings.Throttle = o.throttle
	}
	if o.latency != 0 {
		options.Settings.Latency = latencyOf(o.latency)
	}
	if o.leaseInterval != 0 {
		options.Bodies.LeaseInterval.Duration = o.leaseInterval
	}
	options.Bodies.NoPods = options.Bodies.NoPods || o.noPods
	return options, nil
}

// withToken adds a token to the account "default", which it creates if there is none.
func withToken(accounts []simulator.AccountOptions, token string) []simulator.AccountOptions {
	i := slices.IndexFunc(accounts, func(a simulator.AccountOptions) bool { return a.Name == "default" })
	if i < 0 {
		return append(accounts, simulator.AccountOptions{Name: "default", Tokens: []string{token}})
	}
	accounts[i].Tokens = append(accounts[i].Tokens, token)
	return accounts
}

// collectAt lowers the garbage collector's reserve, so that thousands of bodies, which change
// little, fit into one small process.
const collectAt = 50

// serve runs the cloud until ctx ends. It writes the address to out, and to the address file.
func serve(ctx context.Context, out io.Writer, o simulateOptions) error {
	options, err := simulatorOptions(o)
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(collectAt))
	s, err := simulator.New(options)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	address := "http://" + listener.Addr().String()
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	_, _ = fmt.Fprintln(out, address)
	if o.addressFile != "" {
		if err := writeWhole(o.addressFile, address+"\n"); err != nil {
			_ = server.Close()
			return fmt.Errorf("writing --address-file: %w", err)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	err = <-failed
	stop()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-done)
}

// writeWhole writes a file atomically.
func writeWhole(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".address-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if _, err := tmp.WriteString(text); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// whileParentLives returns a context that ends with the parent process, when this process gets
// another parent.
func whileParentLives(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	parent := os.Getppid()
	go func() {
		defer cancel()
		for os.Getppid() == parent {
			select {
			case <-ctx.Done():
				return
			case <-time.After(parentPoll):
			}
		}
	}()
	return ctx
}
