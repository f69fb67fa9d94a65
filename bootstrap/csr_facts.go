// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/csr"
)

// serviceAge is how long the addresses of the Service "kubernetes" are cached.
const serviceAge = 10 * time.Minute

// maxServiceAddresses is how many of them are kept. A Service has two at most.
const maxServiceAddresses = 4

// apiService are the addresses of the Service "kubernetes" of a workload cluster.
type apiService struct {
	at        time.Time
	addresses []string
}

// droverMachine returns the machine's DroverMachine, which has the provider ID and addresses
// earlier than the Machine. If there is none, it returns an empty one.
func (r *CSRReconciler) droverMachine(ctx context.Context, machine *clusterv1.Machine) (*infrav1.DroverMachine, error) {
	cloud := &infrav1.DroverMachine{}
	if !onDroverMachine(machine) {
		return cloud, nil
	}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name}, cloud)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the DroverMachine of a certificate request: %w", err)
	}
	return cloud, nil
}

func onDroverMachine(machine *clusterv1.Machine) bool {
	return machine.Spec.InfrastructureRef.GroupKind() == infrav1.DroverMachineKind
}

// isDrovers reports whether the machine's infrastructure or its bootstrap provider is Drover. The
// certificates of other machines are for others to approve.
func isDrovers(machine *clusterv1.Machine) bool {
	return onDroverMachine(machine) || len(configOfMachine(context.Background(), machine)) > 0
}

// isDroversCluster reports whether the Cluster, its control plane, or one of its machines is
// Drover's.
func (r *CSRReconciler) isDroversCluster(ctx context.Context, cluster *clusterv1.Cluster) (bool, error) {
	if cluster.Spec.InfrastructureRef.GroupKind() == infrav1.DroverClusterKind ||
		cluster.Spec.ControlPlaneRef.GroupKind() == controlplanev1.AdoptedControlPlaneKind {
		return true, nil
	}
	machines := &clusterv1.MachineList{}
	err := r.Client.List(ctx, machines, client.InNamespace(cluster.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("listing the Machines of a Cluster: %w", err)
	}
	return slices.ContainsFunc(machines.Items, func(m clusterv1.Machine) bool { return isDrovers(&m) }), nil
}

// clusterOfMachine returns the Cluster of a machine that is Drover's.
func clusterOfMachine(_ context.Context, machine *clusterv1.Machine) []ctrl.Request {
	if !isDrovers(machine) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}}}
}

// machineFacts returns the machine's addresses according to its infrastructure provider. For a
// DroverMachine, it ignores the copy in the Machine, which is older and does not show which
// addresses only the guest reports. Other providers do not show that at all.
func machineFacts(machine *clusterv1.Machine, cloud *infrav1.DroverMachine) csr.Machine {
	if onDroverMachine(machine) {
		return csr.Machine{Addresses: cloud.Status.Addresses, GuestReported: cloud.Status.GuestReportedAddresses}
	}
	out := csr.Machine{Addresses: machine.Status.Addresses}
	for _, a := range machine.Status.Addresses {
		if a.Type == clusterv1.MachineInternalIP || a.Type == clusterv1.MachineExternalIP {
			out.GuestReported = append(out.GuestReported, a.Address)
		}
	}
	return out
}

// clusterFacts returns the addresses that no kubelet of the cluster may serve, and the owners of
// the requested addresses other than the Node and its DroverMachine.
func (r *CSRReconciler) clusterFacts(
	ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader, asked []string, node string, cloud *infrav1.DroverMachine,
) (csr.Cluster, error) {
	facts := csr.Cluster{APIServers: []string{cluster.Spec.ControlPlaneEndpoint.Host}, Domain: cluster.Spec.ClusterNetwork.ServiceDomain}
	if host := r.APIServer(client.ObjectKeyFromObject(cluster)); host != "" {
		facts.APIServers = append(facts.APIServers, host)
	}
	addresses, err := r.serviceAddresses(ctx, cluster)
	if err != nil {
		return facts, err
	}
	facts.APIServers = append(facts.APIServers, addresses...)
	for _, block := range cluster.Spec.ClusterNetwork.Services.CIDRBlocks {
		if prefix, err := netip.ParsePrefix(block); err == nil {
			facts.Services = append(facts.Services, prefix)
		}
	}
	facts.Others, err = r.others(ctx, cluster, cached, asked, node, cloud)
	return facts, err
}

// others returns which of the addresses belong to another machine or Node of the cluster.
func (r *CSRReconciler) others(
	ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader, asked []string, node string, cloud *infrav1.DroverMachine,
) (map[string]string, error) {
	out := map[string]string{}
	add := func(address, kind, name string) {
		if address = csr.Canonical(address); slices.Contains(asked, address) {
			out[address] = fmt.Sprintf("%s %q", kind, name)
		}
	}
	machines := &infrav1.DroverMachineList{}
	err := r.Client.List(ctx, machines, client.InNamespace(cluster.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the DroverMachines of a Cluster: %w", err)
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		if m.Name == cloud.Name || m.Status.InstanceState == infrav1.InstanceStateGone { // its addresses may belong to another VM now
			continue
		}
		for _, a := range m.Status.Addresses {
			add(a.Address, "DroverMachine", m.Name)
		}
	}
	nodes := &corev1.NodeList{}
	if err := cached.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the Nodes of a Cluster: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Name == node {
			continue
		}
		for _, a := range n.Status.Addresses {
			add(a.Address, "Node", n.Name)
		}
	}
	return out, nil
}

// serviceAddresses returns the addresses of the Service by which Pods reach the API server. It
// returns none if the Cluster's kubeconfig does not permit to read it.
func (r *CSRReconciler) serviceAddresses(ctx context.Context, cluster *clusterv1.Cluster) ([]string, error) {
	key := client.ObjectKeyFromObject(cluster)
	if value, ok := r.services.Load(key); ok {
		if s, ok := value.(apiService); ok && time.Since(s.at) < serviceAge {
			return s.addresses, nil
		}
	}
	workload, err := r.ClusterCache.GetUncachedClient(ctx, key)
	if err != nil {
		return nil, err
	}
	service := &corev1.Service{}
	err = workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, service)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("reading the Service %q of a workload cluster: %w", "kubernetes", err)
	}
	addresses := append(slices.Clone(service.Spec.ClusterIPs), service.Spec.ClusterIP)
	addresses = slices.DeleteFunc(addresses, func(a string) bool { _, err := netip.ParseAddr(a); return err != nil })
	addresses = slices.Clone(addresses[:min(len(addresses), maxServiceAddresses)])
	r.services.Store(key, apiService{at: time.Now(), addresses: addresses})
	return addresses, nil
}
