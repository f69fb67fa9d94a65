// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// machineScope holds what one reconcile of a DroverMachine or its Node has read. It holds no
// client.
type machineScope struct {
	*infrav1.DroverMachine
	// owner and cluster are nil if they do not exist.
	owner   *clusterv1.Machine
	cluster *clusterv1.Cluster
	// ownershipID is the DroverCluster's ownership ID; empty if there is none.
	ownershipID string
	// isExternallyManaged is true if another controller manages the DroverCluster.
	isExternallyManaged bool
	// virtualIP is the API server's address if it moves among the control plane's machines.
	virtualIP string
	// unreachable is the start of an outage of the workload cluster's API server; empty if there is
	// no outage.
	unreachable string
	// account is nil while the DroverAccount is missing or refused.
	account *fleet.Account
	// instance is the VM as the phase observe read it from the account; nil if it did not.
	instance *cloud.Resource
}

func (s *machineScope) key() client.ObjectKey { return client.ObjectKeyFromObject(s.DroverMachine) }

func (s *machineScope) reference() cloud.Reference {
	return cloud.Reference{Token: s.Spec.Creation.Token, OwnershipID: s.ownershipID, ProviderID: s.Spec.ProviderID}
}

// readMachine reads a DroverMachine and the objects around it. It returns the API server's NotFound
// error if the DroverMachine does not exist.
func readMachine(ctx context.Context, c client.Client, accounts *fleet.Accounts, key client.ObjectKey) (*machineScope, error) {
	machine := &infrav1.DroverMachine{}
	if err := c.Get(ctx, key, machine); err != nil {
		return nil, fmt.Errorf("reading the DroverMachine: %w", err)
	}
	s := &machineScope{DroverMachine: machine}
	s.account = accounts.Get(client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.AccountRef.Name})

	var err error
	if s.owner, err = util.GetOwnerMachine(ctx, c, machine.ObjectMeta); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the owner Machine: %w", err)
	}
	if name := clusterNameOf(machine, s.owner); name != "" {
		if s.cluster, err = util.GetClusterByName(ctx, c, machine.Namespace, name); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the Cluster: %w", err)
		}
	}
	infra, err := droverClusterOf(ctx, c, s.cluster)
	if err != nil {
		return nil, err
	}
	s.ownershipID, s.unreachable = infra.Spec.Creation.OwnershipID, infra.Annotations[infrav1.UnreachableAnnotation]
	s.isExternallyManaged = annotations.IsExternallyManaged(infra)
	if infra.Spec.Endpoint.HasVirtualIP() {
		s.virtualIP = infra.Spec.ControlPlaneEndpoint.Host
	}
	return s, nil
}

func clusterNameOf(machine *infrav1.DroverMachine, owner *clusterv1.Machine) string {
	if owner != nil {
		return owner.Spec.ClusterName
	}
	return machine.Labels[clusterv1.ClusterNameLabel]
}

// droverClusterOf returns the Cluster's DroverCluster, or an empty one if there is none.
func droverClusterOf(ctx context.Context, reader client.Reader, cluster *clusterv1.Cluster) (*infrav1.DroverCluster, error) {
	droverCluster := &infrav1.DroverCluster{}
	if cluster == nil || cluster.Spec.InfrastructureRef.GroupKind() != infrav1.DroverClusterKind {
		return droverCluster, nil
	}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Spec.InfrastructureRef.Name}
	if err := reader.Get(ctx, key, droverCluster); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the DroverCluster: %w", err)
	}
	return droverCluster, nil
}
