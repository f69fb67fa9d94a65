// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"slices"
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

// scalarLists are the fields that are lists of strings or numbers, with the reason why no item will
// have to hold more than one value. A list that may grow is a list of objects. Lists of IDs need no
// reason.
var scalarLists = map[string]string{
	"dnsServers":             "addresses",
	"sshKeys":                "public keys",
	"addresses":              "addresses with their prefix",
	"exclude":                "address ranges",
	"failureDomains":         "names",
	"guestReportedAddresses": "addresses",
	"ignorePreflightErrors":  "as kubeadm's flag",
	"loadBalancerZones":      "names",
	"kernelModules":          "names",
	"nameservers":            "addresses",
	"noProxy":                "as the variable NO_PROXY",
	"ntpServers":             "hosts",
	"owners":                 "account IDs",
	"postKubeletCommands":    "shell commands",
	"preKubeletCommands":     "shell commands",
	"searchDomains":          "domains",
	"networkTags":            "Compute Engine's tags, which are words",
	"scopes":                 "URLs",
	"securityGroups":         "Neutron's names or IDs",
	"sshAuthorizedKeys":      "lines of the file authorized_keys",
	"tags":                   "OpenStack's tags, which are words",
	"values":                 "as in Kubernetes' label selectors",
}

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
	camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	unchanged = regexp.MustCompile(`oldSelf\.(\w+)`)
)

// TestConventions tests the rules of docs/api-conventions.md about lists, enums, defaults and
// immutable fields.
func TestConventions(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no CRDs found: %v", err)
	}
	lists, enums := map[string]bool{}, map[string]bool{}
	for _, path := range paths {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(read(t, strings.TrimPrefix(path, root+"/"))), &crd); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		kind := crd.Spec.Names.Kind
		var check func(path, name string, field *apiextensionsv1.JSONSchemaProps)
		check = func(path, name string, field *apiextensionsv1.JSONSchemaProps) {
			if ofOthers(path + ".") {
				return
			}
			if field.Type == "array" && field.Items.Schema.Type != "object" {
				lists[name] = true
				if scalarLists[name] == "" && !strings.HasSuffix(strings.ToLower(name), "ids") {
					t.Errorf("%s is a list of single values: make it a list of objects, or add the reason to scalarLists", path)
				}
			}
			if slices.ContainsFunc(field.Enum, func(v apiextensionsv1.JSON) bool { return !camelCase.MatchString(strings.Trim(string(v.Raw), `"`)) }) {
				enums[name] = true
				if foreignEnums[name] == "" {
					t.Errorf("%s has values that are not in CamelCase: add to foreignEnums who defines them", path)
				}
			}
			if field.Default != nil {
				t.Errorf("%s: the schema has the default %s, which hides what the user chose: apply it where the field is read", path, field.Default.Raw)
			}
			if kind != "DroverMachine" { // its cloud fields are immutable as a whole
				checkImmutable(t, path, field)
			}
			if field.Items != nil {
				check(path+"[]", name, field.Items.Schema)
			}
			for name, property := range field.Properties {
				check(path+"."+name, name, &property)
			}
		}
		for _, part := range []string{"spec", "status"} {
			if part == "spec" && strings.HasSuffix(kind, "Template") {
				continue // the same types as in the kind without Template, and immutable as a whole
			}
			field := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[part]
			check(kind+"."+part, part, &field)
		}
	}
	for name := range scalarLists {
		if !lists[name] {
			t.Errorf("scalarLists has %s, and no CRD has such a list", name)
		}
	}
	for name := range foreignEnums {
		if !enums[name] {
			t.Errorf("foreignEnums has %s, and no CRD has such an enum", name)
		}
	}
}

// checkImmutable tests that the description of a field says so if a rule forbids its change.
func checkImmutable(t *testing.T, path string, field *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for _, rule := range field.XValidations {
		if strings.Contains(rule.Rule, "self == oldSelf") && !strings.Contains(field.Description, "immutable") {
			t.Errorf("%s is immutable, and its description does not say so", path)
		}
		if m := unchanged.FindStringSubmatch(rule.Rule); m != nil && !strings.Contains(field.Properties[m[1]].Description, "immutable") {
			t.Errorf("%s.%s is immutable, and its description does not say so", path, m[1])
		}
	}
}
