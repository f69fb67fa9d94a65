// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// stateConfig has the fields of kube-state-metrics' configuration that ours uses. Unknown fields
// are refused.
type stateConfig struct {
	Kind string `json:"kind"`
	Spec struct {
		Resources []struct {
			GroupVersionKind struct {
				Group   string `json:"group"`
				Version string `json:"version"`
				Kind    string `json:"kind"`
			} `json:"groupVersionKind"`
			MetricNamePrefix string              `json:"metricNamePrefix"`
			LabelsFromPath   map[string][]string `json:"labelsFromPath"`
			Metrics          []stateMetric       `json:"metrics"`
		} `json:"resources"`
	} `json:"spec"`
}

type stateMetric struct {
	Name string `json:"name"`
	Help string `json:"help"`
	Each struct {
		Type     string     `json:"type"`
		Gauge    *stateEach `json:"gauge,omitempty"`
		Info     *stateEach `json:"info,omitempty"`
		StateSet *stateEach `json:"stateSet,omitempty"`
	} `json:"each"`
}

// each returns the field for the metric's type.
func (m stateMetric) each() *stateEach {
	return map[string]*stateEach{"Gauge": m.Each.Gauge, "Info": m.Each.Info, "StateSet": m.Each.StateSet}[m.Each.Type]
}

type stateEach struct {
	Path           []string            `json:"path,omitempty"`
	LabelsFromPath map[string][]string `json:"labelsFromPath,omitempty"`
	ValueFrom      []string            `json:"valueFrom,omitempty"`
	LabelName      string              `json:"labelName,omitempty"`
	List           []string            `json:"list,omitempty"`
}

