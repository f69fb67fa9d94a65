// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// input returns the request for a machine.
func input(edit func(*infrav1.AWSMachine)) *ec2.RunInstancesInput {
	req := request("token", edit)
	return runInput(req, plan{
		spec: req.Spec.Cloud.AWS, image: image{id: "ami-0a", root: "/dev/sda1"}, groups: []string{"sg-01"},
		subnet: subnet{id: "subnet-0a1", zone: "us-east-1a", vpc: "vpc-01"},
	})
}

// TestDefaults: a machine with default settings is as secure as possible.
func TestDefaults(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	in := input(nil)
	g.Expect(*in.ClientToken).To(Equal("token"))
	g.Expect([]int32{*in.MinCount, *in.MaxCount}).To(Equal([]int32{1, 1}))
	g.Expect(in.MetadataOptions.HttpTokens).To(Equal(types.HttpTokensStateRequired))
	g.Expect(*in.MetadataOptions.HttpPutResponseHopLimit).To(Equal(int32(1)))
	g.Expect(in.BlockDeviceMappings).To(HaveLen(1))
	g.Expect(*in.BlockDeviceMappings[0].Ebs.Encrypted).To(BeTrue())
	g.Expect(*in.BlockDeviceMappings[0].Ebs.DeleteOnTermination).To(BeTrue())
	g.Expect(in.NetworkInterfaces).To(HaveLen(1))
	g.Expect(in.NetworkInterfaces[0].Groups).To(Equal([]string{"sg-01"}))
	g.Expect(in.NetworkInterfaces[0].AssociatePublicIpAddress).To(BeNil())
	g.Expect(*in.Placement.AvailabilityZone).To(Equal("us-east-1a"))
	g.Expect(in.HibernationOptions).To(BeNil(), "EC2's default is not to hibernate")
	g.Expect(in.TagSpecifications).To(HaveLen(3))
	for _, spec := range in.TagSpecifications {
		tags := map[string]string{}
		for _, tag := range spec.Tags {
			tags[*tag.Key] = *tag.Value
		}
		g.Expect(tags).To(Equal(map[string]string{"Name": "m-token", cloud.TagMachine: "ns/m-token",
			cloud.TagOwnership: "owner", cloud.TagToken: "token"}), string(spec.ResourceType))
	}
}

// TestDisabled: a feature that is disabled is left out of the request, as EC2's default is, except
// for a public address, for which the subnet has a default.
func TestDisabled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const off = infrav1.FeatureDisabled
	want := input(nil)
	want.NetworkInterfaces[0].AssociatePublicIpAddress = aws.Bool(false)
	want.BlockDeviceMappings[0].Ebs.Encrypted = nil
	g.Expect(input(func(m *infrav1.AWSMachine) {
		m.PublicIP, m.PrimaryIPv6, m.EFA, m.DetailedMonitoring = off, off, off, off
		m.RootVolume = &infrav1.AWSVolume{Encryption: off}
		m.Metadata = infrav1.AWSMetadata{IPv6: off, InstanceTags: off}
		m.CPUOptions = infrav1.AWSCPUOptions{AMDSEVSNP: off, NestedVirtualization: off}
	})).To(Equal(want))
}

