// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

// TestBounds tests that every string, list and map of Drover's own kinds has a bound, and that an
// API server accepts the CRDs, the cost of their rules included (docs/api-conventions.md).
func TestBounds(t *testing.T) {
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
			for _, part := range []string{"spec", "status"} {
				field := v.Schema.OpenAPIV3Schema.Properties[part]
				bounded(t, crd.Spec.Names.Kind+"."+part, &field)
			}
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&crd)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
		internal := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, internal, nil); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), internal) {
			if !strings.HasPrefix(err.Field, "status.") {
				t.Errorf("%s: %v", crd.Name, err)
			}
		}
	}
}

// bounded checks a schema recursively.
func bounded(t *testing.T, path string, field *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	if ofOthers(path+".") || strings.Contains(path, ".failureDomains[].attributes") || strings.HasSuffix(path, "status.capacity") {
		return
	}
	switch field.Type {
	case "string":
		if field.MaxLength == nil && field.Enum == nil && field.Format == "" {
			t.Errorf("%s has no maximum length", path)
		}
	case "array":
		if field.MaxItems == nil {
			t.Errorf("%s has no maximum number of items", path)
		}
		bounded(t, path+"[]", field.Items.Schema)
	case "object":
		for name, property := range field.Properties {
			bounded(t, path+"."+name, &property)
		}
		if values := field.AdditionalProperties; values != nil && values.Schema != nil {
			if field.MaxProperties == nil {
				t.Errorf("%s has no maximum number of keys", path)
			}
			if values.Schema.Type == "string" && len(field.XValidations) == 0 && values.Schema.MaxLength == nil {
				t.Errorf("the values of %s have no maximum length", path)
			}
		}
	}
}

// TestRequiredIsWritten tests that a required field is never left out of JSON.
func TestRequiredIsWritten(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "api/*/v1alpha1/*_types.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no types found: %v", err)
	}
	field := regexp.MustCompile("`json:\"\\w+,(omitempty|omitzero)")
	for _, path := range paths {
		required := false
		for _, line := range strings.Split(read(t, strings.TrimPrefix(path, root+"/")), "\n") {
			switch line = strings.TrimSpace(line); {
			case line == "// +required":
				required = true
			case !strings.HasPrefix(line, "//"):
				if required && field.MatchString(line) {
					t.Errorf("%s: a required field may be left out: %s", path, line)
				}
				required = false
			}
		}
	}
}
