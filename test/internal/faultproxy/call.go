// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/drover-io/drover/cloud/simulated/wire"
)

// Call is a call that a Proxy received.
type Call struct {
	// Proxy is the name of the Proxy. Number is the call's number there, from 1 in order of
	// arrival.
	Proxy  string
	Number int
	// At is the time of arrival. Agent is the caller's User-Agent.
	At    time.Time
	Agent string

	// Verb is Kubernetes' verb ("get", "watch", "patch", …), or the name of the operation for a
	// cloud.
	Verb string
	// Group, Resource, Subresource, Namespace and Name identify the object. For a create, the name
	// is read from the object. For a cloud, only Name is set: the name of the created machine.
	Group, Resource, Subresource, Namespace, Name string
	// Fields are the fields that a patch changes, two levels deep and sorted:
	// "metadata.finalizers", "spec.creation".
	Fields []string

	// DryRun is true if a call to Kubernetes asks for nothing to be stored.
	DryRun bool

	// Status is the status code from upstream, or 0 while there is no answer.
	Status int
	// Fate is the effect of the Rule, or "" when the call passed.
	Fate string
}

// Write reports whether a call to Kubernetes changes something that is stored. Events, leases and
// reviews do not count: no controller decides anything by events, and the others are not objects of
// a user.
func (c Call) Write() bool {
	switch c.Resource {
	case "", "events", "leases", "subjectaccessreviews", "tokenreviews", "selfsubjectaccessreviews", "selfsubjectreviews":
		return false
	}
	return !c.DryRun && !slices.Contains([]string{"get", "list", "watch"}, c.Verb)
}

// Kind returns the call without names: calls of one kind mean the same for different machines.
func (c Call) Kind() string {
	s := c.Verb
	if c.Resource != "" {
		s += " " + c.Resource
	}
	if c.Subresource != "" {
		s += "/" + c.Subresource
	}
	if len(c.Fields) > 0 {
		s += " {" + strings.Join(c.Fields, " ") + "}"
	}
	return s
}

func (c Call) String() string {
	s := fmt.Sprintf("%s#%d %s", c.Proxy, c.Number, c.Kind())
	if c.Namespace != "" || c.Name != "" {
		s += " " + strings.TrimPrefix(c.Namespace+"/"+c.Name, "/")
	}
	if c.Status != 0 {
		s += fmt.Sprintf(" -> %d", c.Status)
	}
	if c.Fate != "" {
		s += " (" + c.Fate + ")"
	}
	return s
}

// Parse fills in the call from the request and its body.
type Parse func(c *Call, req *http.Request, body []byte)

// Cloud parses a call of the simulated cloud's API.
func Cloud(c *Call, req *http.Request, body []byte) {
	c.Verb = strings.TrimPrefix(req.URL.Path, wire.Prefix)
	var named struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(body, &named) == nil {
		c.Name = named.Name
	}
}

// AWS parses a call of EC2 or STS (a form) or of Systems Manager (its target is in a header).
func AWS(c *Call, req *http.Request, body []byte) {
	if form, err := url.ParseQuery(string(body)); err == nil {
		c.Verb = form.Get("Action")
	}
	if _, target, ok := strings.Cut(req.Header.Get("X-Amz-Target"), "."); ok {
		c.Verb = target
	}
}

// Kubernetes parses a call of the Kubernetes API (/api/v1/… and /apis/<group>/<version>/…).
func Kubernetes(c *Call, req *http.Request, body []byte) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		c.Group = parts[1]
		parts = parts[3:]
	default: // /readyz, discovery
		c.Verb = strings.ToLower(req.Method)
		return
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		c.Namespace = parts[1]
		parts = parts[2:]
	}
	c.Resource = parts[0]
	if len(parts) > 1 {
		c.Name = parts[1]
	}
	if len(parts) > 2 {
		c.Subresource = strings.Join(parts[2:], "/")
	}
	c.Verb = verb(req, c.Name)
	c.DryRun = req.URL.Query().Has("dryRun")
	switch c.Verb {
	case "create":
		if c.Name == "" {
			c.Name = nameIn(body)
		}
	case "patch":
		c.Fields = fields(body)
		if c.Subresource == "status" { // which accepts nothing else
			c.Fields = slices.DeleteFunc(c.Fields, func(f string) bool { return !strings.HasPrefix(f, "status") })
		}
	}
}

func verb(req *http.Request, name string) string {
	switch req.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if name == "" {
			return "deletecollection"
		}
		return "delete"
	}
	switch w := req.URL.Query().Get("watch"); {
	case w == "true" || w == "1":
		return "watch"
	case name == "":
		return "list"
	}
	return "get"
}

// nameIn reads the name of an object in JSON or Protobuf.
func nameIn(body []byte) string {
	var o metav1.PartialObjectMetadata
	if json.Unmarshal(body, &o) == nil {
		return o.Name + o.GenerateName
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return ""
	}
	if m, err := meta.Accessor(object); err == nil {
		return m.GetName() + m.GetGenerateName()
	}
	return ""
}

// fields returns the fields that a merge patch or a JSON patch changes. The resource version is a
// precondition, not a change.
func fields(body []byte) []string {
	var all []string
	var operations []struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(body, &operations) == nil {
		for _, o := range operations {
			parts := strings.SplitN(strings.Trim(o.Path, "/"), "/", 3)
			all = append(all, strings.Join(parts[:min(2, len(parts))], "."))
		}
	}
	var merge map[string]any
	if json.Unmarshal(body, &merge) == nil {
		for k, v := range merge {
			inner, ok := v.(map[string]any)
			if !ok {
				if k != "apiVersion" && k != "kind" {
					all = append(all, k)
				}
				continue
			}
			for kk := range inner {
				all = append(all, k+"."+kk)
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(s string) bool {
		return s == "metadata.resourceVersion" || s == "metadata.uid" || s == "metadata.name" || s == "metadata.namespace"
	})
}
