// SPDX-License-Identifier: Apache-2.0

package userdata

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// templateHeader matches cloud-init's header, with any space around the colon.
var templateHeader = regexp.MustCompile(`^##\s*template:\s*jinja\s*\r?\n`)

func cutTemplateHeader(text string) (string, bool) {
	header := templateHeader.FindString(text)
	return text[len(header):], header != ""
}

// missing is what cloud-init inserts for an unknown variable.
const missing = "CI_MISSING_JINJA_VAR/"

// endRaw matches the end of a raw block.
var endRaw = regexp.MustCompile(`\{%-?\s*endraw\s*-?%\}`)

// closing maps the start of each kind of tag to its end.
var closing = map[string]string{"{{": "}}", "{%": "%}", "{#": "#}"}

// render supports the part of Jinja that nodes' user data uses: variables, comments and raw blocks,
// with "-" to trim space. As in cloud-init, a line break right after a block or comment is removed
// (trim_blocks), and the last one of the text stays.
func render(text string, vars InstanceData) (string, []string, error) {
	var out strings.Builder
	var warnings []string
	for {
		start := nextTag(text)
		if start < 0 {
			out.WriteString(text)
			return out.String(), warnings, nil
		}
		before, kind := text[:start], text[start:start+2]
		inner, after, ok := strings.Cut(text[start+2:], closing[kind])
		if !ok {
			return "", nil, fmt.Errorf("a %q is never closed", kind)
		}
		if strings.HasPrefix(inner, "-") {
			before = strings.TrimRight(before, space)
		}
		out.WriteString(before)
		switch kind {
		case "{{":
			value, found, err := lookup(inner, vars)
			if err != nil {
				return "", nil, err
			}
			if !found {
				warnings = append(warnings, "the template names a variable that there is not: "+strings.Trim(inner, "- \t"))
			}
			out.WriteString(value)
			text = trimAfter(inner, after, false)
		case "{#":
			text = trimAfter(inner, after, true)
		case "{%":
			raw, rest, err := rawBlock(inner, after)
			if err != nil {
				return "", nil, err
			}
			out.WriteString(raw)
			text = rest
		}
	}
}

const space = " \t\r\n"

// trimAfter trims the text after a tag. inner is the tag's content.
func trimAfter(inner, after string, block bool) string {
	switch {
	case strings.HasSuffix(inner, "-"):
		return strings.TrimLeft(after, space)
	case block:
		return strings.TrimPrefix(after, "\n")
	}
	return after
}

// rawBlock splits a raw block from the text after its first tag. inner is that tag's content.
func rawBlock(inner, after string) (raw, rest string, err error) {
	if strings.Trim(inner, "-"+space) != "raw" {
		return "", "", errors.New("the template has a statement other than raw, which is not simulated")
	}
	end := endRaw.FindStringIndex(after)
	if end == nil {
		return "", "", errors.New("a raw block is never closed")
	}
	raw = after[:end[0]]
	if strings.HasSuffix(inner, "-") {
		raw = strings.TrimLeft(raw, space)
	}
	tag := after[end[0]+2 : end[1]-2]
	if strings.HasPrefix(tag, "-") {
		raw = strings.TrimRight(raw, space)
	}
	return raw, trimAfter(tag, after[end[1]:], true), nil
}

// nextTag returns the index of the next tag, or -1.
func nextTag(text string) int {
	for from := 0; ; {
		i := strings.IndexByte(text[from:], '{')
		if i < 0 || from+i+1 >= len(text) {
			return -1
		}
		i += from
		if strings.IndexByte("{%#", text[i+1]) >= 0 {
			return i
		}
		from = i + 1
	}
}

var variable = regexp.MustCompile(`^-?\s*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\s*-?$`)

// lookup returns a variable's value and whether it exists. cloud-init also accepts the v1 variables
// without prefix.
func lookup(expression string, vars InstanceData) (string, bool, error) {
	m := variable.FindStringSubmatch(expression)
	if m == nil {
		return "", false, errors.New("the template has an expression that is no plain variable, which is not simulated")
	}
	switch strings.TrimPrefix(m[1], "v1.") {
	case "instance_id":
		return vars.InstanceID, true, nil
	case "availability_zone":
		return vars.AvailabilityZone, true, nil
	case "region":
		return vars.Region, true, nil
	case "local_hostname":
		name, _, _ := strings.Cut(vars.LocalHostname, ".")
		return name, true, nil
	case "ds.meta_data.local_hostname", "ds.meta_data.imds.compute.name": // Azure's name of a VM is its host name
		return vars.LocalHostname, true, nil
	case "cloud_name", "platform":
		return vars.CloudName, true, nil
	}
	return missing + m[1][strings.LastIndexByte(m[1], '.')+1:], false, nil
}
