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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

var update = flag.Bool("update", false, "write the role into docs/clouds/gcp.md")

// inline are the permissions that Google also requires of the caller for what a create contains.
var inline = []string{"compute.disks.create", "compute.disks.setLabels", "compute.instances.setLabels", "compute.instances.setMetadata", "compute.subnetworks.use"}

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
		parts = parts[1:]
	case "aggregated":
		parts, verb = parts[1:], "list"
	}
	switch last := parts[len(parts)-1]; {
	case last == "operations": // of all zones
		return "compute.globalOperations.list"
	case last == "serialPort":
		verb = "getSerialPortOutput"
	case last == "testIamPermissions":
		verb = "list"
	case len(parts) > 2 && parts[1] == "family":
		verb = "getFromFamily"
	}
	return "compute." + parts[0] + "." + verb
}

// TestRole makes the driver call each of its operations, and compares them with the role in the
// documentation.
func TestRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	var mu sync.Mutex
	seen := map[string]bool{}
	stub := start(t, gcpstub.Options{Keep: true})
	wire := stub.Transport()
	made, err := quick(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
		Connect: conformance.Through(roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Host, "compute.") {
				mu.Lock()
				seen[permission(r.Method, r.URL.Path)] = true
				mu.Unlock()
			}
			return wire.RoundTrip(r)
		}))})
	g.Expect(err).NotTo(HaveOccurred())
	d := made.(*driver)
	_, err = d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	req := testRequest("m-1", nil)
	_, err = d.Offering(ctx, req.Spec)
	g.Expect(err).NotTo(HaveOccurred())
	for _, image := range []infrav1.GCPImage{{Name: gcpstub.Image}, {Family: gcpstub.Image, Project: gcpstub.ImageProject}} {
		req.Spec.GCP.Image = image
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

	for _, extra := range inline {
		seen[extra] = true
	}
	var ofMachines []string // a machine needs no console
	for p := range seen {
		if (strings.HasPrefix(p, "compute.instances.") || strings.HasPrefix(p, "compute.disks.")) && !strings.HasSuffix(p, ".getSerialPortOutput") {
			ofMachines = append(ofMachines, p)
		}
	}
	g.Expect(projectPermissions).To(ConsistOf(ofMachines))
	conformance.Document(t, "../../docs/clouds/gcp.md", "role", map[string]any{
		"title": "Drover", "description": "Creates and deletes instances for Drover", "stage": "GA",
		"includedPermissions": slices.Sorted(maps.Keys(seen)),
	}, *update)
}
