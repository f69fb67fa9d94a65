// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/csr"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/naming"
)

// judge finds the machine of a request and checks the request against it.
func (r *CSRReconciler) judge(ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader,
	request *certificatesv1.CertificateSigningRequest) (verdict, error) {
	if isTooLarge(request) {
		return reject(nil, fmt.Sprintf("it is larger than %d KiB, and a kubelet's is not", maxCachedRequest>>10)), nil
	}
	who := csr.RequesterOf(request, token.Group)
	serving := request.Spec.SignerName == certificatesv1.KubeletServingSignerName
	switch {
	case who.TokenID != "" && !serving:
		return r.judgeFirst(ctx, cluster, cached, request, who.TokenID)
	case who.Node != "" && !serving:
		return r.judgeRenewal(ctx, cluster, request, who.Node)
	case who.Node != "":
		return r.judgeServing(ctx, cluster, cached, request, who.Node)
	}
	// Another bootstrap method of the same cluster has its own approver. If that leaves the request
	// alone, an Event is useful.
	return verdict{why: "the requester is neither a bootstrap token of Drover nor a Node", recheckAfter: csrLater, delayEvent: true}, nil
}

// judgeFirst judges a request for a machine's first certificate, sent with its token.
func (r *CSRReconciler) judgeFirst(ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader,
	request *certificatesv1.CertificateSigningRequest, tokenID string) (verdict, error) {
	workload, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return verdict{}, err
	}
	found := &corev1.Secret{}
	if err := workload.Get(ctx, token.Key(tokenID), found); err != nil {
		if apierrors.IsNotFound(err) {
			return reject(nil, "the bootstrap token of the request does not exist"), nil
		}
		return verdict{}, fmt.Errorf("reading the bootstrap token of a certificate request: %w", err)
	}
	if found.Labels[token.ConfigLabel] == "" || found.Annotations[token.ClusterAnnotation] != client.ObjectKeyFromObject(cluster).String() {
		return reject(nil, "the bootstrap token of the request was not created for a machine of this Cluster"), nil
	}
	machine, why, err := r.machineByToken(ctx, cluster, found.Annotations[token.MachineAnnotation])
	if err != nil || why != "" {
		return reject(nil, why), err
	}
	if found.Annotations[token.MachineUIDAnnotation] != string(machine.UID) { // "clusterctl move" binds it to the new UID
		return pending(machine, "the bootstrap token of the request was created for another Machine of the same name"), nil
	}
	cloud, err := r.droverMachine(ctx, machine)
	if err != nil {
		return verdict{}, err
	}
	node, pinned := found.Annotations[token.NodeAnnotation]
	if !pinned {
		node = csr.NodeIn(request)
		if !slices.Contains(machineFacts(machine, cloud).HostNames(), node) {
			return pending(machine, "the requested name is none of the host names that the cloud reports for the machine"), nil
		}
	}
	switch {
	case !machine.DeletionTimestamp.IsZero():
		return reject(machine, "the Machine is being deleted"), nil
	case machine.Status.NodeRef.IsDefined() && machine.Status.NodeRef.Name != node:
		return reject(machine, "the Machine already has another Node"), nil
	}
	if why := checkClient(cluster, request, node); why != "" {
		return reject(machine, why), nil
	}
	if machine.Status.NodeRef.IsDefined() {
		return r.approveWithinLimit(ctx, machine, request)
	}
	object, ours, err := nodeIsMachine(ctx, cached, node, machine, cloud)
	if err != nil {
		return verdict{}, err
	}
	if object != nil && !ours { // otherwise a token could take over a Node that existed before the machine
		return pending(machine, fmt.Sprintf("Node %q already exists and is not known to belong to this Machine", node)), nil
	}
	return r.approveWithinLimit(ctx, machine, request)
}

// checkClient returns why the request is not the Node's kubelet's for a client certificate, or why
// no Node of this Cluster may have that name, or "".
func checkClient(cluster *clusterv1.Cluster, request *certificatesv1.CertificateSigningRequest, node string) string {
	return cmp.Or(csr.CheckNode(node, cluster.Spec.ClusterNetwork.ServiceDomain), csr.CheckClient(request, node))
}

func (r *CSRReconciler) machineByToken(ctx context.Context, cluster *clusterv1.Cluster, name string) (*clusterv1.Machine, string, error) {
	const other = "the bootstrap token of the request refers to no Machine of this Cluster"
	prefix := cluster.Namespace + "/"
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return nil, other, nil
	}
	machine := &clusterv1.Machine{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name[len(prefix):]}, machine)
	if apierrors.IsNotFound(err) || (err == nil && machine.Spec.ClusterName != cluster.Name) {
		return nil, other, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the Machine of a certificate request: %w", err)
	}
	return machine, "", nil
}

// judgeRenewal judges a Node's request to renew its client certificate.
func (r *CSRReconciler) judgeRenewal(ctx context.Context, cluster *clusterv1.Cluster, request *certificatesv1.CertificateSigningRequest,
	node string) (verdict, error) {
	machine, _, err := r.machineOfNode(ctx, cluster, node)
	if err != nil {
		return verdict{}, err
	}
	switch {
	case machine == nil:
		return pending(nil, fmt.Sprintf("Node %q belongs to no Machine", node)), nil
	case !isDrovers(machine):
		return verdict{}, nil
	case !machine.DeletionTimestamp.IsZero():
		return reject(machine, "the Machine is being deleted"), nil
	case !machine.Status.NodeRef.IsDefined():
		return pending(machine, "the Machine is not yet linked to this Node"), nil
	}
	if why := checkClient(cluster, request, node); why != "" {
		return reject(machine, why), nil
	}
	return r.approveWithinLimit(ctx, machine, request)
}

