// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// armed lets the orphan collector delete.
func armed(a *scenario.Adopted) { a.OrphanPolicy = infrav1.OrphanPolicyDelete }

// withMachine creates a pool, and returns it with its cluster's ownership ID and one of its
// machines.
func (s *stage) withMachine(replicas int32) (scenario.Pool, string, *infrav1.DroverMachine) {
	s.Helper()
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: replicas}
	s.create(pool.Objects()...)
	s.until("the pool is ready", pool.Ready(env.view, replicas))
	cluster := s.DroverCluster()
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		s.Fatal(err)
	}
	machine := s.machines()[0]
	return pool, cluster.Spec.Creation.OwnershipID, &machine
}

// byCloud creates a VM with a data disk without Drover, as a lost create does.
func (s *stage) byCloud(owner, token string) wire.Resource {
	s.Helper()
	vm, err := env.admin.Run(s.ctx, s.Name, wire.RunInstancesRequest{
		Region: "sim-1", InstanceType: "small", Image: "node-image", DataDisksGiB: []int32{1},
		Tags: map[string]string{cloud.TagOwnership: owner, cloud.TagToken: token, cloud.TagMachine: s.Namespace + "/lost"},
	})
	if err != nil {
		s.Fatal(err)
	}
	return vm
}

// tagged returns the number of resources that cost money and carry one of the tokens.
func (s *stage) tagged(tokens ...string) (n int) {
	for _, r := range s.resources() {
		if slices.Contains(tokens, r.Tags[cloud.TagToken]) {
			n++
		}
	}
	return n
}

// noneTagged checks that no resource with the token is left.
func (s *stage) noneTagged(token string) scenario.Check {
	return func(context.Context) (string, error) {
		if n := s.tagged(token); n > 0 {
			return fmt.Sprintf("%d are left", n), nil
		}
		return "", nil
	}
}

// keeps asserts that all resources with the tokens stay for several passes after the grace period.
func (s *stage) keeps(tokens ...string) {
	s.Helper()
	before := s.tagged(tokens...)
	end := time.Now().Add(2 * orphanGrace)
	for time.Now().Before(end) {
		s.stays("what has one of the tokens "+strings.Join(tokens, ", "), func() string {
			if n := s.tagged(tokens...); n != before {
				return fmt.Sprintf("%d of %d are left", n, before)
			}
			return ""
		})
	}
}

