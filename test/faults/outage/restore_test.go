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

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
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
	ctrl.SetLogger(logr.Discard())
	const before, after = 4, 6
	s := start(t, "restore", before, "--machine-safety-orphan-vms-period=1s", "--machine-safety-orphan-vms-grace="+grace.String(),
		fmt.Sprintf("--machine-safety-orphan-vms-max-share=%d", *share))
	s.until("the machines are ready", s.pool.Ready(s.rig.Client, before))
	s.until("there are no orphans", s.orphans(infrav1.NoOrphansReason))
	old := s.vms()

	backup, err := s.rig.Management.Backup()
	if err != nil {
		t.Fatal(err)
	}
	lost := slices.Sorted(maps.Keys(old))[0]
	if err := s.pool.Scale(s.ctx, s.rig.Client, after); err != nil {
		t.Fatal(err)
	}
	if err := scenario.Delete(s.ctx, s.rig.Client, &clusterv1.Machine{ObjectMeta: s.meta(lost)}); err != nil {
		t.Fatal(err)
	}
	s.until("one is replaced and two are new", scenario.All(s.pool.Ready(s.rig.Client, after), func(context.Context) (string, error) {
		if now := s.vms(); len(now) != after || now[lost] != "" {
			return fmt.Sprint(now), nil
		}
		return "", nil
	}))
	unknown := s.vms()
	maps.DeleteFunc(unknown, func(machine, _ string) bool { return old[machine] != "" })

	if err := s.rig.Management.Restore(s.ctx, backup); err != nil {
		t.Fatal(err)
	}
	s.startDrover()
	s.until("a person is asked about the VMs that no object knows", s.orphans(infrav1.OrphansConfirmationRequiredReason))
	s.until("the machine whose VM is gone is replaced", scenario.All(s.pool.Ready(s.rig.Client, before), func(context.Context) (string, error) {
		if _, there := s.machines()[lost]; there {
			return "it is there", nil
		}
		return "", nil
	}))
	scenario.Pause(s.ctx, 2*grace)
	delete(old, lost)
	s.keeps("a VM with a machine", old)
	s.keeps("a VM that nobody has spoken about", unknown)

	s.confirm()
	s.until("the VMs without a machine are gone", func(context.Context) (string, error) {
		now := s.vms()
		for machine, id := range unknown {
			if now[machine] == id {
				return "VM " + id + " is there", nil
			}
		}
		return "", nil
	})
	s.until("there are no orphans any more", s.orphans(infrav1.NoOrphansReason))
	s.keeps("a VM with a machine", old)
	if err := scenario.Delete(s.ctx, s.rig.Client, s.pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	// The Nodes of the VMs without a machine stay: nothing shows which machine they belonged to.
	s.until("nothing is left", scenario.All(scenario.Empty(s.rig.Client, &infrav1.DroverMachineList{}, s.Namespace), func(ctx context.Context) (string, error) {
		snapshot, err := s.rig.Admin.Snapshot(ctx)
		if n := len(s.Live(snapshot)); n > 0 {
			return fmt.Sprintf("%d resources cost money", n), err
		}
		return "", err
	}))
}

// vms returns the IDs of the live VMs, by the name of the DroverMachine that they were created for.
func (s *stage) vms() map[string]string {
	s.Helper()
	snapshot, err := s.rig.Admin.Snapshot(s.ctx)
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
		if err := s.rig.Client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
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
	if err := s.rig.Client.Get(s.ctx, client.ObjectKeyFromObject(account), account); err != nil {
		s.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, infrav1.ConfirmOrphansAnnotation, account.Status.Orphans.Digest)
	if err := s.rig.Client.Patch(s.ctx, account, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
}
