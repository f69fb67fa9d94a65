// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// redacted stands for what an archive does not show.
const redacted = "(redacted)"

// freeFields are the fields, of any kind, in which users write what they like: it can be a secret.
var freeFields = set(
	// contents of files, user data and commands, of Drover's and other bootstrap kinds
	"content", "contents", "inline", "userdata", "customdata", "networkdata", "cloudinit", "script",
	"prekubeletcommands", "postkubeletcommands", "prekubeadmcommands", "postkubeadmcommands", "bootcommands", "additionalconfig",
	"configuration", "registries", "proxy", "extraargs", "extraenvs", "clusterconfiguration", "joinconfiguration", "initconfiguration",
	// variables of the environment, of a ClusterClass, and what external drivers and clouds get
	"value", "variables", "patches", "parameters", "extraconfig", "customattributes",
	// what has the name of a secret
	"data", "stringdata", "binarydata", "password", "passwd", "privatekey", "credentials", "tokens", "auth", "headers",
)

// shownAnnotations are the domains whose annotations hold no text of a user's.
var shownAnnotations = []string{"drover.io", clusterv1.GroupVersion.Group, "deployment.kubernetes.io"}

// longestAnnotation is the length up to which their values are shown: longer ones are whole objects.
const longestAnnotation = 128

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, name := range names {
		s[name] = true
	}
	return s
}

// redactObject removes from an object what can hold a secret.
func redactObject(o map[string]any) {
	if meta, ok := o["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
	for _, part := range []string{"metadata", "status"} { // names, labels, and what controllers write
		if fields, ok := o[part].(map[string]any); ok {
			redactTexts(fields)
		}
	}
	for key, value := range o {
		if key != "metadata" && key != "status" {
			o[key] = redactField("", key, value)
		}
	}
}

// redactTexts keeps the fields, and redacts annotations, and secrets that are known by their form.
func redactTexts(fields map[string]any) {
	for key, value := range fields {
		switch value := value.(type) {
		case string:
			fields[key] = redactText(value)
		case map[string]any:
			if key == "annotations" {
				redactAnnotations(value)
			}
			redactTexts(value)
		case []any:
			for i, item := range value {
				switch item := item.(type) {
				case string:
					value[i] = redactText(item)
				case map[string]any:
					redactTexts(item)
				}
			}
		}
	}
}

// redactField returns what is shown of a field of a spec.
func redactField(parent, key string, value any) any {
	name := strings.ToLower(key)
	if freeFields[name] || name == "token" && parent != "creation" { // a machine's token is no credential
		return redacted
	}
	switch value := value.(type) {
	case string:
		if parent == "metadata" && name != "name" && name != "namespace" { // what a cloud stores with a VM
			return redacted
		}
		return redactText(value)
	case map[string]any:
		if name == "annotations" {
			redactAnnotations(value)
			return value
		}
		for k, v := range value {
			value[k] = redactField(key, k, v)
		}
	case []any:
		for i, item := range value {
			value[i] = redactField(parent, key, item)
		}
	}
	return value
}

// redactAnnotations shows the values of short annotations of Drover and Cluster API.
func redactAnnotations(annotations map[string]any) {
	for key, value := range annotations {
		domain, _, _ := strings.Cut(key, "/")
		text, _ := value.(string)
		shown := false
		for _, d := range shownAnnotations {
			shown = shown || domain == d || strings.HasSuffix(domain, "."+d)
		}
		if !shown || len(text) > longestAnnotation {
			annotations[key] = redacted
		}
	}
}

// secretForms are texts that are secrets wherever they stand. The groups stay.
var secretForms = []*regexp.Regexp{
	regexp.MustCompile(`(://)[^\s/@"']+(@)`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[-a-z0-9._~+/]{8,}=*`),
	regexp.MustCompile(`()\beyJ[-\w]{8,}\.[-\w]+\.[-\w]*`),
	regexp.MustCompile(`(?s)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`),
	regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), // a bootstrap token
	regexp.MustCompile(`(?i)((?:password|passwd|secret|token|api[-_]?key|access[-_]?key)["']?\s*[=:]\s*["']?)[^\s"',;&]{6,}`),
}

// redactText removes what is a secret by its form. Drover writes no secret into its log; this is for
// the words of others.
func redactText(text string) string {
	for _, form := range secretForms {
		text = form.ReplaceAllString(text, "${1}"+redacted+"${2}")
	}
	return text
}
