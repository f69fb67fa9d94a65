// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/drover-io/drover/cloud"
)

// TestSteadyReason: what a guest waits for is told in the same words while only the numbers of
// nodes, the pod's name or the use of a quota change.
func TestSteadyReason(t *testing.T) {
	t.Parallel()
	for reason, messages := range map[string][]string{
		"no node is available: Insufficient memory, node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }": {
			"0/5 nodes are available: 3 Insufficient memory, 2 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }. preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.",
			"0/7 nodes are available: 2 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 5 Insufficient memory. preemption: 0/7 nodes are available: 7 Preemption is not helpful for scheduling.",
			"0/12 nodes are available: 10 Insufficient memory, 2 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }.",
		},
		"failed to create virtual machine pod: its pod is forbidden: exceeded quota: team, requested: limits.memory=9Gi,pods=1, limited: limits.memory=64Gi,pods=9": {
			`failed to create virtual machine pod: pods "virt-launcher-m-1-zq7xk" is forbidden: exceeded quota: team, requested: limits.memory=9Gi,pods=1, used: limits.memory=60Gi,pods=3, limited: limits.memory=64Gi,pods=9`,
			`failed to create virtual machine pod: pods "virt-launcher-m-1-4tw2c" is forbidden: exceeded quota: team, requested: limits.memory=9Gi,pods=1, used: limits.memory=56Gi,pods=2, limited: limits.memory=64Gi,pods=9`,
		},
		"persistentvolumeclaim \"m-1\" not found": {`persistentvolumeclaim "m-1" not found`},
	} {
		for _, message := range messages {
			vmi := &kubevirtv1.VirtualMachineInstance{}
			kind := kubevirtv1.VirtualMachineInstanceSynchronized
			if message[0] == '0' {
				kind = kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)
			}
			vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kind, Status: corev1.ConditionFalse, Message: message}}
			code, got := startingReason(&kubevirtv1.VirtualMachine{}, vmi)
			NewWithT(t).Expect(got).To(Equal(reason))
			if message[0] == '0' {
				NewWithT(t).Expect(code).To(Equal(cloud.NoCapacity))
			}
		}
	}
}
