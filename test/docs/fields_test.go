// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// field matches a field name of our kinds or Cluster API's in the book, such as
// `CloudMachine.spec.aws.instanceType`.
var field = regexp.MustCompile("`([A-Z][A-Za-z]+)\\.((?:spec|status)[A-Za-z0-9.\\[\\]]*)`")

// TestFieldsExist tests that each field that the book names with its kind exists in that kind's
// CRD.
func TestFieldsExist(t *testing.T) {
	core, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, folder := range []string{root, strings.TrimSpace(string(core)) + "/core"} {
		files, err := filepath.Glob(folder + "/config/crd/bases/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("no CRDs in %s: %v", folder, err)
		}
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
				if v.Storage {
					kinds[crd.Spec.Names.Kind] = *v.Schema.OpenAPIV3Schema
				}
			}
		}
	}
	named := 0
	for page, text := range book(t) {
		for _, m := range field.FindAllStringSubmatch(text, -1) {
			named++
			if schema, ok := kinds[m[1]]; !ok || !has(schema, strings.Split(m[2], ".")) {
				t.Errorf("%s: there is no field %s.%s", page, m[1], m[2])
			}
		}
	}
	if named < 50 {
		t.Errorf("the book names %d fields only: is this how it names them?", named)
	}
}

// has reports whether a schema has a path of fields. The name of a list ends in [].
func has(schema apiextensionsv1.JSONSchemaProps, path []string) bool {
	if len(path) == 0 {
		return true
	}
	name, list := strings.CutSuffix(path[0], "[]")
	child, ok := schema.Properties[name]
	if !ok {
		return false
	}
	if !list {
		return has(child, path[1:])
	}
	return child.Items != nil && child.Items.Schema != nil && has(*child.Items.Schema, path[1:])
}
