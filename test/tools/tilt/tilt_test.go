// SPDX-License-Identifier: Apache-2.0

// Package tilt runs the real Tilt on the Tiltfiles that use Drover, ours and Cluster API's, and
// checks what it would build and apply. Tilt changes nothing, so it needs neither Docker nor a
// cluster. This package holds only tests.
package tilt

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const image = "ghcr.io/drover-io/drover"

// resource is a Tilt resource, as "tilt alpha tiltfile-result" prints it.
type resource struct {
	Name         string
	ImageTargets []struct {
		Selector     string
		BuildDetails struct{ Context string }
	}
	DeployTarget struct {
		YAML          string
		UpdateCmdSpec struct {
			Args []string
			Dir  string
		}
		Deps []string
	}
	ResourceDependencies []string
}

// resources holds the resources of a Tiltfile by name.
type resources map[string]resource

// TestOurs tests that the images contain the built programs, that the Deployments use these images,
// and that the manager knows the cloud's address.
func TestOurs(t *testing.T) {
	all := evaluate(t, filepath.Join(root(t), "Tiltfile"), "")
	reloadRules(t, all.get(t, "build manager").DeployTarget.Deps)
	for name, resource := range map[string]string{"manager": "drover-controller-manager", "simulated-cloud": "simulated-cloud"} {
		applied, built := all.get(t, resource), all.get(t, "build "+name).DeployTarget.UpdateCmdSpec
		if len(applied.ImageTargets) != 1 {
			t.Fatalf("%s: Tilt finds %d of its images in the Deployment", name, len(applied.ImageTargets))
		}
		folder, err := filepath.Rel(built.Dir, applied.ImageTargets[0].BuildDetails.Context)
		if cmd := strings.Join(built.Args, " "); err != nil || !strings.Contains(cmd, "-o "+folder+"/program ") {
			t.Errorf("%s: the image is made of %s, and the program by %q: %v", name, folder, cmd, err)
		}
		if after := applied.ResourceDependencies; !slices.Equal(after, []string{"build " + name}) {
			t.Errorf("%s: it is applied after %q", name, after)
		}
	}
	var cloud corev1.Service
	all.get(t, "simulated-cloud").decode(t, "Service", &cloud)
	var manager appsv1.Deployment
	all.get(t, "drover-controller-manager").decode(t, "Deployment", &manager)
	endpoint := corev1.EnvVar{Name: "DROVER_SIMULATED_ENDPOINT", Value: "http://" + cloud.Name + "." + cloud.Namespace + ":8080"}
	if env := manager.Spec.Template.Spec.Containers[0].Env; !slices.Contains(env, endpoint) {
		t.Errorf("the manager is not told where the cloud is: %v", env)
	}
}

// TestClusterAPIs tests that the Tiltfile of the Cluster API version that Drover requires accepts
// tilt-provider.json, with the settings from CONTRIBUTING.md.
func TestClusterAPIs(t *testing.T) {
	all := evaluate(t, clusterAPI(t), stand(t, map[string]string{"docker": "echo Docker Engine", "kubectl": "exit 1"}))
	built := all.get(t, "drover_binary").DeployTarget
	if cmd := strings.Join(built.UpdateCmdSpec.Args, " "); !strings.Contains(cmd, "cd "+root(t)+";") ||
		!strings.HasSuffix(cmd, "-o .tiltbuild/bin/manager .") {
		t.Errorf("the manager is built by %q", cmd)
	}
	reloadRules(t, built.Deps)
	manager := all.get(t, "drover_controller")
	if n := len(manager.ImageTargets); n != 1 || manager.ImageTargets[0].Selector != image {
		t.Errorf("Tilt finds %d of its images in the Deployment, want %s", n, image)
	}
	flavors, err := filepath.Glob(filepath.Join(root(t), "templates", "cluster-template-*.yaml"))
	if err != nil || len(flavors) == 0 {
		t.Fatalf("no flavors are found: %v", err)
	}
	all.get(t, "default")
	all.get(t, "drover-adopted.clusterclass")
	for _, file := range flavors {
		all.get(t, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "cluster-template-"), ".yaml"))
	}
}

