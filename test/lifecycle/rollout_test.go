// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestRollout changes a pool as its owner would. Changes that need no new machine are applied to
// the existing ones. Other changes are rolled out within maxSurge and maxUnavailable. A change that
// cannot work is rolled back to the previous revision and its remaining machines.
func TestRollout(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 4}
	deployment := pool.Deployment()
	deployment.Spec.Rollout.Strategy = clusterv1.MachineDeploymentRolloutStrategy{
		Type: clusterv1.RollingUpdateMachineDeploymentStrategyType,
		RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{
			MaxSurge: ptr.To(intstr.FromInt32(2)), MaxUnavailable: ptr.To(intstr.FromString("25%")),
		},
	}
	s.create(pool.Template(pool.Name, pool.Machine), pool.ConfigTemplate(), deployment)
	s.until("four machines are ready", pool.Ready(env.view, 4))

	s.inPlace(pool)

	first := s.owners()
	seen := s.census()
	if err := pool.Roll(s.ctx, env.client, "second", infrav1.SimulatedMachine{InstanceType: "large"}); err != nil {
		t.Fatal(err)
	}
	s.soon("all are rolled", scenario.All(pool.Current(env.client), pool.Ready(env.client, 4)))
	s.soon("the census is complete", seen.complete(4))
	if most, least := seen.result(); most <= 4 || most > 6 || least < 3 {
		t.Errorf("there were up to %d machines and down to %d available ones, want 5 or 6, and 3 or more", most, least)
	}
	if n := len(s.live()); n != 4 {
		t.Errorf("the cloud has %d VMs, want 4", n)
	}
	second := s.owners()
	for uid := range second {
		if _, old := first[uid]; old {
			t.Errorf("Machine %s was not replaced", second[uid])
		}
	}
	s.takenBack(pool, second)
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// inPlace changes what Cluster API propagates to existing machines: labels, annotations and taints
// to the Node, and deletion timeouts to the Machine. No VM is created for it.
func (s *stage) inPlace(pool scenario.Pool) {
	s.Helper()
	before, made := s.owners(), s.creates()
	const key, value = clusterv1.ManagedNodeLabelDomain + "/purpose", "tea"
	taint := corev1.Taint{Key: "purpose", Value: value, Effect: corev1.TaintEffectNoSchedule}
	deployment := pool.Deployment()
	if err := s.change(deployment, func() {
		template := &deployment.Spec.Template
		template.Labels[key] = value
		template.Annotations = map[string]string{key: value}
		template.Spec.Taints = []clusterv1.MachineTaint{{
			Key: taint.Key, Value: taint.Value, Effect: taint.Effect, Propagation: clusterv1.MachineTaintPropagationAlways,
		}}
		template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(77))
	}); err != nil {
		s.Fatal(err)
	}
	carries := func(o client.Object) string {
		if o.GetLabels()[key] != value || o.GetAnnotations()[key] != value {
			return fmt.Sprintf("%T %s has labels %v and annotations %v", o, o.GetName(), o.GetLabels(), o.GetAnnotations())
		}
		return ""
	}
	s.soon("every machine and its Node carries what is new", func(ctx context.Context) (string, error) {
		machines := s.machines()
		for i := range machines {
			owner, node := &clusterv1.Machine{}, &corev1.Node{}
			if err := env.client.Get(ctx, client.ObjectKeyFromObject(&machines[i]), owner); err != nil {
				return "", err
			}
			if err := env.client.Get(ctx, client.ObjectKey{Name: machines[i].Name}, node); err != nil {
				return "", err
			}
			for _, o := range []client.Object{owner, &machines[i], node} {
				if wrong := carries(o); wrong != "" {
					return wrong, nil
				}
			}
			if !slices.Contains(node.Spec.Taints, taint) {
				return fmt.Sprintf("Node %s has the taints %v", node.Name, node.Spec.Taints), nil
			}
			if n := ptr.Deref(owner.Spec.Deletion.NodeDrainTimeoutSeconds, 0); n != 77 {
				return fmt.Sprintf("Machine %s has a nodeDrainTimeoutSeconds of %d", owner.Name, n), nil
			}
		}
		return "", nil
	})
	s.soon("the pool is content", pool.Ready(env.client, 4))
	if now := s.owners(); !maps.Equal(before, now) {
		s.Errorf("the Machines were %v, and are %v", before, now)
	}
	if n := s.creates(); n != made {
		s.Errorf("%d VMs were made for labels, annotations and taints", n-made)
	}
}

