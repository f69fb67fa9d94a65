// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestExplainIsComplete reads the CRDs as "kubectl explain" does. Every field must have a
// description. The description of an optional field must state the default, or show an example.
func TestExplainIsComplete(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no CRDs found: %v", err)
	}
	for _, path := range paths {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(read(t, strings.TrimPrefix(path, root+"/"))), &crd); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, v := range crd.Spec.Versions {
			schema := v.Schema.OpenAPIV3Schema
			explain(t, crd.Spec.Names.Kind, schema, false)
			for _, c := range v.AdditionalPrinterColumns {
				if c.Name == "" || c.JSONPath == "" {
					t.Errorf("%s: an empty column", crd.Name)
				}
			}
		}
	}
}

// explain checks the properties of a schema recursively. Within spec it also requires defaults or
// examples.
func explain(t *testing.T, path string, schema *apiextensionsv1.JSONSchemaProps, inSpec bool) {
	t.Helper()
	for name, field := range schema.Properties {
		at := path + "." + name
		if name == "metadata" && len(field.Properties) == 0 {
			continue // the standard metadata
		}
		if strings.TrimSpace(field.Description) == "" {
			t.Errorf("%s has no description", at)
		}
		spec := inSpec || name == "spec"
		if spec && name != "spec" && !ofOthers(at) && !selfExplaining(schema, name, &field) {
			t.Errorf("%s may be left out, and its description shows neither a default nor an example: %q", at, field.Description)
		}
		explain(t, at, &field, spec)
		if field.Items != nil && field.Items.Schema != nil {
			explain(t, at+"[]", field.Items.Schema, spec)
		}
	}
}

// ofOthers reports whether Kubernetes or Cluster API describes a field, because its type is
// embedded.
func ofOthers(path string) bool {
	for _, part := range []string{".template.metadata.", ".controlPlaneEndpoint.", ".nodeTaints[]."} {
		if strings.Contains(path, part) {
			return true
		}
	}
	return false
}

// selfExplaining reports whether the description of a spec field states what to write and what the
// default is.
func selfExplaining(parent *apiextensionsv1.JSONSchemaProps, name string, field *apiextensionsv1.JSONSchemaProps) bool {
	for _, word := range []string{"Default:", "default:", "Example:", "Left out", "left out", "Without it", "Drover makes it up",
		"Drover sets it"} {
		if strings.Contains(strings.Join(strings.Fields(field.Description), " "), word) {
			return true
		}
	}
	return slices.Contains(parent.Required, name) || field.Default != nil || field.Type == "object" && len(field.Properties) > 0
}
