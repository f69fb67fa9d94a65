// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestVirtualIP tests that a cluster gets an address of a pool, keeps it through a move, and gives
// it back in the end, or has the one that its user has chosen. The test acts as the IPAM provider.
func TestVirtualIP(t *testing.T) {
	s := newTenant(t)
	infra, cluster := s.DroverCluster(), s.Cluster()
	pool := ipamv1.IPPoolReference{APIGroup: "ipam.example.com", Kind: "Pool", Name: "addresses"}
	infra.Spec.Endpoint.VirtualIP = infrav1.VirtualIP{PoolRef: pool, Port: endpointPort}
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	s.create(s.credentials(), s.Account(), infra, cluster)
	s.says(infra, infrav1.EndpointReadyCondition, infrav1.WaitingForAddressReason,
		`to give IPAddressClaim "prod" an address of Pool "addresses"`)
	s.says(infra, clusterv1.ReadyCondition, infrav1.WaitingForEndpointReason, "spec.endpoint")
	claim := read(s, &ipamv1.IPAddressClaim{ObjectMeta: s.meta("prod")})
	s.Expect(claim.Spec).To(Equal(ipamv1.IPAddressClaimSpec{ClusterName: "prod", PoolRef: pool}))
	s.Expect(metav1.IsControlledBy(claim, infra)).To(BeTrue())

	conditions.Set(claim, metav1.Condition{Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionFalse,
		Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: "all 7 addresses are taken"})
	s.Expect(env.client.Status().Update(s.ctx, claim)).To(Succeed())
	s.says(infra, infrav1.EndpointReadyCondition, infrav1.WaitingForAddressReason, "all 7 addresses are taken")

	address := &ipamv1.IPAddress{ObjectMeta: s.meta("prod"), Spec: ipamv1.IPAddressSpec{
		ClaimRef: ipamv1.IPAddressClaimReference{Name: "prod"}, PoolRef: pool, Address: "192.0.2.7", Prefix: ptr.To(int32(24)),
	}}
	s.create(address)
	claim.Status.AddressRef.Name = address.Name
	s.Expect(env.client.Status().Update(s.ctx, claim)).To(Succeed())
	s.says(infra, infrav1.EndpointReadyCondition, infrav1.ReadyReason, "")
	endpoint := clusterv1.APIEndpoint{Host: "192.0.2.7", Port: endpointPort}
	s.Expect(infra.Spec.ControlPlaneEndpoint).To(Equal(endpoint))
	s.Eventually(func() clusterv1.APIEndpoint { return read(s, cluster).Spec.ControlPlaneEndpoint }).Should(Equal(endpoint))
	s.says(infra, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	for _, domain := range infra.Status.FailureDomains {
		s.Expect(domain.ControlPlane).To(Equal(ptr.To(true)))
	}

	// "clusterctl move" makes the DroverCluster first, with its endpoint, and the claim after it.
	s.Expect(env.client.Delete(s.ctx, cluster)).To(Succeed())
	s.isGone(cluster)
	s.isGone(infra)
	s.isGone(claim)
	moved, owner := s.DroverCluster(), s.Cluster()
	moved.Spec = *infra.Spec.DeepCopy()
	owner.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	s.create(moved, owner)
	s.says(moved, infrav1.EndpointReadyCondition, infrav1.ReadyReason, "")
	s.atRest(moved, 0)
	s.Expect(moved.Spec.ControlPlaneEndpoint).To(Equal(endpoint))
	s.isGone(claim)

	// Somebody else has a claim of that name.
	taken := &ipamv1.IPAddressClaim{ObjectMeta: s.meta("taken"), Spec: ipamv1.IPAddressClaimSpec{PoolRef: pool}}
	other, its := s.DroverCluster(), s.Cluster()
	other.Name, its.Name, its.Spec.InfrastructureRef.Name = "taken", "taken", "taken"
	other.Spec.Endpoint.VirtualIP = infrav1.VirtualIP{PoolRef: pool, Port: endpointPort}
	its.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	s.create(taken, other, its)
	s.says(other, infrav1.EndpointReadyCondition, infrav1.AddressClaimTakenReason, `"taken" does not belong`)
	s.Expect(other.Spec.ControlPlaneEndpoint.IsValid()).To(BeFalse())
	s.Expect(env.client.Delete(s.ctx, taken)).To(Succeed())
	s.says(other, infrav1.EndpointReadyCondition, infrav1.WaitingForAddressReason, "")

	given := s.DroverCluster()
	given.Name = "given"
	given.Spec.Endpoint.VirtualIP = infrav1.VirtualIP{Address: "127.0.0.1", Port: endpointPort}
	s.Expect(env.client.Create(s.ctx, given)).To(MatchError(ContainSubstring("must be an IP address that machines can have")))
	given.Spec.Endpoint.VirtualIP.Address = "2001:db8::7"
	its = s.Cluster()
	its.Name, its.Spec.InfrastructureRef.Name = "given", "given"
	its.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	s.create(given, its)
	s.says(given, infrav1.EndpointReadyCondition, infrav1.ReadyReason, "")
	s.Expect(given.Spec.ControlPlaneEndpoint).To(Equal(clusterv1.APIEndpoint{Host: "2001:db8::7", Port: endpointPort}))

	both := s.DroverCluster()
	both.Name = "both"
	both.Spec.Endpoint.VirtualIP.PoolRef, both.Spec.Endpoint.LoadBalancer.AccountRef.Name = pool, "prod"
	s.Expect(env.client.Create(s.ctx, both)).To(MatchError(ContainSubstring("exactly one of loadBalancer and virtualIP")))
}
