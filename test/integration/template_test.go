// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

func template(s *tenant, name string, machine infrav1.SimulatedMachine) *infrav1.DroverMachineTemplate {
	return &infrav1.DroverMachineTemplate{ObjectMeta: s.meta(name), Spec: infrav1.DroverMachineTemplateSpec{
		Template: infrav1.DroverMachineTemplateResource{Spec: infrav1.DroverMachineFields{
			AccountRef: infrav1.LocalReference{Name: "prod"}, Cloud: infrav1.MachineCloud{Simulated: &machine},
		}},
	}}
}

// TestTemplate tests that a template gets the properties of its machines from the cloud once its
// account is ready, and makes no calls after that.
func TestTemplate(t *testing.T) {
	s := newTenant(t)
	small := template(s, "small", infrav1.SimulatedMachine{})
	arm := template(s, "arm", infrav1.SimulatedMachine{InstanceType: "small-arm", Image: "node-image-arm64", DiskGiB: 50})
	unknown := template(s, "unknown", infrav1.SimulatedMachine{InstanceType: "enormous"})
	s.create(small, arm, unknown)
	s.says(small, clusterv1.ReadyCondition, infrav1.WaitingForAccountReason, `Waiting for DroverAccount "prod" to exist`)

	account := s.Account()
	s.create(account)
	s.says(small, clusterv1.ReadyCondition, infrav1.WaitingForAccountReason, `"prod" is not ready`)
	s.create(s.credentials())
	s.says(small, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	s.Expect(small.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
	s.Expect(small.Status.Capacity.Memory().Equal(resource.MustParse("4Gi"))).To(BeTrue())
	s.Expect(small.Status.NodeInfo).To(Equal(infrav1.NodeInfo{Architecture: "amd64", OperatingSystem: "linux"}))
	s.says(arm, clusterv1.ReadyCondition, infrav1.ReadyReason, "")
	s.Expect(arm.Status.NodeInfo.Architecture).To(Equal(infrav1.NodeArchitectureARM64))
	s.says(unknown, clusterv1.ReadyCondition, infrav1.InvalidSpecReason, `instance type "enormous" does not exist`)
	s.Expect(unknown.Status.Capacity).To(BeEmpty())

	s.atRest(small, 2*time.Second)
	audit, err := env.admin.Audit(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	asked := audit.Calls(wire.DescribeCatalog)
	s.Consistently(func() int {
		audit, err := env.admin.Audit(s.ctx)
		s.Expect(err).NotTo(HaveOccurred())
		return audit.Calls(wire.DescribeCatalog)
	}, 3*time.Second, time.Second).Should(Equal(asked), "a template polls")

	// Known values stay when the account has problems, because an autoscaler must not forget its
	// pools.
	update(s, account, func(a *infrav1.DroverAccount) { a.Spec.CredentialsRef.Name = "nothing" })
	s.says(small, clusterv1.ReadyCondition, infrav1.WaitingForAccountReason, "is not ready")
	s.Expect(small.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
}
