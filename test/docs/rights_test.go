// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/test/internal/scenario"
)

// TestRightsAreThoseOfTheTests compares the permissions in docs/adopt-a-cluster.md with those that
// the demo and the tests use.
func TestRightsAreThoseOfTheTests(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	documented := map[string]map[string]any{}
	for _, block := range example.FindAllStringSubmatch(read(t, "docs/adopt-a-cluster.md"), -1) {
		for _, doc := range strings.Split("\n"+block[1], "\n---") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(o.GetAPIVersion(), "rbac.authorization.k8s.io/") {
				documented[o.GetKind()] = o.Object
			}
		}
	}
	for _, o := range scenario.Rights("drover") {
		kind, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(kind)
		want, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := documented[kind.Kind]; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("docs/adopt-a-cluster.md has another %s than the tests run with:\n got %v\nwant %v", kind.Kind, got, want)
		}
		delete(documented, kind.Kind)
	}
	for kind := range documented {
		t.Errorf("docs/adopt-a-cluster.md has a %s that the tests do without", kind)
	}
}
