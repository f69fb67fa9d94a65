// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"path/filepath"
	"strings"
	"testing"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestTiltfile runs our own Tiltfile, with commands done as it says, and looks at what it would have Tilt build and apply: the
// manager's image and the cloud's are those of the Deployments, and the manager knows where the cloud is.
func TestTiltfile(t *testing.T) {
	var calls tiltCalls
	var applied []*unstructured.Unstructured
	env := starlark.StringDict{"TRIGGER_MODE_AUTO": starlark.String("auto"), "TRIGGER_MODE_MANUAL": starlark.String("manual")}
	calls.record(env)
	env["read_file"] = builtin("read_file", func(args []string, _ map[string]string) (any, error) {
		return string(read(t, filepath.Join(root(t), args[0]))), nil
	})
	env["read_json"] = builtin("read_json", func(args []string, _ map[string]string) (content any, err error) {
		return content, yaml.Unmarshal(read(t, filepath.Join(root(t), args[0])), &content)
	})
	env["local"] = builtin("local", func(args []string, _ map[string]string) (any, error) {
		return string(run(t, nil, "bash", "-euo", "pipefail", "-c", args[0])), nil
	})
	env["blob"] = builtin("blob", func(args []string, _ map[string]string) (any, error) { return args[0], nil })
	env["k8s_yaml"] = builtin("k8s_yaml", func(args []string, _ map[string]string) (any, error) {
		applied = append(applied, objects(t, []byte(args[0]))...)
		return nil, nil
	})
	thread := &starlark.Thread{Print: func(_ *starlark.Thread, s string) { t.Log(s) }}
	if _, err := starlark.ExecFileOptions(&syntax.FileOptions{}, thread, filepath.Join(root(t), "Tiltfile"), nil, env); err != nil {
		t.Fatal(err)
	}

	reloadRules(t, absolute(t, calls.call(t, "local_resource", "name", "build manager")["deps"]))
	deployments := only[appsv1.Deployment](t, applied, "Deployment")
	if len(deployments) != 2 {
		t.Fatalf("%d Deployments are applied, want the manager's and the cloud's", len(deployments))
	}
	for i, name := range []string{"manager", "simulated-cloud"} {
		d := deployments[i]
		ref, _, _ := strings.Cut(d.Spec.Template.Spec.Containers[0].Image, ":")
		folder := calls.call(t, "docker_build", "ref", ref)["context"]
		if cmd := calls.call(t, "local_resource", "name", "build "+name)["cmd"]; !strings.Contains(cmd, "-o "+folder+"/drover ") {
			t.Errorf("%s: the image is made of %s, and the program by %q", name, folder, cmd)
		}
		if after := calls.call(t, "k8s_resource", "workload", d.Name)["resource_deps"]; after != "build "+name {
			t.Errorf("%s: %s waits for %q", name, d.Name, after)
		}
	}
	known := deployments[0].Spec.Template.Spec.Containers[0].Env
	found := false
	for _, e := range known {
		found = found || e.Name == "DROVER_SIMULATED_ENDPOINT" && e.Value == "http://"+deployments[1].Name+"."+deployments[1].Namespace+":8080"
	}
	if !found {
		t.Errorf("the manager is not told where the cloud is: %v", known)
	}
}

// absolute makes paths below the project's folder absolute.
func absolute(t *testing.T, paths string) string {
	words := strings.Fields(paths)
	for i, word := range words {
		words[i] = filepath.Join(root(t), word)
	}
	return strings.Join(words, " ")
}
