// SPDX-License-Identifier: Apache-2.0

// Command apiref prints the reference of Drover's kinds as Markdown, from the CRDs in the given
// folder: one table per kind, one row per field. The same CRDs always give the same text. On
// stderr, it prints the size of each CRD, and it fails if one is too large. "make generate" runs it.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxSize is how large a CRD may be as JSON, in bytes. "kubectl apply" copies the object into an
// annotation, and an object's annotations have at most 262,144 bytes.
const maxSize = 200_000

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: apiref FOLDER")
		os.Exit(2)
	}
	crds, err := read(os.Args[1])
	if err == nil {
		w := bufio.NewWriter(os.Stdout)
		(&reference{out: w, seen: map[string]string{}}).print(crds)
		err = w.Flush()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apiref:", err)
		os.Exit(1)
	}
}

// read returns the CRDs of a folder: infrastructure, bootstrap, control plane, then by name.
func read(dir string) ([]apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var crds []apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		compact, err := yaml.YAMLToJSON(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintf(os.Stderr, "%7d bytes as JSON  %s\n", len(compact), filepath.Base(file))
		if len(compact) > maxSize {
			return nil, fmt.Errorf("%s has %d bytes as JSON, and may have %d", file, len(compact), maxSize)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal(compact, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		crds = append(crds, crd)
	}
	slices.SortFunc(crds, func(a, b apiextensionsv1.CustomResourceDefinition) int {
		return cmp.Or(-cmp.Compare(a.Spec.Group, b.Spec.Group), cmp.Compare(a.Spec.Names.Kind, b.Spec.Names.Kind))
	})
	return crds, nil
}

// reference prints the tables. seen records where the fields of an object were printed, so that
// they are printed only once.
type reference struct {
	out  io.Writer
	seen map[string]string
}

func (r *reference) print(crds []apiextensionsv1.CustomResourceDefinition) {
	fmt.Fprint(r.out, "<!-- Written by \"make generate\" from config/crd/bases. Do not edit. -->\n\n# API reference\n\n")
	fmt.Fprint(r.out, "Every field of every kind. `kubectl explain --recursive KIND` tells the same.\n"+
		"Each field has a link of its own, the path that `kubectl explain` takes: `api.md#droveraccount.spec.rateLimits`, for example.\n\n")
	for _, crd := range crds {
		fmt.Fprintf(r.out, "- [%s](#%s) (`%s`)\n", crd.Spec.Names.Kind, strings.ToLower(crd.Spec.Names.Kind), crd.Spec.Group)
	}
	for _, crd := range crds {
		for _, version := range crd.Spec.Versions {
			r.kind(crd, version)
		}
	}
}

func (r *reference) kind(crd apiextensionsv1.CustomResourceDefinition, version apiextensionsv1.CustomResourceDefinitionVersion) {
	kind, schema := crd.Spec.Names.Kind, version.Schema.OpenAPIV3Schema
	fmt.Fprintf(r.out, "\n## %s\n\n`apiVersion: %s/%s`, %s, `kubectl get %s`\n\n%s\n\n", kind, crd.Spec.Group, version.Name,
		strings.ToLower(string(crd.Spec.Scope)), crd.Spec.Names.Plural, paragraph(schema.Description))
	fmt.Fprint(r.out, "| field | type | meaning |\n| --- | --- | --- |\n")
	for _, name := range []string{"spec", "status"} {
		if part, ok := schema.Properties[name]; ok {
			r.field(kind, name, part, slices.Contains(schema.Required, name))
		}
	}
}

// field prints the row of a field and, below it, those of its fields.
func (r *reference) field(kind, path string, schema apiextensionsv1.JSONSchemaProps, required bool) {
	inner, innerPath := schema, path
	for done := false; !done; {
		switch {
		case inner.Items != nil && inner.Items.Schema != nil:
			inner, innerPath = *inner.Items.Schema, innerPath+"[]"
		case inner.AdditionalProperties != nil && inner.AdditionalProperties.Schema != nil:
			inner, innerPath = *inner.AdditionalProperties.Schema, innerPath+"{}"
		default:
			done = true
		}
	}
	meaning := []string{paragraph(schema.Description)}
	if required {
		meaning = append(meaning, "**Required.**")
	}
	meaning = append(meaning, limits(schema)...)
	if innerPath != path {
		for _, l := range limits(inner) {
			meaning = append(meaning, "Each: "+lower(l))
		}
	}
	where, known := "", false
	if len(inner.Properties) > 1 {
		where, known = r.seen[fingerprint(inner)]
		if !known {
			r.seen[fingerprint(inner)] = fmt.Sprintf("[%s](#%s) `%s`", kind, strings.ToLower(kind), innerPath)
		}
	}
	if known {
		meaning = append(meaning, "The fields are those of "+where+".")
	}
	anchor := strings.ToLower(kind) + "." + strings.NewReplacer("[]", "", "{}", "").Replace(path)
	fmt.Fprintf(r.out, "| <a id=\"%s\"></a>`%s` | %s | %s |\n", anchor, path, typeName(schema), cell(meaning))
	if known {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(inner.Properties)) {
		r.field(kind, innerPath+"."+name, inner.Properties[name], slices.Contains(inner.Required, name))
	}
}

// fingerprint returns the same string for objects with the same fields.
func fingerprint(schema apiextensionsv1.JSONSchemaProps) string {
	raw, err := json.Marshal(schema.Properties)
	if err != nil {
		panic(err) // it comes from YAML, so this can't fail
	}
	return string(raw)
}

func typeName(schema apiextensionsv1.JSONSchemaProps) string {
	switch {
	case schema.Items != nil && schema.Items.Schema != nil:
		return "list of " + typeName(*schema.Items.Schema)
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		return "map of " + typeName(*schema.AdditionalProperties.Schema)
	case schema.XIntOrString:
		return "integer or string"
	case schema.Format != "":
		return schema.Type + " (" + schema.Format + ")"
	default:
		return schema.Type
	}
}

// limits returns what the API server checks of a field, each as a sentence.
func limits(schema apiextensionsv1.JSONSchemaProps) []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if schema.Default != nil && !strings.Contains(schema.Description, "Default: ") {
		add("Default: `%s`.", schema.Default.Raw)
	}
	if len(schema.Enum) > 0 {
		var values []string
		for _, e := range schema.Enum {
			values = append(values, "`"+strings.Trim(string(e.Raw), `"`)+"`")
		}
		add("One of %s.", strings.Join(values, ", "))
	}
	add2 := func(what string, low, high *int64) {
		switch {
		case low != nil && high != nil:
			add("%s: %d to %d.", what, *low, *high)
		case low != nil:
			add("%s: at least %d.", what, *low)
		case high != nil:
			add("%s: at most %d.", what, *high)
		}
	}
	add2("Value", whole(schema.Minimum), whole(schema.Maximum))
	add2("Length", schema.MinLength, schema.MaxLength)
	add2("Items", schema.MinItems, schema.MaxItems)
	add2("Entries", schema.MinProperties, schema.MaxProperties)
	if schema.Pattern != "" {
		add("Pattern: `%s`.", schema.Pattern)
	}
	for _, rule := range schema.XValidations {
		if rule.Message != "" {
			add("Rule: %s.", strings.TrimSuffix(rule.Message, "."))
		} else {
			add("Rule: `%s`.", rule.Rule)
		}
	}
	return all
}

func whole(f *float64) *int64 {
	if f == nil {
		return nil
	}
	i := int64(*f)
	return &i
}

// paragraph puts a doc comment on one line.
func paragraph(s string) string { return strings.Join(strings.Fields(s), " ") }

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// cell returns text for a table's cell, in which a bar would end the cell.
func cell(parts []string) string {
	text := strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
	return strings.ReplaceAll(text, "|", `\|`)
}