// dryRun returns the output of "drover orphans" for the test's namespace.
func (s *stage) dryRun() string {
	s.Helper()
	raw, err := env.management.Kubeconfig("operator", "system:masters")
	if err != nil {
		s.Fatal(err)
	}
	path := filepath.Join(s.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		s.Fatal(err)
	}
	program, err := playground.BuildCommand(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	out, err := exec.CommandContext(s.ctx, program, "orphans", "--kubeconfig="+path, "--namespace="+s.Namespace,
		"--simulated-cloud", "--allow-endpoints=127.0.0.0/8,::1/128", "--machine-safety-orphan-vms-grace="+orphanGrace.String(),
	).CombinedOutput()
	if err != nil {
		s.Errorf("drover orphans: %v", err)
	}
	return string(out)
}

// lost returns a token that this management cluster could have issued, besides the machine's own.
// Its suffix is not hexadecimal, so it cannot be a real token.
func lost(m *infrav1.DroverMachine, n int) string {
	return fmt.Sprintf("%s-x%d", m.Spec.Creation.Token[:24], n)
}

// TestOrphanIsDeleted checks that the VM and the dependants that a machine left behind are deleted,
// and not before they were seen for the grace period. This costs one live read and the calls of a
// deletion. Nothing else is touched. MCM's scenario: "orphan VM with the cluster's tags".
func TestOrphanIsDeleted(t *testing.T) {
	t.Parallel()
	s := newStage(t, armed)
	pool, owner, machine := s.withMachine(1)
	s.soon("there are no orphans", says(s.Account(), infrav1.AccountOrphansResolvedCondition, infrav1.NoOrphansReason))
	token, disk := lost(machine, 1), lost(machine, 2)
	made := time.Now()
	s.byCloud(owner, token)
	bare := s.byCloud(owner, disk) // only its disk is left
	if err := env.admin.Act(s.ctx, bare.ID, simulator.ActTerminate); err != nil {
		t.Fatal(err)
	}
	s.soon("they are announced", says(s.Account(), infrav1.AccountOrphansResolvedCondition, infrav1.OrphansDeletingReason,
		"resources of 2 machines"))
	s.soon("they are gone", scenario.All(s.noneTagged(token), s.noneTagged(disk)))
	if took := time.Since(made); took < orphanGrace {
		t.Errorf("they were gone after %s, within the grace of %s", took, orphanGrace)
	}
	s.soon("people are told", s.event("OrphanDeleted", "belonged to no DroverMachine"))
	s.soon("there are none any more", says(s.Account(), infrav1.AccountOrphansResolvedCondition, infrav1.NoOrphansReason))
	audit, err := env.admin.Audit(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	// One VM (one call to terminate it, one to delete its disk) and one disk, with a live read
	// before each call, and no other calls.
	for op, most := range map[string]int{wire.TerminateInstances: 1, wire.DeleteResources: 2, wire.DescribeResources: 3,
		wire.RunInstances: 0} {
		if n := audit.Machine(token, op) + audit.Machine(disk, op); n > most {
			t.Errorf("%s was called %d times for the two orphans, want %d at most", op, n, most)
		}
	}
	if n := len(s.live()); n != 1 {
		t.Errorf("%d VMs live, want the pool's", n)
	}
	s.until("the pool is as it was", pool.Ready(env.view, 1))
}

// TestOrphansThatStay checks that these orphans stay: those of an account that only reports, those
// of a paused cluster, those of a cluster that is not here, and those that another management
// cluster made with a copy of the DroverCluster. It failed when the collector judged paused
// clusters, and when it ignored which management cluster issued a token.
func TestOrphansThatStay(t *testing.T) {
	t.Parallel()
	reported := newStage(t, func(a *scenario.Adopted) { a.Namespace += "-reported" })
	_, owner, machine := reported.withMachine(1)
	token := lost(machine, 1)
	vm := reported.byCloud(owner, token)
	reported.soon("it is reported", says(reported.Account(), infrav1.AccountOrphansResolvedCondition, infrav1.OrphansReportOnlyReason,
		"orphanPolicy"))
	reported.soon("it is listed", func(ctx context.Context) (string, error) {
		account := reported.Account()
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
			return "", err
		}
		o := account.Status.Orphans
		if o == nil || ptr.Deref(o.Found, 0) == 0 || ptr.Deref(o.Confirmed, 0) != ptr.Deref(o.Found, 0) {
			return fmt.Sprintf("status.orphans is %+v", o), nil
		}
		for _, x := range o.Observed {
			if x.ID == vm.ID && x.State == infrav1.OrphanConfirmed {
				return "", nil
			}
		}
		return fmt.Sprintf("%s is not in %+v", vm.ID, o.Observed), nil
	})
	said := reported.dryRun()
	for _, want := range []string{vm.ID, string(infrav1.OrphanConfirmed), infrav1.OrphansReportOnlyReason,
		"of 1 machines, of 2 in the cloud"} {
		if !strings.Contains(said, want) {
			t.Errorf("drover orphans does not say %q:\n%s", want, said)
		}
	}
	reported.keeps(token)

	s := newStage(t, armed)
	_, owner, machine = s.withMachine(1)
	foreign, unknown := "ffffffff"+lost(machine, 1)[8:], lost(machine, 2)
	s.byCloud(owner, foreign)
	s.byCloud("no-cluster-here", unknown)
	s.soon("the other manager's is shown", says(s.Account(), infrav1.AccountOrphansResolvedCondition, infrav1.OrphansReportOnlyReason,
		"made by another management cluster"))
	s.keeps(foreign, unknown)
	s.pause(true)
	own := lost(machine, 3)
	s.byCloud(owner, own)
	s.keeps(own)
	s.pause(false)
	s.soon("the cluster goes on, and its orphan is gone", s.noneTagged(own))
	if s.tagged(foreign) == 0 || s.tagged(unknown) == 0 {
		t.Error("what is not ours was deleted")
	}
}

// TestManyOrphansAreAsked checks that VMs are not deleted as orphans when the API server has lost
// most of their objects, until a person confirms exactly the set that was shown. It failed without
// the brake.
func TestManyOrphansAreAsked(t *testing.T) {
	t.Parallel()
	s := newStage(t, armed)
	pool, _, _ := s.withMachine(4)
	machines := s.machines()
	// The objects vanish as after the restore of an old backup: finalizers do not hold them.
	s.pause(true)
	for i := range machines {
		s.soon("Drover leaves the machine alone", s.paused(&machines[i], true))
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	for i := range machines {
		owner := &clusterv1.Machine{ObjectMeta: s.meta(machines[i].Name)}
		for _, o := range []client.Object{owner, &machines[i]} {
			if err := scenario.Delete(s.ctx, env.client, o); err != nil {
				t.Fatal(err)
			}
			s.until("it is torn out", func(ctx context.Context) (string, error) { return s.tearOut(ctx, o) })
		}
	}
	s.pause(false)
	account := s.Account()
	s.soon("a person is asked", says(account, infrav1.AccountOrphansResolvedCondition, infrav1.OrphansConfirmationRequiredReason,
		"of 4 machines, of 4 in the cloud", infrav1.ConfirmOrphansAnnotation))
	confirm := func(word string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, infrav1.ConfirmOrphansAnnotation, word)
		if err := env.client.Patch(s.ctx, account, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
	}
	confirm("000000000000") // the digest of another set
	var tokens []string
	for i := range machines {
		tokens = append(tokens, machines[i].Spec.Creation.Token)
	}
	s.keeps(tokens...)
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(account), account); err != nil {
		t.Fatal(err)
	}
	confirm(account.Status.Orphans.Digest)
	s.soon("all are gone", func(context.Context) (string, error) {
		if n := len(s.resources()); n > 0 {
			return fmt.Sprintf("%d resources are left", n), nil
		}
		return "", nil
	})
}

// TestLeftOversOfADeletedCluster checks that the leftovers of a deleted cluster are found, because
// the account remembers the cluster's ownership ID, and that the account forgets the ID afterwards.
// Listings fail until the leftovers exist: after an empty listing the account could forget the
// cluster too early. The test failed when the account did not remember.
func TestLeftOversOfADeletedCluster(t *testing.T) {
	t.Parallel()
	s := newStage(t, armed)
	pool, owner, machine := s.withMachine(1)
	token := lost(machine, 1)
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.soon("the machines are gone", s.gone())
	s.soon("the collector knows, and will not wonder where they are", func(ctx context.Context) (string, error) {
		account := s.Account()
		err := env.client.Get(ctx, client.ObjectKeyFromObject(account), account)
		if o := account.Status.Orphans; o == nil || ptr.Deref(o.Machines, 1) != 0 {
			return fmt.Sprintf("status.orphans is %+v", o), err
		}
		return "", err
	})
	fault, err := env.admin.AddFault(s.ctx, simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.DescribeResources, Account: s.Name})
	if err != nil {
		t.Fatal(err)
	}
	cluster := s.Cluster()
	if err := scenario.Delete(s.ctx, env.client, cluster); err != nil {
		t.Fatal(err)
	}
	s.soon("the cluster is gone", s.deleted(cluster))
	s.byCloud(owner, token)
	if err := env.admin.RemoveFault(s.ctx, fault); err != nil {
		t.Fatal(err)
	}
	s.soon("what is left of it is gone", s.noneTagged(token))
	s.soon("and so is the memory of it", func(ctx context.Context) (string, error) {
		account := s.Account()
		err := env.client.Get(ctx, client.ObjectKeyFromObject(account), account)
		if err == nil && len(account.Status.FormerOwners) > 0 {
			return fmt.Sprintf("status.formerOwners is %+v", account.Status.FormerOwners), nil
		}
		return "", err
	})
}