// judgeServing judges a request for the certificate of a kubelet's own API.
func (r *CSRReconciler) judgeServing(ctx context.Context, cluster *clusterv1.Cluster, cached client.Reader,
	request *certificatesv1.CertificateSigningRequest, node string) (verdict, error) {
	machine, rival, err := r.machineOfNode(ctx, cluster, node)
	if err != nil {
		return verdict{}, err
	}
	if machine == nil { // Cluster API copies the names to the Machine later than the kubelet asks
		return pending(nil, fmt.Sprintf("Node %q belongs to no Machine", node)), nil
	}
	if !isDrovers(machine) {
		return verdict{}, nil
	}
	cloud, err := r.droverMachine(ctx, machine)
	if err != nil {
		return verdict{}, err
	}
	if rival != nil && !slices.Contains(append(machineFacts(machine, cloud).HostNames(), naming.NodeName(machine.Name)), node) {
		return pending(machine, fmt.Sprintf("Node %q is linked to this Machine, and has the name of Machine %q", node, rival.Name)), nil
	}
	object, ours, err := nodeIsMachine(ctx, cached, node, machine, cloud)
	if err != nil {
		return verdict{}, err
	}
	if object == nil || !ours {
		return pending(machine, fmt.Sprintf("Node %q does not exist, or is not known to belong to this Machine", node)), nil
	}
	requester := machineFacts(machine, cloud)
	requester.Node = node
	if len(requester.Addresses) == 0 {
		return pending(machine, "the machine's addresses are not known yet"), nil
	}
	for _, a := range object.Status.Addresses {
		requester.NodeAddresses = append(requester.NodeAddresses, a.Address)
	}
	facts, err := r.clusterFacts(ctx, cluster, cached, csr.Asked(request), node, cloud)
	if err != nil {
		return verdict{}, err
	}
	switch refusal := csr.CheckServing(request, requester, facts); {
	case refusal.Temporary:
		return pending(machine, refusal.Why), nil
	case refusal.Why != "":
		return retryLater(machine, refusal.Why), nil
	}
	return r.approveWithinLimit(ctx, machine, request)
}

// approveWithinLimit approves the request, unless it is for a longer lifetime than the machine's
// DroverConfig permits.
func (r *CSRReconciler) approveWithinLimit(ctx context.Context, machine *clusterv1.Machine,
	request *certificatesv1.CertificateSigningRequest) (verdict, error) {
	config := &bootstrapv1.DroverConfig{}
	for _, ref := range configOfMachine(ctx, machine) {
		if err := r.Client.Get(ctx, ref.NamespacedName, config); client.IgnoreNotFound(err) != nil {
			return verdict{}, fmt.Errorf("reading the DroverConfig of a certificate request: %w", err)
		}
	}
	if why := csr.CheckLifetime(request, config.Spec.MaxCertificateSeconds); why != "" {
		return reject(machine, why), nil
	}
	return verdict{approve: true}, nil
}

// machineOfNode returns the Machine of this Cluster that is the Node or, before that is known, will
// have its name. A Machine that Cluster API has matched with the Node wins. rival is then another
// Machine that will have the same name; it may be the one whose kubelet runs as the Node. If
// several match otherwise, machineOfNode returns nil.
func (r *CSRReconciler) machineOfNode(ctx context.Context, cluster *clusterv1.Cluster,
	node string) (machine, rival *clusterv1.Machine, err error) {
	list := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingFields{machineByNode: node}); err != nil {
		return nil, nil, fmt.Errorf("finding the Machine of a Node: %w", err)
	}
	var linked, named []*clusterv1.Machine
	for i := range list.Items {
		m := &list.Items[i]
		switch {
		case m.Spec.ClusterName != cluster.Name:
		case m.Status.NodeRef.IsDefined():
			linked = append(linked, m)
		default:
			named = append(named, m)
		}
	}
	switch {
	case len(linked) == 1 && len(named) > 0:
		return linked[0], named[0], nil
	case len(linked) == 1:
		return linked[0], nil, nil
	case len(linked) == 0 && len(named) == 1:
		return named[0], nil, nil
	}
	return nil, nil, nil
}

// nodeIsMachine returns the Node, or nil if there is none. It also reports whether Cluster API has
// linked the Node to the machine, or both have the same provider ID. The name alone proves nothing,
// because another machine's Node may have it.
func nodeIsMachine(ctx context.Context, cached client.Reader, name string, machine *clusterv1.Machine,
	cloud *infrav1.DroverMachine) (node *corev1.Node, ours bool, err error) {
	node = &corev1.Node{}
	if err := cached.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("reading the Node of a certificate request: %w", err)
	}
	if machine.Status.NodeRef.IsDefined() {
		return node, machine.Status.NodeRef.Name == name, nil
	}
	id := cmp.Or(machine.Spec.ProviderID, cloud.Spec.ProviderID)
	return node, id != "" && id == node.Spec.ProviderID, nil
}
