// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

// TestImports tests, with the imports of this source, which suites a change can affect.
func TestImports(t *testing.T) {
	t.Chdir("../..")
	folders, err := importedFolders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var managers []string // the suites that run a manager
	for _, s := range suites {
		if !s.noManager {
			managers = append(managers, s.name)
		}
	}
	for file, want := range map[string][]string{
		"main.go":                            managers,
		"cloud/fleet/deletes.go":             managers,
		"cloud/azure/x.go":                   {"autoscaler", "azure", "chaos-azure", "crash-azure", "vm"},
		"cloud/gcp/x.go":                     {"autoscaler", "gcp", "chaos-gcp", "crash-gcp", "vm"},
		"controllers/cloudmachine_create.go": managers,
		"cloud/fleet/tasks_test.go":          nil,
		"cloud/aws/ec2stub/x.go":             {"autoscaler", "aws", "chaos-aws", "crash-aws", "storm", "takeover"},
		"cloud/kubevirt/x.go":                {"vm", "kubevirt", "crash-kubevirt", "chaos-kubevirt"},
		"cloud/openstack/x.go":               {"openstack", "vm"},
		"cloud/vsphere/x.go":                 {"vsphere", "crash-vsphere", "chaos-vsphere"},
		"test/vcenter/x.go":                  {"vsphere", "crash-vsphere", "chaos-vsphere"},
		"test/orphans/x_test.go":             {"orphans"},
		"test/openstack/fleet/x_test.go":     {"openstack"},
		"Tiltfile":                           {"tilt"},
		"config/prometheus/alerts.yaml":      {"tilt", "e2e", "e2e-whole", "monitoring", "operator"},
		"docs/faq.md":                        nil,
	} {
		var got []string
		for _, s := range suites {
			if affects(s, folders.of(s), []string{file}) != "" {
				got = append(got, s.name)
			}
		}
		slices.Sort(got)
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
			t.Errorf("%s can affect %q, want %q", file, got, want)
		}
	}
}
