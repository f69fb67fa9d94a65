// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// published is where the page expects the releases, and folders are the ones that it has instead.
const published = "https://github.com/drover-io/drover/releases"

var folders = strings.NewReplacer(published+"/latest", "RELEASES/latest", published+"/download", "RELEASES",
	"/path/to/drover/out/release/infrastructure-drover", "RELEASES", "/srv/capi/infrastructure-drover", "RELEASES")

// installBlock returns the only block of docs/install.md in a language that contains a text. The
// folder with the releases takes the place of those that the page names.
func installBlock(t *testing.T, language, contains, releases string) string {
	t.Helper()
	return strings.ReplaceAll(folders.Replace(pageBlock(t, "docs/install.md", language, contains)), "RELEASES", releases)
}

// pageBlock returns the only block of a page in a language that contains a text.
func pageBlock(t *testing.T, page, language, contains string) string {
	t.Helper()
	found := slices.DeleteFunc(pageBlocks(string(read(t, root(t)+"/"+page)), language),
		func(block string) bool { return !strings.Contains(block, contains) })
	if len(found) != 1 {
		t.Fatalf("%s has %d blocks of %s with %q", page, len(found), language, contains)
	}
	return found[0]
}

// pageBlocks returns the blocks of a text in a language.
func pageBlocks(text, language string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?ms)^ *```"+language+"\n(.*?)^ *```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// shell runs commands of a page in a folder as a user would: kubectl and clusterctl are in PATH,
// and clusterctl's configuration is where it looks for it.
func (c clusterctl) shell(t *testing.T, folder, commands string) string {
	t.Helper()
	kubectl := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "kubectl")))
	home := filepath.Dir(c.config)
	own := filepath.Join(home, ".config/cluster-api")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own+"/clusterctl.yaml", read(t, c.config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = folder
	cmd.Env = slices.Concat(os.Environ(), c.env, []string{
		"XDG_CONFIG_HOME=" + home + "/.config", "PATH=" + filepath.Dir(kubectl) + ":" + filepath.Dir(c.path) + ":" + os.Getenv("PATH"),
	})
	said, err := cmd.CombinedOutput()
	t.Logf("%s\n%s", commands, said)
	if err != nil {
		t.Fatalf("%v: %s", err, commands)
	}
	return string(said)
}

// TestReleaseFiles tests the files of a release that clusterctl does not read.
func TestReleaseFiles(t *testing.T) {
	folder, config := release(t), root(t)+"/config/prometheus/"

	t.Run("the dashboard is what Grafana's sidecar looks for", func(t *testing.T) {
		maps := only[corev1.ConfigMap](t, objects(t, read(t, folder+"/grafana-dashboard.yaml")), "ConfigMap")
		if len(maps) != 1 || maps[0].Name != "drover-dashboard" || maps[0].Namespace != namespace || maps[0].Labels["grafana_dashboard"] != "1" ||
			maps[0].Data["drover.json"] != string(read(t, config+"dashboard.json")) {
			t.Errorf("the ConfigMaps are %+v", maps)
		}
	})
	t.Run("an alert leads to the runbook of its version", func(t *testing.T) {
		rules := regexp.MustCompile(`(?m)^ *- alert: `)
		for _, file := range []string{"alerts.yaml", "prometheus-operator.yaml"} {
			text := string(read(t, filepath.Join(folder, file)))
			alerts, runbooks := len(rules.FindAllString(text, -1)), strings.Count(text, "/blob/"+version+"/docs/monitoring.md#")
			if strings.Contains(text, "/blob/main/") || alerts == 0 || runbooks != alerts {
				t.Errorf("%s has %d alerts, and %d runbooks of %s", file, alerts, runbooks, version)
			}
		}
	})
	t.Run("kube-state-metrics", func(t *testing.T) {
		if string(read(t, folder+"/kube-state-metrics.yaml")) != string(read(t, config+"kube-state-metrics.yaml")) {
			t.Error("its configuration is not that of config/prometheus")
		}
	})
}