// TestStatePaths tests that kube-state-metrics' configuration for our kinds names only fields that
// their CRDs have, with all possible states, and that it covers the conditions of every kind that
// has them.
func TestStatePaths(t *testing.T) {
	var config stateConfig
	if err := yaml.UnmarshalStrict(read(t, "kube-state-metrics.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	if config.Kind != "CustomResourceStateMetrics" {
		t.Errorf("kind is %q", config.Kind)
	}
	crds := readCRDs(t)
	missing := map[string]bool{}
	for kind, schema := range crds {
		if field(schema, "status", "conditions", "status") != nil {
			missing[kind] = true
		}
	}
	for _, r := range config.Spec.Resources {
		gvk := r.GroupVersionKind
		kind := gvk.Group + "/" + gvk.Version + "/" + gvk.Kind
		schema := crds[kind]
		if schema == nil {
			t.Errorf("there is no CRD for %s", kind)
			continue
		}
		must := func(what string, base []string, path ...string) *apiextensionsv1.JSONSchemaProps {
			f := field(schema, append(slices.Clone(base), path...)...)
			if f == nil {
				t.Errorf("%s: %s has no field %s", kind, what, strings.Join(append(slices.Clone(base), path...), "."))
			}
			return f
		}
		for label, path := range r.LabelsFromPath {
			must("label "+label, nil, path...)
		}
		for _, m := range r.Metrics {
			each := m.each()
			if each == nil || m.Help == "" {
				t.Errorf("%s: metric %s has no help, or not what its type %s needs", kind, m.Name, m.Each.Type)
				continue
			}
			for label, path := range each.LabelsFromPath {
				must("label "+label+" of metric "+m.Name, each.Path, path...)
			}
			value := must("metric "+m.Name, each.Path, each.ValueFrom...)
			if m.Each.Type == "StateSet" && value != nil {
				if want := enum(value); !slices.Equal(slices.Sorted(slices.Values(each.List)), want) {
					t.Errorf("%s: metric %s has the states %v, want %v", kind, m.Name, each.List, want)
				}
			}
			if m.Name == "condition" {
				delete(missing, kind)
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("no conditions are shown of %v", slices.Sorted(maps.Keys(missing)))
	}
}

// readCRDs returns the schemas of our kinds' versions, by group/version/kind.
func readCRDs(t *testing.T) map[string]*apiextensionsv1.JSONSchemaProps {
	t.Helper()
	files, err := filepath.Glob("../../../config/crd/bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs (%v)", len(files), err)
	}
	schemas := map[string]*apiextensionsv1.JSONSchemaProps{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, v := range crd.Spec.Versions {
			schemas[fmt.Sprintf("%s/%s/%s", crd.Spec.Group, v.Name, crd.Spec.Names.Kind)] = v.Schema.OpenAPIV3Schema
		}
	}
	return schemas
}

// metadata lists fields that every object has and that CRDs do not describe.
var metadata = []string{"name", "namespace", "creationTimestamp", "deletionTimestamp"}

// field returns a field by its path. It goes through lists as kube-state-metrics does, and returns
// nil if there is no such field.
func field(schema *apiextensionsv1.JSONSchemaProps, path ...string) *apiextensionsv1.JSONSchemaProps {
	if len(path) > 0 && path[0] == "metadata" {
		if len(path) == 3 && path[1] == "labels" || len(path) == 2 && slices.Contains(metadata, path[1]) {
			return &apiextensionsv1.JSONSchemaProps{}
		}
		return nil
	}
	for _, name := range path {
		if schema.Items != nil {
			schema = schema.Items.Schema
		}
		next, ok := schema.Properties[name]
		if !ok {
			return nil
		}
		schema = &next
	}
	return schema
}

// enum returns the allowed values of a field, sorted.
func enum(schema *apiextensionsv1.JSONSchemaProps) []string {
	var values []string
	for _, v := range schema.Enum {
		values = append(values, strings.Trim(string(v.Raw), `"`))
	}
	slices.Sort(values)
	return values
}

// TestState tests that the real kube-state-metrics accepts the configuration, needs no more
// permissions than the book grants, and serves each metric for objects of a running manager.
func TestState(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	var config stateConfig
	if err := yaml.UnmarshalStrict(read(t, "kube-state-metrics.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	s := start(t)
	pool := scenario.Pool{Cluster: s.blue, Name: "pool", Replicas: 2}
	s.must(scenario.Create(s.Context(), s.client, slices.Concat(s.blue.Objects(), pool.Objects())...))
	s.until("there are machines", pool.Ready(s.client, 2))
	address := s.startStateMetrics()
	s.until("each metric has values", func(ctx context.Context) (string, error) {
		served, err := get(ctx, address)
		if err != nil {
			return err.Error(), nil
		}
		for _, r := range config.Spec.Resources {
			for _, m := range r.Metrics {
				name := r.MetricNamePrefix + "_" + m.Name
				if m.Name != "deletion" && m.Name != "orphans" &&
					!strings.Contains(served, "\n"+name+"{") { // nothing is being deleted, and there are no orphans
					return fmt.Sprintf("%s has none in\n%s", name, served), nil
				}
			}
		}
		if !strings.Contains(served, `reason="Ready",type="Ready"} 1`) {
			return "nothing is Ready in\n" + served, nil
		}
		return "", nil
	})
}

// startStateMetrics runs kube-state-metrics as a user with the role from the book, and returns its
// URL.
func (s *stage) startStateMetrics() string {
	s.Helper()
	book := string(read(s.T, "../../docs/monitoring.md"))
	_, role, found := strings.Cut(book, "```yaml\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n")
	role, _, ended := strings.Cut(role, "```")
	if !found || !ended {
		s.Fatal("docs/monitoring.md has no ClusterRole for kube-state-metrics")
	}
	var rules rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n"+role), &rules); err != nil {
		s.Fatal(err)
	}
	const user = "kube-state-metrics"
	s.must(scenario.Create(s.Context(), s.client, &rules, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: rules.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: rules.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}))
	raw, err := s.management.Kubeconfig(user)
	s.must(err)
	dir := s.TempDir()
	s.must(os.WriteFile(filepath.Join(dir, "kubeconfig"), raw, 0o600))
	out, err := exec.CommandContext(s.Context(), "../../../hack/tool", "kube-state-metrics").Output()
	s.must(err)
	file, err := filepath.Abs(filepath.Join(folder, "kube-state-metrics.yaml"))
	s.must(err)
	ports, err := playground.FreePorts(2)
	s.must(err)
	p, err := playground.Run("kube-state-metrics", dir, nil, strings.TrimSpace(string(out)), "--kubeconfig="+dir+"/kubeconfig",
		"--custom-resource-state-only",
		"--custom-resource-state-config-file="+file, "--host=127.0.0.1", fmt.Sprint("--port=", ports[0]), "--telemetry-host=127.0.0.1",
		fmt.Sprint("--telemetry-port=", ports[1]))
	s.must(err)
	s.Cleanup(func() {
		p.Kill()
		if text, err := os.ReadFile(p.Log); err == nil && s.Failed() {
			s.Logf("kube-state-metrics:\n%s", text)
		}
	})
	return fmt.Sprintf("http://127.0.0.1:%d/metrics", ports[0])
}

// get returns the body of a page.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
