// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestHealthChecks tests that Argo CD's health checks are for kinds that exist, and name conditions
// and reasons that the book describes.
func TestHealthChecks(t *testing.T) {
	var config corev1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(read(t, "docs/examples/gitops/argocd-cm.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	kinds, conditions := schemas(t), read(t, "docs/conditions.md")
	reasons := regexp.MustCompile(`(\w+) = true`)
	for key, check := range config.Data {
		_, kind, ok := strings.Cut(strings.TrimPrefix(key, "resource.customizations.health."), "_")
		if _, there := kinds[kind]; !ok || !there {
			t.Errorf("%s: there is no such kind", key)
		}
		found := reasons.FindAllStringSubmatch(check, -1)
		if len(found) == 0 {
			t.Errorf("%s: nothing is Degraded", key)
		}
		for _, m := range found {
			if !strings.Contains(conditions, "</a>`"+m[1]+"` | ") {
				t.Errorf("%s: docs/conditions.md has no reason %s", key, m[1])
			}
		}
		main := "Ready"
		switch kind {
		case "AdoptedControlPlane", "Cluster", "MachineDeployment":
			main = "Available"
		}
		if !strings.Contains(check, `c.type == "`+main+`"`) {
			t.Errorf("%s: its main condition is %s", key, main)
		}
	}
	if len(config.Data) < 8 {
		t.Errorf("only %d kinds have a health check", len(config.Data))
	}
}
