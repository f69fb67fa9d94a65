// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"errors"
	"fmt"
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
	"sigs.k8s.io/yaml"
)

// parentPoll is the interval of checks for the parent process.
const parentPoll = 500 * time.Millisecond

type flags struct {
	listen, addressFile, config, token, adminToken, throttle string
	seed                                                     uint64
	stopWithParent                                           bool
	latency, leaseInterval                                   time.Duration
	noPods                                                   bool
}

// Command returns the command "drover simulate".
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run a simulated cloud",
		Long: `Run a simulated cloud: an HTTP API with machines that read their user data and join the cluster it names.
The first line on standard output is the cloud's address. State is in memory and ends with the process.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			o, err := f.options()
			if err != nil {
				return err
			}
			if f.stopWithParent {
				ctx = whileParentLives(ctx)
			}
			return serve(ctx, cmd, f, o)
		},
	}
	p := cmd.Flags()
	p.StringVar(&f.listen, "listen", "127.0.0.1:0", "Address to listen on. Port 0 takes a free one.")
	p.StringVar(&f.addressFile, "address-file", "", "File to write the cloud's address to, once it answers.")
	p.Uint64Var(&f.seed, "seed", 0, "Seed of all that is random. 0 takes another one each time.")
	p.StringVar(&f.config, "config", "", "YAML file with regions, catalogue, accounts, settings and bodies.")
	p.StringVar(&f.token, "token", "", "Token of the account \"default\". Default: "+DefaultToken+", or the config's accounts.")
	p.StringVar(&f.adminToken, "admin-token", "", "Token of the admin API. Default: none, only callers on this machine are let in.")
	p.StringVar(&f.throttle, "throttle", "", "Rate limits: generous, ec2 or none. Default: generous, or the config's.")
	p.DurationVar(&f.latency, "latency", 0, "Mean latency of a call. Default: none, or the config's.")
	p.DurationVar(&f.leaseInterval, "lease-interval", 0, "Time between two renewals of a Node's Lease. Default: 10s, or the config's.")
	p.BoolVar(&f.noPods, "no-pods", false, "Leave pods alone: set none Running, finalize none.")
	p.BoolVar(&f.stopWithParent, "stop-with-parent", false, "Stop when the process that started this one ends.")
	return cmd
}

// options reads the config file and applies the flags on top of it.
func (f flags) options() (Options, error) {
	var o Options
	if f.config != "" {
		text, err := os.ReadFile(f.config)
		if err != nil {
			return o, fmt.Errorf("reading --config: %w", err)
		}
		if err := yaml.UnmarshalStrict(text, &o); err != nil {
			return o, fmt.Errorf("reading --config %s: %w", f.config, err)
		}
	}
	if f.seed != 0 {
		o.Seed = f.seed
	}
	if f.token != "" {
		o.Accounts = withToken(o.Accounts, f.token)
	}
	if f.adminToken != "" {
		o.AdminToken = f.adminToken
	}
	if f.throttle != "" {
		o.Settings.Throttle = f.throttle
	}
	if f.latency != 0 {
		o.Settings.Latency = Latency{Min: Duration{Duration: f.latency / 2}, Mean: Duration{Duration: f.latency}}
	}
	if f.leaseInterval != 0 {
		o.Bodies.LeaseInterval.Duration = f.leaseInterval
	}
	o.Bodies.NoPods = o.Bodies.NoPods || f.noPods
	return o, nil
}

// withToken adds a token to the account "default", which it creates if there is none.
func withToken(accounts []AccountOptions, token string) []AccountOptions {
	i := slices.IndexFunc(accounts, func(a AccountOptions) bool { return a.Name == "default" })
	if i < 0 {
		return append(accounts, AccountOptions{Name: "default", Tokens: []string{token}})
	}
	accounts[i].Tokens = append(accounts[i].Tokens, token)
	return accounts
}

// collectAt lowers the garbage collector's reserve, so that thousands of bodies, which change
// little, fit into one small process.
const collectAt = 50

func serve(ctx context.Context, cmd *cobra.Command, f flags, o Options) error {
	defer debug.SetGCPercent(debug.SetGCPercent(collectAt))
	s, err := New(o)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	address := "http://" + listener.Addr().String()
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	_, _ = fmt.Fprintln(cmd.OutOrStdout(), address)
	if f.addressFile != "" {
		if err := writeWhole(f.addressFile, address+"\n"); err != nil {
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