// TestFields sets each field once and checks its place in the request.
func TestFields(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit func(*infrav1.AWSMachine)
		got  func(*ec2.RunInstancesInput) any
		want any
	}{
		"root volume": {func(m *infrav1.AWSMachine) {
			m.RootVolume = &infrav1.AWSVolume{SizeGiB: 100, Type: "gp3", IOPS: 6000, ThroughputMiBps: 500, KMSKeyID: "alias/nodes"}
		}, func(in *ec2.RunInstancesInput) any { return *in.BlockDeviceMappings[0].Ebs }, types.EbsBlockDevice{
			DeleteOnTermination: aws.Bool(true), Encrypted: aws.Bool(true), KmsKeyId: aws.String("alias/nodes"), VolumeSize: aws.Int32(100),
			VolumeType: types.VolumeTypeGp3, Iops: aws.Int32(6000), Throughput: aws.Int32(500),
		}},
		"volume": {func(m *infrav1.AWSMachine) {
			m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdf", SnapshotID: "snap-01",
				AWSVolume: infrav1.AWSVolume{Encryption: infrav1.FeatureDisabled}}}
		}, func(in *ec2.RunInstancesInput) any { return in.BlockDeviceMappings[1] }, types.BlockDeviceMapping{
			DeviceName: aws.String("/dev/sdf"), Ebs: &types.EbsBlockDevice{DeleteOnTermination: aws.Bool(true), SnapshotId: aws.String("snap-01")},
		}},
		"public IP": {func(m *infrav1.AWSMachine) { m.PublicIP = infrav1.FeatureEnabled },
			func(in *ec2.RunInstancesInput) any { return *in.NetworkInterfaces[0].AssociatePublicIpAddress }, true},
		"IPv6": {func(m *infrav1.AWSMachine) { m.IPv6AddressCount, m.PrimaryIPv6 = 2, infrav1.FeatureEnabled },
			func(in *ec2.RunInstancesInput) any {
				return []any{*in.NetworkInterfaces[0].Ipv6AddressCount, *in.NetworkInterfaces[0].PrimaryIpv6}
			}, []any{int32(2), true}},
		"EFA": {func(m *infrav1.AWSMachine) {
			m.EFA = infrav1.FeatureEnabled
			m.NetworkInterfaces = []infrav1.AWSNetworkInterface{{Type: "efa-only", NetworkCard: aws.Int32(1), DeviceIndex: aws.Int32(1)},
				{Type: "interface", DeviceIndex: aws.Int32(1)}, {DeviceIndex: aws.Int32(2), NetworkCard: aws.Int32(0)}}
		}, func(in *ec2.RunInstancesInput) any {
			var all []string
			for _, nic := range in.NetworkInterfaces {
				all = append(all, aws.ToString(nic.InterfaceType)+" "+aws.ToString(nic.SubnetId))
			}
			return append(all, fmt.Sprint(*in.NetworkInterfaces[1].NetworkCardIndex))
		}, []string{"efa subnet-0a1", "efa-only subnet-0a1", " subnet-0a1", " subnet-0a1", "1"}},
		"profile": {func(m *infrav1.AWSMachine) { m.InstanceProfile = "nodes" },
			func(in *ec2.RunInstancesInput) any { return *in.IamInstanceProfile.Name }, "nodes"},
		"profile's ARN": {func(m *infrav1.AWSMachine) { m.InstanceProfile = "arn:aws:iam::1:instance-profile/nodes" },
			func(in *ec2.RunInstancesInput) any { return *in.IamInstanceProfile.Arn }, "arn:aws:iam::1:instance-profile/nodes"},
		"metadata": {func(m *infrav1.AWSMachine) {
			m.Metadata = infrav1.AWSMetadata{Tokens: "optional", HopLimit: 2, IPv6: infrav1.FeatureEnabled, InstanceTags: infrav1.FeatureEnabled}
		}, func(in *ec2.RunInstancesInput) any { return *in.MetadataOptions }, types.InstanceMetadataOptionsRequest{
			HttpEndpoint: "enabled", HttpTokens: "optional", HttpPutResponseHopLimit: aws.Int32(2), HttpProtocolIpv6: "enabled",
			InstanceMetadataTags: "enabled",
		}},
		"key": {func(m *infrav1.AWSMachine) { m.KeyName = "ops" }, func(in *ec2.RunInstancesInput) any { return *in.KeyName }, "ops"},
		"placement": {func(m *infrav1.AWSMachine) {
			m.Tenancy, m.HostID = "host", "h-01"
			m.PlacementGroup = infrav1.AWSPlacementGroup{Name: "p", Partition: 2}
		}, func(in *ec2.RunInstancesInput) any { return *in.Placement }, types.Placement{AvailabilityZone: aws.String("us-east-1a"),
			Tenancy: "host", HostId: aws.String("h-01"), GroupName: aws.String("p"), PartitionNumber: aws.Int32(2)}},
		"reservation": {func(m *infrav1.AWSMachine) { m.CapacityReservation = &infrav1.AWSCapacityReservation{ID: "cr-01"} },
			func(in *ec2.RunInstancesInput) any {
				return *in.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId
			}, "cr-01"},
		"reservation group": {func(m *infrav1.AWSMachine) {
			m.CapacityReservation = &infrav1.AWSCapacityReservation{ResourceGroupARN: "arn:aws:resource-groups:::group/nodes"}
		}, func(in *ec2.RunInstancesInput) any {
			return *in.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationResourceGroupArn
		}, "arn:aws:resource-groups:::group/nodes"},
		"reservations only": {func(m *infrav1.AWSMachine) {
			m.CapacityReservation = &infrav1.AWSCapacityReservation{Preference: "capacity-reservations-only"}
		}, func(in *ec2.RunInstancesInput) any { return *in.CapacityReservationSpecification },
			types.CapacityReservationSpecification{CapacityReservationPreference: "capacity-reservations-only"}},
		"CPU": {func(m *infrav1.AWSMachine) {
			m.CPUOptions = infrav1.AWSCPUOptions{CoreCount: 4, ThreadsPerCore: 1, AMDSEVSNP: infrav1.FeatureEnabled,
				NestedVirtualization: infrav1.FeatureEnabled}
		}, func(in *ec2.RunInstancesInput) any { return *in.CpuOptions }, types.CpuOptionsRequest{CoreCount: aws.Int32(4),
			ThreadsPerCore: aws.Int32(1), AmdSevSnp: "enabled", NestedVirtualization: "enabled"}},
		"spot": {func(m *infrav1.AWSMachine) { m.Market = infrav1.AWSMarket{Type: "spot", MaxPriceUSD: "0.05"} },
			func(in *ec2.RunInstancesInput) any {
				return []any{*in.InstanceMarketOptions.SpotOptions.MaxPrice, in.InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior,
					len(in.TagSpecifications)}
			}, []any{"0.05", types.InstanceInterruptionBehaviorTerminate, 4}},
		"capacity block": {func(m *infrav1.AWSMachine) { m.Market = infrav1.AWSMarket{Type: "capacity-block"} },
			func(in *ec2.RunInstancesInput) any { return *in.InstanceMarketOptions },
			types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeCapacityBlock}},
		"monitoring": {func(m *infrav1.AWSMachine) { m.DetailedMonitoring = infrav1.FeatureEnabled },
			func(in *ec2.RunInstancesInput) any { return *in.Monitoring.Enabled }, true},
		"tags": {func(m *infrav1.AWSMachine) { m.Tags = map[string]string{"Name": "mine", cloud.TagToken: "forged"} },
			func(in *ec2.RunInstancesInput) any {
				return []string{*in.TagSpecifications[0].Tags[0].Value, *in.TagSpecifications[0].Tags[1].Value}
			}, []string{"mine", "token"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(test.got(input(test.edit))).To(Equal(test.want))
		})
	}
}

