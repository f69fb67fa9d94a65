// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	starlarkjson "go.starlark.net/lib/json"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
	"go.starlark.net/syntax"
	"sigs.k8s.io/yaml"
)

// TestTilt runs Cluster API's own Tiltfile with the settings that CONTRIBUTING.md names, and looks at what it would have Tilt
// do for Drover. Tilt itself is not here: its functions write down how they are called.
func TestTilt(t *testing.T) {
	tilt := runTiltfile(t, map[string]any{
		"default_registry": "localhost:5000",
		"provider_repos":   []any{root(t)},
		"enable_providers": []any{"drover"},
		"template_dirs":    map[string]any{"drover": []any{root(t) + "/templates"}},
	})

	binary := tilt.call(t, "local_resource", "name", "drover_binary")
	if cmd := binary["cmd"]; !strings.HasPrefix(cmd, "cd "+root(t)+";") || !strings.HasSuffix(cmd, "-o .tiltbuild/bin/manager .") {
		t.Errorf("the manager is built by %q", cmd)
	}
	reloadRules(t, binary["deps"])

	name, _, _ := strings.Cut(strings.TrimSpace(string(run(t, nil, "sed", "-n", `s/^  newName: //p`, "config/default/kustomization.yaml"))), ":")
	tilt.call(t, "docker_build", "ref", name) // else Tilt would not put its image into the Deployment
	tilt.call(t, "k8s_resource", "workload", "drover-controller-manager")

	for _, flavor := range flavors() {
		if flavor == "" {
			flavor = "default"
		}
		tilt.call(t, "local_resource", "name", flavor)
	}
	tilt.call(t, "local_resource", "name", "drover-adopted.clusterclass")
}

// reloadRules: the manager is built anew when any file changes that it is made of, and when nothing else does that is ours.
func reloadRules(t *testing.T, deps string) {
	t.Helper()
	var watched []string
	for _, dep := range strings.Fields(deps) {
		path, err := filepath.Rel(root(t), dep)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dep); err != nil {
			t.Errorf("Tilt watches %s, which is not there", path)
		}
		watched = append(watched, path)
	}
	made := []string{"go.mod", "go.sum"}
	const each = `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`
	for _, file := range strings.Fields(string(run(t, nil, "go", "list", "-deps", "-f", each, "."))) {
		path, err := filepath.Rel(root(t), file)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, path)
	}
	within := func(file, dep string) bool { return file == dep || strings.HasPrefix(file, dep+"/") }
	for _, file := range made {
		if !slices.ContainsFunc(watched, func(dep string) bool { return within(file, dep) }) {
			t.Errorf("tilt-provider.json has no live_reload_deps for %s", file)
		}
	}
	for _, dep := range watched {
		if !slices.ContainsFunc(made, func(file string) bool { return within(file, dep) }) {
			t.Errorf("tilt-provider.json has %s among its live_reload_deps, of which the manager has nothing", dep)
		}
	}
}

// tiltCalls are the calls of Tilt's functions, in order: the name under "", and arguments by name.
type tiltCalls []map[string]string

// call returns the one call of a function whose argument has a value.
func (c tiltCalls) call(t *testing.T, function, argument, value string) map[string]string {
	t.Helper()
	var found []map[string]string
	for _, one := range c {
		if one[""] == function && one[argument] == value {
			found = append(found, one)
		}
	}
	if len(found) != 1 {
		t.Fatalf("Tilt's %s is called %d times with %s = %q", function, len(found), argument, value)
	}
	return found[0]
}

// recorded are the functions whose calls are written down, with the names of those arguments that Tiltfiles give by position.
var recorded = map[string][]string{"local_resource": {"name"}, "docker_build": {"ref", "context"}, "k8s_resource": {"workload"}}

// record has the calls of those functions written down.
func (c *tiltCalls) record(env starlark.StringDict) {
	for name, positional := range recorded {
		env[name] = builtin(name, func(args []string, named map[string]string) (any, error) {
			for i, arg := range args {
				named[positional[i]] = arg
			}
			named[""] = name
			*c = append(*c, named)
			return nil, nil
		})
	}
}

