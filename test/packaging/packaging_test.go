// SPDX-License-Identifier: Apache-2.0

// Package packaging tests the contents of a release: the manifests that kustomize and clusterctl
// build from config and templates. Most tests only read files and run those programs.
package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/internal/test/playground"
)

const (
	version       = playground.Version
	nextVersion   = "v0.1.0"
	image         = "registry.example/drover:" + version
	namespace     = "drover-system"
	providerLabel = "cluster.x-k8s.io/provider"
	providerName  = "infrastructure-drover"
)

// release writes a release into a new folder and returns the folder of its only version.
func release(t *testing.T) string {
	t.Helper()
	return releaseInto(t, t.TempDir(), version)
}

// releaseInto adds a release to a repository and returns its folder.
func releaseInto(t *testing.T, repository, version string) string {
	t.Helper()
	run(t, []string{"VERSION=" + version, "IMAGE=" + strings.ReplaceAll(image, playground.Version, version)},
		root(t)+"/hack/release-manifests", repository)
	return filepath.Join(repository, providerName, version)
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a program in the repository's root, with env added to the environment of this process,
// and returns its output.
func run(t *testing.T, env []string, name string, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = root(t), append(os.Environ(), env...), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, stderr.Bytes())
	}
	return stdout.Bytes()
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// objects parses a file with multiple YAML documents.
func objects(t *testing.T, data []byte) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, doc := range strings.Split("\n"+string(data), "\n---") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// only returns the objects of one kind, converted to T.
func only[T any](t *testing.T, all []*unstructured.Unstructured, kind string) []T {
	t.Helper()
	var found []T
	for _, o := range all {
		if o.GetKind() != kind {
			continue
		}
		var v T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &v, true); err != nil {
			t.Fatalf("%s %s: %v", kind, o.GetName(), err)
		}
		found = append(found, v)
	}
	return found
}

func TestComponents(t *testing.T) {
	all := objects(t, read(t, release(t)+"/infrastructure-components.yaml"))

	t.Run("what clusterctl demands", func(t *testing.T) { clusterctlRules(t, all) })
	t.Run("CRDs", func(t *testing.T) {
		crdRules(t, only[apiextensionsv1.CustomResourceDefinition](t, all, "CustomResourceDefinition"))
	})
	t.Run("Deployment", func(t *testing.T) { deploymentRules(t, all) })
	t.Run("roles", func(t *testing.T) { roleRules(t, all) })
	t.Run("webhooks", func(t *testing.T) { webhookRules(t, all) })
}

// clusterctlRules checks the rules of "clusterctl provider contract" in Cluster API's book.
func clusterctlRules(t *testing.T, all []*unstructured.Unstructured) {
	if n := only[corev1.Namespace](t, all, "Namespace"); len(n) != 1 || n[0].Name != namespace {
		t.Errorf("want the Namespace %s alone, got %d", namespace, len(n))
	}
	clusterScoped := []string{"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass",
		"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
	for _, o := range all {
		// clusterctl takes these for namespaced kinds; the API server drops the namespace.
		if strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") && o.GetNamespace() != "" {
			o.SetNamespace("")
		}
		if o.GetLabels()[providerLabel] != providerName {
			t.Errorf("%s %s lacks the label %s=%s", o.GetKind(), o.GetName(), providerLabel, providerName)
		}
		if want := map[bool]string{false: namespace}[slices.Contains(clusterScoped, o.GetKind())]; o.GetNamespace() != want {
			t.Errorf("%s %s is in namespace %q, want %q", o.GetKind(), o.GetName(), o.GetNamespace(), want)
		}
		if !strings.HasPrefix(o.GetName(), "drover-") && o.GetKind() != "CustomResourceDefinition" {
			t.Errorf("%s %s: its name does not begin with drover-", o.GetKind(), o.GetName())
		}
	}
}

func crdRules(t *testing.T, crds []apiextensionsv1.CustomResourceDefinition) {
	bases, err := filepath.Glob(root(t) + "/config/crd/bases/*.yaml")
	if err != nil || len(crds) != len(bases) || len(crds) == 0 {
		t.Errorf("%d CRDs are installed, %d are in config/crd/bases (%v)", len(crds), len(bases), err)
	}
	for _, crd := range crds {
		if want := contract.CalculateCRDName(crd.Spec.Group, crd.Spec.Names.Kind); crd.Name != want {
			t.Errorf("%s: Cluster API looks for %s", crd.Name, want)
		}
		if want := strings.ToLower(crd.Spec.Names.Kind) + "s"; crd.Spec.Names.Plural != want {
			t.Errorf("%s: the cluster-autoscaler looks for %s", crd.Name, want)
		}
		if !slices.Contains(crd.Spec.Names.Categories, "cluster-api") {
			t.Errorf("%s is not in the category cluster-api", crd.Name)
		}
		served := map[string]bool{}
		for _, v := range crd.Spec.Versions {
			served[v.Name] = v.Served
		}
		for _, v := range strings.Split(crd.Labels["cluster.x-k8s.io/v1beta2"], "_") {
			if !served[v] {
				t.Errorf("%s: the label of contract v1beta2 names version %q, which is not served", crd.Name, v)
			}
		}
		if _, ok := crd.Labels["cluster.x-k8s.io/v1beta1"]; ok {
			t.Errorf("%s claims the contract v1beta1", crd.Name)
		}
	}
}

