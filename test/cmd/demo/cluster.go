// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/whole"
)

// stepLimit is for a busy computer: each machine of the control plane takes up to a minute there.
const stepLimit = 10 * time.Minute

// clusterDemo shows a whole cluster: its control plane comes, rolls, heals and goes, while a client
// asks its API server ten times a second.
type clusterDemo struct {
	screen *screen
	began  time.Time
	dir    string // data and logs of all parts

	*whole.Stage
	// unfollow ends the table's view of the management cluster.
	unfollow context.CancelFunc
	nodes    atomic.Pointer[scenario.View] // of the new cluster; nil before it has an API server
	asker    *whole.Asker
}

// run implements show.
func (d *clusterDemo) run(ctx context.Context) error {
	if missing := whole.Missing(); missing != "" {
		return errors.New(missing)
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	for _, s := range []step{
		{"make a cluster: a load balancer, 3 machines of the control plane, 2 workers", d.make, stepLimit},
		{"scale to 3 workers", d.scale, stepLimit},
		{"upgrade Kubernetes from " + whole.LastPatch + " to " + body.DefaultKubeletVersion + ": the control plane, then the workers", d.upgrade,
			2 * stepLimit},
		{"kill a machine of the control plane behind Drover's back", d.heal, stepLimit},
		{"move the cluster into itself: it is its own management cluster, and adds a worker", d.moveIn, stepLimit},
		{"move it back", d.moveOut, stepLimit},
		{"scale the control plane to 1", d.shrink, stepLimit},
		{"delete the cluster, and prove that nothing is left", d.end, stepLimit},
	} {
		if err := s.run(ctx, d.screen, d.Admin); err != nil {
			return err
		}
	}
	d.screen.hideTable()
	d.screen.say("\nAll was shown in %.0f s.", time.Since(d.began).Seconds())
	return nil
}

func (d *clusterDemo) start(ctx context.Context) error {
	d.screen.title("building Drover, and starting a management cluster, the simulated cloud, Cluster API with its kubeadm providers, and Drover")
	binary, err := playground.Build(ctx, false)
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "drover-demo-"); err != nil {
		return err
	}
	if d.Stage, err = whole.Start(ctx, whole.Options{Dir: d.dir, Binary: binary, Releases: []string{whole.LastPatch}}); err != nil {
		return err
	}
	if err := d.follow(ctx, d.Management.AdminConfig()); err != nil {
		return err
	}
	d.screen.title("")
	d.screen.note("started", fmt.Sprintf(": management cluster at %s, with Cluster API and Drover; simulated cloud at %s", d.Management.URL,
		d.Cloud.URL))
	return nil
}

// follow has the table show a management cluster's machines from now on.
func (d *clusterDemo) follow(ctx context.Context, management *rest.Config) error {
	if d.unfollow != nil {
		d.unfollow()
	}
	ctx, d.unfollow = context.WithCancel(context.WithoutCancel(ctx)) // it outlives the step
	view, err := scenario.Follow(ctx, management, whole.Namespace, &clusterv1.Machine{}, &infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{})
	if err != nil {
		return err
	}
	go d.screen.follow(ctx, view, func(ctx context.Context) ([]row, error) { return rows(ctx, whole.Namespace, view, d.nodes.Load()) })
	return nil
}

func (d *clusterDemo) make(ctx context.Context) (string, error) {
	if err := d.CreateOf(ctx, whole.LastPatch, "cluster-template-kubeadm.yaml", whole.Name, 3, 2); err != nil {
		return "", err
	}
	if err := d.until(ctx, d.Initialized); err != nil {
		return "", err
	}
	config, err := d.Config(ctx)
	if err != nil {
		return "", err
	}
	// They outlive the step.
	outer := context.WithoutCancel(ctx)
	nodes, err := scenario.Follow(outer, config, "", &corev1.Node{})
	if err != nil {
		return "", err
	}
	d.nodes.Store(nodes)
	if d.asker, err = d.Ask(outer); err != nil {
		return "", err
	}
	return "3 members of etcd, 5 Nodes Ready", d.until(ctx, scenario.All(d.Healthy(3), d.Workers(2)))
}

