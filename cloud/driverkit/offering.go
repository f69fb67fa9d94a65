// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/drover-io/drover/cloud"
)

// KubeletPods is the kubelet's default maximum number of pods.
const KubeletPods = 110

// The resources under which device plugins advertise GPUs.
const (
	NvidiaGPU corev1.ResourceName = "nvidia.com/gpu"
	AMDGPU    corev1.ResourceName = "amd.com/gpu"
)

// Offering returns the offering of a machine with Linux, and KubeletPods. Memory and disk are in
// bytes. A disk of 0 is not known, and 0 of a device is none.
func Offering(architecture string, cpus, memory, disk int64, devices map[corev1.ResourceName]int64) cloud.Offering {
	o := cloud.Offering{Architecture: architecture, OperatingSystem: "linux", Capacity: corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(cpus, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(KubeletPods, resource.DecimalSI),
	}}
	if disk > 0 {
		o.Capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(disk, resource.BinarySI)
	}
	for name, n := range devices {
		if n > 0 {
			o.Capacity[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return o
}
