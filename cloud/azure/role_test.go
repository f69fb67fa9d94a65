// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"flag"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

var update = flag.Bool("update", false, "write the role into docs/clouds/azure.md")

// TestRole makes the driver call each of its operations, and compares them with the role in the
// documentation.
func TestRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{Keep: true})
	d := connect(t, stub)
	_, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	req := testRequest("m-1", func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].PublicIP = &infrav1.AzurePublicIP{} })
	_, err = d.Offering(ctx, req.Spec)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.DryRun(ctx, req)).To(Succeed())
	for range 2 {
		_, err = d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
	}
	stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Birth: "AllocationFailed"})
	failed, err := d.Ensure(ctx, testRequest("m-2", nil))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Console(ctx, failed)
	g.Expect(err).NotTo(HaveOccurred())
	for _, internal := range []bool{true, false} {
		req := balancerRequest(internal)
		req.Token = fmt.Sprintf("balancer-%t", internal)
		balanced(t, d, req)
		req.Recorded, req.Targets = true, []string{"10.0.0.4"}
		balanced(t, d, req)
	}
	g.Eventually(func() []string {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		d.Delete(ctx, all)
		return stub.Left(cloud.TagOwnership, "owner")
	}).Should(BeEmpty())

	conformance.Document(t, "../../docs/clouds/azure.md", "role", map[string]any{
		"Name": "Drover", "IsCustom": true, "Description": "Creates and deletes virtual machines and load balancers for Drover",
		"Actions": stub.Required(), "AssignableScopes": []string{"/subscriptions/" + armstub.Subscription},
	}, *update)
}
