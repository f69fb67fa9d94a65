// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// gpus maps EC2's name of a GPU maker to the resource that its device plugin advertises.
var gpus = map[string]corev1.ResourceName{
	"NVIDIA": driverkit.NvidiaGPU,
	"AMD":    driverkit.AMDGPU,
}

// The resources that AWS's device plugins advertise for AWS's own accelerators, and for Elastic
// Fabric Adapters.
const (
	neuronDevice corev1.ResourceName = "aws.amazon.com/neuron"
	efaDevice    corev1.ResourceName = "vpc.amazonaws.com/efa"
)

func (d *driver) Offering(ctx context.Context, fields *infrav1.DroverMachineFields) (cloud.Offering, error) {
	spec, err := union.MachineOf(fields)
	if err != nil {
		return cloud.Offering{}, err
	}
	size, err := d.instanceType(ctx, spec.InstanceType)
	if err != nil {
		return cloud.Offering{}, err
	}
	image, err := d.image(ctx, spec.Image)
	if err != nil {
		return cloud.Offering{}, err
	}
	return offering(spec, size, image)
}

func (d *driver) instanceType(ctx context.Context, name string) (types.InstanceTypeInfo, error) {
	return d.types.Get(ctx, name, func(ctx context.Context) (types.InstanceTypeInfo, error) {
		answer, err := d.ec2.DescribeInstanceTypes(ctx,
			&ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(name)}})
		if err != nil {
			return types.InstanceTypeInfo{}, d.secrets.typed("DescribeInstanceTypes", err)
		}
		i := slices.IndexFunc(answer.InstanceTypes, func(t types.InstanceTypeInfo) bool { return string(t.InstanceType) == name })
		if i < 0 {
			return types.InstanceTypeInfo{}, cloud.Errorf(cloud.InvalidSpec, "instance type %q does not exist in this region", name)
		}
		return answer.InstanceTypes[i], nil
	})
}

func offering(spec *infrav1.AWSMachine, size types.InstanceTypeInfo, image image) (cloud.Offering, error) {
	if p := size.ProcessorInfo; p != nil && !slices.Contains(p.SupportedArchitectures, types.ArchitectureType(image.architecture)) {
		return cloud.Offering{}, cloud.Errorf(cloud.InvalidSpec, "image %s is for %s, but instance type %s is not", image.id, image.architecture,
			spec.InstanceType)
	}
	architecture, ok := architectures[image.architecture]
	if !ok || size.VCpuInfo == nil || size.MemoryInfo == nil {
		return cloud.Offering{}, cloud.Errorf(cloud.Unknown, "EC2 reports no CPU or memory for instance type %s with image %s (%s)",
			spec.InstanceType, image.id, image.architecture)
	}
	cpus, disk := int64(aws.ToInt32(size.VCpuInfo.DefaultVCpus)), image.rootGiB
	if c := spec.CPUOptions; c.CoreCount > 0 {
		cpus = int64(c.CoreCount) * int64(c.ThreadsPerCore)
	}
	if root := spec.RootVolume; root != nil && root.SizeGiB > 0 {
		disk = root.SizeGiB
	}
	all := devices(size)
	all[efaDevice] = fabricAdapters(spec)
	out := driverkit.Offering(architecture, cpus, aws.ToInt64(size.MemoryInfo.SizeInMiB)<<20, int64(disk)<<30, all)
	out.Capacity[corev1.ResourcePods] = *resource.NewQuantity(maxPods(size.NetworkInfo), resource.DecimalSI)
	if image.windows {
		out.OperatingSystem = "windows"
	}
	return out, nil
}

// devices counts the devices of an instance type.
func devices(size types.InstanceTypeInfo) map[corev1.ResourceName]int64 {
	all := map[corev1.ResourceName]int64{}
	if size.GpuInfo != nil {
		for _, gpu := range size.GpuInfo.Gpus {
			if name, ok := gpus[aws.ToString(gpu.Manufacturer)]; ok {
				all[name] += int64(cmp.Or(aws.ToInt32(gpu.LogicalGpuCount), aws.ToInt32(gpu.Count))) // a part of a GPU has count 0
			}
		}
	}
	if size.NeuronInfo != nil {
		for _, device := range size.NeuronInfo.NeuronDevices {
			all[neuronDevice] += int64(aws.ToInt32(device.Count))
		}
	}
	return all
}

// fabricAdapters returns how many Elastic Fabric Adapters the machine has.
func fabricAdapters(spec *infrav1.AWSMachine) (n int64) {
	if spec.EFA == infrav1.FeatureEnabled {
		n++
	}
	for i := range spec.NetworkInterfaces {
		if strings.HasPrefix(string(spec.NetworkInterfaces[i].Type), "efa") {
			n++
		}
	}
	return n
}

// maxPods returns the number of pods that both the kubelet and AWS's network plugin support. Each
// pod uses an address of a network interface, except the interface's first, which is its own. Two
// pods that use the host network are added (the plugin's "eni-max-pods").
func maxPods(n *types.NetworkInfo) int64 {
	if n == nil || aws.ToInt32(n.MaximumNetworkInterfaces) == 0 {
		return driverkit.KubeletPods
	}
	addresses := int64(*n.MaximumNetworkInterfaces) * int64(aws.ToInt32(n.Ipv4AddressesPerInterface)-1)
	return min(driverkit.KubeletPods, max(addresses, 0)+2)
}

// architectures maps EC2's architecture names to Go's.
var architectures = map[types.ArchitectureValues]string{
	types.ArchitectureValuesX8664: "amd64",
	types.ArchitectureValuesArm64: "arm64",
}

// ec2Architecture returns EC2's name for an architecture in Go's.
func ec2Architecture(name string) string {
	for theirs, ours := range architectures {
		if ours == name {
			return string(theirs)
		}
	}
	return name
}
