// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
)

func marketplace(publisher, sku, version string, plan infrav1.AzurePlanUse) infrav1.AzureImage {
	return infrav1.AzureImage{Marketplace: &infrav1.AzureMarketplaceImage{Publisher: publisher, Offer: publisher, SKU: sku, Version: version,
		Plan: plan}}
}

// TestDryRun: a dry run finds each mistake, says what is wrong, and makes nothing. A create has the
// same outcome.
func TestDryRun(t *testing.T) {
	t.Parallel()
	accepted := func(c *armstub.Cloud) { c.AcceptTerms(true) }
	paid := infrav1.AzurePlan{Publisher: armstub.Paid, Product: armstub.Paid, Name: armstub.Paid}
	imageID := func(id string) func(*infrav1.AzureMachine) { return func(m *infrav1.AzureMachine) { m.Image.ID = id } }
	use := func(i infrav1.AzureImage) func(*infrav1.AzureMachine) {
		return func(m *infrav1.AzureMachine) { m.Image = i }
	}
	for name, test := range map[string]struct {
		world func(*armstub.Cloud)
		edit  func(*infrav1.AzureMachine)
		zone  string
		code  cloud.Code
		text  string
	}{
		"smallest":          {},
		"everything":        {edit: armstub.Everything, zone: "2", world: accepted},
		"managed image":     {edit: imageID(armstub.ManagedImage)},
		"latest of gallery": {edit: imageID(strings.TrimSuffix(armstub.Image, "/versions/1.0.0"))},
		"community": {edit: use(infrav1.AzureImage{
			CommunityGalleryImageID: "/CommunityGalleries/nodes-4711/Images/ubuntu/Versions/1.0.0"})},
		"shared":             {edit: use(infrav1.AzureImage{SharedGalleryImageID: "/SharedGalleries/4711-nodes/Images/ubuntu/Versions/latest"})},
		"marketplace":        {edit: use(marketplace(armstub.Publisher, "server", "", ""))},
		"marketplace's plan": {edit: use(marketplace(armstub.Paid, armstub.Paid, "1.0.0", infrav1.AzurePlanRequired)), world: accepted},
		"Arm": {edit: func(m *infrav1.AzureMachine) {
			m.VMSize, m.Image.ID = "Standard_D2ps_v5", armstub.ArmImage
		}},
		"a set has no zones": {edit: func(m *infrav1.AzureMachine) { m.AvailabilitySetID = "/subscriptions/s/set" }, zone: "4"},
		"spot beside a quota": {edit: func(m *infrav1.AzureMachine) { m.Spot = &infrav1.AzureSpot{} },
			world: func(c *armstub.Cloud) { c.SetQuota("cores", 1) }},

		"size": {edit: func(m *infrav1.AzureMachine) { m.VMSize = "Standard_Enormous" }, code: cloud.InvalidSpec,
			text: "does not exist in location"},
		"zone": {zone: "7", code: cloud.InvalidSpec, text: `zone "7" of location westeurope, but in zones ["1" "2" "3"]`},
		"family quota": {world: func(c *armstub.Cloud) { c.SetQuota("standardDSv5Family", 1) }, code: cloud.QuotaExceeded,
			text: "quota standardDSv5Family of the subscription in location westeurope: 0 of 1 are in use, and a Standard_D2s_v5 needs 2"},
		"location quota": {world: func(c *armstub.Cloud) { c.SetQuota("cores", 1) }, code: cloud.QuotaExceeded, text: "quota cores"},
		"spot quota": {edit: func(m *infrav1.AzureMachine) { m.Spot = &infrav1.AzureSpot{} },
			world: func(c *armstub.Cloud) { c.SetQuota("lowPriorityCores", 1) }, code: cloud.QuotaExceeded, text: "quota lowPriorityCores"},
		"machine quota": {world: func(c *armstub.Cloud) { c.SetQuota("virtualMachines", 1); c.Launch("other", nil) },
			code: cloud.QuotaExceeded, text: "1 of 1 are in use"},
		"network": {edit: func(m *infrav1.AzureMachine) {
			m.NetworkInterfaces[0].SubnetID = strings.Replace(armstub.Subnet, "vnet", "other", 1)
		}, code: cloud.NotFound, text: "the virtual network of subnet"},
		"subnet": {edit: func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].SubnetID += "0" }, code: cloud.NotFound,
			text: "nodes0 does not exist"},
		"far subnet": {edit: func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].SubnetID = armstub.FarSubnet }, code: cloud.NotFound,
			text: "is in location northeurope, and the account is in westeurope"},
		"image":               {edit: imageID(armstub.Image + "0"), code: cloud.NotFound, text: "does not exist"},
		"managed image of no": {edit: imageID(armstub.ManagedImage + "0"), code: cloud.NotFound, text: "does not exist"},
		"far image":           {edit: imageID(armstub.FarImage), code: cloud.NotFound, text: "is not replicated to location westeurope"},
		"Arm image": {edit: imageID(armstub.ArmImage), code: cloud.InvalidSpec,
			text: "is for architecture Arm64, and size Standard_D2s_v5 is for amd64"},
		"x64 image": {edit: func(m *infrav1.AzureMachine) { m.VMSize = "Standard_D2ps_v5" }, code: cloud.InvalidSpec,
			text: "is for architecture x64, and size Standard_D2ps_v5 is for arm64"},
		"old image": {edit: func(m *infrav1.AzureMachine) { m.VMSize, m.Image.ID = "Standard_D2s_v6", armstub.OldImage }, code: cloud.InvalidSpec,
			text: `is for generation V1 of virtual machines, and size Standard_D2s_v6 for ["V2"]`},
		"no such sku": {edit: use(marketplace(armstub.Publisher, "other", "", "")), code: cloud.InvalidSpec,
			text: "the marketplace has no image Canonical:Canonical:other:latest"},
		"no such version": {edit: use(marketplace(armstub.Publisher, "server", "2.0.0", "")), code: cloud.InvalidSpec,
			text: "server:2.0.0 in location"},
		"plan too many": {edit: use(marketplace(armstub.Publisher, "server", "", infrav1.AzurePlanRequired)), code: cloud.InvalidSpec,
			text: "has no plan: leave out image.marketplace.plan"},
		"plan not named": {edit: use(marketplace(armstub.Paid, armstub.Paid, "", "")), code: cloud.InvalidSpec,
			text: "has the plan paid of product paid of publisher paid"},
		"gallery's plan": {edit: imageID(armstub.PaidImage), code: cloud.InvalidSpec, text: "set image.marketplace.plan, or image.plan"},
		"another plan": {edit: func(m *infrav1.AzureMachine) {
			m.Image = infrav1.AzureImage{ID: armstub.PaidImage,
				Plan: infrav1.AzurePlan{Publisher: armstub.Paid, Product: armstub.Paid, Name: "other"}}
		}, code: cloud.InvalidSpec, text: "has the plan paid"},
		"terms": {edit: use(marketplace(armstub.Paid, armstub.Paid, "", infrav1.AzurePlanRequired)), code: cloud.Conflict,
			text: "az vm image terms accept --publisher paid --offer paid --plan paid"},
		"gallery's terms": {edit: func(m *infrav1.AzureMachine) { m.Image = infrav1.AzureImage{ID: armstub.PaidImage, Plan: paid} },
			code: cloud.Conflict,
			text: "are not accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := start(t, armstub.Options{})
			if test.world != nil {
				test.world(stub)
			}
			d := connect(t, stub)
			req := testRequest("m-1", test.edit)
			req.FailureDomain = test.zone
			err := d.DryRun(ctx, req)
			g.Expect(stub.Made()).To(BeZero())
			_, created := d.Ensure(ctx, req)
			g.Expect(cloud.CodeOf(created)).To(Equal(test.code), "create: %v", created)
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			if err != nil {
				g.Expect(err.Error()).To(ContainSubstring(test.text))
			}
		})
	}
}

