// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// shared is an API server response that several passes share. The zero value is ready to use.
type shared[T any] struct {
	mu    sync.Mutex
	begun time.Time
	value T
	err   error
}

// get returns a response to a request that was sent after asked. Passes that wait while the request
// of another pass is in flight share the next response.
func (s *shared[T]) get(asked time.Time, read func() (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun.After(asked) {
		s.begun = time.Now()
		s.value, s.err = read()
	}
	return s.value, s.err
}

// owner is the relevant part of a DroverCluster, claim that of a DroverMachine or of a
// DroverCluster's load balancer.
type (
	owner struct {
		namespace, name, ownershipID string
		paused, unreachable          bool
	}
	claim struct{ namespace, account, token, providerID string }
)

// clusterList contains the DroverClusters that may have an ownership ID.
type clusterList struct {
	owners []owner
	// confined: the manager may not read all namespaces, so other DroverClusters or DroverMachines
	// may exist.
	confined bool
}

// tenant contains a namespace's DroverMachines, and whether its Clusters are paused, by the name of
// the Cluster's DroverCluster.
type tenant struct {
	claims []claim
	paused map[string]bool
}

// facts reads from the API server, past every cache, which objects the resources of a listing may
// belong to. It reads after the listing is complete. Kubernetes then knows every machine that was
// created in between, so the VM of such a machine is no orphan.
func (r *OrphanReconciler) facts(ctx context.Context, account *infrav1.DroverAccount, listed time.Time,
	resources []cloud.Resource) (facts, error) {
	f := facts{
		listed: listed, resources: resources, identity: r.Identity,
		clusters: map[string]cluster{}, elsewhere: map[string]bool{}, machines: map[string]string{}, claimed: map[string]bool{},
	}
	asked := time.Now()
	all, err := r.owners.get(asked, func() (clusterList, error) { return r.readClusters(ctx) })
	if err != nil {
		return f, fmt.Errorf("listing the DroverClusters: %w", err)
	}
	known, _ := r.tenants.LoadOrStore(account.Namespace, &shared[tenant]{})
	here, err := known.(*shared[tenant]).get(asked, func() (tenant, error) { return r.readTenant(ctx, account.Namespace) })
	if err != nil {
		return f, fmt.Errorf("listing the Clusters and DroverMachines: %w", err)
	}
	f.confined = all.confined
	f.own(account, all.owners, here.paused)
	for _, c := range here.claims {
		if c.token != "" {
			f.machines[c.token] = c.providerID
		}
		f.recorded = f.recorded || c.providerID != "" && c.account == account.Name
	}
	if !f.confined && f.suspects() {
		claims, err := r.claims.get(asked, func() ([]claim, error) { return r.readClaims(ctx, "") })
		if err != nil {
			return f, fmt.Errorf("listing all DroverMachines: %w", err)
		}
		for _, c := range claims {
			if c.namespace != account.Namespace {
				f.claimed[c.token] = true
			}
		}
	}
	f.read = time.Now()
	return f, nil
}

// own determines which ownership IDs are judged in the account's namespace.
func (f *facts) own(account *infrav1.DroverAccount, owners []owner, paused map[string]bool) {
	for _, o := range account.Status.FormerOwners {
		f.clusters[o.OwnershipID] = cluster{former: true}
	}
	having := map[string][]owner{}
	for _, o := range owners {
		if o.ownershipID != "" {
			having[o.ownershipID] = append(having[o.ownershipID], o)
		}
	}
	for id, all := range having {
		i := slices.IndexFunc(all, func(o owner) bool { return o.namespace == account.Namespace })
		switch {
		case i < 0:
			delete(f.clusters, id)
			f.elsewhere[id] = true
		case len(all) > 1:
			f.clusters[id] = cluster{skipReason: "more than one DroverCluster has its ownership ID"}
		default:
			f.clusters[id] = cluster{skipReason: skipReasonOf(all[i], paused)}
		}
	}
}

// skipReasonOf returns why the resources of a DroverCluster are not judged now, or "" if they are.
func skipReasonOf(o owner, paused map[string]bool) string {
	clusterPaused, here := paused[o.name]
	switch {
	case !here:
		return "its Cluster is not here"
	case clusterPaused || o.paused:
		return "it is paused"
	case o.unreachable:
		return "its API server does not answer"
	}
	return ""
}

// readClusters lists the DroverClusters of all namespaces. A user may copy an ownership ID, so a
// manager that reads only one namespace can't tell which cluster owns it.
func (r *OrphanReconciler) readClusters(ctx context.Context) (all clusterList, err error) {
	read := func(namespace string) error {
		return eachItem(ctx, r.APIReader, &infrav1.DroverClusterList{}, func(o runtime.Object) {
			c := o.(*infrav1.DroverCluster)
			all.owners = append(all.owners, owner{
				namespace: c.Namespace, name: c.Name, ownershipID: c.Spec.Creation.OwnershipID,
				paused: annotations.HasPaused(c), unreachable: c.Annotations[infrav1.UnreachableAnnotation] != "",
			})
		}, client.InNamespace(namespace))
	}
	if err = read(""); err == nil && r.Namespace != "" {
		err = r.APIReader.List(ctx, &infrav1.DroverMachineList{}, client.Limit(1))
	}
	if r.Namespace != "" && apierrors.IsForbidden(err) {
		all = clusterList{confined: true}
		err = read(r.Namespace)
	}
	return all, err
}

// readTenant lists a namespace's Clusters and DroverMachines.
func (r *OrphanReconciler) readTenant(ctx context.Context, namespace string) (t tenant, err error) {
	t.paused = map[string]bool{}
	err = eachItem(ctx, r.APIReader, &clusterv1.ClusterList{}, func(o runtime.Object) {
		c := o.(*clusterv1.Cluster)
		if c.Spec.InfrastructureRef.GroupKind() == infrav1.DroverClusterKind {
			name := c.Spec.InfrastructureRef.Name
			t.paused[name] = t.paused[name] || ptr.Deref(c.Spec.Paused, false)
		}
	}, client.InNamespace(namespace))
	if err != nil {
		return t, err
	}
	t.claims, err = r.readClaims(ctx, namespace)
	return t, err
}

// readClaims lists the DroverMachines and the load balancers of the DroverClusters of a namespace;
// "" stands for all namespaces.
func (r *OrphanReconciler) readClaims(ctx context.Context, namespace string) (claims []claim, err error) {
	err = eachItem(ctx, r.APIReader, &infrav1.DroverMachineList{}, func(o runtime.Object) {
		m := o.(*infrav1.DroverMachine)
		claims = append(claims, claim{m.Namespace, m.Spec.AccountRef.Name, m.Spec.Creation.Token, m.Spec.ProviderID})
	}, client.InNamespace(namespace))
	if err != nil {
		return nil, err
	}
	err = eachItem(ctx, r.APIReader, &infrav1.DroverClusterList{}, func(o runtime.Object) {
		c := o.(*infrav1.DroverCluster)
		claims = append(claims, claim{namespace: c.Namespace, account: c.Spec.Endpoint.LoadBalancer.AccountRef.Name,
			token: c.Spec.Creation.LoadBalancerToken})
	}, client.InNamespace(namespace))
	return claims, err
}
