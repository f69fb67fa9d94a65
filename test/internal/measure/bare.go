// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	// watchFilter is the label value by which Cluster API's core selects the clusters of a bare
	// fleet, and none of their machines.
	watchFilter = "clusters-only"
	// bareWriters is how many machines are written at the same time: enough to keep Drover busy.
	bareWriters = 16
	// bareData is the Secret with the user data of all machines of a bare fleet.
	bareData = "user-data"
)

// bareMachine is a machine of a bare fleet. Drover reads it as if Cluster API had made it.
type bareMachine struct {
	machine *clusterv1.Machine
	cloud   *infrav1.DroverMachine
}

// createBare creates the Machines and DroverMachines as Cluster API's core does, and for each VM
// the Node as its kubelet does. It returns when all DroverMachines are Ready and know their Nodes.
func (f *fleet) createBare(ctx context.Context) (err error) {
	data := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: bareData},
		Data: map[string][]byte{"value": []byte("#cloud-config\n")}}
	if err := scenario.Create(ctx, f.client, data); err != nil {
		return err
	}
	if f.bareView, err = scenario.Follow(ctx, f.management.AdminConfig(), namespace, &infrav1.DroverMachine{}); err != nil {
		return err
	}
	template := scenario.Pool{Cluster: f.clusters[0], Name: "bare"}.Template("bare", infrav1.SimulatedMachine{})
	for n := range f.Machines {
		f.bare = append(f.bare, f.bareMachine(n, template.Spec.Template.Spec))
	}
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	writers, ctx := errgroup.WithContext(ctx)
	writers.Go(func() error { return f.register(ctx) })
	writers.Go(func() error {
		return f.eachBare(ctx, func(ctx context.Context, m bareMachine) error {
			if err := f.client.Create(ctx, m.machine); err != nil {
				return err
			}
			if err := controllerutil.SetControllerReference(m.machine, m.cloud, f.client.Scheme()); err != nil {
				return err
			}
			return f.client.Create(ctx, m.cloud)
		})
	})
	return writers.Wait()
}

func (f *fleet) bareMachine(n int, fields infrav1.DroverMachineFields) bareMachine {
	meta := metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("bare-%05d", n), Labels: map[string]string{clusterv1.ClusterNameLabel: f.clusters[0].Name},
	}
	m := &clusterv1.Machine{ObjectMeta: *meta.DeepCopy(), Spec: clusterv1.MachineSpec{
		ClusterName: f.clusters[0].Name,
		Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To(bareData)},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine",
			Name: meta.Name},
	}}
	m.Finalizers = []string{clusterv1.MachineFinalizer}
	return bareMachine{machine: m, cloud: &infrav1.DroverMachine{ObjectMeta: meta,
		Spec: infrav1.DroverMachineSpec{DroverMachineFields: fields}}}
}

// eachBare does something with each machine, several at the same time.
func (f *fleet) eachBare(ctx context.Context, do func(context.Context, bareMachine) error) error {
	writers, ctx := errgroup.WithContext(ctx)
	writers.SetLimit(bareWriters)
	for _, m := range f.bare {
		writers.Go(func() error { return do(ctx, m) })
	}
	return writers.Wait()
}

// register creates a Node for each VM, until all machines are Ready and know their Nodes.
func (f *fleet) register(ctx context.Context) error {
	registered := map[string]bool{}
	return f.poll(ctx, "Ready with a Node", func(ctx context.Context) (done int, err error) {
		machines := &infrav1.DroverMachineList{}
		if err := f.bareView.List(ctx, machines); err != nil {
			return 0, err
		}
		writers, ctx := errgroup.WithContext(ctx)
		writers.SetLimit(bareWriters)
		for i := range machines.Items {
			m := &machines.Items[i]
			if conditions.IsTrue(m, infrav1.MachineNodeJoinedCondition) && conditions.IsTrue(m, clusterv1.ReadyCondition) {
				done++
			}
			if m.Spec.ProviderID == "" || registered[m.Name] {
				continue
			}
			registered[m.Name] = true
			writers.Go(func() error { return f.registerNode(ctx, m) })
		}
		return done, writers.Wait()
	})
}

// poll counts machines every second, until all are done. A check at each change of thousands of
// machines would take longer than the changes.
func (f *fleet) poll(ctx context.Context, what string, count func(context.Context) (done int, err error)) error {
	for seconds := 1; ; seconds++ {
		done, err := count(ctx)
		if err != nil || done == f.Machines {
			return err
		}
		if seconds%10 == 0 {
			f.Say("%d machines: %d %s", f.Machines, done, what)
		}
		if err := wait(ctx, time.Second); err != nil {
			return fmt.Errorf("%d of %d machines are %s: %w", done, f.Machines, what, err)
		}
	}
}

func (f *fleet) registerNode(ctx context.Context, m *infrav1.DroverMachine) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}, Spec: corev1.NodeSpec{ProviderID: m.Spec.ProviderID}}
	if err := f.client.Create(ctx, node); err != nil {
		return err
	}
	before, now := node.DeepCopy(), metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	return f.client.Status().Patch(ctx, node, client.MergeFrom(before)) // kube-controller-manager changes it, too
}

// deleteBare deletes the machines as Cluster API's core does: the DroverMachine while its Machine
// is being deleted, and then the Machine's finalizer and the Node.
func (f *fleet) deleteBare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	err := f.eachBare(ctx, func(ctx context.Context, m bareMachine) error {
		if err := f.client.Delete(ctx, m.machine); err != nil {
			return err
		}
		return f.client.Delete(ctx, m.cloud)
	})
	if err != nil {
		return err
	}
	err = f.poll(ctx, "gone", func(ctx context.Context) (int, error) {
		machines := &infrav1.DroverMachineList{}
		err := f.bareView.List(ctx, machines)
		return f.Machines - len(machines.Items), err
	})
	if err != nil {
		return err
	}
	return f.eachBare(ctx, func(ctx context.Context, m bareMachine) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.machine.Name}}
		if err := f.client.Delete(ctx, node); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return f.client.Patch(ctx, m.machine, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	})
}

// restart stops Drover, starts it again, and returns the time in seconds until it has reconciled
// every machine.
func (f *fleet) restart(ctx context.Context) (float64, error) {
	if err := f.drover.Stop(time.Minute); err != nil {
		return 0, err
	}
	usage, err := f.drover.Usage()
	if err != nil {
		return 0, err
	}
	f.peakMemory = usage.PeakMemory
	start := time.Now()
	if f.drover, err = f.management.StartDrover(ctx, f.droverOptions); err != nil {
		return 0, err
	}
	err = f.poll(ctx, "reconciled", func(ctx context.Context) (int, error) {
		counts, err := reconciles(ctx, f.drover.Metrics)
		return min(counts["drovermachine"], f.Machines), err
	})
	return time.Since(start).Seconds(), err
}