func deploymentRules(t *testing.T, all []*unstructured.Unstructured) {
	deployments := only[appsv1.Deployment](t, all, "Deployment")
	if len(deployments) != 1 || len(deployments[0].Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("want one Deployment with one container, got %d Deployments", len(deployments))
	}
	d := deployments[0]
	if d.Spec.Replicas == nil || *d.Spec.Replicas != 2 {
		t.Errorf("want 2 replicas, got %v", d.Spec.Replicas)
	}
	pod := d.Spec.Template.Spec
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security context is not restricted: %+v", s)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Error("the pod shares the host's namespaces")
	}
	classes := only[schedulingv1.PriorityClass](t, all, "PriorityClass")
	if len(classes) != 1 || classes[0].Name != pod.PriorityClassName || classes[0].GlobalDefault {
		t.Errorf("the pod has the priority class %q, and these are installed: %+v", pod.PriorityClassName, classes)
	}
	c := pod.Containers[0]
	if c.Name != "manager" || c.Image != image {
		t.Errorf("the container is %q with image %q, want manager with %s", c.Name, c.Image, image)
	}
	if s := c.SecurityContext; s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
		s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
		t.Errorf("the container's security context is not restricted: %+v", s)
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
		t.Error("the container requests no CPU or no memory")
	}
	if c.LivenessProbe == nil || c.ReadinessProbe == nil || c.LivenessProbe.HTTPGet.Path != "/healthz" ||
		c.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Error("the container's probes are not /healthz and /readyz")
	}
	if !slices.Contains(c.Args, "--leader-elect") {
		t.Error("two replicas run without --leader-elect")
	}
}

func roleRules(t *testing.T, all []*unstructured.Unstructured) {
	granted := map[string][]string{} // role → group/resource
	check := func(name string, rules []rbacv1.PolicyRule) {
		if len(rules) == 0 {
			t.Errorf("%s is empty", name)
		}
		for _, r := range rules {
			for _, what := range slices.Concat(r.APIGroups, r.Resources, r.Verbs, r.NonResourceURLs) {
				if strings.Contains(what, "*") || slices.Contains([]string{"escalate", "bind", "impersonate"}, what) {
					t.Errorf("%s: %q gives too much: %v", name, what, r)
				}
			}
			for _, g := range r.APIGroups {
				for _, res := range r.Resources {
					granted[name] = append(granted[name], res+"."+g)
				}
			}
		}
	}
	for _, r := range only[rbacv1.ClusterRole](t, all, "ClusterRole") {
		check(r.Name, r.Rules)
	}
	for _, r := range only[rbacv1.Role](t, all, "Role") {
		check(r.Name, r.Rules)
	}
	manager := rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: "drover-manager"}
	// The subject is a User, because clusterctl would move a ServiceAccount to the provider's
	// namespace.
	kubeadm := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User",
		Name: "system:serviceaccount:capi-kubeadm-bootstrap-system:capi-kubeadm-bootstrap-manager"}
	whose := map[string]rbacv1.Subject{"drover-manager": manager, "drover-metrics-auth": manager, "drover-kubeadm-bootstrap": kubeadm}
	for _, b := range only[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding") {
		if subject, known := whose[b.RoleRef.Name]; !known || !slices.Equal(b.Subjects, []rbacv1.Subject{subject}) {
			t.Errorf("%s binds %s to %v; want %v", b.Name, b.RoleRef.Name, b.Subjects, subject)
		}
	}
	if foreign := granted["drover-kubeadm-bootstrap"]; !slices.Equal(foreign, []string{"adoptedcontrolplanes.controlplane.cluster.x-k8s.io"}) {
		t.Errorf("Cluster API's kubeadm provider may reach %v", foreign)
	}
	for _, crd := range only[apiextensionsv1.CustomResourceDefinition](t, all, "CustomResourceDefinition") {
		roles := []string{"drover-view", "drover-edit"}
		if s := crd.Spec.Versions[0].Subresources; s != nil && s.Status != nil { // a kind with a status has a controller
			roles = append(roles, "drover-manager")
		}
		if crd.Spec.Names.Kind != "DroverAccount" { // Cluster API's core does not need it
			roles = append(roles, "drover-capi-core")
		}
		for _, role := range roles {
			if !slices.Contains(granted[role], crd.Name) {
				t.Errorf("%s says nothing of %s", role, crd.Name)
			}
		}
	}
	for _, role := range []string{"drover-view", "drover-edit"} {
		if slices.Contains(granted[role], "secrets.") {
			t.Errorf("%s gives a right to Secrets", role)
		}
	}
}

func webhookRules(t *testing.T, all []*unstructured.Unstructured) {
	seen := 0
	for _, o := range all {
		if !strings.HasSuffix(o.GetKind(), "WebhookConfiguration") {
			continue
		}
		if got := o.GetAnnotations()["cert-manager.io/inject-ca-from"]; got != namespace+"/drover-serving-cert" {
			t.Errorf("%s: inject-ca-from is %q", o.GetName(), got)
		}
		hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
		for _, h := range hooks {
			seen++
			service, _, _ := unstructured.NestedStringMap(h.(map[string]any), "clientConfig", "service")
			if service["name"] != "drover-webhook-service" || service["namespace"] != namespace {
				t.Errorf("%s calls %v", o.GetName(), service)
			}
		}
	}
	if seen == 0 {
		t.Error("there is no webhook")
	}
}
