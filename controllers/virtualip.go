// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/kubeconfig"
)

// reserve records the virtual IP that the user has chosen, or claims one, and records that once
// the pool has given it. The IPAddressClaim belongs to the DroverCluster, which its finalizer keeps
// while it has machines. So the garbage collector gives the address back after the last machine is
// gone.
func (r *EndpointReconciler) reserve(ctx context.Context, s *endpointScope) error {
	if !s.DeletionTimestamp.IsZero() || s.cluster == nil || !s.cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	if s.isRecorded() {
		setEndpoint(s, metav1.ConditionTrue, infrav1.ReadyReason, "")
		return nil
	}
	vip := s.Spec.Endpoint.VirtualIP
	if vip.Address != "" {
		return r.record(ctx, s, clusterv1.APIEndpoint{Host: vip.Address, Port: cmp.Or(vip.Port, defaultPort)}, nil)
	}
	claim, err := r.claimAddress(ctx, s)
	if err != nil {
		return err
	}
	if !metav1.IsControlledBy(claim, s.DroverCluster) {
		setEndpoint(s, metav1.ConditionFalse, infrav1.AddressClaimTakenReason, fmt.Sprintf(
			"IPAddressClaim %q does not belong to this DroverCluster: delete it, or give the cluster another name", claim.Name))
		return nil
	}
	if claim.Status.AddressRef.Name == "" {
		message := fmt.Sprintf("Waiting for the IPAM provider to give IPAddressClaim %q an address of %s %q", claim.Name, claim.Spec.PoolRef.Kind,
			claim.Spec.PoolRef.Name)
		if reason := conditions.GetMessage(claim, ipamv1.IPAddressClaimReadyCondition); reason != "" {
			message += ": " + reason
		}
		setEndpoint(s, metav1.ConditionFalse, infrav1.WaitingForAddressReason, message)
		return nil // the address comes as an event of the claim
	}
	address := &ipamv1.IPAddress{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: claim.Status.AddressRef.Name}, address); err != nil {
		return fmt.Errorf("reading IPAddress %q: %w", claim.Status.AddressRef.Name, err)
	}
	if address.Spec.ClaimRef.Name != claim.Name || !kubeconfig.IsHost(address.Spec.Address) {
		setEndpoint(s, metav1.ConditionFalse, infrav1.WaitingForAddressReason, fmt.Sprintf(
			"IPAddress %q is not an address for IPAddressClaim %q: see the IPAM provider's logs", address.Name, claim.Name))
		return nil
	}
	return r.record(ctx, s, clusterv1.APIEndpoint{Host: address.Spec.Address, Port: cmp.Or(vip.Port, defaultPort)}, nil)
}

// claimAddress returns the cluster's IPAddressClaim, which it creates if there is none.
func (r *EndpointReconciler) claimAddress(ctx context.Context, s *endpointScope) (*ipamv1.IPAddressClaim, error) {
	claim := &ipamv1.IPAddressClaim{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(s), claim)
	if err == nil || !apierrors.IsNotFound(err) {
		return claim, err
	}
	claim = &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name,
			Labels: map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name}},
		Spec: ipamv1.IPAddressClaimSpec{ClusterName: s.cluster.Name, PoolRef: s.Spec.Endpoint.VirtualIP.PoolRef},
	}
	if err := controllerutil.SetControllerReference(s.DroverCluster, claim, r.Client.Scheme(),
		controllerutil.WithBlockOwnerDeletion(false)); err != nil {
		return nil, err
	}
	if err := r.Client.Create(ctx, claim); err != nil {
		if apierrors.IsAlreadyExists(err) { // the cache does not have it yet
			return claim, r.APIReader.Get(ctx, client.ObjectKeyFromObject(s), claim)
		}
		return nil, fmt.Errorf("creating IPAddressClaim %q: %w", claim.Name, err)
	}
	return claim, nil
}
