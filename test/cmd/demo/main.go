// SPDX-License-Identifier: Apache-2.0

// Command demo shows Drover's main features with the real parts: a management cluster with Cluster
// API and Drover, a separate workload cluster that is adopted, and the simulated cloud in place of
// a real one. Machines are created, join, roll, heal and are deleted. With -cluster, it shows a
// cluster whose control plane Drover's machines run. The demo leaves no process, port or file
// behind.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// show is one of the demos.
type show interface {
	run(ctx context.Context) error
	// lookIn prints what users can do while the demo stays up.
	lookIn()
	// explain prints, after an error, the end of the most relevant logs, and the folder of all.
	explain()
	// stop stops all parts. It removes the folder unless keep is true.
	stop(keep bool) error
}

func main() {
	// Users do not need the log messages of the libraries while the clusters start and stop.
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	os.Exit(run())
}

// run returns the exit code: 0 after the whole demo, 1 after a failure, 130 after Ctrl-C before the
// end.
func run() int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	picture := flag.String("film", "", "Record the terminal, and write an animated SVG to this file. The demo then ends by itself.")
	cluster := flag.Bool("cluster", false, "Show a whole cluster with a control plane, which needs Linux and root.")
	flag.Parse()
	var recording *film
	if *picture != "" {
		recording = &film{}
	}
	s := newScreen(os.Stdout, recording)
	defer s.close()

	var d show = &demo{screen: s, began: time.Now()}
	if *cluster {
		d = &clusterDemo{screen: s, began: time.Now()}
	}
	err := d.run(ctx)
	if err == nil && recording != nil {
		err = recording.write(*picture)
	} else if err == nil && s.live {
		d.lookIn()
		<-ctx.Done()
	}
	interrupted := ctx.Err() != nil
	cancel() // a second Ctrl-C ends the program and its children immediately
	s.hideTable()
	if err != nil && !interrupted {
		s.say("\nFAILED: %v", err)
		d.explain()
	}
	s.say("Stopping everything.")
	if stopErr := d.stop(err != nil && !interrupted); stopErr != nil {
		s.say("Stopping failed: %v", stopErr)
		return 1
	}
	switch {
	case err == nil:
		return 0
	case interrupted || errors.Is(err, context.Canceled):
		return 130
	default:
		return 1
	}
}

// lookIn implements show.
func (d *demo) lookIn() {
	d.screen.hideTable()
	d.screen.say(`
Everything still runs. To look in, from another terminal:

  export KUBECONFIG=%s
  alias kubectl=%s

  # each says what it waits for
  kubectl -n %s get droveraccounts,droverclusters,adoptedcontrolplanes,machinedeployments
  # make machines, and watch them come
  kubectl -n %s scale machinedeployment %s --replicas 3; kubectl -n %s get drovermachines --watch
  # the adopted cluster's side
  kubectl --kubeconfig %s get nodes

The logs are in %s. Ctrl-C ends it all.`,
		d.management.AdminKubeconfig(), d.tools["kubectl"], namespace, namespace, poolName, namespace, d.workload.AdminKubeconfig(), d.dir)
}

// explain implements show.
func (d *demo) explain() { explain(d.screen, d.dir) }

func explain(s *screen, dir string) {
	for _, log := range relevantLogs(dir) {
		s.say("\n--- the end of %s:\n%s", log, tail(log, 15))
	}
	if dir != "" {
		s.say("\nAll logs are in %s; they are kept. Please attach them to a bug report: they hold no secret of yours.", dir)
	}
}
