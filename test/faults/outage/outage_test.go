// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

var (
	machines = flag.Int("machines", 8, "how many machines there are")
	lasts    = flag.Duration("outage", 0, "how long the outage lasts at least; it is always longer than the MachineHealthCheck's time-out")
	off      = flag.Bool("off", false, "run without the reachability controller, to see what it is good for: the test must fail")
)

const (
	quiet = 4 * time.Second
	// silence is how long the kubelets stay silent after Cluster API is connected again: its
	// MachineHealthChecks check at least every 15 s. The controller waits for five periods.
	silence = 35 * time.Second
	period  = 15 * time.Second
	// unhealthy is how long the MachineHealthCheck tolerates an Unknown Node, in seconds.
	unhealthy = 15
)

// stage is a cluster of its own with one pool.
type stage struct {
	*rig.Stage
	pool scenario.Pool
}

// TestOutage takes one cluster through three outages. First, the connection of Drover and Cluster
// API to the API server is cut, and the kubelets fall silent: the Nodes become Unknown, for longer
// than the MachineHealthCheck tolerates. The connection comes back before the kubelets do, which is
// the moment at which a whole fleet would be replaced. Then the management cluster's API server is
// down for a while. Then the workload cluster's etcd is.
//
// Without the controller (-off), Cluster API replaces every machine as soon as the connection is
// back. The test also failed when the controller unfroze at the first answer, and when it removed a
// user's own pause.
func TestOutage(t *testing.T) {
	asked := period
	if *off {
		asked = 0
	}
	s := start(t, "outage", *machines, "--machine-safety-apiserver-statuscheck-period="+asked.String(),
		"--machine-safety-apiserver-statuscheck-timeout=3s",
		"--machine-safety-orphan-vms-period=1s", "--machine-safety-orphan-vms-grace="+grace.String(), "--machine-safety-orphan-vms-max-share=100")
	s.Until("the machines are ready", s.pool.Ready(s.Rig.View, int32(*machines)))
	s.Until("the cluster is known to be reachable", s.reachable(infrav1.ReachableReason))
	own := s.pool.HealthCheck(unhealthy) // paused by a user
	own.Name, own.Annotations = "own", map[string]string{clusterv1.PausedAnnotation: "own"}
	s.create(own)
	before := s.machines()
	names := slices.Sorted(maps.Keys(before))
	sick, unwanted := names[0], names[1]
	begin := time.Now()
	s.line(false)
	if !*off {
		s.Until("the cluster is frozen", s.frozen(true))
		s.Until("it says why", s.reachable(infrav1.UnreachableReason))
		s.userDeletes(unwanted)
		s.userMakes("late")
		scenario.Pause(s.Ctx, quiet)
		if n := len(s.instances("late")); n != 0 {
			t.Errorf("%d VMs were made in the outage", n)
		}
	}

	s.each(s.machines(), simulator.ActHang)
	s.Until("the Nodes have been Unknown for longer than the MachineHealthCheck bears", s.unknown)
	s.Until("Cluster API knows of the outage", s.connected(false))
	s.Seat.Process.Kill()
	s.Do(s.StartManager(s.Ctx))
	if left := *lasts - time.Since(begin); left > 0 {
		t.Logf("the outage goes on for %s", left)
		scenario.Pause(s.Ctx, left)
	}
	if !*off {
		s.Until("a new manager leaves it frozen", s.frozen(true))
	}

	outage := time.Since(begin)
	s.line(true)
	s.Until("Cluster API is connected again", s.connected(true))
	s.Until("Cluster API has seen the Nodes", s.seenUnknown)
	s.Until("Drover waits for the Nodes", s.reachable(infrav1.WaitingForNodesReason))
	scenario.Pause(s.Ctx, silence)
	delete(before, sick)
	s.each(before, simulator.ActStart)
	if !*off {
		s.Until("the cluster is unfrozen", s.frozen(false))
		s.Until("it says so", s.reachable(infrav1.ReachableReason))
		if err := s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(own), own); err != nil ||
			own.Annotations[clusterv1.PausedAnnotation] != "own" {
			t.Errorf("a user's own pause has become %v (%v)", own.Annotations, err)
		}
	}
	s.Until("only the sick machine is replaced", func(ctx context.Context) (string, error) {
		if _, there := s.machines()[sick]; there {
			return "it is there", nil
		}
		return s.pool.Ready(s.Rig.View, int32(*machines))(ctx)
	})
	if !*off {
		delete(before, unwanted)
		s.Until("the VM that had to wait is made", func(context.Context) (string, error) {
			if n := len(s.instances("late")); n != 1 {
				return fmt.Sprintf("%d VMs", n), nil
			}
			return "", nil
		})
	}
	s.allThere(before)
	if t.Failed() || *off {
		t.FailNow()
	}
	t.Logf("%d machines, an outage of %s: none but the sick one was replaced", *machines, outage.Round(time.Second))

	if outage > time.Hour { // Cluster API has given up on the Node of the machine that the user deleted (docs/safety.md)
		s.Do(scenario.Delete(s.Ctx, s.Rig.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: unwanted}}))
	}
	s.managementOutage()

	before = s.machines()
	s.Rig.Workload.Etcd().Signal(syscall.SIGSTOP)
	s.Until("an API server without its etcd freezes the cluster", s.frozen(true))
	scenario.Pause(s.Ctx, quiet)
	s.allThere(before)
	late := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "late"}}
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.pool.Deployment(), late))
	s.Until("the user's delete of the pool goes through to its Machines", func(context.Context) (string, error) {
		if n := len(s.machines()); n > 0 {
			return fmt.Sprintf("%d are not being deleted", n), nil
		}
		return "", nil
	})
	s.Rig.Workload.Etcd().Signal(syscall.SIGCONT)
	s.Until("nothing is left", func(ctx context.Context) (string, error) { return s.Left(ctx, rig.Except{}) })
	s.Until("the cluster is unfrozen", s.reachable(infrav1.ReachableReason))
}

