// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// demo holds the parts of the demo and their state.
type demo struct {
	screen *screen
	began  time.Time
	dir    string // data, certificates and logs of all parts
	tools  playground.Tools

	management *playground.Management
	workload   *playground.ControlPlane
	simulator  *playground.Simulator
	drover     *playground.Process

	cloud          simulator.Admin
	client, target client.Client // of the management and the workload cluster
	view, nodes    *scenario.View
	cluster        scenario.Adopted
	pool           scenario.Pool
}

// build builds the programs that are missing, and shows its progress.
func (d *demo) build(ctx context.Context) (drover string, err error) {
	d.tools, err = playground.FindTools(ctx, os.Stderr,
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "capi-core", "kubectl")
	if err != nil {
		return "", err
	}
	d.screen.title("building Drover")
	if drover, err = playground.Build(ctx, false); err != nil {
		return "", err
	}
	d.screen.title("")
	d.screen.note("built", "")
	return drover, nil
}

// start starts both clusters, the cloud and Drover.
func (d *demo) start(ctx context.Context, binary string) error {
	d.screen.title("starting a management cluster, a workload cluster, the simulated cloud, Cluster API and Drover")
	var err error
	if d.dir, err = os.MkdirTemp("", "drover-demo-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	options := func(name string) playground.ControlPlaneOptions {
		return playground.ControlPlaneOptions{Name: name, Dir: filepath.Join(d.dir, name), Tools: d.tools}
	}
	var workloadErr, cloudErr error
	var parts sync.WaitGroup
	parts.Go(func() {
		if d.workload, workloadErr = playground.StartControlPlane(ctx, options("workload")); workloadErr == nil {
			workloadErr = d.workload.StartScheduler(ctx)
		}
	})
	parts.Go(func() {
		d.simulator, cloudErr = playground.StartSimulator(ctx, playground.SimulatorOptions{
			Dir: filepath.Join(d.dir, "cloud"), Args: []string{"--latency=100ms"},
		})
	})
	d.management, err = playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: options("management"),
		// Cluster API reconciles an object at most once per second, and a health check once in
		// fifteen seconds. This is good for a fleet, but makes a demo slow.
		CoreArgs: []string{"--feature-gates=ReconcilerRateLimiting=false"},
	})
	if err == nil {
		d.drover, err = d.management.StartDrover(ctx, playground.DroverOptions{Binary: binary})
	}
	parts.Wait()
	if err := errors.Join(err, workloadErr, cloudErr); err != nil {
		return err
	}
	d.cloud = simulator.Admin{URL: d.simulator.URL}
	d.screen.title("")
	d.screen.note("started", fmt.Sprintf(": management cluster at %s, with Cluster API and Drover; workload cluster at %s; simulated cloud at %s",
		d.management.URL, d.workload.URL, d.simulator.URL))
	return d.connect()
}

func (d *demo) connect() (err error) {
	if d.client, err = scenario.NewClient(d.management.AdminConfig()); err != nil {
		return err
	}
	d.target, err = scenario.NewClient(d.workload.AdminConfig())
	return err
}

// processes returns all running processes.
func (d *demo) processes() []*playground.Process {
	var all []*playground.Process
	if d.simulator != nil {
		all = append(all, d.simulator.Process)
	}
	if m := d.management; m != nil {
		all = append(all, m.Core(), m.ControllerManager(), m.APIServer(), m.Etcd())
	}
	if w := d.workload; w != nil {
		all = append(all, w.ControllerManager(), w.APIServer(), w.Etcd())
	}
	return append(all, d.drover)
}

// guard cancels the context when one of the processes exits unexpectedly.
func (d *demo) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	for _, p := range d.processes() {
		go func() {
			select {
			case <-p.Done():
				cancel(fmt.Errorf("%s ended by itself: %w", p.Name, errors.Join(p.Wait(), errUnexpected)))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

var errUnexpected = errors.New("it should run until the end")

// stop implements show.
func (d *demo) stop(keep bool) error {
	var errs []error
	if d.drover != nil {
		errs = append(errs, d.drover.Stop(20*time.Second)) // only Drover's graceful shutdown matters
	}
	if d.management != nil {
		errs = append(errs, d.management.Stop())
	}
	if d.workload != nil {
		errs = append(errs, d.workload.Stop())
	}
	if d.simulator != nil {
		errs = append(errs, d.simulator.Stop())
	}
	if d.dir != "" && !keep {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

// relevantLogs returns the logs of Drover and Cluster API. They quote the errors of the other
// parts.
func relevantLogs(dir string) []string {
	var logs []string
	for _, name := range []string{"drover-*.log", "capi-core-*.log"} {
		found, err := filepath.Glob(filepath.Join(dir, "management", name))
		if err == nil && dir != "" {
			logs = append(logs, found...)
		}
	}
	return logs
}

// tail returns the last n lines of a log, truncated if long: the errors and warnings (by their
// first letter, as in klog), or all lines if there are none.
func tail(file string, n int) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if bad := slices.DeleteFunc(slices.Clone(lines),
		func(l string) bool { return !strings.HasPrefix(l, "E") && !strings.HasPrefix(l, "W") }); len(bad) > 0 {
		lines = bad
	}
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		lines[i] = "  " + line[:min(len(line), 300)]
	}
	return strings.Join(lines, "\n")
}