// defaults tests that infrastructure-components-default.yaml is what clusterctl applies if nobody
// sets a variable. What clusterctl has decoded has empty fields more, and a namespace on kinds that
// it does not know to be global, which the API server drops.
func defaults(t *testing.T, ctl clusterctl, folder string) {
	clean := func(data []byte) map[string]any {
		all := map[string]any{}
		for _, o := range objects(t, data) {
			if strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") {
				o.SetNamespace("")
			}
			delete(o.Object, "status")
			all[o.GetKind()+" "+o.GetName()] = withoutEmpty(o.Object)
		}
		return all
	}
	got := clean(read(t, folder+"/infrastructure-components-default.yaml"))
	want := clean(ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version))
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s is\n%v\nclusterctl applies\n%v", name, got[name], want[name])
		}
	}
	if len(got) != len(want) || len(got) == 0 {
		t.Errorf("there are %d objects, clusterctl applies %d", len(got), len(want))
	}
	for _, o := range objects(t, read(t, folder+"/infrastructure-components-default.yaml")) {
		if _, ok := o.GetLabels()["clusterctl.cluster.x-k8s.io"]; !ok {
			t.Errorf("%s %s lacks the label by which \"clusterctl move\" finds kinds", o.GetKind(), o.GetName())
		}
	}
}

// withoutEmpty returns a value without its fields that are empty.
func withoutEmpty(value any) any {
	switch v := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		for key, field := range v {
			if field = withoutEmpty(field); field != nil {
				kept[key] = field
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i := range v {
			kept[i] = withoutEmpty(v[i])
		}
		if len(kept) == 0 {
			return nil
		}
		return kept
	case string:
		if v == "" {
			return nil
		}
	}
	return value
}

// TestInstallPage tests the configurations of docs/install.md for clusterctl, and its kustomization,
// by itself and as clusterctl's override.
func TestInstallPage(t *testing.T) {
	page := string(read(t, root(t)+"/docs/install.md"))
	if !strings.Contains(page, version+" is a candidate") {
		t.Errorf("the page is about another release than %s", version)
	}
	repository := t.TempDir()
	folder := releaseInto(t, repository, version)
	releases := filepath.Join(repository, providerName)

	t.Run("clusterctl's configurations", func(t *testing.T) {
		for marker, image := range map[string]string{
			published + "/latest": image, "out/release": image, "externallyProvisioned": "images.example.com/capi/drover:" + version,
		} {
			ctl := newClusterctlFor(t, folder)
			if err := os.WriteFile(ctl.config, []byte(installBlock(t, "yaml", marker, releases)), 0o600); err != nil {
				t.Fatal(err)
			}
			all := objects(t, ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version))
			if got := managerOf(t, all).Image; got != image {
				t.Errorf("with the configuration that has %s, the image is %s", marker, got)
			}
		}
	})

	// kustomize reads files below its own folder alone.
	kustomization := func(t *testing.T, components string) string {
		work := t.TempDir()
		text := strings.ReplaceAll(installBlock(t, "yaml", "kind: Kustomization", "."), "./"+version+"/infrastructure-components-default.yaml",
			components)
		for name, data := range map[string][]byte{"kustomization.yaml": []byte(text), components: read(t, filepath.Join(folder, components))} {
			if err := os.WriteFile(filepath.Join(work, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return work
	}
	t.Run("the kustomization", func(t *testing.T) {
		const file = "infrastructure-components-default.yaml"
		kustomize := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "kustomize")))
		before, after := objects(t, read(t, filepath.Join(folder, file))), objects(t, run(t, nil, kustomize, "build", kustomization(t, file)))
		hasFlags(t, managerOf(t, after))
		if added := len(managerOf(t, after).Args) - len(managerOf(t, before).Args); added != 2 {
			t.Errorf("%d arguments are added", added)
		}
		for i := range before {
			if before[i].GetKind() != "Deployment" && !reflect.DeepEqual(before[i], after[i]) {
				t.Errorf("%s %s is changed", before[i].GetKind(), before[i].GetName())
			}
		}
	})
	t.Run("the kustomization as clusterctl's override", func(t *testing.T) {
		ctl := newClusterctlFor(t, folder)
		ctl.env = append(ctl.env, "DROVER_ALLOW_ENDPOINTS=192.0.2.0/24")
		said := ctl.shell(t, kustomization(t, "infrastructure-components.yaml"),
			installBlock(t, "sh", "overrides=", releases)+"\nclusterctl generate provider --infrastructure drover:"+version+" >provider.yaml\ncat provider.yaml")
		_, manifests, _ := strings.Cut(said, "apiVersion:")
		manager := managerOf(t, objects(t, []byte("apiVersion:"+manifests)))
		hasFlags(t, manager)
		if got := environment(manager, "DROVER_ALLOW_ENDPOINTS"); got != "192.0.2.0/24" {
			t.Errorf("clusterctl's variable became %q", got)
		}
	})
}