// managementOutage stops the management cluster's API server for longer than the MachineHealthCheck
// and the orphan collector tolerate. Neither may act on that. A single bug does not make this check
// fail: a collector that reads clusters from its cache, and takes a failed list of machines for an
// empty one, still doubts that all of them are gone.
func (s *stage) managementOutage() {
	s.Helper()
	before, vms := s.machines(), s.vms()
	s.Rig.Management.StopAPIServer()
	scenario.Pause(s.Ctx, max(unhealthy*time.Second, 3*grace)+quiet)
	if now := s.vms(); !maps.Equal(now, vms) {
		s.Errorf("without the management cluster's API server, the VMs %v have become %v", vms, now)
	}
	s.Do(s.Rig.Management.StartAPIServer(s.Ctx))
	s.Until("the management cluster is back, and the pool as it was", s.pool.Ready(s.Rig.Client, int32(len(before))))
	s.allThere(before)
	if now := s.vms(); !maps.Equal(now, vms) {
		s.Errorf("after an outage of the management cluster, the VMs %v have become %v", vms, now)
	}
}

// start starts a cluster with a pool, and Drover with these flags.
func start(t *testing.T, name string, replicas int, flags ...string) *stage {
	house := &rig.House{Patience: 4 * time.Minute, Args: flags}
	house.Own(t, func(ctx context.Context, _ ...string) (*rig.Rig, error) {
		return rig.Start(ctx, "--node-monitor-grace-period=14s", "--node-monitor-period=2s")
	})
	bare, _ := house.Bare(t, name)
	t.Cleanup(func() {
		bare.Rig.Workload.Etcd().Signal(syscall.SIGCONT)
		bare.Close()
	})
	s := &stage{Stage: bare, pool: bare.NewPool("a", int32(replicas))}
	s.OrphanPolicy = infrav1.OrphanPolicyDelete
	s.pool.Cluster = s.Adopted
	objects, err := s.Objects()
	s.Do(err)
	s.create(append(append(objects, s.pool.Objects()...), s.pool.HealthCheck(unhealthy))...)
	return s
}

func (s *stage) create(objects ...client.Object) {
	s.Helper()
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
}

// machines returns the UIDs of the pool's Machines that are not being deleted, by name.
func (s *stage) machines() map[string]types.UID {
	s.Helper()
	list := &clusterv1.MachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace),
		client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: s.pool.Name}))
	all := map[string]types.UID{}
	for i := range list.Items {
		if m := &list.Items[i]; m.DeletionTimestamp.IsZero() {
			all[m.Name] = m.UID
		}
	}
	return all
}

// allThere checks that none of these Machines was replaced.
func (s *stage) allThere(before map[string]types.UID) {
	s.Helper()
	now := s.machines()
	for name, uid := range before {
		if now[name] != uid {
			s.Errorf("Machine %s was replaced", name)
		}
	}
}

