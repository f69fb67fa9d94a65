// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// event is something that may happen to a tenant, with a probability proportional to its weight.
type event struct {
	weight int
	what   string
	do     func(*tenant, context.Context) error
}

func events() []event {
	return []event{
		{3, "create a machine", (*tenant).createLater},
		{3, "delete a machine, whose disk stays", (*tenant).deleteMachine},
		{2, "delete a machine, which takes its time", (*tenant).deleteSlowly},
		{3, "a VM by hand, with the cluster's tags", (*tenant).strayVM},
		{2, "a machine's object is lost", (*tenant).loseOne},
		{2, "a machine's object is lost, and brought back", (*tenant).loseOneForAMoment},
		{3, "many objects are lost, and brought back one by one", (*tenant).loseManyForAWhile},
		{1, "many objects are lost, and given up", (*tenant).loseManyForGood},
		{1, "another management cluster's VM, with a copy of the DroverCluster", (*tenant).foreignVM},
		{1, "a VM of an unknown owner", (*tenant).unknownOwnersVM},
		{2, "a second VM for a machine", (*tenant).secondVM},
		{1, "two VMs for a machine that has recorded none", (*tenant).twins},
		{2, "a move that breaks off half-way", (*tenant).moveHalfWay},
		{4, "the listing is in trouble", (*tenant).listingTrouble},
	}
}

// play runs the tenant's schedule.
func (x *tenant) play(ctx context.Context) error {
	all := events()
	sum := 0
	for _, e := range all {
		sum += e.weight
	}
	for range 3 + x.rand.IntN(4) {
		n := x.rand.IntN(sum)
		i := slices.IndexFunc(all, func(e event) bool { n -= e.weight; return n < 0 })
		x.note("%s", all[i].what)
		if err := all[i].do(x, ctx); err != nil {
			return fmt.Errorf("%s: %w", all[i].what, err)
		}
		scenario.Pause(ctx, between(x.rand, 0, 2))
	}
	switch x.rand.IntN(8) {
	case 0:
		x.note("the cluster moves away")
		return x.moveAway(ctx)
	case 1:
		x.note("the namespace is deleted by mistake")
		return x.deleteNamespace(ctx)
	}
	return nil
}

// draw returns up to n machines that have their VM and were never lost, in random order. A machine
// that is lost, restored and lost again between two passes of the collector is, as far as the
// collector can see, lost all the time.
func (x *tenant) draw(n int) []*machine {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(x.machines), func(m *machine) bool { return m.back && !x.gone })
	x.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// giveUp records that a machine no longer exists: its remains have had no owner since that time.
func (x *tenant) giveUp(m *machine, since time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.machines = slices.DeleteFunc(x.machines, func(o *machine) bool { return o == m })
	x.lost[m.object.Spec.Creation.Token] = since
}

func (x *tenant) delete(ctx context.Context, m *machine) error {
	x.note("  %s is lost", m.object.Name)
	return scenario.Delete(ctx, x.bench.client, m.object.DeepCopy())
}

// bringBack restores the object as a backup does: with its spec, and another UID. On a computer
// that is too busy to do so at once the grace period may end meanwhile. Then the schedule proves
// nothing.
func (x *tenant) bringBack(ctx context.Context, m *machine) error {
	o := x.object(m.object.Spec.Creation.Token)
	o.Spec.ProviderID = m.object.Spec.ProviderID
	begin := time.Now()
	err := scenario.Create(ctx, x.bench.client, o)
	for err != nil && scenario.Pause(ctx, 100*time.Millisecond) {
		err = scenario.Create(ctx, x.bench.client, o)
	}
	took := time.Since(begin)
	x.note("  %s is back, after %s", o.Name, took)
	x.mu.Lock()
	defer x.mu.Unlock()
	m.back, x.late = true, x.late || took > grace/8
	return err
}

// terminate terminates a VM on behalf of the test.
func (x *tenant) terminate(ctx context.Context, id, token string) error {
	x.mu.Lock()
	x.touched[id], x.touched[token] = true, true
	x.mu.Unlock()
	return x.bench.admin.Act(ctx, id, simulator.ActTerminate)
}

// createLater creates a machine in the background. It may take longer than the grace period.
func (x *tenant) createLater(ctx context.Context) error {
	token, slow, record := x.token(x.bench.identity), between(x.rand, 0, long.Seconds()), between(x.rand, 0, 2)
	disk := x.rand.IntN(2) == 0
	x.later.Go(func() {
		if err := x.create(ctx, token, slow, record, disk); err != nil {
			x.note("a create failed: %v", err)
		}
	})
	return nil
}

func (x *tenant) deleteMachine(ctx context.Context) error {
	for _, m := range x.draw(1) {
		err := x.terminate(ctx, m.vm, m.object.Spec.Creation.Token)
		x.giveUp(m, time.Now())
		if err := errors.Join(err, x.delete(ctx, m)); err != nil {
			return err
		}
	}
	return nil
}