// managerOf returns the container of the only Deployment.
func managerOf(t *testing.T, all []*unstructured.Unstructured) corev1.Container {
	t.Helper()
	deployments := only[appsv1.Deployment](t, all, "Deployment")
	if len(deployments) != 1 || len(deployments[0].Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("want one Deployment with one container, got %d Deployments", len(deployments))
	}
	return deployments[0].Spec.Template.Spec.Containers[0]
}

// hasFlags checks that a manager has what the recipes of docs/install.md set, and keeps the flags
// of the release.
func hasFlags(t *testing.T, manager corev1.Container) {
	t.Helper()
	for _, flag := range []string{"--leader-elect", "--drovermachine-concurrency=100", "--v=4"} {
		if !slices.Contains(manager.Args, flag) {
			t.Errorf("%s is not among %q", flag, manager.Args)
		}
	}
	known := string(read(t, root(t)+"/docs/flags.md")) // which a test compares with the manager
	for _, flag := range manager.Args {
		if flag, _, _ = strings.Cut(flag, "="); !strings.Contains(known, "`"+flag+" ") && !strings.Contains(known, "`"+flag+"`") {
			t.Errorf("the manager has no flag %s", flag)
		}
	}
	if got := environment(manager, "GOMEMLIMIT"); got != "3686MiB" || manager.Resources.Limits.Memory().String() != "4Gi" ||
		manager.Resources.Requests.Cpu().IsZero() {
		t.Errorf("GOMEMLIMIT is %s, and the resources are %+v", got, manager.Resources)
	}
	if got := environment(manager, "DROVER_DENY_ENDPOINTS"); got != "10.244.0.0/16" {
		t.Errorf("DROVER_DENY_ENDPOINTS is %q", got)
	}
}

// operatorSetsFlags tests that the operator sets the flags of the page, and that they stay.
func operatorSetsFlags(t *testing.T, server client.Client, provider *unstructured.Unstructured, deployment *appsv1.Deployment) {
	patch, err := yaml.YAMLToJSON([]byte(installBlock(t, "yaml", "--drovermachine-concurrency: ", "")))
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Patch(t.Context(), provider, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) (string, error) {
		err := server.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)
		if args := deployment.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--v=4") {
			return fmt.Sprintf("the manager's arguments are %q", args), client.IgnoreNotFound(err)
		}
		return "", err
	})
	hasFlags(t, deployment.Spec.Template.Spec.Containers[0])
}

// keepsKinds tests that the API server refuses to delete a kind of Drover's, one by one and all at
// once, unless it has the annotation, and concerns itself with no other kind. Nothing is deleted.
func keepsKinds(t *testing.T, server client.Client) {
	kinds := &metav1.PartialObjectMetadataList{}
	kinds.SetGroupVersionKind(crdGVK)
	if err := server.List(t.Context(), kinds); err != nil {
		t.Fatal(err)
	}
	remove := func(o *metav1.PartialObjectMetadata) error { return server.Delete(t.Context(), o, client.DryRunAll) }
	owned := 0
	for i := range kinds.Items {
		kind := &kinds.Items[i]
		kind.SetGroupVersionKind(crdGVK)
		if kind.Labels[providerLabel] != providerName {
			if err := remove(kind); err != nil {
				t.Errorf("%s is not Drover's: %v", kind.Name, err)
			}
			continue
		}
		owned++
		until(t, func(context.Context) (string, error) { // a new policy takes effect a moment later
			if err := remove(kind); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "drover.io/allow-deletion=true") {
				return fmt.Sprintf("the deletion of %s is answered with: %v", kind.Name, err), nil
			}
			return "", nil
		})
		if owned > 1 {
			continue
		}
		annotate := func(value string) {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"drover.io/allow-deletion":%s}}}`, value)
			if err := server.Patch(t.Context(), kind, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
				t.Fatal(err)
			}
		}
		annotate(`"false"`)
		if err := remove(kind); !apierrors.IsForbidden(err) {
			t.Errorf("%s has the annotation with another value, and is deleted: %v", kind.Name, err)
		}
		annotate(`"true"`)
		if err := remove(kind); err != nil {
			t.Errorf("%s has the annotation: %v", kind.Name, err)
		}
		annotate("null")
	}
	if owned < 2 {
		t.Errorf("%d kinds are Drover's", owned)
	}
	one := &metav1.PartialObjectMetadata{}
	one.SetGroupVersionKind(crdGVK)
	if err := server.DeleteAllOf(t.Context(), one, client.MatchingLabels{providerLabel: providerName},
		client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("the deletion of all at once is answered with: %v", err)
	}
}
