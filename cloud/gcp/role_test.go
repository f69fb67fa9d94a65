// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"flag"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

var update = flag.Bool("update", false, "write the role into docs/clouds/gcp.md")

// inline are the permissions that Google also requires of the caller for what a create contains.
var inline = []string{"compute.disks.create", "compute.disks.setLabels", "compute.instances.setLabels", "compute.instances.setMetadata",
	"compute.subnetworks.use"}

// inlineOfBalancer are those for what the parts of a load balancer refer to.
var inlineOfBalancer = []string{
	"compute.backendServices.use", "compute.healthChecks.useReadOnly", "compute.instances.use", "compute.networkEndpointGroups.use",
	"compute.networks.use", "compute.targetTcpProxies.use",
}

// permission returns the permission for a call.
func permission(method, path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/compute/v1/projects/"), "/")[1:]
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodDelete: "delete"}[method]
	switch parts[0] {
	case "zones":
		parts = parts[2:]
	case "regions":
		parts = parts[min(2, len(parts)-2):]
	case "global":
		if parts = parts[1:]; parts[0] == "forwardingRules" {
			parts[0] = "globalForwardingRules"
		}
		if len(parts) == 1 && verb == "get" {
			verb = "list"
		}
	case "aggregated":
		parts, verb = parts[1:], "list"
	}
	switch last := parts[len(parts)-1]; {
	case last == "operations": // of all zones
		return "compute.globalOperations.list"
	case last == "serialPort":
		verb = "getSerialPortOutput"
	case last == "testIamPermissions", last == "listNetworkEndpoints":
		verb = "list"
	case last == "attachNetworkEndpoints", last == "detachNetworkEndpoints", last == "setLabels", last == "setTags":
		verb = last
	case len(parts) > 2 && parts[1] == "family":
		verb = "getFromFamily"
	}
	return "compute." + parts[0] + "." + verb
}

// watched returns a driver, and the permissions that its calls need.
func watched(t *testing.T, stub *gcpstub.Cloud) (*driver, map[string]bool) {
	t.Helper()
	var mu sync.Mutex
	seen, wire := map[string]bool{}, stub.Transport()
	made, err := quick(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
		Connect: conformance.Through(roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Host, "compute.") {
				mu.Lock()
				seen[permission(r.Method, r.URL.Path)] = true
				mu.Unlock()
			}
			return wire.RoundTrip(r)
		}))})
	if err != nil {
		t.Fatal(err)
	}
	return made.(*driver), seen
}

// TestRole makes the driver call each of its operations, and compares them with the role in the
// documentation.
func TestRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{Keep: true})
	d, seen := watched(t, stub)
	_, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	req := testRequest("m-1", nil)
	_, err = d.Offering(ctx, req.Spec)
	g.Expect(err).NotTo(HaveOccurred())
	for _, image := range []infrav1.GCPImage{{Name: gcpstub.Image}, {Family: gcpstub.Image, Project: gcpstub.ImageProject}} {
		req.Spec.Cloud.GCP.Image = image
		g.Expect(d.DryRun(ctx, req)).To(Succeed())
	}
	instance, err := ensured(t, d, req)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Console(ctx, instance)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = ensured(t, d, testRequest("m-2", func(m *infrav1.GCPMachine) { m.ProvisioningModel = "SPOT" }))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	stub.Preempt(gcpstub.Zones()[0], "m-2")
	g.Eventually(func() []string {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		d.Delete(ctx, all)
		return stub.Left(cloud.TagOwnership, "owner")
	}).Should(BeEmpty())

	maps.DeleteFunc(seen, func(p string, _ bool) bool { return p == "compute.healthChecks.list" }) // without it, there are no load balancers
	for _, extra := range inline {
		seen[extra] = true
	}
	var ofMachines []string // a machine needs no console
	for p := range seen {
		if (strings.HasPrefix(p, "compute.instances.") || strings.HasPrefix(p, "compute.disks.")) &&
			!strings.HasSuffix(p, ".getSerialPortOutput") {
			ofMachines = append(ofMachines, p)
		}
	}
	g.Expect(projectPermissions).To(ConsistOf(ofMachines))
	conformance.Document(t, "../../docs/clouds/gcp.md", "role", map[string]any{
		"title": "Drover", "description": "Creates and deletes instances for Drover", "stage": "GA",
		"includedPermissions": slices.Sorted(maps.Keys(seen)),
	}, *update)
}

// TestBalancerRole makes the driver create, change and delete a load balancer, and compares what
// its calls need beyond a machine's with the role in the documentation.
func TestBalancerRole(t *testing.T) {
	t.Parallel()
	stub := start(t, gcpstub.Options{})
	ips := targets(t, connect(t, stub), 2)
	d, seen := watched(t, stub)
	req := balancerRequest(ips[0])
	balanced(t, d, req)
	balanced(t, d, req)
	req.Targets = ips[1:]
	balanced(t, d, req)
	_, err := connect(t, stub).EnsureBalancer(t.Context(), req) // finds what exists
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	deleted(t, d)
	for _, extra := range inlineOfBalancer {
		seen[extra] = true
	}
	maps.DeleteFunc(seen, func(p string, _ bool) bool {
		return slices.Contains([]string{"compute.disks.list", "compute.instances.list", "compute.regions.get"}, p)
	})
	conformance.Document(t, "../../docs/clouds/gcp.md", "load balancer role", map[string]any{
		"title": "Drover's load balancers", "description": "Creates and deletes load balancers for Drover", "stage": "GA",
		"includedPermissions": slices.Sorted(maps.Keys(seen)),
	}, *update)
}
