// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// foreignEnums are the fields whose values a cloud or a tool defines, and who defines them.
var foreignEnums = map[string]string{
	"architecture":      "Go",
	"bus":               "KubeVirt",
	"confidentialType":  "Compute Engine",
	"interface":         "Keystone",
	"model":             "KubeVirt",
	"nicType":           "Compute Engine",
	"operator":          "Compute Engine",
	"preference":        "EC2",
	"provisioningModel": "Compute Engine",
	"pullMethod":        "CDI",
	"stackType":         "Compute Engine",
	"tenancy":           "EC2",
	"tokens":            "EC2",
	"type":              "EC2",
	"vnicType":          "Neutron",
}

var (
	camelCase = regexp.MustCompile(`^"[A-Z][A-Za-z0-9]*"$`)
	unchanged = regexp.MustCompile(`oldSelf\.(\w+)`)
)

// TestSchemas tests what kube-api-linter can't: it reads neither the types of other modules nor
// rules and enums.
func TestSchemas(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no CRDs found: %v", err)
	}
	for _, path := range paths {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(read(t, strings.TrimPrefix(path, root+"/"))), &crd); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, part := range []string{"spec", "status"} {
			field := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[part]
			checkSchema(t, crd.Spec.Names.Kind+"."+part, part, &field)
		}
	}
}

// checkSchema checks a field and those below it.
func checkSchema(t *testing.T, path, name string, field *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	if ofOthers(path + ".") {
		return
	}
	if field.Default != nil {
		t.Errorf("%s: the schema has the default %s, which hides what the user chose: apply it where the field is read", path, field.Default.Raw)
	}
	if foreignEnums[name] == "" && slices.ContainsFunc(field.Enum, func(v apiextensionsv1.JSON) bool { return !camelCase.Match(v.Raw) }) {
		t.Errorf("%s has values that are not in CamelCase: add to foreignEnums who defines them", path)
	}
	if values := field.AdditionalProperties; values != nil && field.MaxProperties == nil && !strings.HasSuffix(path, "status.capacity") &&
		!strings.HasSuffix(path, ".attributes") {
		t.Errorf("%s has no maximum number of keys", path)
	}
	checkImmutable(t, path, field)
	if field.Items != nil {
		checkSchema(t, path+"[]", name, field.Items.Schema)
	}
	for name, property := range field.Properties {
		checkSchema(t, path+"."+name, name, &property)
	}
}

// checkImmutable tests that the description of a field says so if a rule forbids its change. The
// fields of a machine's cloud and of a template are immutable as a whole.
func checkImmutable(t *testing.T, path string, field *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	if strings.HasPrefix(path, "DroverMachine.") || strings.Contains(path, "Template.spec") {
		return
	}
	for _, rule := range field.XValidations {
		if strings.Contains(rule.Rule, "self == oldSelf") && !strings.Contains(field.Description, "immutable") {
			t.Errorf("%s is immutable, and its description does not say so", path)
		}
		if m := unchanged.FindStringSubmatch(rule.Rule); m != nil && !strings.Contains(field.Properties[m[1]].Description, "immutable") {
			t.Errorf("%s.%s is immutable, and its description does not say so", path, m[1])
		}
	}
}
