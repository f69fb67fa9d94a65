// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"fmt"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// TestAddressesOfAPlugin: a network plugin gives an instance hundreds of addresses. The machine's own
// come first, because its status has no room for all.
func TestAddressesOfAPlugin(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	address := func(kind clusterv1.MachineAddressType, of string) clusterv1.MachineAddress {
		return clusterv1.MachineAddress{Type: kind, Address: of}
	}
	i := &types.Instance{
		PrivateIpAddress: aws.String("10.0.0.10"), PublicIpAddress: aws.String("192.0.2.1"),
		PrivateDnsName: aws.String("ip-10-0-0-10.ec2.internal"), PublicDnsName: aws.String("ec2-192-0-2-1.compute-1.amazonaws.com"),
	}
	var primary, second []clusterv1.MachineAddress
	for n := range 15 { // an m5.24xlarge has 15 interfaces with 50 addresses
		v6 := fmt.Sprintf("2001:db8::%d", n)
		nic := types.InstanceNetworkInterface{Ipv6Addresses: []types.InstanceIpv6Address{{Ipv6Address: &v6}}}
		for k := range 50 {
			ip, first := fmt.Sprintf("10.0.%d.%d", n, 10+k), k == 0
			nic.PrivateIpAddresses = append(nic.PrivateIpAddresses, types.InstancePrivateIpAddress{PrivateIpAddress: &ip, Primary: &first})
			switch {
			case !first:
				second = append(second, address(clusterv1.MachineInternalIP, ip))
			case n > 0:
				primary = append(primary, address(clusterv1.MachineInternalIP, ip))
			}
		}
		primary = append(primary, address(clusterv1.MachineInternalIP, v6))
		i.NetworkInterfaces = append(i.NetworkInterfaces, nic)
	}
	g.Expect(toInstance(i).Addresses).To(Equal(slices.Concat([]clusterv1.MachineAddress{
		address(clusterv1.MachineInternalIP, "10.0.0.10"),
		address(clusterv1.MachineExternalIP, "192.0.2.1"),
		address(clusterv1.MachineInternalDNS, "ip-10-0-0-10.ec2.internal"),
		address(clusterv1.MachineHostName, "ip-10-0-0-10.ec2.internal"),
		address(clusterv1.MachineExternalDNS, "ec2-192-0-2-1.compute-1.amazonaws.com"),
	}, primary, second)))
}
