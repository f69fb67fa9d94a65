// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

func sizeWith(edit func(*types.InstanceTypeInfo)) types.InstanceTypeInfo {
	size := types.InstanceTypeInfo{
		InstanceType: "g6f.large", VCpuInfo: &types.VCpuInfo{DefaultVCpus: aws.Int32(2)},
		MemoryInfo:    &types.MemoryInfo{SizeInMiB: aws.Int64(8192)},
		ProcessorInfo: &types.ProcessorInfo{SupportedArchitectures: []types.ArchitectureType{types.ArchitectureTypeX8664}},
	}
	edit(&size)
	return size
}

func capacityOf(t *testing.T, size types.InstanceTypeInfo, spec *infrav1.AWSMachine) corev1.ResourceList {
	t.Helper()
	o, err := offering(spec, size, image{id: "ami-1", architecture: types.ArchitectureValuesX8664, rootGiB: 20})
	if err != nil {
		t.Fatal(err)
	}
	return o.Capacity
}

// TestGPUs: EC2 reports Count 0 for machines with a part of a GPU, and LogicalGpuCount 1. Their
// device plugin advertises one GPU.
func TestGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		gpus []types.GpuDeviceInfo
		want int64
	}{
		"g6f.large: an eighth": {[]types.GpuDeviceInfo{{Name: aws.String("L4"), Manufacturer: aws.String("NVIDIA"), Count: aws.Int32(0),
			LogicalGpuCount: aws.Int32(1), GpuPartitionSize: aws.Float64(0.125)}}, 1},
		"gr6f.4xlarge: a half": {[]types.GpuDeviceInfo{{Name: aws.String("L4"), Manufacturer: aws.String("NVIDIA"), Count: aws.Int32(0),
			LogicalGpuCount: aws.Int32(1), GpuPartitionSize: aws.Float64(0.5)}}, 1},
		"g6.12xlarge: four": {[]types.GpuDeviceInfo{{Name: aws.String("L4"), Manufacturer: aws.String("NVIDIA"), Count: aws.Int32(4),
			LogicalGpuCount: aws.Int32(4), GpuPartitionSize: aws.Float64(1)}}, 4},
		"a part of each of two": {[]types.GpuDeviceInfo{
			{Manufacturer: aws.String("NVIDIA"), Count: aws.Int32(0), LogicalGpuCount: aws.Int32(1)},
			{Manufacturer: aws.String("NVIDIA"), Count: aws.Int32(1), LogicalGpuCount: aws.Int32(2)},
		}, 3},
		"another maker's": {[]types.GpuDeviceInfo{{Manufacturer: aws.String("Qualcomm"), Count: aws.Int32(8),
			LogicalGpuCount: aws.Int32(8)}}, 0},
		"older answer: only one": {[]types.GpuDeviceInfo{{Name: aws.String("T4"), Manufacturer: aws.String("NVIDIA"), Count: aws.Int32(1)}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := capacityOf(t, sizeWith(func(s *types.InstanceTypeInfo) { s.GpuInfo = &types.GpuInfo{Gpus: c.gpus} }),
				&infrav1.AWSMachine{InstanceType: "g6f.large"})
			n := got["nvidia.com/gpu"]
			NewWithT(t).Expect(n.Value()).To(Equal(c.want))
		})
	}
}

// TestFabricAdapters: pods ask for the Elastic Fabric Adapters that the machine has.
func TestFabricAdapters(t *testing.T) {
	size := sizeWith(func(s *types.InstanceTypeInfo) {
		s.NetworkInfo = &types.NetworkInfo{EfaSupported: aws.Bool(true), MaximumNetworkInterfaces: aws.Int32(60),
			Ipv4AddressesPerInterface: aws.Int32(50), EfaInfo: &types.EfaInfo{MaximumEfaInterfaces: aws.Int32(4)}}
	})
	spec := &infrav1.AWSMachine{InstanceType: "p4d.24xlarge", EFA: infrav1.FeatureEnabled, NetworkInterfaces: []infrav1.AWSNetworkInterface{
		{Type: "efa", NetworkCard: aws.Int32(1), DeviceIndex: aws.Int32(1)},
		{Type: "efa-only", NetworkCard: aws.Int32(2), DeviceIndex: aws.Int32(1)},
		{Type: "interface", NetworkCard: aws.Int32(3), DeviceIndex: aws.Int32(1)},
	}}
	got := capacityOf(t, size, spec)
	n := got["vpc.amazonaws.com/efa"]
	NewWithT(t).Expect(n.Value()).To(Equal(int64(3)))
}

// TestNoFabricAdapters: a machine without them advertises none.
func TestNoFabricAdapters(t *testing.T) {
	got := capacityOf(t, sizeWith(func(*types.InstanceTypeInfo) {}),
		&infrav1.AWSMachine{NetworkInterfaces: []infrav1.AWSNetworkInterface{{Type: "interface"}}})
	NewWithT(t).Expect(got).NotTo(HaveKey(efaDevice))
	got = capacityOf(t, sizeWith(func(*types.InstanceTypeInfo) {}), &infrav1.AWSMachine{EFA: infrav1.FeatureEnabled})
	NewWithT(t).Expect(got[efaDevice]).To(HaveField("Value()", int64(1)))
}
