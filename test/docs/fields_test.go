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
// `DroverMachine.spec.cloud.aws.instanceType`.
var field = regexp.MustCompile("`([A-Z][A-Za-z]+)\\.((?:spec|status)[A-Za-z0-9.\\[\\]]*)`")

// TestFieldsExist tests that each field that the book names with its kind exists in that kind's
// CRD.
func TestFieldsExist(t *testing.T) {
	kinds := schemas(t)
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

// schemas returns the schemas of our kinds and Cluster API's, by kind.
func schemas(t *testing.T) map[string]apiextensionsv1.JSONSchemaProps {
	t.Helper()
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
	return kinds
}

// quoted matches the names in a cell of a table.
var quoted = regexp.MustCompile("`([^`]+)`")

// clouds are the members of the unions that docs/migrate has sections for.
var clouds = []string{"aws", "azure", "gcp", "openstack", "vsphere", "kubevirt"}

// TestNoneIsNone tests the rows of docs/migrate that say "none": none of our kinds may have a field
// of the name that the row has no counterpart for, unless the row names that field. In the section
// of a cloud, that cloud's fields count; elsewhere, those of no cloud.
func TestNoneIsNone(t *testing.T) {
	ours := map[string]map[string]string{"": {}} // path by the field's name in lower case, by cloud
	for kind, schema := range schemas(t) {
		if kind != "DroverAccount" && kind != "DroverMachine" && kind != "DroverConfig" {
			continue
		}
		spec := schema.Properties["spec"]
		for _, cloud := range clouds {
			if ours[cloud] == nil {
				ours[cloud] = map[string]string{}
			}
			fieldNames(spec.Properties["cloud"].Properties[cloud], kind+".spec.cloud."+cloud, ours[cloud])
		}
		delete(spec.Properties, "cloud")
		fieldNames(spec, kind+".spec", ours[""])
	}
	rows := 0
	for page, text := range book(t) {
		if !strings.HasPrefix(page, "docs/migrate/") {
			continue
		}
		section := ""
		for _, line := range strings.Split(text, "\n") {
			if title, ok := strings.CutPrefix(line, "## "); ok {
				section = ""
				for _, cloud := range clouds {
					if strings.Contains(strings.ToLower(title), cloud) {
						section = cloud
					}
				}
			}
			cells := strings.Split(line, " | ")
			if len(cells) < 2 || !regexp.MustCompile(`\bnone\b`).MatchString(cells[1]) {
				continue
			}
			rows++
			for _, m := range quoted.FindAllStringSubmatch(cells[0], -1) {
				name := strings.TrimRight(m[1][strings.LastIndex(m[1], ".")+1:], "[]")
				if path, there := ours[section][strings.ToLower(name)]; there &&
					!strings.Contains(strings.ToLower(cells[1]), strings.ToLower("."+name)) {
					t.Errorf("%s: %q has a counterpart, such as %s: %s", page, m[1], path, line)
				}
			}
		}
	}
	if rows < 5 {
		t.Errorf("%d rows say none: is this how the pages say it?", rows)
	}
}

// fieldNames adds the names of all fields below a schema, with the path of one field of that name.
func fieldNames(schema apiextensionsv1.JSONSchemaProps, at string, found map[string]string) {
	for name, child := range schema.Properties {
		found[strings.ToLower(name)] = at + "." + name
		fieldNames(child, at+"."+name, found)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		fieldNames(*schema.Items.Schema, at+"[]", found)
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

// oldNames are the names that v0.1.0-rc.1 had.
var oldNames = regexp.MustCompile(`(?i)\bcloud(account|cluster|machine|initconfig)(templates?|s)?\b|drover_cloud(account|cluster|machine|initconfig)|x-k8s\.io/v1alpha1` +
	`|drover_(frozen|unreachable|orphans_blocked)\b|--(account|control-plane)-concurrency\b`)

// TestOldNames tests that nothing that users read or apply has an old name, except for the table
// that maps the old names to the new ones.
func TestOldNames(t *testing.T) {
	texts := book(t)
	for _, pattern := range []string{"templates/*.yaml", "config/*/*.yaml", "config/*/*/*.yaml", "config/prometheus/*.json"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s matches nothing: %v", pattern, err)
		}
		for _, path := range paths {
			name, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = read(t, name)
		}
	}
	old, mapped, found := texts["docs/upgrades.md"], "", false
	if texts["docs/upgrades.md"], mapped, found = strings.Cut(old, "## From the first release candidate"); !found ||
		!oldNames.MatchString(mapped) {
		t.Error("docs/upgrades.md has no table of old names")
	}
	for name, text := range texts {
		if m := oldNames.FindString(text); m != "" {
			t.Errorf("%s has %s, a name of v0.1.0-rc.1: docs/upgrades.md has the new one", name, m)
		}
	}
}
