// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"flag"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

var update = flag.Bool("update", false, "write the role into docs/clouds/azure.md")

// inline are the actions that Azure also requires of the caller for what a create contains: the
// parts that it makes, and what they refer to.
var inline = []string{
	"Microsoft.Compute/disks/write", "Microsoft.Network/networkInterfaces/join/action", "Microsoft.Network/networkInterfaces/write",
	"Microsoft.Network/publicIPAddresses/join/action", "Microsoft.Network/publicIPAddresses/write",
	"Microsoft.Network/virtualNetworks/subnets/join/action",
}

// action returns the action of Azure's access control for a call.
func action(method, path string) string {
	_, path, ok := strings.Cut(path, "/providers/")
	if !ok {
		return "Microsoft.Resources/subscriptions/locations/read"
	}
	parts := strings.Split(path, "/")
	kind := parts[0] + "/" + parts[1]
	switch {
	case len(parts) > 3 && method == http.MethodPost:
		return kind + "/" + parts[3] + "/action"
	case len(parts) > 3:
		kind += "/" + parts[3]
	}
	return kind + map[string]string{http.MethodGet: "/read", http.MethodPut: "/write", http.MethodDelete: "/delete"}[method]
}

// TestRole makes the driver call each of its operations, and compares them with the role in the
// documentation.
func TestRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	var mu sync.Mutex
	seen := map[string]bool{}
	stub := start(t, armstub.Options{Keep: true})
	wire := stub.Transport()
	made, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
		Connect: conformance.Through(roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Host, "management.") {
				mu.Lock()
				seen[action(r.Method, r.URL.Path)] = true
				mu.Unlock()
			}
			return wire.RoundTrip(r)
		}))})
	g.Expect(err).NotTo(HaveOccurred())
	d := made.(*driver)
	_, err = d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	req := testRequest("m-1", func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].PublicIP = &infrav1.AzurePublicIP{} })
	_, err = d.Offering(ctx, req.Spec)
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 {
		_, err = d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
	}
	stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Birth: "AllocationFailed"})
	failed, err := d.Ensure(ctx, testRequest("m-2", nil))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Console(ctx, failed)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() []string {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		d.Delete(ctx, all)
		return stub.Left(cloud.TagOwnership, "owner")
	}).Should(BeEmpty())

	for _, extra := range inline {
		seen[extra] = true
	}
	conformance.Document(t, "../../docs/clouds/azure.md", "role", map[string]any{
		"Name": "Drover", "IsCustom": true, "Description": "Creates and deletes virtual machines for Drover",
		"Actions": slices.Sorted(maps.Keys(seen)), "AssignableScopes": []string{"/subscriptions/" + armstub.Subscription},
	}, *update)
}