// takenBack rolls out a machine size that does not exist, which goes as far as maxUnavailable
// allows, and rolls it back. Cluster API has no rollback command: the test names the previous
// template again, and its MachineSet becomes the newest revision.
func (s *stage) takenBack(pool scenario.Pool, before map[types.UID]string) {
	s.Helper()
	good := s.newestSet()
	if err := pool.Roll(s.ctx, env.client, "third", infrav1.SimulatedMachine{InstanceType: "gigantic"}); err != nil {
		s.Fatal(err)
	}
	s.soon("the update does not get further", func(context.Context) (string, error) {
		refused, old := 0, 0
		for _, m := range s.machines() {
			if c := conditions.Get(&m, clusterv1.ReadyCondition); c != nil && c.Reason == infrav1.InvalidSpecReason {
				refused++
			}
			if m.Annotations[clusterv1.TemplateClonedFromNameAnnotation] == "second" {
				old++
			}
		}
		if refused != 3 || old != 3 { // four and a surge of two, of which three must be available
			return fmt.Sprintf("%d machines are refused by the cloud, %d are left of four", refused, old), nil
		}
		return "", nil
	})
	bad := s.newestSet()
	if bad.UID == good.UID || revision(bad) <= revision(good) {
		s.Errorf("the update is MachineSet %s of revision %d, after %s of %d", bad.Name, revision(bad), good.Name, revision(good))
	}
	left := s.owners()
	if err := pool.Roll(s.ctx, env.client, "second", infrav1.SimulatedMachine{InstanceType: "large"}); err != nil {
		s.Fatal(err)
	}
	s.soon("the pool is as it was", scenario.All(pool.Current(env.client), pool.Ready(env.client, 4)))
	again := s.newestSet()
	if again.UID != good.UID || revision(again) <= revision(bad) {
		s.Errorf("back at MachineSet %s of revision %d, want %s, and more than %d", again.Name, revision(again), good.Name, revision(bad))
	}
	deployment := pool.Deployment()
	s.soon("the MachineDeployment names the revision", func(ctx context.Context) (string, error) {
		err := env.client.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)
		if have := deployment.Annotations[clusterv1.RevisionAnnotation]; have != strconv.Itoa(revision(again)) {
			return "it names " + have, err
		}
		return "", err
	})
	now := s.owners()
	for uid, name := range before {
		_, survived := left[uid]
		if _, still := now[uid]; survived && !still {
			s.Errorf("Machine %s was left by the update, and not by its taking back", name)
		}
	}
}

// revision returns the revision of a MachineSet, or 0 when it has none.
func revision(set *clusterv1.MachineSet) int {
	n, _ := strconv.Atoi(set.Annotations[clusterv1.RevisionAnnotation])
	return n
}

// newestSet returns the MachineSet with the highest revision.
func (s *stage) newestSet() *clusterv1.MachineSet {
	s.Helper()
	sets := &clusterv1.MachineSetList{}
	if err := env.client.List(s.ctx, sets, client.InNamespace(s.Namespace)); err != nil || len(sets.Items) == 0 {
		s.Fatalf("%d MachineSets (%v)", len(sets.Items), err)
	}
	set := slices.MaxFunc(sets.Items, func(a, b clusterv1.MachineSet) int { return revision(&a) - revision(&b) })
	return &set
}

// owners returns the names of the test's Machines that are not being deleted, by UID.
func (s *stage) owners() map[types.UID]string {
	s.Helper()
	list := &clusterv1.MachineList{}
	if err := env.client.List(s.ctx, list, client.InNamespace(s.Namespace)); err != nil {
		s.Fatal(err)
	}
	names := map[types.UID]string{}
	for _, m := range list.Items {
		if m.DeletionTimestamp.IsZero() {
			names[m.UID] = m.Name
		}
	}
	return names
}

