// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/naming"
)

// Index fields of the manager's cache. SetupIndexes declares them.
const (
	accountByCredentials = "spec.credentialsRef.name"
	machineByAccount     = "spec.accountRef.name"
	machineByToken       = "spec.creation.token"
	machineByProviderID  = "spec.providerID"
	machineByAddress     = "status.addresses.address"
	machineByNodeName    = "drover/nodeName"      // of DroverMachines, without what the cloud reports
	ownerByNode          = "drover/nodeOfMachine" // of Machines
	clusterByToken       = "spec.creation.loadBalancerToken"
)

// SetupIndexes declares the index fields that the reconcilers of this package use. It must be
// called before the manager starts.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	indexes := []struct {
		object client.Object
		field  string
		values client.IndexerFunc
	}{
		{&infrav1.DroverAccount{}, accountByCredentials, func(o client.Object) []string {
			return nonEmpty(o.(*infrav1.DroverAccount).Spec.CredentialsRef.Name)
		}},
		{&infrav1.DroverMachine{}, machineByAccount, func(o client.Object) []string {
			return nonEmpty(o.(*infrav1.DroverMachine).Spec.AccountRef.Name)
		}},
		{&infrav1.DroverMachine{}, machineByToken, func(o client.Object) []string {
			return nonEmpty(o.(*infrav1.DroverMachine).Spec.Creation.Token)
		}},
		{&infrav1.DroverMachine{}, machineByProviderID, func(o client.Object) []string {
			return nonEmpty(o.(*infrav1.DroverMachine).Spec.ProviderID)
		}},
		{&infrav1.DroverCluster{}, clusterByToken, func(o client.Object) []string {
			return nonEmpty(o.(*infrav1.DroverCluster).Spec.Creation.LoadBalancerToken)
		}},
		{&infrav1.DroverMachine{}, machineByAddress, func(o client.Object) []string {
			var values []string
			for _, a := range o.(*infrav1.DroverMachine).Status.Addresses {
				values = append(values, a.Address)
				if lower := strings.ToLower(a.Address); lower != a.Address { // Nodes have names in lower case
					values = append(values, lower)
				}
			}
			return values
		}},
		{&infrav1.DroverMachine{}, machineByNodeName, namesOfNode},
		{&clusterv1.Machine{}, ownerByNode, func(o client.Object) []string {
			machine := o.(*clusterv1.Machine)
			return []string{cmp.Or(machine.Status.NodeRef.Name, naming.NodeName(machine.Name))}
		}},
	}
	for _, i := range indexes {
		if err := indexer.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return fmt.Errorf("indexing %T by %s: %w", i.object, i.field, err)
		}
	}
	return nil
}

// namesOfNode returns the names that the Node of a DroverMachine may have, without those that the
// cloud reports.
func namesOfNode(machine client.Object) []string {
	names := []string{naming.NodeName(machine.GetName()), driverkit.HostName(machine.GetName(), 63)}
	for _, owner := range machine.GetOwnerReferences() {
		if owner.Kind == "Machine" {
			names = append(names, naming.NodeName(owner.Name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func nonEmpty(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// machinesThatRemain returns the DroverMachines that still need an object that is to be released.
// The cache may not have the newest yet, so only the API server's answer counts for "none". Until
// the cache has them, too, it returns an error: no deletion of a machine that the cache never had
// would reconcile the object again.
func machinesThatRemain(ctx context.Context, cache, api client.Reader, of ...client.ListOption) ([]infrav1.DroverMachine, error) {
	list := &infrav1.DroverMachineList{}
	if err := cache.List(ctx, list, of...); err != nil {
		return nil, fmt.Errorf("listing the DroverMachines in the cache: %w", err)
	}
	if len(list.Items) > 0 {
		return list.Items, nil
	}
	if err := api.List(ctx, list, append(of, client.Limit(1))...); err != nil {
		return nil, fmt.Errorf("listing the DroverMachines: %w", err)
	}
	if len(list.Items) > 0 {
		return nil, fmt.Errorf("DroverMachine %q is not in the cache yet", list.Items[0].Name)
	}
	return nil, nil
}

// onlyDeleted passes only deletions.
func onlyDeleted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// onlyCreated passes only creations.
func onlyCreated() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// onUpdate passes updates for which changed is true, and all other events.
func onUpdate[T client.Object](changed func(before, after T) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		after, ok2 := e.ObjectNew.(T)
		return ok && ok2 && changed(before, after)
	}}
}
