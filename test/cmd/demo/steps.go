// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	namespace   = "demo"
	clusterName = "blue"
	poolName    = "blue-md-0"
	adopter     = "adopter" // user of the workload cluster's kubeconfig
)

// step is one step of the demo. do returns the text to print.
type step struct {
	title string
	do    func(context.Context) (string, error)
	limit time.Duration
}

// run runs all steps in order.
func (d *demo) run(ctx context.Context) error {
	binary, err := d.build(ctx)
	if err != nil {
		return err
	}
	if err := d.start(ctx, binary); err != nil {
		return err
	}
	ctx, cancel := d.guard(ctx)
	defer cancel()
	if err := d.follow(ctx); err != nil {
		return err
	}
	for _, s := range []step{
		{"adopt the workload cluster", d.adopt, time.Minute},
		{"make 3 machines with a MachineDeployment", d.make, time.Minute},
		{"scale to 6", d.scaleUp, time.Minute},
		{"change the machines' size: a rolling update", d.roll, 2 * time.Minute},
		{"kill a VM behind Drover's back", d.heal, time.Minute},
		{"scale to 3 with an application on the machines: they are drained", d.drain, 2 * time.Minute},
		{"scale to 0", d.empty, time.Minute},
		{"prove that nothing is left", d.prove, time.Minute},
	} {
		if err := s.run(ctx, d.screen, d.cloud); err != nil {
			return err
		}
	}
	d.screen.hideTable()
	d.screen.say("\nAll was shown in %.0f s.", time.Since(d.began).Seconds())
	return nil
}

// run runs a step and prints its result, with the cloud calls that it took.
func (s step) run(ctx context.Context, screen *screen, cloud simulator.Admin) error {
	start := time.Now()
	screen.title(s.title)
	before, err := cloud.Audit(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("%s have passed", s.limit))
	defer cancel()
	said, err := s.do(limited)
	if err != nil {
		return fmt.Errorf("%s: %w", s.title, err)
	}
	after, err := cloud.Audit(ctx)
	if err != nil {
		return err
	}
	screen.title("")
	screen.note(s.title, fmt.Sprintf(": %s (%.1f s; cloud calls: %s)", said, time.Since(start).Seconds(), callsBetween(before, after)))
	return nil
}

// callsBetween returns the calls between two reads of the cloud's audit log.
func callsBetween(before, after simulator.Audit) string {
	var parts []string
	total := 0
	for _, op := range []string{
		wire.RunInstances, wire.DescribeInstances, wire.DescribeResources, wire.DescribeCatalog, wire.TerminateInstances, wire.DeleteResources,
		wire.PutLoadBalancer,
	} {
		if n := after.Calls(op) - before.Calls(op); n > 0 {
			total += n
			parts = append(parts, fmt.Sprintf("%d %s", n, op))
		}
	}
	if total == 0 {
		return "none"
	}
	return fmt.Sprintf("%d = %s", total, strings.Join(parts, " + "))
}

// follow watches both clusters and shows the table.
func (d *demo) follow(ctx context.Context) (err error) {
	d.view, err = scenario.Follow(ctx, d.management.AdminConfig(), namespace,
		&clusterv1.Cluster{}, &clusterv1.MachineDeployment{}, &clusterv1.Machine{}, &infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{})
	if err != nil {
		return err
	}
	d.nodes, err = scenario.Follow(ctx, d.workload.AdminConfig(), "", &corev1.Node{}, &corev1.Pod{})
	if err != nil {
		return err
	}
	go d.screen.follow(ctx, d.view, func(ctx context.Context) ([]row, error) { return rows(ctx, namespace, d.view, d.nodes) })
	return nil
}

func (d *demo) adopt(ctx context.Context) (string, error) {
	kubeconfig, err := d.workload.Kubeconfig(adopter)
	if err != nil {
		return "", err
	}
	if err := scenario.Create(ctx, d.target, scenario.Rights(adopter)...); err != nil {
		return "", err
	}
	d.cluster = scenario.Adopted{
		Namespace: namespace, Name: clusterName, Kubeconfig: kubeconfig,
		Endpoint: d.simulator.URL, Token: d.simulator.Token,
		Inventory: infrav1.InventorySpec{IdleSeconds: 5, ActiveSeconds: 1},
	}
	if err := scenario.Create(ctx, d.client, d.cluster.Objects()...); err != nil {
		return "", err
	}
	d.pool = scenario.Pool{Cluster: d.cluster, Name: poolName, Replicas: 3, MaxSurge: 6,
		Machine: infrav1.SimulatedMachine{InstanceType: "small"}}
	if err := scenario.Create(ctx, d.client, append(d.pool.Objects(), d.pool.HealthCheck(60))...); err != nil {
		return "", err
	}
	if err := d.view.Until(ctx, "the cluster is adopted", d.cluster.Available(d.view)); err != nil {
		return "", err
	}
	return "its API server answers; nothing of it was changed", nil
}

func (d *demo) make(ctx context.Context) (string, error) {
	return "3 VMs, 3 Nodes Ready", d.untilReady(ctx, 3)
}

