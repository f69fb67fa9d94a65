// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestOwnershipIDOfAnExternallyManagedCluster: another controller manages the DroverCluster. The
// machine says that this controller must set the ownership ID, and gets its VM with one.
func TestOwnershipIDOfAnExternallyManagedCluster(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"none": "", "one of the other controller": "0a1b2c3d4e5f"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := edit(fleetOf("m"), "m", unmade)
				for _, o := range objects {
					if infra, ok := o.(*infrav1.DroverCluster); ok {
						infra.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "their-terraform"}
						infra.Spec.Creation.OwnershipID = id
					}
				}
				b := newBench(t, objects...)
				b.wait(time.Minute)
				b.reconcile("m")
				if id != "" {
					b.Expect(b.vms()).To(HaveLen(1))
					return
				}
				b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.WaitingForClusterReason))
				b.Expect(conditions.GetMessage(b.machine("m"), clusterv1.ReadyCondition)).To(ContainSubstring("must set spec.creation.ownershipID"))
			})
		})
	}
}