// TestWhatAMachineHasStays checks that of two VMs with one token the one that the DroverMachine has
// recorded stays. A create that takes longer than the grace period makes no orphan either. The test
// failed when the collector ignored the tokens of machines without a recorded VM.
func TestWhatAMachineHasStays(t *testing.T) {
	t.Parallel()
	s := newStage(t, armed)
	pool, owner, machine := s.withMachine(1)
	recorded := s.instanceOf(machine)
	second := s.byCloud(owner, machine.Spec.Creation.Token)
	s.soon("only the recorded VM is left", func(context.Context) (string, error) {
		if live := s.live(); len(live) != 1 || live[0].ID != recorded.ID {
			return fmt.Sprintf("%d VMs live", len(live)), nil
		}
		return "", nil
	})
	if !strings.HasSuffix(machine.Spec.ProviderID, recorded.ID) || recorded.ID == second.ID {
		t.Errorf("the recorded VM is %s, and %s is left", machine.Spec.ProviderID, recorded.ID)
	}
	if _, err := env.admin.AddFault(s.ctx, simulator.Fault{
		Kind: simulator.SlowAfter, Operation: wire.RunInstances, Account: s.Name, Delay: simulator.Duration{Duration: 2 * orphanGrace}, Count: 1,
	}); err != nil {
		t.Fatal(err)
	}
	if err := pool.Scale(s.ctx, env.client, 2); err != nil {
		t.Fatal(err)
	}
	s.until("the slow one is ready too", pool.Ready(env.view, 2))
	audit, err := env.admin.Audit(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.machines() {
		if n := audit.Machine(m.Spec.Creation.Token, wire.RunInstances); n != 1 {
			t.Errorf("RunInstances was called %d times for %s, want once", n, m.Name)
		}
	}
	if n := len(s.live()); n != 2 {
		t.Errorf("%d VMs live, want 2", n)
	}
}

// TestOrphanIsSeenAnewAfterARestart restarts the manager between two sightings: the new process
// starts counting again. A listing that fails confirms nothing either. The test is not parallel,
// because it restarts the manager that all tests share. It failed when the new process took over
// the sightings from the status.
func TestOrphanIsSeenAnewAfterARestart(t *testing.T) {
	s := newStage(t, armed)
	_, owner, machine := s.withMachine(1)
	token := lost(machine, 1)
	fault, err := env.admin.AddFault(s.ctx, simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.DescribeResources, Account: s.Name})
	if err != nil {
		t.Fatal(err)
	}
	s.byCloud(owner, token)
	s.keeps(token)
	if err := env.admin.RemoveFault(s.ctx, fault); err != nil {
		t.Fatal(err)
	}
	s.soon("it is seen", says(s.Account(), infrav1.AccountOrphansResolvedCondition, infrav1.OrphansDeletingReason))
	env.drover.Kill()
	restarted := time.Now().Truncate(time.Second) // the precision of times in the status
	<-time.After(time.Second)
	if env.drover, err = startDrover(s.ctx); err != nil {
		t.Fatal(err)
	}
	s.soon("it is seen again", func(ctx context.Context) (string, error) {
		account := s.Account()
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
			return "", err
		}
		o := account.Status.Orphans
		if o == nil || len(o.Observed) == 0 || !o.Observed[0].Since.Time.After(restarted) {
			return fmt.Sprintf("status.orphans is %+v", o), nil
		}
		return "", nil
	})
	if s.tagged(token) == 0 {
		t.Error("it was gone as soon as it was seen again")
	}
	s.soon("it is gone", s.noneTagged(token))
	if took := time.Since(restarted); took < orphanGrace {
		t.Errorf("it was gone %s after the restart, within the grace of %s", took, orphanGrace)
	}
}

