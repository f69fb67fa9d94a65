// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/drover-io/drover/cloud"
)

// TestOffering: what a machine does not have, or what is not known of it, is left out.
func TestOffering(t *testing.T) {
	t.Parallel()
	text := func(o cloud.Offering) map[corev1.ResourceName]string {
		all := map[corev1.ResourceName]string{}
		for name, n := range o.Capacity {
			all[name] = n.String()
		}
		return all
	}
	g := NewWithT(t)
	o := Offering("arm64", 4, 16<<30, 20<<30, map[corev1.ResourceName]int64{NvidiaGPU: 2, AMDGPU: 0})
	g.Expect(o.Architecture).To(Equal("arm64"))
	g.Expect(o.OperatingSystem).To(Equal("linux"))
	g.Expect(text(o)).To(Equal(map[corev1.ResourceName]string{
		"cpu": "4", "memory": "16Gi", "ephemeral-storage": "20Gi", "pods": "110", "nvidia.com/gpu": "2",
	}))
	g.Expect(text(Offering("amd64", 1, 1<<29, 0, nil))).To(Equal(map[corev1.ResourceName]string{"cpu": "1", "memory": "512Mi", "pods": "110"}))
}
