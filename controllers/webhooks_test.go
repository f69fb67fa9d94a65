// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// TestWebhooksLetObjectsGo: finalizers of an object under deletion can be removed even while no
// manager serves the webhooks.
func TestWebhooksLetObjectsGo(t *testing.T) {
	t.Parallel()
	manifests, err := os.ReadFile("../config/webhook/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, document := range strings.Split(string(manifests), "\n---\n") {
		var configuration admissionv1.ValidatingWebhookConfiguration
		if err := yaml.Unmarshal([]byte(document), &configuration); err != nil {
			t.Fatal(err)
		}
		if configuration.Kind != "ValidatingWebhookConfiguration" {
			continue
		}
		for _, webhook := range configuration.Webhooks {
			found++
			if len(webhook.MatchConditions) == 0 || webhook.MatchConditions[0].Expression != "!has(object.metadata.deletionTimestamp)" {
				t.Errorf("%s is asked about objects under deletion", webhook.Name)
			}
		}
	}
	if found == 0 {
		t.Error("there are no webhooks")
	}
}
