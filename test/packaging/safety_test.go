// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestSafetyApart tests that the safety controllers have their own Deployment, that the manager
// does not run them, and that all other objects equal those of infrastructure-components.yaml.
func TestSafetyApart(t *testing.T) {
	folder := release(t)
	one, two := objects(t, read(t, folder+"/infrastructure-components.yaml")),
		objects(t, read(t, folder+"/infrastructure-components-safety.yaml"))
	clusterctlRules(t, two)

	deployments := map[string]appsv1.Deployment{}
	for _, d := range only[appsv1.Deployment](t, two, "Deployment") {
		deployments[d.Name] = d
	}
	manager, safety := deployments["drover-controller-manager"], deployments["drover-controller-manager-safety"]
	if len(deployments) != 2 || len(manager.Spec.Template.Spec.Containers) != 1 || len(safety.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("want the manager's and the safety controllers' Deployment, got %d", len(deployments))
	}
	m, s := manager.Spec.Template.Spec.Containers[0], safety.Spec.Template.Spec.Containers[0]
	if !slices.Contains(m.Args, "--run=machines") || !slices.Contains(s.Args, "--run=safety") || len(m.Args) != len(s.Args) {
		t.Errorf("arguments are %q and %q", m.Args, s.Args)
	}
	if m.Image != image || s.Image != image {
		t.Errorf("images are %q and %q", m.Image, s.Image)
	}
	webhook := func(p corev1.ContainerPort) bool { return p.Name == "webhook-server" }
	if slices.ContainsFunc(s.Ports, webhook) || len(s.VolumeMounts) > 0 || len(safety.Spec.Template.Spec.Volumes) > 0 {
		t.Error("the safety controllers have a webhook's port or certificate")
	}
	budgets := 0
	for _, b := range only[policyv1.PodDisruptionBudget](t, two, "PodDisruptionBudget") {
		for _, d := range deployments {
			if d.Spec.Template.Labels["control-plane"] == b.Spec.Selector.MatchLabels["control-plane"] {
				budgets++
			}
		}
	}
	if budgets != 2 {
		t.Errorf("%d disruption budgets match a Deployment, want one for each", budgets)
	}
	for _, service := range only[corev1.Service](t, two, "Service") {
		if service.Spec.Selector["control-plane"] == safety.Spec.Template.Labels["control-plane"] {
			t.Errorf("Service %s chooses the safety controllers", service.Name)
		}
	}

	same := func(a, b *unstructured.Unstructured) bool {
		return a.GetKind() == b.GetKind() && a.GetName() == b.GetName()
	}
	for _, o := range one {
		if !slices.ContainsFunc(two, func(p *unstructured.Unstructured) bool { return same(o, p) }) {
			t.Errorf("%s %s is missing", o.GetKind(), o.GetName())
		}
	}
	if len(two) != len(one)+2 {
		t.Errorf("%d objects, want a Deployment and its disruption budget more than %d", len(two), len(one))
	}
}
