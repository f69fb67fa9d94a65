// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestOwnershipIDWakes: machines wait for their CloudCluster's ownership ID, which another
// controller may write last.
func TestOwnershipIDWakes(t *testing.T) {
	t.Parallel()
	before := &infrav1.CloudCluster{}
	g := NewWithT(t)
	g.Expect(cloudClusterInputsChanged(before, before)).To(BeFalse())
	after := before.DeepCopy()
	after.Spec.Creation.OwnershipID = "owner-1"
	g.Expect(cloudClusterInputsChanged(before, after)).To(BeTrue())
	after = before.DeepCopy()
	after.Annotations = map[string]string{infrav1.UnreachableAnnotation: "now"}
	g.Expect(cloudClusterInputsChanged(before, after)).To(BeTrue())
}