func (d *demo) scaleUp(ctx context.Context) (string, error) {
	if err := d.pool.Scale(ctx, d.client, 6); err != nil {
		return "", err
	}
	return "6 Nodes Ready", d.untilReady(ctx, 6)
}

func (d *demo) roll(ctx context.Context) (string, error) {
	old, err := d.machineNames(ctx)
	if err != nil {
		return "", err
	}
	if err := d.pool.Roll(ctx, d.client, poolName+"-medium", infrav1.SimulatedMachine{InstanceType: "medium"}); err != nil {
		return "", err
	}
	if err := d.untilReady(ctx, 6); err != nil {
		return "", err
	}
	if err := d.view.Until(ctx, "the old machines are gone", d.gone(old)); err != nil {
		return "", err
	}
	return "6 new machines Ready before the last old one went", nil
}

// heal terminates a VM in the cloud, and waits until Drover has noticed and Cluster API has
// replaced the machine.
func (d *demo) heal(ctx context.Context) (string, error) {
	machines := &infrav1.DroverMachineList{}
	if err := d.view.List(ctx, machines, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	if len(machines.Items) == 0 {
		return "", errors.New("there is no machine")
	}
	victim := machines.Items[0]
	id := victim.Spec.ProviderID[strings.LastIndex(victim.Spec.ProviderID, "/")+1:]
	start := time.Now()
	if err := d.cloud.Act(ctx, id, simulator.ActTerminate); err != nil {
		return "", err
	}
	if err := d.view.Until(ctx, "Machine "+victim.Name+" is replaced", d.gone([]string{victim.Name})); err != nil {
		return "", err
	}
	noticed := time.Since(start)
	if err := d.untilReady(ctx, 6); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was gone for good after %.1f s, and its replacement is Ready", victim.Name, noticed.Seconds()), nil
}

// empty deletes the application and scales to 0.
func (d *demo) empty(ctx context.Context) (string, error) {
	if err := scenario.Delete(ctx, d.target, application().objects()...); err != nil {
		return "", err
	}
	if err := d.pool.Scale(ctx, d.client, 0); err != nil {
		return "", err
	}
	err := d.view.Until(ctx, "no machine is left", scenario.All(
		scenario.Empty(d.view, &clusterv1.MachineList{}, namespace), scenario.Empty(d.view, &infrav1.DroverMachineList{}, namespace),
		scenario.Empty(d.view, &bootstrapv1.DroverConfigList{}, namespace)))
	if err != nil {
		return "", err
	}
	return "no machine, no Node", d.nodes.Until(ctx, "no Node is left", scenario.Empty(d.nodes, &corev1.NodeList{}, ""))
}

// prove checks the cloud's own state and live reads of both clusters. It polls for a while, because
// Kubernetes' garbage collector removes the data Secrets, and discovers a new kind only within half
// a minute.
func (d *demo) prove(ctx context.Context) (said string, err error) {
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, nothing, err := d.left(ctx)
		if err == nil {
			said = now
		}
		return nothing, err
	})
	if err != nil && ctx.Err() != nil {
		return "", fmt.Errorf("something is left: %s", said)
	}
	return said, err
}

// left returns what is left of the machines anywhere, and whether that is nothing.
func (d *demo) left(ctx context.Context) (said string, nothing bool, err error) {
	snapshot, err := d.cloud.Snapshot(ctx)
	if err != nil {
		return "", false, err
	}
	counts := map[wire.Kind]int{}
	for _, r := range snapshot.Live() {
		counts[r.Kind]++
	}
	left, err := d.cluster.Left(ctx, d.client, d.target)
	if err != nil {
		return "", false, err
	}
	said = fmt.Sprintf("%d VMs, %d network interfaces, %d disks; %s",
		counts[wire.Instance], counts[wire.NIC], counts[wire.Disk], left)
	return said, len(snapshot.Live()) == 0 && left == (scenario.Left{}), nil
}

// untilReady waits for n machines and n Nodes, all Ready.
func (d *demo) untilReady(ctx context.Context, n int32) error {
	if err := d.view.Until(ctx, fmt.Sprintf("%d machines are Ready", n), d.pool.Ready(d.view, n)); err != nil {
		return err
	}
	return d.nodes.Until(ctx, fmt.Sprintf("%d Nodes are Ready", n), func(ctx context.Context) (string, error) {
		nodes := &corev1.NodeList{}
		if err := d.nodes.List(ctx, nodes); err != nil {
			return "", err
		}
		ready := int32(0)
		for i := range nodes.Items {
			if nodeReady(&nodes.Items[i]) {
				ready++
			}
		}
		if ready < n {
			return fmt.Sprintf("%d of %d Nodes are Ready", ready, n), nil
		}
		return "", nil
	})
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (d *demo) machineNames(ctx context.Context) ([]string, error) {
	machines := &clusterv1.MachineList{}
	if err := d.view.List(ctx, machines, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var names []string
	for i := range machines.Items {
		names = append(names, machines.Items[i].Name)
	}
	return names, nil
}

// gone checks that none of the named Machines exists.
func (d *demo) gone(names []string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		now, err := d.machineNames(ctx)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(names, func(n string) bool { return slices.Contains(now, n) }); i >= 0 {
			return "Machine " + names[i] + " is there", nil
		}
		return "", nil
	}
}