func (d *clusterDemo) scale(ctx context.Context) (string, error) {
	if err := d.ScaleWorkers(ctx, 3); err != nil {
		return "", err
	}
	return "6 Nodes Ready", d.until(ctx, d.Workers(3))
}

func (d *clusterDemo) upgrade(ctx context.Context) (string, error) {
	const to = body.DefaultKubeletVersion
	old, err := d.Names(ctx)
	if err != nil {
		return "", err
	}
	if err := d.UpgradeControlPlane(ctx, to); err != nil {
		return "", err
	}
	if err := d.until(ctx, d.Healthy(3, old...)); err != nil {
		return "", err
	}
	if err := d.UpgradeWorkers(ctx, to); err != nil {
		return "", err
	}
	return "6 new machines; each old one left the load balancer before it left etcd", d.until(ctx, scenario.All(d.Workers(3), d.Runs(to)))
}

func (d *clusterDemo) heal(ctx context.Context) (string, error) {
	if err := d.HurryRemediation(ctx); err != nil {
		return "", err
	}
	lost, err := d.PowerOff(ctx)
	if err != nil {
		return "", err
	}
	return "Cluster API removed it from etcd, and replaced it", d.until(ctx, d.Healthy(3, lost))
}

func (d *clusterDemo) moveIn(ctx context.Context) (string, error) {
	if err := d.MoveIn(ctx); err != nil {
		return "", err
	}
	config, err := d.Config(ctx)
	if err != nil {
		return "", err
	}
	if err := d.follow(ctx, config); err != nil {
		return "", err
	}
	if err := d.ScaleWorkers(ctx, 4); err != nil {
		return "", err
	}
	return "the move made and deleted no VM; then the cluster made one for itself", d.until(ctx, scenario.All(d.Healthy(3), d.Workers(4)))
}

func (d *clusterDemo) moveOut(ctx context.Context) (string, error) {
	if err := d.MoveOut(ctx); err != nil {
		return "", err
	}
	if err := d.follow(ctx, d.Management.AdminConfig()); err != nil {
		return "", err
	}
	return "all machines as before", d.until(ctx, scenario.All(d.Healthy(3), d.Workers(4)))
}

func (d *clusterDemo) shrink(ctx context.Context) (string, error) {
	if err := d.Scale(ctx, 1); err != nil {
		return "", err
	}
	if err := d.until(ctx, d.Healthy(1)); err != nil {
		return "", err
	}
	answers := d.asker.End()
	if answers.Lost > 0 {
		return "", fmt.Errorf("the endpoint failed: %s", answers)
	}
	return answers.String(), nil
}

func (d *clusterDemo) end(ctx context.Context) (string, error) {
	if err := scenario.Delete(ctx, d.Client, d.Cluster()); err != nil {
		return "", err
	}
	return "no VM, no disk, no load balancer", d.until(ctx, d.Gone)
}

// until waits for a check as long as the step may take.
func (d *clusterDemo) until(ctx context.Context, check scenario.Check) error {
	_, err := scenario.Wait(ctx, time.Hour, check)
	return err
}

// lookIn implements show.
func (d *clusterDemo) lookIn() {
	d.screen.hideTable()
	d.screen.say(`
Everything still runs. To make another cluster, from another terminal, in this folder:

  export KUBECONFIG=%s
  $(hack/tool clusterctl) generate cluster two --from templates/cluster-template-kubeadm.yaml --target-namespace %s \
    --kubernetes-version v1.36.3 --control-plane-machine-count 1 --worker-machine-count 1 | $(hack/tool kubectl) apply -f -
  $(hack/tool kubectl) -n %s get droverclusters,kubeadmcontrolplanes,machines

The logs are in %s. Ctrl-C ends it all.`,
		d.Management.AdminKubeconfig(), whole.Namespace, whole.Namespace, d.dir)
}

// explain implements show.
func (d *clusterDemo) explain() { explain(d.screen, d.dir) }

// stop implements show.
func (d *clusterDemo) stop(keep bool) error {
	if d.asker != nil {
		d.asker.End()
	}
	if d.unfollow != nil {
		d.unfollow()
	}
	var err error
	if d.Stage != nil {
		err = d.Stop()
	}
	if d.dir != "" && !keep {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}