// clusterAPI writes Cluster API's Tiltfile and the files that its tilt-prepare would create, and
// returns a Tiltfile that includes it. The extensions that Tilt would download for its buttons are
// empty.
func clusterAPI(t *testing.T) string {
	t.Helper()
	source := strings.TrimSpace(string(run(t, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api")))
	dir := t.TempDir()
	kustomize := strings.TrimSpace(string(run(t, "hack/tool", "kustomize")))
	provider := func(name, namespace, folder string) string {
		return string(run(t, kustomize, "build", folder)) +
			"---\napiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Provider\nmetadata: {name: " + name + ", namespace: " + namespace + "}\n"
	}
	for name, content := range map[string]string{
		"Tiltfile": "v1alpha1.extension_repo(name = 'default', url = 'file://" + dir + "/extensions')\ninclude('capi/Tiltfile')\n",
		"extensions/uibutton/Tiltfile": "def cmd_button(*args, **kwargs):\n    pass\n" +
			"def text_input(*args, **kwargs):\n    pass\n" + "location = None\n",
		"capi/Tiltfile":                             read(t, filepath.Join(source, "Tiltfile")),
		"capi/tilt-settings.yaml":                   settings(t),
		"capi/Makefile":                             "tilt-prepare:\n",
		"capi/hack/tools/bin/tilt-prepare":          "#!/bin/sh\n",
		"capi/.tiltbuild/yaml/clusterctl.crd.yaml":  read(t, filepath.Join(source, "cmd/clusterctl/config/manifest/clusterctl-api.yaml")),
		"capi/.tiltbuild/yaml/core.provider.yaml":   provider("cluster-api", "capi-system", filepath.Join(source, "core/config/default")),
		"capi/.tiltbuild/yaml/drover.provider.yaml": provider("infrastructure-drover", "drover-system", "config/default"),
	} {
		write(t, filepath.Join(dir, name), content)
	}
	return filepath.Join(dir, "Tiltfile")
}

// settings returns the settings from CONTRIBUTING.md, with local paths.
func settings(t *testing.T) string {
	t.Helper()
	block := regexp.MustCompile("(?s)`tilt-settings.yaml`:\n\n```yaml\n(.*?)```").FindStringSubmatch(read(t,
		filepath.Join(root(t), "CONTRIBUTING.md")))
	if block == nil {
		t.Fatal("CONTRIBUTING.md has no tilt-settings.yaml")
	}
	return strings.ReplaceAll(block[1], "../drover", root(t))
}

// stand creates programs from shell scripts, to replace those that the computer lacks, and returns
// their folder.
func stand(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		write(t, filepath.Join(dir, name), "#!/bin/sh\n"+script+"\n")
	}
	return dir
}

// evaluate makes Tilt run a Tiltfile, with the given folder first in PATH.
func evaluate(t *testing.T, file, programs string) resources {
	t.Helper()
	tilt := strings.TrimSpace(string(run(t, "hack/tool", "tilt")))
	var answer struct{ Manifests []resource }
	out := run(t, "env", "PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+os.DevNull,
		"TILT_DEV_DIR="+t.TempDir(), "DO_NOT_TRACK=1",
		tilt, "alpha", "tiltfile-result", "-f", file)
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("Tilt's answer can't be read: %v", err)
	}
	all := resources{}
	for _, r := range answer.Manifests {
		all[r.Name] = r
	}
	return all
}

func (all resources) get(t *testing.T, name string) resource {
	t.Helper()
	r, ok := all[name]
	if !ok {
		t.Fatalf("Tilt has no resource %q", name)
	}
	return r
}

// decode decodes the applied object of the given kind.
func (r resource) decode(t *testing.T, kind string, into any) {
	t.Helper()
	for _, doc := range strings.Split(r.DeployTarget.YAML, "\n---\n") {
		if strings.Contains("\n"+doc, "\nkind: "+kind+"\n") {
			if err := yaml.Unmarshal([]byte(doc), into); err != nil {
				t.Fatalf("%s: the %s can't be read: %v", r.Name, kind, err)
			}
			return
		}
	}
	t.Fatalf("%s: no %s is applied", r.Name, kind)
}

// reloadRules checks that the manager is rebuilt when any of its source files changes, and not for
// any other file of ours.
func reloadRules(t *testing.T, deps []string) {
	t.Helper()
	const each = `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`
	made := append(strings.Fields(string(run(t, "go", "list", "-deps", "-f", each, "."))), filepath.Join(root(t), "go.mod"),
		filepath.Join(root(t), "go.sum"))
	within := func(file, dep string) bool { return file == dep || strings.HasPrefix(file, dep+"/") }
	for _, file := range made {
		if !slices.ContainsFunc(deps, func(dep string) bool { return within(file, dep) }) {
			t.Errorf("tilt-provider.json has no live_reload_deps for %s", file)
		}
	}
	for _, dep := range deps {
		if !slices.ContainsFunc(made, func(file string) bool { return within(file, dep) }) {
			t.Errorf("tilt-provider.json has %s among its live_reload_deps, of which the manager has nothing", dep)
		}
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a program in the project's folder.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr strings.Builder
	cmd.Dir, cmd.Stderr = root(t), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// write writes an executable file.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}