// TestUserData: only data that is too long is compressed, and never Ignition's.
func TestUserData(t *testing.T) {
	t.Parallel()
	noise := make([]byte, ec2UserData+1)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	long := bytes.Repeat([]byte("#cloud-config\n"), 4000)
	for name, test := range map[string]struct {
		data             []byte
		packed, tooLarge bool
	}{
		"none":            {data: nil},
		"short":           {data: []byte("#cloud-config\n")},
		"as long as may":  {data: noise[:ec2UserData]},
		"a little longer": {data: long[:ec2UserData+1], packed: true},
		"long":            {data: long, packed: true},
		"noise":           {data: noise, tooLarge: true},
		"Ignition":        {data: append([]byte(" {"), long...), tooLarge: true},
		"beyond all that": {data: make([]byte, maxUserData+1), tooLarge: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			got, err := userData(test.data)
			g.Expect(err != nil).To(Equal(test.tooLarge))
			row := Cloud()
			g.Expect(row.CheckUserData(test.data) != nil).To(Equal(test.tooLarge))
			if !test.tooLarge {
				g.Expect(unpack(t, aws.ToString(got), test.packed)).To(Equal(string(test.data)))
			}
		})
	}
}

func unpack(t *testing.T, encoded string, packed bool) string {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > ec2UserData {
		t.Errorf("%d bytes go to EC2", len(data))
	}
	if !packed {
		return string(data)
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if data, err = io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func FuzzUserData(f *testing.F) {
	f.Add([]byte("#cloud-config\n"), 1)
	f.Add([]byte("{}"), 20000)
	f.Fuzz(func(t *testing.T, data []byte, times int) {
		data = bytes.Repeat(data, min(max(times, 1), 1+maxUserData/max(len(data), 1)))
		got, err := userData(data)
		if err != nil {
			if len(data) <= ec2UserData {
				t.Errorf("%d bytes: %v", len(data), err)
			}
			return
		}
		if unpack(t, aws.ToString(got), len(data) > ec2UserData) != string(data) {
			t.Errorf("%d bytes came out as others", len(data))
		}
	})
}

// FuzzWhole: only a complete answer is accepted.
func FuzzWhole(f *testing.F) {
	f.Add([]byte("<?xml version=\"1.0\"?><RunInstancesResponse/></RunInstancesResponse>"))
	f.Add([]byte("<RunInstancesResponse><instancesSet>"))
	f.Add([]byte("<html/>"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if isComplete(body, "RunInstances") && (!bytes.Contains(body, []byte("<RunInstancesResponse")) ||
			!bytes.HasSuffix(bytes.TrimSpace(body), []byte("</RunInstancesResponse>"))) {
			t.Errorf("%q", body)
		}
	})
}

// TestInstance: state, addresses and reason match those of the cloud controller.
func TestInstance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := toInstance(&types.Instance{
		InstanceId: aws.String("i-01"), Placement: &types.Placement{AvailabilityZone: aws.String("us-east-1a")},
		State:            &types.InstanceState{Name: types.InstanceStateNameShuttingDown},
		StateReason:      &types.StateReason{Message: aws.String("Server.SpotInstanceTermination")},
		PrivateIpAddress: aws.String("10.0.0.1"), PublicIpAddress: aws.String("192.0.2.1"),
		PrivateDnsName: aws.String("ip-10-0-0-1.ec2.internal"), PublicDnsName: aws.String("ec2-192-0-2-1.example"),
		InstanceLifecycle: types.InstanceLifecycleTypeSpot,
		NetworkInterfaces: []types.InstanceNetworkInterface{{
			PrivateIpAddresses: []types.InstancePrivateIpAddress{{PrivateIpAddress: aws.String("10.0.0.1")},
				{PrivateIpAddress: aws.String("10.0.0.2")}},
			Ipv6Addresses: []types.InstanceIpv6Address{{Ipv6Address: aws.String("2001:db8::1")}},
		}},
	})
	g.Expect(r.State).To(Equal(cloud.StateStopping))
	g.Expect(r.Reason).To(Equal("Server.SpotInstanceTermination"))
	g.Expect(r.Interruptible).To(BeTrue())
	g.Expect(r.ProviderID).To(Equal("aws:///us-east-1a/i-01"))
	g.Expect(r.Addresses).To(Equal([]clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"},
		{Type: clusterv1.MachineExternalIP, Address: "192.0.2.1"},
		{Type: clusterv1.MachineInternalDNS, Address: "ip-10-0-0-1.ec2.internal"},
		{Type: clusterv1.MachineHostName, Address: "ip-10-0-0-1.ec2.internal"},
		{Type: clusterv1.MachineExternalDNS, Address: "ec2-192-0-2-1.example"},
		{Type: clusterv1.MachineInternalIP, Address: "2001:db8::1"},
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.2"},
	}))
}

