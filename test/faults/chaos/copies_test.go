// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// copied is the suffix of the names of copies.
const copied = "-copy"

// swap puts credentials of another place into the Secret, which a user has confused. A rotation
// brings the right ones back.
func (x *tenant) swap(ctx context.Context, on bool) error {
	if !on {
		return x.rotate(ctx)
	}
	credentials, err := x.world.elsewhere(ctx, x)
	if err != nil || credentials == nil {
		return err
	}
	return x.writeSecret(ctx, credentials)
}

// recorded returns the DroverMachines whose VM is recorded. Their spec is final, so that a backup
// of them is not older than their VM.
func (x *tenant) recorded(ctx context.Context) ([]infrav1.DroverMachine, error) {
	list := &infrav1.DroverMachineList{}
	if err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace)); err != nil {
		return nil, err
	}
	var all []infrav1.DroverMachine
	for _, m := range list.Items {
		if m.Spec.ProviderID != "" && m.DeletionTimestamp.IsZero() {
			all = append(all, m)
		}
	}
	return all, nil
}

// copyMachine does what "kubectl apply" of an edited export does. The webhook refuses the copy
// while it knows the original.
func (x *tenant) copyMachine(ctx context.Context, n int, on bool) error {
	if !on {
		return x.removeCopies(ctx)
	}
	all, err := x.recorded(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	twin := exported(&all[n%len(all)])
	twin.Name += copied
	x.note("   %s", twin.Name)
	return x.rig.Client.Create(ctx, twin)
}

func (x *tenant) removeCopies(ctx context.Context) error {
	list := &infrav1.DroverMachineList{}
	err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace))
	for i := range list.Items {
		if m := &list.Items[i]; strings.HasSuffix(m.Name, copied) {
			err = errors.Join(err, scenario.Delete(ctx, x.rig.Client, m))
		}
	}
	return err
}

// restore deletes a DroverMachine without its VM, and creates it again from a backup.
func (x *tenant) restore(ctx context.Context, n int) error {
	all, err := x.recorded(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	if err := x.takeAway(ctx, &all[n%len(all)]); err != nil {
		return err
	}
	return x.bringBack(ctx)
}

// move does what "clusterctl move" does with the DroverMachines. Between its two halves, they are
// nowhere, and the Cluster is paused.
func (x *tenant) move(ctx context.Context, on bool) error {
	if !on {
		return errors.Join(x.bringBack(ctx), x.pause(ctx, false))
	}
	if err := x.pause(ctx, true); err != nil {
		return err
	}
	all, err := x.recorded(ctx)
	for i := range all {
		err = errors.Join(err, x.takeAway(ctx, &all[i]))
	}
	return err
}

// takeAway deletes a DroverMachine without its VM, and keeps a backup.
func (x *tenant) takeAway(ctx context.Context, m *infrav1.DroverMachine) error {
	x.note("   %s", m.Name)
	patch := fmt.Sprintf(`{"metadata":{"finalizers":null,"uid":%q,"resourceVersion":%q}}`, m.UID, m.ResourceVersion)
	if err := x.rig.Client.Patch(ctx, m.DeepCopy(), mergePatch(patch)); err != nil {
		return err
	}
	x.moved[m.Name] = exported(m)
	return scenario.Delete(ctx, x.rig.Client, &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}})
}

// bringBack creates the DroverMachines of which a backup is kept.
func (x *tenant) bringBack(ctx context.Context) error {
	var errs []error
	for name, m := range x.moved {
		err := x.rig.Client.Create(ctx, m.DeepCopy())
		if err = client.IgnoreAlreadyExists(err); err == nil {
			delete(x.moved, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// exported returns a DroverMachine as a backup has it: without status, and without what the API
// server sets.
func exported(m *infrav1.DroverMachine) *infrav1.DroverMachine {
	e := &infrav1.DroverMachine{Spec: *m.Spec.DeepCopy()}
	e.Namespace, e.Name, e.Labels, e.Annotations = m.Namespace, m.Name, m.Labels, m.Annotations
	e.OwnerReferences, e.Finalizers = m.OwnerReferences, m.Finalizers
	return e
}