// safetyApart runs the safety controllers as a Deployment of their own. Only that one deletes
// orphans, and it creates nothing.
func (h *house) safetyApart() {
	pool := h.adopted("apart")
	pool.Replicas, pool.Cluster.OrphanPolicy = 1, infrav1.OrphanPolicyDelete
	const period, grace = "--machine-safety-orphan-vms-period=1s", "--machine-safety-orphan-vms-grace=2s"
	safety, machines := h.start("--run=safety", period, grace), h.start("--run=machines", period, grace)
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("a machine is ready", pool.Ready(h.client, 1))
	found := func(ctx context.Context) (string, error) {
		account := pool.Cluster.Account()
		err := h.client.Get(ctx, client.ObjectKeyFromObject(account), account)
		if err != nil || conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition) == infrav1.NoOrphansReason {
			return "", err
		}
		return fmt.Sprintf("it says %+v", account.Status.Conditions), nil
	}
	h.soon("the collector has looked", found)
	list := &infrav1.DroverMachineList{}
	if err := h.client.List(h.ctx, list, client.InNamespace(pool.Cluster.Namespace)); err != nil || len(list.Items) != 1 {
		h.Fatal(err, len(list.Items))
	}
	cluster := pool.Cluster.DroverCluster()
	if err := h.client.Get(h.ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		h.Fatal(err)
	}
	_, err := env.admin.Run(h.ctx, "house-apart", wire.RunInstancesRequest{
		Region: "sim-1", InstanceType: "small", Image: "node-image",
		Tags: map[string]string{cloud.TagOwnership: cluster.Spec.Creation.OwnershipID, cloud.TagToken: lost(&list.Items[0], 1)},
	})
	if err != nil {
		h.Fatal(err)
	}
	h.soon("the orphan is gone, and the machine is not", func(context.Context) (string, error) {
		live := slices.DeleteFunc(h.instances(pool), func(r simulator.SnapshotResource) bool { return r.State == wire.Terminated })
		if len(live) != 1 || live[0].Tags[cloud.TagToken] != list.Items[0].Spec.Creation.Token {
			return fmt.Sprintf("%d VMs live", len(live)), nil
		}
		return "", nil
	})
	h.soon("the machine is as it was", pool.Ready(h.client, 1))
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
	safety.Kill()
	machines.Kill()
}
