// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/naming"
)

// isNodeOf reports whether a Node without provider ID is the machine's. What a Node says of itself
// is only a claim, so its addresses alone prove nothing. If Drover's bootstrap provider sets up the
// machine, the name is proved: Drover approves a kubelet's certificate only for its own machine's
// name. A Node that is older than the machine had that name before, and must be at the machine's
// address, too. Of other bootstrap providers Drover knows only that they use the machine's name or
// the cloud's, so both the name and an address must match.
func isNodeOf(node *corev1.Node, s *machineScope) bool {
	if !slices.Contains(nodeNames(s), node.Name) {
		return false
	}
	return sharedIP(node, s.DroverMachine) != "" ||
		joinsByDrover(s.owner) && !node.CreationTimestamp.Before(&s.CreationTimestamp)
}

// joinsByDrover reports whether Drover's bootstrap provider sets up the machine.
func joinsByDrover(machine *clusterv1.Machine) bool {
	if machine == nil {
		return false
	}
	ref := machine.Spec.Bootstrap.ConfigRef
	return ref.APIGroup == bootstrapv1.GroupVersion.Group && ref.Kind == "DroverConfig"
}

// nodeNames returns the name of the Node that Cluster API has matched with the machine. Before
// that, it returns the names that the Node may get.
func nodeNames(s *machineScope) []string {
	if s.owner != nil && s.owner.Status.NodeRef.IsDefined() {
		return []string{s.owner.Status.NodeRef.Name}
	}
	if joinsByDrover(s.owner) {
		return ownNames(s)
	}
	return append(ownNames(s), otherNames(s)...)
}

// ownNames returns the names by which Drover lets a machine join: its own, and those that the cloud
// reports.
func ownNames(s *machineScope) []string {
	return append(cloudHostNames(s.DroverMachine), naming.NodeName(machineName(s)))
}

// otherNames returns further names that another bootstrap provider may give the Node: the host name
// that Drover gives the VM, and host names without their domain.
func otherNames(s *machineScope) []string {
	names := []string{naming.NodeName(s.Name), driverkit.HostName(s.Name, 63)}
	for _, name := range ownNames(s) {
		short, _, _ := strings.Cut(name, ".")
		names = append(names, short)
	}
	return names
}

// machineName returns the name of the Machine, or of the DroverMachine if it has none.
func machineName(s *machineScope) string {
	if s.owner != nil {
		return s.owner.Name
	}
	return s.Name
}

// cloudHostNames returns the host names that the cloud gives the VM, in lower case, as kubelets
// register. Names that only the guest reports are not among them.
func cloudHostNames(m *infrav1.DroverMachine) []string {
	var names []string
	for _, a := range m.Status.Addresses {
		isName := a.Type == clusterv1.MachineHostName || a.Type == clusterv1.MachineInternalDNS
		isGuests := func(reported string) bool { return strings.EqualFold(reported, a.Address) }
		if isName && a.Address != "" && !slices.ContainsFunc(m.Status.GuestReportedAddresses, isGuests) {
			names = append(names, strings.ToLower(a.Address))
		}
	}
	return names
}

// otherMachineNamed returns another machine of the cluster whose Node has that name, such as
// `Machine "blue-2"`, or "".
func (r *NodeReconciler) otherMachineNamed(ctx context.Context, s *machineScope, node string) (string, error) {
	machines := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, machines, client.InNamespace(s.Namespace), client.MatchingFields{ownerByNode: node}); err != nil {
		return "", fmt.Errorf("listing the Machines of Node %q: %w", node, err)
	}
	for i := range machines.Items {
		if m := &machines.Items[i]; m.Spec.ClusterName == s.cluster.Name && m.Name != machineName(s) {
			return fmt.Sprintf("Machine %q", m.Name), nil
		}
	}
	clouds := &infrav1.DroverMachineList{}
	err := r.Client.List(ctx, clouds, client.InNamespace(s.Namespace), client.MatchingFields{machineByAddress: node},
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name})
	if err != nil {
		return "", fmt.Errorf("listing the DroverMachines of Node %q: %w", node, err)
	}
	for i := range clouds.Items {
		if m := &clouds.Items[i]; m.Name != s.Name && m.Status.InstanceState != infrav1.InstanceStateGone &&
			slices.Contains(cloudHostNames(m), node) {
			return fmt.Sprintf("DroverMachine %q", m.Name), nil
		}
	}
	return "", nil
}

// checkNodeName returns the issue of a Node that carries the machine's provider ID and has the name
// of another machine. Kubelets choose their provider ID, and Cluster API believes them, so this may
// be an attack.
func (r *NodeReconciler) checkNodeName(ctx context.Context, s *machineScope, node *corev1.Node) (nodeIssue, error) {
	if slices.Contains(ownNames(s), node.Name) {
		return nodeIssue{}, nil
	}
	other, err := r.otherMachineNamed(ctx, s, node.Name)
	if err != nil || other == "" {
		return nodeIssue{}, err
	}
	return providerIDConflict("Node %q has this machine's provider ID %s and the name of %s", node.Name, node.Spec.ProviderID, other), nil
}

// checkProviderID returns the issue of a Node that has the machine's name and carries the provider
// ID of another machine.
func (r *NodeReconciler) checkProviderID(ctx context.Context, s *machineScope, nodes client.Reader) (nodeIssue, error) {
	for _, name := range ownNames(s) {
		node := &corev1.Node{}
		if err := nodes.Get(ctx, client.ObjectKey{Name: name}, node); client.IgnoreNotFound(err) != nil {
			return nodeIssue{}, fmt.Errorf("reading Node %q: %w", name, err)
		}
		if node.Spec.ProviderID == "" {
			continue
		}
		machines := &infrav1.DroverMachineList{}
		err := r.Client.List(ctx, machines, client.InNamespace(s.Namespace), client.MatchingFields{machineByProviderID: node.Spec.ProviderID},
			client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name})
		if err != nil {
			return nodeIssue{}, fmt.Errorf("listing the DroverMachines of Node %q: %w", name, err)
		}
		if i := slices.IndexFunc(machines.Items, func(m infrav1.DroverMachine) bool { return m.Name != s.Name }); i >= 0 {
			return providerIDConflict("Node %q has this machine's name and the provider ID %s of DroverMachine %q",
				name, node.Spec.ProviderID, machines.Items[i].Name), nil
		}
	}
	return nodeIssue{}, nil
}

func providerIDConflict(format string, args ...any) nodeIssue {
	return nodeIssue{infrav1.ProviderIDConflictReason,
		fmt.Sprintf(format, args...) + ": its kubelet claims to be another machine; replace the machine that has the Node's name, and delete the Node"}
}
