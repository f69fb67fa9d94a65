// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

var share = flag.Int("share", 20, "share of the fleet beyond which orphans are not believed, in percent; with 100, TestRestore must fail")

// grace is how long a VM must have had no machine to be an orphan.
const grace = 4 * time.Second

// TestRestore simulates an operator who has lost etcd and restores a backup. After the backup, the
// pool got two more machines, and one machine was deleted and replaced. So the cloud has three VMs
// that no object knows, and one object's VM is gone. The collector may delete, but deletes nothing
// until a person confirms, and then only those three VMs.
//
// With -share 100, which disables the limit on the share of the fleet, the three VMs are deleted
// unasked, and the test fails.
func TestRestore(t *testing.T) {
	const before, after = 4, 6
	s := start(t, "restore", before, "--machine-safety-orphan-vms-period=1s", "--machine-safety-orphan-vms-grace="+grace.String(),
		fmt.Sprintf("--machine-safety-orphan-vms-max-share=%d", *share))
	s.Until("the machines are ready", s.pool.Ready(s.Rig.Client, before))
	s.Until("there are no orphans", s.orphans(infrav1.NoOrphansReason))
	old := s.vms()

	backup, err := s.Rig.Management.Backup()
	if err != nil {
		t.Fatal(err)
	}
	lost := slices.Sorted(maps.Keys(old))[0]
	s.Do(s.pool.Scale(s.Ctx, s.Rig.Client, after))
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, &clusterv1.Machine{ObjectMeta: s.meta(lost)}))
	s.Until("one is replaced and two are new", scenario.All(s.pool.Ready(s.Rig.Client, after), func(context.Context) (string, error) {
		if now := s.vms(); len(now) != after || now[lost] != "" {
			return fmt.Sprint(now), nil
		}
		return "", nil
	}))
	unknown := s.vms()
	maps.DeleteFunc(unknown, func(machine, _ string) bool { return old[machine] != "" })

	s.Do(s.Rig.Management.Restore(s.Ctx, backup))
	s.Do(s.StartManager(s.Ctx))
	s.Until("a person is asked about the VMs that no object knows", s.orphans(infrav1.OrphansConfirmationRequiredReason))
	s.Until("the machine whose VM is gone is replaced",
		scenario.All(s.pool.Ready(s.Rig.Client, before), func(context.Context) (string, error) {
			if _, there := s.machines()[lost]; there {
				return "it is there", nil
			}
			return "", nil
		}))
	scenario.Pause(s.Ctx, 2*grace)
	delete(old, lost)
	s.keeps("a VM with a machine", old)
	s.keeps("a VM that nobody has spoken about", unknown)

	s.confirm()
	s.Until("the VMs without a machine are gone", func(context.Context) (string, error) {
		now := s.vms()
		for machine, id := range unknown {
			if now[machine] == id {
				return "VM " + id + " is there", nil
			}
		}
		return "", nil
	})
	s.Until("there are no orphans any more", s.orphans(infrav1.NoOrphansReason))
	s.keeps("a VM with a machine", old)
	s.Do(scenario.Delete(s.Ctx, s.Rig.Client, s.pool.Deployment()))
	// The Nodes of the VMs without a machine stay: nothing shows which machine they belonged to.
	s.Until("nothing is left", scenario.All(scenario.Empty(s.Rig.Client, &infrav1.DroverMachineList{}, s.Namespace),
		func(ctx context.Context) (string, error) {
			snapshot, err := s.Rig.Admin.Snapshot(ctx)
			if n := len(s.Live(snapshot)); n > 0 {
				return fmt.Sprintf("%d resources cost money", n), err
			}
			return "", err
		}))
}

// vms returns the IDs of the live VMs, by the name of the DroverMachine that they were created for.
func (s *stage) vms() map[string]string {
	s.Helper()
	snapshot, err := s.Rig.Admin.Snapshot(s.Ctx)
	if err != nil {
		s.Fatal(err)
	}
	all := map[string]string{}
	for _, r := range s.Live(snapshot) {
		if r.Kind == wire.Instance {
			all[r.Tags[cloud.TagMachine][len(s.Namespace)+1:]] = r.ID
		}
	}
	return all
}

// keeps checks that these VMs still exist.
func (s *stage) keeps(what string, vms map[string]string) {
	s.Helper()
	now := s.vms()
	for machine, id := range vms {
		if now[machine] != id {
			s.Errorf("%s was deleted: %s of %s", what, id, machine)
		}
	}
}

// orphans checks the reason of the account's OrphansResolved condition.
func (s *stage) orphans(reason string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		account := s.Account()
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
			return "", err
		}
		if is := conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition); is != reason {
			return "it says " + is + ": " + conditions.GetMessage(account, infrav1.AccountOrphansResolvedCondition), nil
		}
		return "", nil
	}
}

// confirm acts as a person who confirms that the orphans that the account shows may be deleted.
func (s *stage) confirm() {
	s.Helper()
	account := s.Account()
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(account), account))
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, infrav1.ConfirmOrphansAnnotation, account.Status.Orphans.Digest)
	s.Do(s.Rig.Client.Patch(s.Ctx, account, client.RawPatch(types.MergePatchType, patch)))
}

func (s *stage) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
}
