// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/internal/test/playground"
)

// operator is set by "make test-operator". The operator needs another Kubernetes than Drover, which
// takes minutes to build.
var operator = flag.Bool("operator", false, "have the cluster-api-operator install the release, too")

const (
	coreNamespace = "capi-system"
	nameLabel     = "provider.cluster.x-k8s.io/name" // of the operator's ConfigMaps
)

// operatorInstalls tests that the cluster-api-operator's own manager installs a release from a
// ConfigMap, as docs/install.md describes it, and reports Drover ready once its Pods are. No kubelet
// runs: the test makes the Pods ready.
func operatorInstalls(t *testing.T, management *playground.Management, server client.Client, folder string) {
	if _, err := management.StartOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	accept(t, server, coreProvider(t, server))
	providerGets(t, server, "CoreProvider", coreNamespace, "ProviderInstalled")
	podsReady(t, server, coreNamespace)
	providerGets(t, server, "CoreProvider", coreNamespace, "Ready")

	create(t, server, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}})
	components := read(t, folder+"/infrastructure-components.yaml")
	create(t, server, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: version, Namespace: namespace, Labels: map[string]string{nameLabel: "drover"}},
		Data:       map[string]string{"components": string(components), "metadata": string(read(t, folder+"/metadata.yaml"))},
	})
	documented := operatorExample(t)
	for _, o := range documented {
		accept(t, server, o)
	}
	providerGets(t, server, "InfrastructureProvider", namespace, "ProviderInstalled")
	for _, o := range objects(t, components) {
		if err := server.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "drover-controller-manager", Namespace: namespace}}
	if err := server.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil {
		t.Fatal(err)
	}
	manager := deployment.Spec.Template.Spec.Containers[0]
	if manager.Image != image {
		t.Errorf("the image is %s", manager.Image)
	}
	want, _, _ := unstructured.NestedString(documented[0].Object, "stringData", "DROVER_DENY_ENDPOINTS")
	if got := environment(manager, "DROVER_DENY_ENDPOINTS"); got != want || want == "" {
		t.Errorf("DROVER_DENY_ENDPOINTS is %q, the Secret has %q", got, want)
	}
	podsReady(t, server, namespace)
	drover := providerGets(t, server, "InfrastructureProvider", namespace, "Ready")
	status := drover.Object["status"].(map[string]any)
	if status["installedVersion"] != version || status["contract"] != "v1beta2" {
		t.Errorf("the operator installed version %v of contract %v", status["installedVersion"], status["contract"])
	}
	operatorSetsFlags(t, server, drover, deployment)
}

// coreProvider creates the ConfigMap with the Cluster API that the playground runs, and returns the
// provider that installs it. It leaves out kinds and webhooks: the playground's lead to its own
// address, which a release's can't replace.
func coreProvider(t *testing.T, server client.Client) *unstructured.Unstructured {
	t.Helper()
	kustomize := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "kustomize")))
	module := moduleDir(t, ".", "sigs.k8s.io/cluster-api")
	var components strings.Builder
	for _, o := range objects(t, run(t, nil, kustomize, "build", module+"/core/config/default")) {
		if o.GetKind() == "CustomResourceDefinition" || strings.HasSuffix(o.GetKind(), "WebhookConfiguration") {
			continue
		}
		doc, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		components.WriteString("---\n" + string(doc))
	}
	create(t, server, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: coreVersion, Namespace: coreNamespace, Labels: map[string]string{nameLabel: "cluster-api"}},
		Data:       map[string]string{"components": components.String(), "metadata": string(read(t, module+"/metadata.yaml"))},
	})
	o := provider("CoreProvider", "cluster-api", coreNamespace)
	o.Object["spec"] = map[string]any{
		"version": coreVersion, "fetchConfig": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{nameLabel: "cluster-api"}}},
	}
	return o
}

// operatorExample returns the objects of the page that install Drover.
func operatorExample(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	return objects(t, []byte(installBlock(t, "yaml", "kind: InfrastructureProvider\n", "")))
}

func provider(kind, name, namespace string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "operator.cluster.x-k8s.io/v1alpha2", "kind": kind}}
	o.SetName(name)
	o.SetNamespace(namespace)
	return o
}

// providerGets waits until the only provider of a kind in a namespace has a condition, and returns
// the provider.
func providerGets(t *testing.T, server client.Client, kind, namespace, condition string) *unstructured.Unstructured {
	t.Helper()
	var got *unstructured.Unstructured
	until(t, func(ctx context.Context) (string, error) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(provider(kind+"List", "", "").GroupVersionKind())
		if err := server.List(ctx, list, client.InNamespace(namespace)); err != nil || len(list.Items) != 1 {
			return fmt.Sprintf("%d objects of kind %s", len(list.Items), kind), err
		}
		got = &list.Items[0]
		conditions, _, err := unstructured.NestedSlice(got.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == condition && c["status"] == "True" {
				return "", err
			}
		}
		return fmt.Sprintf("%s is not %s: %v", kind, condition, conditions), err
	})
	return got
}

// podsReady does a kubelet's part for all Pods of a namespace's Deployments.
func podsReady(t *testing.T, server client.Client, namespace string) {
	t.Helper()
	until(t, func(ctx context.Context) (string, error) {
		deployments, pods := &appsv1.DeploymentList{}, &corev1.PodList{}
		if err := server.List(ctx, deployments, client.InNamespace(namespace)); err != nil {
			return "", err
		}
		if err := server.List(ctx, pods, client.InNamespace(namespace)); err != nil {
			return "", err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			if err := server.Status().Update(ctx, pod); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
				return "", err
			}
		}
		for _, d := range deployments.Items {
			if d.Status.AvailableReplicas < *d.Spec.Replicas {
				return fmt.Sprintf("%d of %d Pods of %s are available", d.Status.AvailableReplicas, *d.Spec.Replicas, d.Name), nil
			}
		}
		return map[bool]string{true: "no Deployment"}[len(deployments.Items) == 0], nil
	})
}

func environment(c corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

func create(t *testing.T, server client.Client, o client.Object) {
	t.Helper()
	if err := server.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