// TestStaysBehind: a volume is a leftover only if nothing else deletes it.
func TestStaysBehind(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	attached := func(deleted bool) []types.VolumeAttachment {
		return []types.VolumeAttachment{{DeleteOnTermination: &deleted}}
	}
	g.Expect(outlivesInstance(&types.Volume{State: types.VolumeStateAvailable})).To(BeTrue())
	g.Expect(outlivesInstance(&types.Volume{State: types.VolumeStateInUse, Attachments: attached(false)})).To(BeTrue())
	g.Expect(outlivesInstance(&types.Volume{State: types.VolumeStateInUse, Attachments: attached(true)})).To(BeFalse())
	g.Expect(outlivesInstance(&types.Volume{State: types.VolumeStateDeleting})).To(BeFalse())
}

// TestValidate: errors that need no call are reported at once, with the field.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit  func(*infrav1.AWSMachine)
		field string
	}{
		"AWS's tag": {func(m *infrav1.AWSMachine) { m.Tags = map[string]string{"AWS:x": "y"} }, "spec.cloud.aws.tags[AWS:x]"},
		"our tag": {func(m *infrav1.AWSMachine) { m.Tags = map[string]string{"drover-ownership-id": "y"} },
			"spec.cloud.aws.tags[drover-ownership-id]"},
		"empty tag": {func(m *infrav1.AWSMachine) { m.Tags = map[string]string{"": "y"} }, "spec.cloud.aws.tags[]"},
		"no size": {func(m *infrav1.AWSMachine) { m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdf"}} },
			"spec.cloud.aws.volumes[0].sizeGiB"},
		"key without lock": {func(m *infrav1.AWSMachine) {
			m.RootVolume = &infrav1.AWSVolume{Encryption: infrav1.FeatureDisabled, KMSKeyID: "k"}
		}, "spec.cloud.aws.rootVolume.kmsKeyID"},
		"primary of none": {func(m *infrav1.AWSMachine) { m.PrimaryIPv6 = infrav1.FeatureEnabled }, "spec.cloud.aws.ipv6AddressCount"},
		"block without ID": {func(m *infrav1.AWSMachine) { m.Market = infrav1.AWSMarket{Type: "capacity-block"} },
			"spec.cloud.aws.capacityReservation.id"},
		"nothing wrong": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			errs := validateMachine(testMachine(test.edit).Cloud.AWS, field.NewPath("spec"))
			if test.field == "" {
				g.Expect(errs).To(BeEmpty())
				return
			}
			g.Expect(errs).To(HaveLen(1))
			g.Expect(errs[0].Field).To(Equal(test.field))
		})
	}
	account := testAccount("http://127.0.0.1:1")
	account.CredentialsRef = infrav1.LocalReference{}
	NewWithT(t).Expect(validateAccount(account, field.NewPath("spec"))).To(HaveLen(1))
}