// deleteSlowly checks that a machine owns its VM until the VM is gone, however long the drain
// takes.
func (x *tenant) deleteSlowly(ctx context.Context) error {
	for _, m := range x.draw(1) {
		o := m.object.DeepCopy()
		err := errors.Join(x.finalizers(ctx, o, infrav1.MachineFinalizer), x.delete(ctx, m))
		scenario.Pause(ctx, between(x.rand, 0, long.Seconds()))
		err = errors.Join(err, x.terminate(ctx, m.vm, m.object.Spec.Creation.Token))
		x.giveUp(m, time.Now())
		if err := errors.Join(err, x.unhold(ctx, o)); err != nil {
			return err
		}
	}
	return nil
}

func (x *tenant) strayVM(ctx context.Context) error {
	token := x.token(x.bench.identity)
	x.mu.Lock()
	x.lost[token] = time.Now()
	x.mu.Unlock()
	_, err := x.run(ctx, x.owner, token, x.rand.IntN(2) == 0)
	return err
}

func (x *tenant) foreignVM(ctx context.Context) error {
	_, err := x.run(ctx, x.owner, x.token("ffffffff"), true)
	return err
}

func (x *tenant) unknownOwnersVM(ctx context.Context) error {
	_, err := x.run(ctx, one(x, "", "another"+x.owner[7:]), x.token(x.bench.identity), true)
	return err
}