// creates returns how often the cloud was asked to create a VM in the test's account.
func (s *stage) creates() (n int) {
	s.Helper()
	audit, err := env.admin.Audit(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	for _, r := range audit.Rows {
		if r.Account == s.Name && r.Operation == "RunInstances" {
			n += r.Calls
		}
	}
	return n
}

// census counts the test's Machines at each change of one of them, in the order in which the API
// server made the changes. It misses no change, as polling would.
type census struct {
	mu                       sync.Mutex
	machines                 map[types.UID]*clusterv1.Machine
	mostSeen, leastServing   int
	presentNow, availableNow int
}

// census starts a census that runs until the test ends.
func (s *stage) census() *census {
	s.Helper()
	list := &clusterv1.MachineList{}
	events := s.watch(list)
	c := &census{machines: map[types.UID]*clusterv1.Machine{}}
	for i := range list.Items {
		c.machines[list.Items[i].UID] = &list.Items[i]
	}
	c.count()
	c.leastServing = c.availableNow
	go func() {
		for e := range events {
			if m, ok := e.Object.(*clusterv1.Machine); ok {
				c.see(e.Type, m)
			}
		}
	}()
	return c
}

// watch lists the objects of a kind in the test's namespace into list, and returns all later
// changes until the test ends.
func (s *stage) watch(list client.ObjectList) <-chan watch.Event {
	s.Helper()
	scheme, err := scenario.Scheme()
	if err != nil {
		s.Fatal(err)
	}
	c, err := client.NewWithWatch(env.management.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		s.Fatal(err)
	}
	if err := c.List(s.ctx, list, client.InNamespace(s.Namespace)); err != nil {
		s.Fatal(err)
	}
	from := &client.ListOptions{Namespace: s.Namespace, Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
	w, err := c.Watch(s.ctx, list, from)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(w.Stop)
	return w.ResultChan()
}

func (c *census) see(kind watch.EventType, m *clusterv1.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == watch.Deleted {
		delete(c.machines, m.UID)
	} else {
		c.machines[m.UID] = m
	}
	c.count()
}

func (c *census) count() {
	c.presentNow, c.availableNow = len(c.machines), 0
	for _, m := range c.machines {
		if m.DeletionTimestamp.IsZero() && conditions.IsTrue(m, clusterv1.MachineAvailableCondition) {
			c.availableNow++
		}
	}
	c.mostSeen, c.leastServing = max(c.mostSeen, c.presentNow), min(c.leastServing, c.availableNow)
}

// complete checks that the census has reached a state of n machines, all available.
func (c *census) complete(n int) scenario.Check {
	return func(context.Context) (string, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.presentNow != n || c.availableNow != n {
			return fmt.Sprintf("it has %d machines, %d available", c.presentNow, c.availableNow), nil
		}
		return "", nil
	}
}

// result returns the highest number of Machines, including those being deleted, and the lowest
// number of available ones.
func (c *census) result() (most, least int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mostSeen, c.leastServing
}

// TestOnDelete checks that with the strategy OnDelete a new template applies to new machines only.
// Each old machine stays until a user deletes it.
func TestOnDelete(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 2}
	deployment := pool.Deployment()
	deployment.Spec.Rollout.Strategy.Type = clusterv1.OnDeleteMachineDeploymentStrategyType
	s.create(pool.Template(pool.Name, pool.Machine), pool.ConfigTemplate(), deployment)
	s.until("two machines are ready", pool.Ready(env.view, 2))
	before := s.owners()
	if err := pool.Roll(s.ctx, env.client, "second", infrav1.SimulatedMachine{InstanceType: "large"}); err != nil {
		t.Fatal(err)
	}
	s.soon("the new template has a MachineSet", func(context.Context) (string, error) {
		if set := s.newestSet(); set.Spec.Template.Spec.InfrastructureRef.Name != "second" {
			return "the newest is " + set.Name, nil
		}
		return "", nil
	})
	s.stays("the machines from the old one", func() string {
		if now := s.owners(); !maps.Equal(before, now) {
			return fmt.Sprintf("they were %v, and are %v", before, now)
		}
		return ""
	})
	uid := slices.Collect(maps.Keys(before))[0]
	machine := &infrav1.DroverMachine{ObjectMeta: s.meta(before[uid])}
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
		t.Fatal(err)
	}
	if err := scenario.Delete(s.ctx, env.client, &clusterv1.Machine{ObjectMeta: machine.ObjectMeta}); err != nil {
		t.Fatal(err)
	}
	delete(before, uid)
	s.until("it is gone", s.deleted(machine))
	s.soon("another is ready in its place, and alone is new", s.renewed(before))
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// renewed checks that there are two ready machines, and that all but the old ones use the template
// "second".
func (s *stage) renewed(old map[types.UID]string) scenario.Check {
	return func(context.Context) (string, error) {
		machines, owners := s.machines(), s.owners()
		if len(machines) != 2 || len(owners) != 2 {
			return fmt.Sprintf("there are %d machines", len(machines)), nil
		}
		for uid, name := range old {
			if owners[uid] != name {
				return "", fmt.Errorf("machine %s is gone, and nobody deleted it", name)
			}
		}
		for i := range machines {
			kept := slices.Contains(slices.Collect(maps.Values(old)), machines[i].Name)
			if from := machines[i].Annotations[clusterv1.TemplateClonedFromNameAnnotation]; (from == "second") == kept {
				return "", fmt.Errorf("machine %s is made from template %s", machines[i].Name, from)
			}
			if !conditions.IsTrue(&machines[i], clusterv1.ReadyCondition) {
				return "machine " + machines[i].Name + " is not ready yet", nil
			}
		}
		return "", nil
	}
}
