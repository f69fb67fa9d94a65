// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/preflight"
)

// unjudged are the models that HashiCorp does not have.
var unjudged = []string{"usageList"}

// judge returns what the program with HashiCorp's models says of bodies.
func judge(t *testing.T) func(lines []byte) string {
	t.Helper()
	program, err := exec.CommandContext(t.Context(), "../../hack/tool", "azure-models").Output()
	if err != nil {
		t.Fatal(err)
	}
	return func(lines []byte) string {
		cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(program)))
		cmd.Stdin = bytes.NewReader(lines)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("the judge: %v: %s", err, out)
		}
		return string(out)
	}
}

// TestModels: HashiCorp's models, which are not Microsoft's, have each member of what the driver
// sends and of what the stand-in answers, in all calls of the life of a machine and of a load
// balancer, and of a dry run.
func TestModels(t *testing.T) {
	needs(t, *where == "azure")
	g, ctx := NewWithT(t), t.Context()
	var mu sync.Mutex
	seen, lines := map[string]int{}, map[string]bool{}
	stub := armstub.New(t, armstub.Options{
		Tenant: tenant, Client: "client", Secret: "secret", Keep: true, PageSize: 2,
		Record: func(model string, body []byte) {
			line, err := json.Marshal(map[string]any{"model": model, "body": json.RawMessage(body)})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s is not JSON: %v", model, err)
			}
			if seen[model]++; !slices.Contains(unjudged, model) {
				lines[string(line)] = true
			}
		},
	})
	stub.AcceptTerms(true)
	config := accountConfig()
	d, err := azure.Cloud().New(cloud.Config{Account: &config.Spec, Credentials: config.Credentials,
		Connect: conformance.Through(stub.Transport())})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())

	var made []cloud.Resource
	for name, edit := range map[string]func(*infrav1.AzureMachine){
		"smallest":   func(*infrav1.AzureMachine) {},
		"everything": armstub.Everything,
		"others": func(m *infrav1.AzureMachine) {
			m.Image = infrav1.AzureImage{Marketplace: &infrav1.AzureMarketplaceImage{Publisher: armstub.Paid, Offer: armstub.Paid, SKU: armstub.Paid,
				Plan: infrav1.AzurePlanRequired}}
			m.AvailabilitySetID = "/subscriptions/s/set"
			m.OSDisk = &infrav1.AzureOSDisk{Ephemeral: &infrav1.AzureEphemeralDisk{Placement: "ResourceDisk"}}
		},
		"managed": func(m *infrav1.AzureMachine) {
			m.Image, m.HostID, m.Identity = infrav1.AzureImage{ID: armstub.ManagedImage}, "/subscriptions/s/host",
				&infrav1.AzureIdentity{System: infrav1.FeatureEnabled}
		},
		"community": func(m *infrav1.AzureMachine) {
			m.Image = infrav1.AzureImage{CommunityGalleryImageID: "/CommunityGalleries/nodes-4711/Images/ubuntu/Versions/1.0.0"}
			m.HostGroupID = "/subscriptions/s/hosts"
		},
		"shared": func(m *infrav1.AzureMachine) {
			m.Image = infrav1.AzureImage{SharedGalleryImageID: "/SharedGalleries/4711-nodes/Images/ubuntu/Versions/1.0.0"}
			m.Spot = &infrav1.AzureSpot{}
		},
	} {
		machine := smallest()
		edit(machine.Cloud.Azure)
		req := cloud.Request{Token: "token-" + name, OwnershipID: "owner", Namespace: "team", Name: name, UserData: []byte("#cloud-config\n"),
			Spec: machine}
		_, err := d.Offering(ctx, machine)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.(preflight.DryRunner).DryRun(ctx, req)).To(Succeed(), name)
		one, err := d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred(), name)
		again, err := d.Ensure(ctx, req)
		g.Expect(again.ID, err).To(Equal(one.ID))
		made = append(made, one)
	}
	_, err = d.(cloud.Console).Console(ctx, made[0])
	g.Expect(err).NotTo(HaveOccurred())
	undo := stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Birth: "AllocationFailed"})
	_, err = d.Ensure(ctx, cloud.Request{Token: "token-late", OwnershipID: "owner", Namespace: "team", Name: "late",
		UserData: []byte("#cloud-config\n"), Spec: smallest()})
	g.Expect(err).NotTo(HaveOccurred())
	undo()
	balanceAll(t, d.(cloud.Balancer))
	for range 4 {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		for _, err := range d.Delete(context.WithoutCancel(ctx), all) {
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(stub.Objections()).To(BeEmpty())

	ask := judge(t)
	t.Logf("%d different bodies of %v", len(lines), seen)
	g.Expect(ask([]byte(strings.Join(slices.Sorted(maps.Keys(lines)), "\n")))).To(BeEmpty())
	g.Expect(seen).To(HaveLen(26+len(unjudged)), "each model of the judge")
	for body, want := range map[string]string{
		`{"location":"x","Tags":{}}`: "Tags is unknown",
		`{"location":"x","properties":{"storageProfile":{"osDisk":{"deleteOption":"Delete"}}}}`:                                       "osDisk.createOption is missing",
		`{"location":"x","properties":{"networkProfile":{"networkInterfaceConfigurations":[{"name":"n","properties":{"tagz":{}}}]}}}`: "[0].properties.tagz is unknown",
		`{"location":7}`: "cannot unmarshal number",
	} {
		g.Expect(ask(fmt.Appendf(nil, `{"model":"virtualMachine","body":%s}`, body))).To(ContainSubstring(want))
	}
}

// balanceAll makes a public and an internal load balancer, and changes their targets.
func balanceAll(t *testing.T, d cloud.Balancer) {
	t.Helper()
	for name, spec := range map[string]infrav1.AzureLoadBalancer{
		"public": {}, "internal": {Scheme: infrav1.LoadBalancerInternal}, "static": {Scheme: infrav1.LoadBalancerInternal, Address: "10.0.0.100"},
	} {
		spec.SubnetID = armstub.Subnet
		req := cloud.BalancerRequest{
			Token: "balancer-" + name, OwnershipID: "owner", Namespace: "team", Name: name, Port: 6443,
			Spec: &infrav1.LoadBalancerCloud{Azure: &spec},
		}
		for _, targets := range [][]string{nil, {"10.0.0.4", "10.0.0.5"}} {
			req.Targets = targets
			if _, err := d.EnsureBalancer(t.Context(), req); err != nil {
				t.Fatal(name, err)
			}
		}
	}
}
