// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestFieldsOfClusterAPI compares the fields that are known of an AWSMachineTemplate with those of
// the provider's own CRD: a field that is not known would be refused in each template that has it.
func TestFieldsOfClusterAPI(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/cluster-api-provider-aws/v2")
	cmd.Dir = "../../hack/tools/cluster-api-provider-aws"
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(module.Dir, "config/crd/bases/infrastructure.cluster.x-k8s.io_awsmachinetemplates.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == capaAPI.Version
	})
	schema := crd.Spec.Versions[at].Schema.OpenAPIV3Schema.Properties["spec"].Properties["template"].Properties["spec"]
	if n := sameFields(t, "spec.template.spec", &schema, reflect.TypeFor[capaMachine]()); n < 50 {
		t.Errorf("the CRD has %d fields", n)
	}
}

// sameFields compares the fields of a schema with those of a type, and returns how many there are.
func sameFields(t *testing.T, path string, schema *apiextensionsv1.JSONSchemaProps, of reflect.Type) (n int) {
	t.Helper()
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		if of.Kind() == reflect.Slice && schema.Items != nil {
			schema = schema.Items.Schema
		}
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return 0
	}
	known := map[string]bool{}
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		known[name] = true
		property, has := schema.Properties[name]
		if !has {
			t.Errorf("the CRD has no %s.%s", path, name)
			continue
		}
		n += 1 + sameFields(t, path+"."+name, &property, field.Type)
	}
	for name := range schema.Properties {
		if !known[name] {
			t.Errorf("%s.%s is not known", path, name)
		}
	}
	return n
}

// TestFieldsOfClusterAPIOnOpenStack compares the fields that are known of an
// OpenStackMachineTemplate, and their types, with those of the provider's CRD. They are in a file,
// because nothing else here needs the provider's module.
func TestFieldsOfClusterAPIOnOpenStack(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/capi-openstack-fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	known, maps := fieldsOf("", reflect.TypeFor[capoMachine]())
	n := 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		n++
		switch {
		case strings.HasPrefix(line, "#"), slices.ContainsFunc(maps, func(path string) bool { return strings.HasPrefix(line, path+".") }):
		case !slices.Contains(known, line):
			t.Errorf("%s is not known", line)
		default:
			known = slices.DeleteFunc(known, func(field string) bool { return field == line })
		}
	}
	if len(known) > 0 || n < 120 {
		t.Errorf("of %d lines, none is %q", n, known)
	}
}

// fieldsOf returns the paths of a type's fields with the types that a schema has for them, and the
// paths of those that are maps.
func fieldsOf(path string, of reflect.Type) (fields, maps []string) {
	kind := ""
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		if of.Kind() == reflect.Slice {
			kind = "array of "
		}
		of = of.Elem()
	}
	kind += map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int32: "integer", reflect.Int64: "integer", reflect.Struct: "object",
		reflect.Map: "object",
	}[of.Kind()]
	if path != "" {
		fields = append(fields, path+" "+kind)
	}
	if of.Kind() == reflect.Map {
		return fields, []string{path}
	}
	if of.Kind() != reflect.Struct {
		return fields, nil
	}
	for field := range of.Fields() {
		more, below := fieldsOf(strings.TrimPrefix(path+"."+field.Tag.Get("json"), "."), field.Type)
		fields, maps = append(fields, more...), append(maps, below...)
	}
	return fields, maps
}
