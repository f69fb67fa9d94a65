// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestInvalidSpecNamesTheField: a machine that the cloud refuses says which of its fields is wrong,
// and what to do. Its reason is not in the message again.
func TestInvalidSpecNamesTheField(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) {
			m.Spec.ProviderID, m.Spec.Creation.Token = "", ""
			m.Spec.Cloud.Simulated.InstanceType = "gigantic"
		})...)
		b.follow("m", 10*time.Minute)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InvalidSpecReason))
		b.Expect(readyMessage(b.machine("m"))).To(And(
			HavePrefix("spec.cloud.simulated.instanceType: "), ContainSubstring(`"gigantic"`),
			ContainSubstring("create another DroverMachineTemplate"), Not(ContainSubstring("InvalidSpec"))))
	})
}

// TestInvalidFailureDomain: if the cloud refuses the zone that the Machine asks for, the message
// names that field, which is not the template's.
func TestInvalidFailureDomain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := fleetOf("m")
		for _, o := range edit(objects, "m", func(m *infrav1.DroverMachine) { m.Spec.ProviderID, m.Spec.Creation.Token = "", "" }) {
			if owner, ok := o.(*clusterv1.Machine); ok {
				owner.Spec.FailureDomain = "sim-9z"
			}
		}
		b := newBench(t, objects...)
		b.follow("m", 10*time.Minute)
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InvalidSpecReason))
		b.Expect(readyMessage(b.machine("m"))).To(And(HavePrefix("the Machine's spec.failureDomain: "), ContainSubstring(`"sim-9z"`),
			ContainSubstring("spec.template.spec.failureDomain of the MachineDeployment"), Not(ContainSubstring("DroverMachineTemplate"))))
	})
}

// TestFieldsIn: a field is named if the cloud quotes its whole value.
func TestFieldsIn(t *testing.T) {
	spec := infrav1.MachineCloud{AWS: &infrav1.AWSMachine{InstanceType: "m5.large",
		Subnets: infrav1.AWSSelector{IDs: []string{"subnet-1", "subnet-12"}}}}
	for message, want := range map[string][]string{
		`The requested type m5.large is not supported in this zone.`: {"spec.cloud.aws.instanceType"},
		`no subnet "subnet-12".`:                                     {"spec.cloud.aws.subnets.ids[1]"},
		`no subnet subnet-1`:                                         {"spec.cloud.aws.subnets.ids[0]"},
		`the type xm5.large does not exist`:                          nil,
		`something else is wrong`:                                    nil,
	} {
		NewWithT(t).Expect(fieldsIn(message, &spec)).To(Equal(want), message)
	}
	long := invalidSpec(&spec, "aws", "", strings.Repeat("x", 2000))
	NewWithT(t).Expect(long).To(And(HavePrefix("spec.cloud.aws: "), HaveSuffix("in the MachineDeployment")))
	NewWithT(t).Expect(len(long)).To(BeNumerically("<=", maxMessage))
}
