// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// TestWebhooksLetObjectsGo: finalizers of an object under deletion can be removed even while no
// manager serves the webhooks.
func TestWebhooksLetObjectsGo(t *testing.T) {
	t.Parallel()
	patched := map[string][]admissionv1.MatchCondition{}
	for _, webhook := range webhooksIn(t, "match_conditions.yaml") {
		patched[webhook.Name] = webhook.MatchConditions
	}
	generated := webhooksIn(t, "manifests.yaml")
	for _, webhook := range generated {
		conditions := patched[webhook.Name]
		if len(conditions) == 0 || conditions[0].Expression != "!has(object.metadata.deletionTimestamp)" {
			t.Errorf("%s is asked about objects under deletion: add it to match_conditions.yaml", webhook.Name)
		}
	}
	if len(generated) == 0 || len(patched) != len(generated) {
		t.Errorf("there are %d webhooks, and match_conditions.yaml has %d", len(generated), len(patched))
	}
}

// webhooksIn returns the validating webhooks in a file of config/webhook.
func webhooksIn(t *testing.T, file string) (all []admissionv1.ValidatingWebhook) {
	content, err := os.ReadFile(filepath.Join("..", "config", "webhook", file))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var configuration admissionv1.ValidatingWebhookConfiguration
		if err := yaml.Unmarshal([]byte(document), &configuration); err != nil {
			t.Fatal(err)
		}
		if configuration.Kind == "ValidatingWebhookConfiguration" {
			all = append(all, configuration.Webhooks...)
		}
	}
	return all
}
