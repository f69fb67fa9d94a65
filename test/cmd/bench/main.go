// SPDX-License-Identifier: Apache-2.0

// Command bench measures what fleets of machines cost. It prints a table with the goals, and writes
// JSON to out/bench.json. Seconds depend on the computer and its load; counts do not. See package
// measure for how it counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/measure"
)

type flags struct {
	cloud     string
	sizes     string
	clusters  int
	throttled int
	bare      bool
	poolSize  int
	idle      time.Duration
	idleSize  int
	quick     bool
	profile   bool
	out       string
}

func main() {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var f flags
	flag.StringVar(&f.cloud, "cloud", "simulated",
		"Where the machines are made: simulated, aws for a stand-in for EC2, or vsphere for govmomi's vCenter.")
	flag.StringVar(&f.sizes, "sizes", "10,300,1000,3000", "Sizes of the fleets, one after the other.")
	flag.IntVar(&f.clusters, "clusters", 1, "Clusters that the machines of each fleet are divided among.")
	flag.IntVar(&f.throttled, "throttled", 100, "Size of the fleet on a cloud that throttles as EC2 does; 0 leaves that out, and so does vsphere.")
	flag.BoolVar(&f.bare, "bare", false, "Make the Machines without Cluster API's core, which needs more CPU for thousands of them than Drover does.")
	flag.IntVar(&f.poolSize, "pool-size", 300, "Machines in one MachineDeployment, at most.")
	flag.DurationVar(&f.idle, "idle", 10*time.Minute, "How long the fleet of --idle-size idles before it is deleted.")
	flag.IntVar(&f.idleSize, "idle-size", 300, "Which of the sizes idles.")
	flag.BoolVar(&f.quick, "quick", false, "Sizes 10 and 100, one minute of idling: a look, in three minutes.")
	flag.BoolVar(&f.profile, "profile", false, "Write CPU profiles of Drover, Cluster API's core and the API server to the folder of --out.")
	flag.StringVar(&f.out, "out", "out", "Folder for bench.json and profiles.")
	flag.Parse()
	if f.quick {
		f.sizes, f.throttled, f.idle, f.idleSize = "10,100", 20, time.Minute, 100
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, f)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags) error {
	runs, err := f.runs()
	if err != nil {
		return err
	}
	binary, err := playground.Build(ctx, false)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.out, 0o755); err != nil {
		return fmt.Errorf("make the folder for results: %w", err)
	}
	var results []*measure.Result
	defer func() { report(os.Stdout, results) }() // also report partial results after an error
	for _, o := range runs {
		o.Binary = binary
		r, err := one(ctx, o, f.out)
		if err != nil {
			return fmt.Errorf("%d machines: %w", o.Machines, err)
		}
		results = append(results, r)
		if err := writeJSON(filepath.Join(f.out, "bench.json"), results); err != nil {
			return err
		}
	}
	return nil
}

// runs returns the measurements that the flags request.
func (f flags) runs() ([]measure.Options, error) {
	var runs []measure.Options
	for _, s := range strings.Split(f.sizes, ",") {
		if strings.TrimSpace(s) == "" {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("--sizes: %q is no number of machines", s)
		}
		o := f.options(n)
		if n == f.idleSize {
			o.Idle, o.Vanish = f.idle, f.idle > 0
		}
		runs = append(runs, o)
	}
	if f.throttled > 0 && measure.Cloud(f.cloud) != measure.VSphere {
		o := f.options(f.throttled)
		o.Throttle = simulator.ThrottleEC2
		runs = append(runs, o)
	}
	return runs, nil
}

// options returns the settings with which the peers were measured: 100 ms for each call, and
// machines that boot after 2 s.
func (f flags) options(machines int) measure.Options {
	return measure.Options{
		Cloud: measure.Cloud(f.cloud), Machines: machines, Bare: f.bare, Clusters: f.clusters, PoolSize: f.poolSize,
		Latency: 100 * time.Millisecond, Joins: 2 * time.Second, Profile: f.profile,
	}
}

// one measures one fleet. It keeps the logs of a failed run, and the profiles of every run.
func one(ctx context.Context, o measure.Options, out string) (*measure.Result, error) {
	start := time.Now()
	o.Say = func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	o.Say("%d machines, throttle %q: starting", o.Machines, o.Throttle)
	var err error
	if o.Dir, err = os.MkdirTemp("", "drover-bench-"); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	r, err := measure.Run(ctx, o)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w\nthe logs are in %s", err, o.Dir)
	}
	var errs []error
	if r != nil {
		for _, file := range r.Profiles {
			kept := filepath.Join(out, fmt.Sprintf("%d-%s", o.Machines, filepath.Base(file)))
			errs = append(errs, move(file, kept))
		}
		if len(r.Profiles) > 0 {
			o.Say("profiles: go tool pprof -top %s/%d-{drover,capi-core,kube-apiserver}-*.pprof", out, o.Machines)
		}
	}
	return r, errors.Join(append(errs, err, os.RemoveAll(o.Dir))...)
}

// move moves a file, even to another file system.
func move(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o644)
}