// runTiltfile runs the Tiltfile of the Cluster API that Drover requires.
func runTiltfile(t *testing.T, settings map[string]any) (calls tiltCalls) {
	t.Helper()
	file := filepath.Join(moduleDir(t, ".", "sigs.k8s.io/cluster-api"), "Tiltfile")
	thread := &starlark.Thread{Print: func(_ *starlark.Thread, s string) { t.Log(s) }}
	thread.Load = func(*starlark.Thread, string) (starlark.StringDict, error) {
		return starlark.StringDict{"cmd_button": ignored("cmd_button"), "location": ignored("location"), "text_input": ignored("text_input")}, nil
	}
	env := starlark.StringDict{"TRIGGER_MODE_MANUAL": starlark.String("manual")}
	for _, name := range []string{"version_settings", "allow_k8s_contexts", "trigger_mode", "default_registry", "include", "k8s_yaml",
		"port_forward", "link", "sync", "run", "custom_build"} {
		env[name] = ignored(name)
	}
	calls.record(env)
	env["fail"] = builtin("fail", func(args []string, _ map[string]string) (any, error) { return nil, fmt.Errorf("%v", args) })
	env["local"] = builtin("local", func(args []string, _ map[string]string) (any, error) {
		return map[string]string{"go env GOOS": runtime.GOOS, "go env GOARCH": runtime.GOARCH, "command -v kubectl || true": "/bin/kubectl"}[args[0]], nil
	})
	env["listdir"] = builtin("listdir", func(args []string, _ map[string]string) (any, error) {
		files, err := filepath.Glob(args[0] + "/*")
		return append([]string{}, files...), err
	})
	env["read_yaml"] = builtin("read_yaml", func(args []string, _ map[string]string) (any, error) {
		if !filepath.IsAbs(args[0]) {
			return settings, nil
		}
		var content any
		return content, yaml.Unmarshal(read(t, args[0]), &content)
	})
	components := tiltComponents(t)
	env["read_file"] = builtin("read_file", func(args []string, _ map[string]string) (any, error) {
		if filepath.Base(args[0]) == "drover.provider.yaml" {
			return components, nil
		}
		return "", nil // those of Cluster API's own providers, and the kinds of clusterctl
	})
	env["decode_yaml_stream"] = builtin("decode_yaml_stream", func(args []string, _ map[string]string) (any, error) {
		all := []any{}
		for _, o := range objects(t, []byte(args[0])) {
			all = append(all, o.Object)
		}
		return all, nil
	})
	env["os"] = module("os", starlark.StringDict{
		"getenv": builtin("getenv", func(args []string, _ map[string]string) (any, error) { return args[len(args)-1], nil }),
		"putenv": ignored("putenv"),
		"path": module("path", starlark.StringDict{
			"exists": builtin("exists", func(args []string, _ map[string]string) (any, error) {
				_, err := os.Stat(args[0])
				return err == nil, nil
			}),
			"basename": builtin("basename", func(args []string, _ map[string]string) (any, error) { return filepath.Base(args[0]), nil }),
		}),
	})
	env["shlex"] = module("shlex", starlark.StringDict{
		"quote": builtin("quote", func(args []string, _ map[string]string) (any, error) { return args[0], nil }),
	})
	dialect := &syntax.FileOptions{Set: true, TopLevelControl: true, GlobalReassign: true}
	if _, err := starlark.ExecFileOptions(dialect, thread, file, nil, env); err != nil {
		t.Fatal(err)
	}
	return calls
}

// tiltComponents is what Cluster API's tilt-prepare writes for a provider: its kustomize folder, and an object for clusterctl.
func tiltComponents(t *testing.T) string {
	t.Helper()
	kustomize := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "kustomize")))
	return string(run(t, nil, kustomize, "build", "config/default")) +
		"---\napiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Provider\nmetadata: {name: infrastructure-drover, namespace: drover-system}\n"
}

func module(name string, members starlark.StringDict) *starlarkstruct.Module {
	return &starlarkstruct.Module{Name: name, Members: members}
}

func ignored(name string) *starlark.Builtin {
	return builtin(name, func([]string, map[string]string) (any, error) { return nil, nil })
}

// builtin makes a function for the Tiltfile out of one that takes strings, lists among them joined, and returns what JSON has.
func builtin(name string, do func(args []string, named map[string]string) (any, error)) *starlark.Builtin {
	return starlark.NewBuiltin(name, func(thread *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		var plain []string
		for _, arg := range args {
			plain = append(plain, text(arg))
		}
		named := map[string]string{}
		for _, pair := range kwargs {
			named[text(pair[0])] = text(pair[1])
		}
		result, err := do(plain, named)
		if err != nil {
			return nil, err
		}
		data, err := yaml.Marshal(result)
		if err == nil {
			data, err = yaml.YAMLToJSON(data)
		}
		if err != nil {
			return nil, err
		}
		return starlark.Call(thread, starlarkjson.Module.Members["decode"], starlark.Tuple{starlark.String(data)}, nil)
	})
}

func text(v starlark.Value) string {
	if s, ok := starlark.AsString(v); ok {
		return s
	}
	list, ok := v.(*starlark.List)
	if !ok {
		return v.String()
	}
	var words []string
	for i := range list.Len() {
		words = append(words, text(list.Index(i)))
	}
	return strings.Join(words, " ")
}