// documentedActions returns the actions of the role in docs/clouds/azure.md.
func documentedActions(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/clouds/azure.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "<!-- role:")
	_, after, _ = strings.Cut(after, "```json")
	text, _, _ := strings.Cut(after, "```")
	var role struct{ Actions []string }
	if err := json.Unmarshal([]byte(text), &role); err != nil || len(role.Actions) == 0 {
		t.Fatalf("the role in docs/clouds/azure.md: %v", err)
	}
	return role.Actions
}

// TestDryRunPermissions: the documented role is enough, and whichever of its actions is missing, a
// check before the first machine names it.
func TestDryRunPermissions(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	check := func() error {
		d := connect(t, stub)
		if _, err := d.Probe(ctx); err != nil {
			return err
		}
		return d.DryRun(ctx, testRequest("m-1", func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].PublicIP = &infrav1.AzurePublicIP{} }))
	}
	role := documentedActions(t)
	stub.Grants(armstub.Grant{Actions: role})
	g.Expect(check()).To(Succeed())
	for _, action := range role {
		others := slices.DeleteFunc(slices.Clone(role), func(a string) bool { return a == action })
		for _, grants := range [][]armstub.Grant{{{Actions: others}}, {{Actions: []string{"*"}, NotActions: []string{strings.ToUpper(action)}}}} {
			stub.Grants(grants...)
			err := check()
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%s: %v", action, err)
			g.Expect(err.Error()).To(ContainSubstring(action))
		}
	}
	stub.Grants(armstub.Grant{Actions: []string{"*"}, NotActions: []string{"Microsoft.Compute/*"}},
		armstub.Grant{Actions: []string{"Microsoft.Compute/*"}})
	g.Expect(check()).To(Succeed(), "what one role takes back, another one has")

	subscription := "/subscriptions/" + armstub.Subscription
	group := armstub.Grant{Scope: subscription + "/resourcegroups/" + armstub.Group, Actions: role}
	stub.Grants(group, armstub.Grant{Scope: subscription, Actions: []string{"*/read"}})
	g.Expect(check()).To(MatchError("Unauthorized: the credentials lack permissions on " + armstub.Subnet +
		": Microsoft.Network/virtualNetworks/subnets/join/action (give their identity the role that docs/clouds/azure.md shows)"))
	g.Expect(stub.Made()).To(BeZero())
}
