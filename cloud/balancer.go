// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Balancer is a Driver whose cloud has load balancers. List, Describe and Delete serve the parts of
// a balancer, which carry its token, as they serve the dependants of a machine.
type Balancer interface {
	Driver
	// EnsureBalancer creates the balancer, or takes the next step towards what req asks for. It is
	// idempotent by req.Token: at most one balancer with the token ever exists, whatever became of
	// earlier calls. It returns the balancer as it is after the step: a Resource of KindBalancer.
	// Called when the targets or the fields change, and again until its Balancer shows what req
	// asks for ("balancer", "balancer after lost response", "balancer in parallel"). A create of
	// several steps returns Unavailable until the balancer exists. Calls that change an existing
	// balancer are of ClassDelete: no create delays the removal of a target.
	EnsureBalancer(ctx context.Context, req BalancerRequest) (Resource, error)
}

// BalancerRequest is a load balancer of TCP connections to API servers.
type BalancerRequest struct {
	// Token is the balancer's creation token, OwnershipID that of its cluster's machines.
	Token, OwnershipID string
	// Recorded is true if the balancer was made before. If it does not exist any more, nothing is
	// made, and the error is NotFound.
	Recorded bool
	// MaybeSent is true if this or an earlier process may have sent a create. A driver without
	// client tokens must then not trust a read that finds nothing before CreateHorizon has passed.
	MaybeSent bool
	// Namespace and Name are the DroverCluster's, for people.
	Namespace, Name string
	// Port is that of the balancer and of its targets.
	Port int32
	// Targets are the addresses of the machines that get connections, sorted. It is the full set:
	// any other target is removed.
	Targets []string
	// Spec is the cloud's part of the DroverCluster's endpoint; nil: the cloud's defaults.
	Spec *infrav1.LoadBalancerCloud
}

// BalancerState is what a Resource of KindBalancer has.
type BalancerState struct {
	// Address is the IP address or the DNS name for clients; "" if it is not known yet.
	Address string
	Port    int32
	// Zones are the failure domains in which a machine can be a target; empty: all.
	Zones []string
	// Targets are sorted by address. A target that gets no new connections any more is left out.
	Targets []BalancerTarget
}

// BalancerTarget is a machine to which a balancer forwards connections.
type BalancerTarget struct {
	Address string
	// Healthy is true if the balancer's health check succeeds.
	Healthy bool
}
