// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os/exec"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// TestOperator tests that the objects for the Prometheus operator have only fields that its types
// have, that they select the Pods of both Deployments, and that the rules are those that the other
// tests run.
func TestOperator(t *testing.T) {
	var monitor monitoringv1.PodMonitor
	if err := yaml.UnmarshalStrict(read(t, "pod_monitor.yaml"), &monitor); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, pod := range deployedPods(t) {
		found++
		if !selector.Matches(labels.Set(pod)) {
			t.Errorf("the PodMonitor does not select the Pods with %v", pod)
		}
	}
	if found != 2 {
		t.Errorf("%d Deployments were found, want that of the machines and that of the safety controllers", found)
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if !endpoint.HonorLabels || len(endpoint.RelabelConfigs) != 1 || *endpoint.RelabelConfigs[0].Replacement != "drover" {
		t.Errorf("the endpoint does not keep Drover's labels, or the job is not drover: %+v", endpoint)
	}

	var rule monitoringv1.PrometheusRule
	if err := yaml.UnmarshalStrict(read(t, "prometheus_rule.yaml"), &rule); err != nil {
		t.Fatal(err)
	}
	var alerts monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(read(t, "alerts.yaml"), &alerts); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(rule.Spec, alerts) {
		t.Error("prometheus_rule.yaml has other rules than alerts.yaml: run 'make generate'")
	}
}

// deployedPods returns the labels of the Pods of each Deployment in config/safety.
func deployedPods(t *testing.T) []map[string]string {
	t.Helper()
	tool, err := exec.CommandContext(t.Context(), "../../../hack/tool", "kustomize").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), strings.TrimSpace(string(tool)), "build", "../../../config/safety").Output()
	if err != nil {
		t.Fatal(err)
	}
	var pods []map[string]string
	for _, doc := range strings.Split(string(out), "\n---\n") {
		var d struct {
			Kind string
			Spec struct {
				Template struct{ Metadata metav1.ObjectMeta }
			}
		}
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind == "Deployment" {
			pods = append(pods, d.Spec.Template.Metadata.Labels)
		}
	}
	return pods
}