// instances returns the IDs of the live VMs of a DroverMachine.
func (s *stage) instances(machine string) (ids []string) {
	s.Helper()
	snapshot, err := s.Rig.Admin.Snapshot(s.Ctx)
	if err != nil {
		s.Fatal(err)
	}
	for _, r := range s.Live(snapshot) {
		if r.Kind == wire.Instance && r.Tags[cloud.TagMachine] == s.Namespace+"/"+machine {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// each performs an action on the existing VMs of these machines.
func (s *stage) each(machines map[string]types.UID, act simulator.InstanceAction) {
	s.Helper()
	snapshot, err := s.Rig.Admin.Snapshot(s.Ctx)
	if err != nil {
		s.Fatal(err)
	}
	for _, r := range s.Live(snapshot) {
		if _, ok := machines[strings.TrimPrefix(r.Tags[cloud.TagMachine], s.Namespace+"/")]; ok && r.Kind == wire.Instance {
			s.Do(s.Rig.Admin.Act(s.Ctx, r.ID, act))
		}
	}
}

// userDeletes deletes a Machine as a user during the outage: the delete goes through without a
// drain, and the Machine is not replaced.
func (s *stage) userDeletes(name string) {
	s.Helper()
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"",%q:""}}}`, clusterv1.ExcludeNodeDrainingAnnotation,
		clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation)
	s.Do(s.Rig.Client.Patch(s.Ctx, m, client.RawPatch(types.MergePatchType, []byte(patch))))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, m))
	s.Until("the user's delete is done", func(context.Context) (string, error) {
		if n := len(s.instances(name)); n > 0 {
			return "the VM is there", nil
		}
		return "", nil
	})
	if n := len(s.machines()); n != *machines-1 {
		s.Errorf("there are %d Machines: one was made in the outage", n)
	}
}

// userMakes creates a Machine by hand that waits only for the API server.
func (s *stage) userMakes(name string) {
	s.Helper()
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
	spec := s.pool.Deployment().Spec.Template.Spec
	spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To(name)}
	spec.InfrastructureRef.Kind, spec.InfrastructureRef.Name = "DroverMachine", name
	machine := &infrav1.DroverMachine{ObjectMeta: meta}
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: s.Adopted.Name}
	machine.Spec.DroverMachineFields = s.pool.Template(s.pool.Name, s.pool.Machine).Spec.Template.Spec
	s.create(
		&corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"value": "#cloud-config\n"}},
		machine,
		&clusterv1.Machine{ObjectMeta: meta, Spec: spec},
	)
	s.Until("a VM has to wait", func(ctx context.Context) (string, error) {
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
			return "", err
		}
		if reason := conditions.GetReason(machine, clusterv1.ReadyCondition); reason != infrav1.WaitingForAPIServerReason {
			return "it is " + reason, nil
		}
		return "", nil
	})
}

// connected checks whether Cluster API reaches the API server.
func (s *stage) connected(want bool) scenario.Check {
	return func(ctx context.Context) (string, error) {
		cluster := s.Cluster()
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			return "", err
		}
		if conditions.IsTrue(cluster, clusterv1.ClusterRemoteConnectionProbeCondition) != want {
			return conditions.GetReason(cluster, clusterv1.ClusterRemoteConnectionProbeCondition), nil
		}
		return "", nil
	}
}

// seenUnknown checks whether Cluster API has read since the outage that a Node is Unknown.
func (s *stage) seenUnknown(ctx context.Context) (string, error) {
	list := &clusterv1.MachineList{}
	if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace),
		client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: s.pool.Name}); err != nil {
		return "", err
	}
	for i := range list.Items {
		c := conditions.Get(&list.Items[i], clusterv1.MachineNodeReadyCondition)
		if c != nil && c.Status == metav1.ConditionUnknown && c.Reason != clusterv1.MachineNodeConnectionDownReason {
			return "", nil
		}
	}
	return "no Machine says so", nil
}

// unknown checks against the API server itself that all Nodes have been Unknown for longer than the
// MachineHealthCheck tolerates.
func (s *stage) unknown(ctx context.Context) (string, error) {
	nodes := &corev1.NodeList{}
	if err := s.Rig.Nodes.List(ctx, nodes); err != nil {
		return "", err
	}
	for _, n := range nodes.Items {
		long := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown &&
				time.Since(c.LastTransitionTime.Time) > (unhealthy+2)*time.Second
		})
		if !long {
			return n.Name + " is not", nil
		}
	}
	return "", nil
}

// reachable checks the reason of the Reachable condition. With -off it always succeeds.
func (s *stage) reachable(reason string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		infra := s.DroverCluster()
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(infra), infra); err != nil {
			return "", err
		}
		if *off {
			return "", nil
		}
		if is := conditions.GetReason(infra, infrav1.ClusterReachableCondition); is != reason {
			return "it says " + is + ": " + conditions.GetMessage(infra, infrav1.ClusterReachableCondition), nil
		}
		return "", nil
	}
}

// frozen checks whether everything that may replace machines is paused and the cluster is marked,
// or, if want is false, that nothing is.
func (s *stage) frozen(want bool) scenario.Check {
	return func(ctx context.Context) (string, error) {
		infra, sets := s.DroverCluster(), &clusterv1.MachineSetList{}
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(infra), infra); err != nil {
			return "", err
		}
		if _, marked := infra.Annotations[infrav1.UnreachableAnnotation]; marked != want {
			return fmt.Sprintf("the DroverCluster has annotations %v", infra.Annotations), nil
		}
		if err := s.Rig.Client.List(ctx, sets, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		all := []client.Object{s.pool.HealthCheck(unhealthy), s.pool.Deployment()}
		for i := range sets.Items {
			all = append(all, &sets.Items[i])
		}
		for _, o := range all {
			if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return "", err
			}
			if value, paused := o.GetAnnotations()[clusterv1.PausedAnnotation]; paused != want || (want && value != "frozen-by-drover-in-outage") {
				return fmt.Sprintf("%T %s has annotations %v", o, o.GetName(), o.GetAnnotations()), nil
			}
		}
		return "", nil
	}
}
