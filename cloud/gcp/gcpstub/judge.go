// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Document is Google's discovery document of a service.
type Document struct {
	ServicePath string             `json:"servicePath"`
	Parameters  map[string]*schema `json:"parameters"`
	Schemas     map[string]*schema `json:"schemas"`
	Resources   map[string]struct {
		Methods map[string]*method `json:"methods"`
	} `json:"resources"`

	methods map[string][]*method // by verb and number of parts of the path
}

type method struct {
	ID         string             `json:"id"`
	HTTPMethod string             `json:"httpMethod"`
	Path       string             `json:"path"`
	Parameters map[string]*schema `json:"parameters"`
	Request    *schema            `json:"request"`
	Response   *schema            `json:"response"`

	template []string
}

// schema describes a value or a parameter.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Pattern              string             `json:"pattern"`
	Enum                 []string           `json:"enum"`
	ReadOnly             bool               `json:"readOnly"`
	Required             bool               `json:"required"`
	Location             string             `json:"location"`
	Description          string             `json:"description"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties *schema            `json:"additionalProperties"`

	once     sync.Once // guards compiled
	compiled *regexp.Regexp
}

// The documents, from the module that publishes them. Each is read once.
var (
	// Load returns that of Compute Engine, version 1.
	Load        = sync.OnceValues(func() (*Document, error) { return load("compute/v1/compute-api.json") })
	loadManager = sync.OnceValues(func() (*Document, error) { return load("cloudresourcemanager/v1/cloudresourcemanager-api.json") })
)

func load(file string) (*Document, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	const folder = "hack/tools/google-clients"
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, folder)); err == nil {
			break
		}
	}
	cmd := exec.Command("go", "mod", "download", "-json", "google.golang.org/api")
	cmd.Dir = filepath.Join(dir, folder)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("downloading the module with the discovery document: %w: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, file))
	if err != nil {
		return nil, err
	}
	document := &Document{methods: map[string][]*method{}}
	if err := json.Unmarshal(text, document); err != nil {
		return nil, err
	}
	for _, r := range document.Resources {
		for _, m := range r.Methods {
			m.template = strings.Split(m.Path, "/")
			key := indexOf(m.HTTPMethod, m.template)
			document.methods[key] = append(document.methods[key], m)
		}
	}
	return document, nil
}

func indexOf(verb string, parts []string) string { return verb + strconv.Itoa(len(parts)) }

// find returns the method of a call, and the values of the parameters in its path.
func (d *Document) find(verb, path string) (*method, map[string]string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"+d.ServicePath), "/")
	for _, m := range d.methods[indexOf(verb, parts)] {
		if values, ok := m.match(parts); ok {
			return m, values
		}
	}
	return nil, nil
}

func (m *method) match(parts []string) (map[string]string, bool) {
	values := map[string]string{}
	for i, part := range m.template {
		name, isParameter := strings.CutPrefix(part, "{")
		name, verb, _ := strings.Cut(name, "}") // a verb begins with a colon
		value, has := strings.CutSuffix(parts[i], verb)
		switch {
		case isParameter && has:
			values[name] = value
		case part != parts[i]:
			return nil, false
		}
	}
	return values, true
}

// JudgeRequest returns what of a request is not in the document.
func (d *Document) JudgeRequest(verb string, address *url.URL, body []byte) (objections []string) {
	m, values := d.find(verb, address.Path)
	if m == nil {
		return []string{verb + " " + address.Path + " is unknown"}
	}
	given := map[string][]string(address.Query())
	for name, value := range values {
		given[name] = []string{value}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		p := m.Parameters[name]
		if p == nil {
			p = d.Parameters[name]
		}
		if p == nil {
			objections = append(objections, m.ID+": parameter "+name+" is unknown")
			continue
		}
		objections = append(objections, p.parameter(m.ID+": parameter "+name, given[name])...)
	}
	for name, p := range m.Parameters {
		if p.Required && len(given[name]) == 0 {
			objections = append(objections, m.ID+": parameter "+name+" is missing")
		}
	}
	switch {
	case m.Request == nil && len(body) > 0:
		objections = append(objections, m.ID+": a body, but none is expected")
	case m.Request != nil:
		objections = append(objections, d.body(m.ID, m.Request, body, true)...)
	}
	return objections
}

// JudgeAnswer returns what of a successful answer is not in the document.
func (d *Document) JudgeAnswer(verb, path string, body []byte) []string {
	m, _ := d.find(verb, path)
	if m == nil {
		return nil // the request was judged
	}
	return d.body(m.ID, m.Response, body, false)
}

func (d *Document) body(at string, s *schema, body []byte, sent bool) []string {
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return []string{at + ": " + err.Error()}
	}
	return d.value(at, s, value, sent)
}

func (s *schema) parameter(at string, values []string) []string {
	if len(values) != 1 {
		return []string{at + " is given more than once"}
	}
	var err error
	switch s.Type {
	case "integer":
		_, err = strconv.ParseInt(values[0], 10, 64)
	case "boolean":
		_, err = strconv.ParseBool(values[0])
	}
	if err != nil {
		return []string{at + " is no " + s.Type + ": " + values[0]}
	}
	return s.text(at, values[0])
}

// text judges a string by pattern, enum and format.
func (s *schema) text(at, text string) []string {
	switch {
	case s.Pattern != "" && !s.pattern().MatchString(text):
		return []string{at + " does not match " + s.Pattern + ": " + text}
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, text):
		return []string{at + " has an unknown value: " + text}
	case s.Type == "string" && (s.Format == "int64" || s.Format == "uint64"):
		_, err := strconv.ParseInt(text, 10, 64)
		if s.Format == "uint64" {
			_, err = strconv.ParseUint(text, 10, 64)
		}
		if err != nil {
			return []string{at + " is no " + s.Format + ": " + text}
		}
	}
	return nil
}

func (s *schema) pattern() *regexp.Regexp {
	s.once.Do(func() { s.compiled = regexp.MustCompile("^(?:" + s.Pattern + ")$") })
	return s.compiled
}

// value judges a value. What is sent must not have members that only Google sets.
func (d *Document) value(at string, s *schema, value any, sent bool) (all []string) {
	if s.Ref != "" {
		s = d.Schemas[s.Ref]
	}
	wrong := []string{fmt.Sprintf("%s is %T, not %s", at, value, s.Type)}
	switch v := value.(type) {
	case map[string]any:
		if s.Type != "object" {
			return wrong
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			member := s.Properties[key]
			if member == nil {
				member = s.AdditionalProperties
			}
			switch {
			case member == nil:
				all = append(all, at+"."+key+" is unknown")
			case sent && member.isOutput():
				all = append(all, at+"."+key+" is Google's to set")
			default:
				all = append(all, d.value(at+"."+key, member, v[key], sent)...)
			}
		}
	case []any:
		if s.Type != "array" {
			return wrong
		}
		for i := range v {
			all = append(all, d.value(fmt.Sprintf("%s[%d]", at, i), s.Items, v[i], sent)...)
		}
	case string:
		if s.Type != "string" {
			return wrong
		}
		return s.text(at, v)
	case bool:
		if s.Type != "boolean" {
			return wrong
		}
	case float64:
		if s.Type != "number" && (s.Type != "integer" || v != float64(int64(v))) {
			return wrong
		}
	default:
		return wrong
	}
	return all
}

func (s *schema) isOutput() bool {
	return s.ReadOnly || strings.HasPrefix(strings.ToLower(strings.TrimLeft(s.Description, "[ ")), "output only")
}