func (x *tenant) loseOne(ctx context.Context) error {
	for _, m := range x.draw(1) {
		x.giveUp(m, time.Now())
		if err := x.delete(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (x *tenant) loseOneForAMoment(ctx context.Context) error {
	for _, m := range x.draw(1) {
		if err := x.delete(ctx, m); err != nil {
			return err
		}
		scenario.Pause(ctx, between(x.rand, 0, grace.Seconds()/2))
		if err := x.bringBack(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// many returns enough machines to make the collector doubt that they are orphans, or none if there
// are too few.
func (x *tenant) many() []*machine {
	all := x.draw(4 + x.rand.IntN(4))
	if len(all) < 4 {
		return nil
	}
	return all
}

// loseMany loses many machines at once. The collector would accept single losses as real.
func (x *tenant) loseMany(ctx context.Context) ([]*machine, error) {
	lost, begin := x.many(), time.Now()
	for _, m := range lost {
		if err := x.delete(ctx, m); err != nil {
			return nil, err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.late = x.late || time.Since(begin) > grace/2
	return lost, nil
}

func (x *tenant) loseManyForAWhile(ctx context.Context) error {
	lost, err := x.loseMany(ctx)
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		scenario.Pause(ctx, between(x.rand, 0, long.Seconds()))
	}
	for _, m := range lost {
		if err := x.bringBack(ctx, m); err != nil {
			return err
		}
		scenario.Pause(ctx, between(x.rand, 0, .7))
	}
	return nil
}

// loseManyForGood gives the machines up only once a person is asked.
func (x *tenant) loseManyForGood(ctx context.Context) error {
	lost, err := x.loseMany(ctx)
	if err != nil || len(lost) == 0 {
		return err
	}
	scenario.Pause(ctx, between(x.rand, 0, long.Seconds()))
	for {
		account := x.Account()
		if err := x.bench.client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil && ctx.Err() == nil {
			return err
		}
		if conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition) == infrav1.OrphansConfirmationRequiredReason {
			break
		}
		if !scenario.Pause(ctx, 300*time.Millisecond) {
			return fmt.Errorf("nobody was asked: the account says %s", x.says(context.Background()))
		}
	}
	for _, m := range lost {
		x.giveUp(m, time.Now().Add(-grace)) // they may be deleted as soon as they are confirmed, which rest does
	}
	return nil
}

// secondVM creates a second VM for a machine: the recorded one stays, and the other has no owner.
func (x *tenant) secondVM(ctx context.Context) error {
	for _, m := range x.draw(1) {
		since := time.Now()
		vm, err := x.run(ctx, x.owner, m.object.Spec.Creation.Token, false)
		if err != nil {
			return err
		}
		x.mu.Lock()
		x.lostVM[vm.ID] = since
		// Its dependants are deleted with it, and carry the machine's token.
		x.touched[m.object.Spec.Creation.Token] = true
		x.mu.Unlock()
	}
	return nil
}

// twins creates two VMs for a machine that has recorded none: neither may be deleted until a person
// has chosen.
func (x *tenant) twins(ctx context.Context) error {
	token := x.token(x.bench.identity)
	o := x.object(token)
	if err := scenario.Create(ctx, x.bench.client, o); err != nil {
		return err
	}
	stays, err := x.run(ctx, x.owner, token, false)
	if err != nil {
		return err
	}
	goes, err := x.run(ctx, x.owner, token, false)
	if err != nil {
		return err
	}
	scenario.Pause(ctx, between(x.rand, 0, long.Seconds()))
	if err := x.terminate(ctx, goes.ID, token); err != nil {
		return err
	}
	if err := x.record(ctx, o, stays); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.machines = append(x.machines, &machine{object: o, vm: stays.ID})
	return nil
}

func (x *tenant) pause(ctx context.Context, paused bool) error {
	cluster := x.Cluster()
	return scenario.Patch(ctx, x.bench.client, cluster, func() { cluster.Spec.Paused = ptr.To(paused) })
}

// moveHalfWay is a "clusterctl move" that deletes what it has copied, aborts, and is reverted.
func (x *tenant) moveHalfWay(ctx context.Context) error {
	if err := x.pause(ctx, true); err != nil {
		return err
	}
	moved := x.draw(1 + x.rand.IntN(8))
	for _, m := range moved {
		if err := x.delete(ctx, m); err != nil {
			return err
		}
	}
	scenario.Pause(ctx, between(x.rand, 0, long.Seconds()))
	for _, m := range moved {
		if err := x.bringBack(ctx, m); err != nil {
			return err
		}
	}
	return x.pause(ctx, false)
}

// moveAway moves the cluster away: from then on, the VMs have their owners in another management
// cluster.
func (x *tenant) moveAway(ctx context.Context) error {
	x.later.Wait()
	if err := x.pause(ctx, true); err != nil {
		return err
	}
	x.gone = true
	for _, m := range x.draw(100) {
		if err := x.delete(ctx, m); err != nil {
			return err
		}
	}
	for _, o := range []client.Object{x.DroverCluster(), x.Cluster()} {
		if err := scenario.Delete(ctx, x.bench.client, o); err != nil {
			return err
		}
		if err := x.unhold(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// deleteNamespace deletes the namespace by mistake: all objects are being deleted, and finalizers
// hold those that represent VMs.
func (x *tenant) deleteNamespace(ctx context.Context) error {
	x.later.Wait()
	x.gone = true
	held := []client.Object{x.Account(), x.DroverCluster()}
	for _, m := range x.draw(100) {
		held = append(held, m.object.DeepCopy())
	}
	for _, o := range held {
		if err := x.finalizers(ctx, o, infrav1.MachineFinalizer); err != nil {
			return err
		}
	}
	return scenario.Delete(ctx, x.bench.client, x.Adopted.Objects()[0])
}

// finalizers sets the finalizers of an object.
func (x *tenant) finalizers(ctx context.Context, o client.Object, names ...string) error {
	return scenario.Patch(ctx, x.bench.client, o, func() { o.SetFinalizers(names) })
}

// unhold removes the finalizers of an object, so that it can be deleted.
func (x *tenant) unhold(ctx context.Context, o client.Object) error {
	return client.IgnoreNotFound(x.finalizers(ctx, o))
}

// release removes the finalizers that deleteNamespace set.
func (x *tenant) release(ctx context.Context) error {
	list := &infrav1.DroverMachineList{}
	if err := x.bench.client.List(ctx, list, client.InNamespace(x.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if err := x.unhold(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	for _, o := range []client.Object{x.DroverCluster(), x.Account()} {
		if err := x.unhold(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// listingTrouble disturbs the listing for a while, in the background: it fails, is cut, is slow, is
// empty as for credentials without permissions, or lacks a page.
func (x *tenant) listingTrouble(ctx context.Context) error {
	lasts := between(x.rand, 1, 6)
	kind := one(x, "fails", "cut", "slow", "empty", "short")
	x.note("the listing is %s for %s", kind, lasts)
	if kind == "short" {
		_, err := x.bench.admin.AddFault(ctx, simulator.Fault{
			Kind: simulator.PartialPage, Operation: wire.DescribeResources, Account: x.Name, Count: 1 + x.rand.IntN(4),
		})
		return err
	}
	x.proxy.SetRule(func(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		if c.Verb != wire.DescribeResources || at != faultproxy.Before {
			return faultproxy.Verdict{}
		}
		switch kind {
		case "fails":
			return faultproxy.Verdict{Answer: &faultproxy.Answer{Status: http.StatusServiceUnavailable, ContentType: "application/json",
				Body: []byte(`{"code":"ServiceUnavailable"}`)}}
		case "cut":
			return faultproxy.Verdict{Cut: true}
		case "slow":
			return faultproxy.Delay(ctx, 2*time.Second)
		}
		return faultproxy.Verdict{Answer: &faultproxy.Answer{Status: http.StatusOK, ContentType: "application/json",
			Body: []byte(`{"resources":[]}`)}}
	})
	x.later.Go(func() {
		scenario.Pause(ctx, lasts)
		x.proxy.SetRule(nil)
	})
	return nil
}

func one[T any](x *tenant, of ...T) T { return of[x.rand.IntN(len(of))] }
