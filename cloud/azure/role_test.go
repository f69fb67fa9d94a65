// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

var update = flag.Bool("update", false, "write the roles into docs/clouds/azure.md")

// required makes the driver call each of its operations, those of load balancers only if asked for,
// and returns the actions that they need.
func required(t *testing.T, balancers bool) []string {
	t.Helper()
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
		for _, targets := range [][]string{nil, {"10.0.0.4"}} {
			if req.Targets = targets; balancers {
				balanced(t, d, req)
			}
		}
	}
	g.Eventually(func() []string {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		d.Delete(ctx, all)
		return stub.Left(cloud.TagOwnership, "owner")
	}).Should(BeEmpty())
	return stub.Required()
}

// readBalancers is the action for a listing of load balancers. Without it, there are none.
const readBalancers = "Microsoft.Network/loadBalancers/read"

// TestRole compares the actions that the driver needs with the roles in the documentation: one for
// machines, and what load balancers need besides.
func TestRole(t *testing.T) {
	t.Parallel()
	without := func(all, others []string) []string {
		return slices.DeleteFunc(all, func(action string) bool { return slices.Contains(others, action) })
	}
	machines := without(required(t, false), []string{readBalancers})
	balancers := without(required(t, true), machines)
	for heading, role := range map[string]map[string]any{
		"role": {"Name": "Drover", "Description": "Creates and deletes virtual machines for Drover", "Actions": machines},
		"load balancer role": {"Name": "Drover's load balancers", "Description": "Creates and deletes load balancers for Drover",
			"Actions": balancers},
	} {
		role["IsCustom"], role["AssignableScopes"] = true, []string{"/subscriptions/" + armstub.Subscription}
		conformance.Document(t, "../../docs/clouds/azure.md", heading, role, *update)
	}
}
