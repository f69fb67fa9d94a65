// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// balanced is in the names of clusters that have a load balancer and no machines.
const balanced = "-lb-"

// addCluster creates a cluster with a load balancer, while everything else happens.
func (x *tenant) addCluster(ctx context.Context) error {
	if _, able := x.world.(*simulatedWorld); !able {
		return nil
	}
	x.clusters++
	infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: x.Namespace,
		Name: fmt.Sprintf("%s%s%d", x.Name, balanced, x.clusters)}}
	infra.Spec.AccountRefs = []infrav1.LocalReference{{Name: x.Name}}
	infra.Spec.Endpoint.LoadBalancer.AccountRef = infra.Spec.AccountRefs[0]
	return x.insist(ctx, func(ctx context.Context) error {
		return scenario.Create(ctx, x.rig.Client, infra.DeepCopy(), clusterOf(infra)) // a copy: what was created can't be created again
	})
}

func clusterOf(infra *infrav1.DroverCluster) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: infra.Namespace, Name: infra.Name}, Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster",
			Name: infra.Name},
	}}
}

// completeClusters creates the Clusters whose creation was cut off after that of the DroverCluster.
func (x *tenant) completeClusters(ctx context.Context) error {
	all, err := x.balancedClusters(ctx, x.rig.Client)
	for i := range all {
		if all[i].DeletionTimestamp.IsZero() {
			err = errors.Join(err, scenario.Create(ctx, x.rig.Client, clusterOf(&all[i])))
		}
	}
	return err
}

// dropCluster deletes one of the clusters with load balancers.
func (x *tenant) dropCluster(ctx context.Context, n int) error {
	all, err := x.balancedClusters(ctx, x.rig.Client)
	if err != nil || len(all) == 0 {
		return err
	}
	return scenario.Delete(ctx, x.rig.Client, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: x.Namespace,
		Name: all[n%len(all)].Name}})
}

// dropClusters deletes all clusters with load balancers.
func (x *tenant) dropClusters(ctx context.Context) error {
	list := &clusterv1.ClusterList{}
	if err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if strings.Contains(list.Items[i].Name, balanced) {
			if err := scenario.Delete(ctx, x.rig.Client, &list.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *tenant) balancedClusters(ctx context.Context, r client.Reader) (all []infrav1.DroverCluster, err error) {
	list := &infrav1.DroverClusterList{}
	err = r.List(ctx, list, client.InNamespace(x.Namespace))
	for _, c := range list.Items {
		if c.Spec.Endpoint.IsSet() {
			all = append(all, c)
		}
	}
	return all, err
}

// hasEndpoints checks that each load balancer belongs to a cluster, which has its address.
func (x *tenant) hasEndpoints(ctx context.Context, r client.Reader, s simulator.Snapshot) (string, error) {
	clusters, err := x.balancedClusters(ctx, r)
	if err != nil {
		return "", err
	}
	byToken := map[string]*infrav1.DroverCluster{}
	for i := range clusters {
		byToken[clusters[i].Spec.Creation.LoadBalancerToken] = &clusters[i]
	}
	for _, live := range x.Live(s) {
		if live.Kind != wire.Balancer {
			continue
		}
		switch c := byToken[live.Tags[cloud.TagToken]]; {
		case c == nil:
			return fmt.Sprintf("load balancer %s (%s) has no owner", live.ID, live.Tags[cloud.TagMachine]), nil
		case c.Spec.ControlPlaneEndpoint.Host != live.PrivateIP:
			return fmt.Sprintf("load balancer %s has the address %s, and DroverCluster %s has %q", live.ID, live.PrivateIP, c.Name,
				c.Spec.ControlPlaneEndpoint.Host), nil
		}
		delete(byToken, live.Tags[cloud.TagToken])
	}
	for _, c := range byToken {
		return fmt.Sprintf("DroverCluster %s has no load balancer", c.Name), nil
	}
	return "", nil
}
