// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
)

func toInstance(i *types.Instance) cloud.Resource {
	r := cloud.Resource{
		Kind:          cloud.KindInstance,
		ID:            aws.ToString(i.InstanceId),
		CreatedAt:     aws.ToTime(i.LaunchTime),
		State:         toState(i.State),
		Addresses:     addresses(i),
		ImageID:       aws.ToString(i.ImageId),
		Interruptible: i.InstanceLifecycle == types.InstanceLifecycleTypeSpot,
	}
	r.OwnershipID, r.Token = tagsOf(i.Tags)
	if i.Placement != nil {
		r.FailureDomain = aws.ToString(i.Placement.AvailabilityZone)
	}
	r.ProviderID = providerID(r.FailureDomain, r.ID)
	if r.State == cloud.StateStopping || r.State == cloud.StateStopped || r.State == cloud.StateTerminated {
		r.Reason = aws.ToString(i.StateTransitionReason)
		if i.StateReason != nil && r.State == cloud.StateTerminated {
			r.Code = endings[aws.ToString(i.StateReason.Code)]
		}
		if i.StateReason != nil && aws.ToString(i.StateReason.Message) != "" {
			r.Reason = aws.ToString(i.StateReason.Message)
		}
		if remedy := remedyFor(r.Reason, ""); remedy != "" { // EC2's message begins with its code
			r.Reason += " (" + remedy + ")"
		}
	}
	return r
}

// endings maps the state reason codes that name a kind of failure (EC2's API Reference,
// "StateReason"). EC2 sets them on an instance that it accepted but could not create, and on one
// that it took back.
var endings = map[string]cloud.Code{
	"Server.InsufficientInstanceCapacity": cloud.NoCapacity,
	"Server.SpotInstanceTermination":      cloud.NoCapacity,
	"Server.SpotInstanceShutdown":         cloud.NoCapacity,
	"Client.VolumeLimitExceeded":          cloud.QuotaExceeded,
	"Client.InvalidSnapshot.NotFound":     cloud.NotFound,
}

// toState maps a state. An unknown state is Pending, so that nothing is concluded from it.
func toState(s *types.InstanceState) cloud.State {
	if s == nil {
		return cloud.StatePending
	}
	switch s.Name {
	case types.InstanceStateNameRunning:
		return cloud.StateRunning
	case types.InstanceStateNameStopping, types.InstanceStateNameShuttingDown:
		return cloud.StateStopping
	case types.InstanceStateNameStopped:
		return cloud.StateStopped
	case types.InstanceStateNameTerminated:
		return cloud.StateTerminated
	}
	return cloud.StatePending
}

// addresses returns the addresses that AWS's cloud controller reports on the Node, with its types.
// The machine's own come first, because a status has no room for all that AWS's network plugin
// adds, such as 50 on each of 15 interfaces. Those that are the plugin's alone come last.
func addresses(i *types.Instance) (all []clusterv1.MachineAddress) {
	add := func(kind clusterv1.MachineAddressType, address *string) {
		a := clusterv1.MachineAddress{Type: kind, Address: aws.ToString(address)}
		if a.Address != "" && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	privateOf := func(nic *types.InstanceNetworkInterface, primary bool) {
		for _, ip := range nic.PrivateIpAddresses {
			if aws.ToBool(ip.Primary) == primary {
				add(clusterv1.MachineInternalIP, ip.PrivateIpAddress)
			}
		}
	}
	add(clusterv1.MachineInternalIP, i.PrivateIpAddress)
	add(clusterv1.MachineExternalIP, i.PublicIpAddress)
	add(clusterv1.MachineInternalDNS, i.PrivateDnsName)
	add(clusterv1.MachineHostName, i.PrivateDnsName)
	add(clusterv1.MachineExternalDNS, i.PublicDnsName)
	for n := range i.NetworkInterfaces {
		privateOf(&i.NetworkInterfaces[n], true)
		for _, ip := range i.NetworkInterfaces[n].Ipv6Addresses {
			add(clusterv1.MachineInternalIP, ip.Ipv6Address)
		}
	}
	for n := range i.NetworkInterfaces {
		privateOf(&i.NetworkInterfaces[n], false)
	}
	return all
}

func toVolume(v *types.Volume) cloud.Resource {
	r := cloud.Resource{Kind: cloud.KindDisk, ID: aws.ToString(v.VolumeId), CreatedAt: aws.ToTime(v.CreateTime)}
	r.OwnershipID, r.Token = tagsOf(v.Tags)
	return r
}

// outlivesInstance reports whether a volume outlives its instance: it is not being deleted, and no
// attachment deletes it with the instance.
func outlivesInstance(v *types.Volume) bool {
	return v.State != types.VolumeStateDeleting && v.State != types.VolumeStateDeleted &&
		!slices.ContainsFunc(v.Attachments, func(a types.VolumeAttachment) bool { return aws.ToBool(a.DeleteOnTermination) })
}

func toInterface(n *types.NetworkInterface) cloud.Resource {
	r := cloud.Resource{Kind: cloud.KindNIC, ID: aws.ToString(n.NetworkInterfaceId)}
	r.OwnershipID, r.Token = tagsOf(n.TagSet)
	return r
}

func toAddress(a *types.Address) cloud.Resource {
	r := cloud.Resource{Kind: cloud.KindAddress, ID: aws.ToString(a.AllocationId)}
	r.OwnershipID, r.Token = tagsOf(a.Tags)
	return r
}
