// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"encoding/json"
	"strings"
)

// fields is what a parameter of this name selects from an answer: members, and what of each; nil:
// all of it. "*" stands for any member. "Using partial responses" in Compute Engine's guide.
type fields map[string]fields

// parseFields parses a list such as "a,b/c,d(e,f/*)". It returns the rest after its end.
func parseFields(text string) (fields, string) {
	all := fields{}
	for {
		end := strings.IndexAny(text, ",/()")
		if end < 0 {
			end = len(text)
		}
		path := []string{text[:end]}
		for text = text[end:]; strings.HasPrefix(text, "/"); text = text[end:] {
			text = text[1:]
			if end = strings.IndexAny(text, ",/()"); end < 0 {
				end = len(text)
			}
			path = append(path, text[:end])
		}
		var inner fields
		if strings.HasPrefix(text, "(") {
			inner, text = parseFields(text[1:])
			text = strings.TrimPrefix(text, ")")
		}
		all.add(path, inner)
		if !strings.HasPrefix(text, ",") {
			return all, text
		}
		text = text[1:]
	}
}

func (f fields) add(path []string, inner fields) {
	if len(path) == 1 {
		f[path[0]] = inner
		return
	}
	if f[path[0]] == nil {
		f[path[0]] = fields{}
	}
	f[path[0]].add(path[1:], inner)
}

// of returns what is selected from a value. It selects from each element of an array.
func (f fields) of(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = f.of(v[i])
		}
	case map[string]any:
		for name, member := range v {
			inner, ok := f[name]
			if !ok {
				inner, ok = f["*"]
			}
			switch {
			case !ok:
				delete(v, name)
			case inner != nil:
				v[name] = inner.of(member)
			}
		}
	}
	return value
}

// partial returns what a call selects from its answer.
func (in *call) partial(answer any) (any, *failure) {
	text := in.is("fields")
	if text == "" {
		return answer, nil
	}
	selected, rest := parseFields(text)
	data, err := json.Marshal(answer)
	var copied any
	if err != nil || json.Unmarshal(data, &copied) != nil || rest != "" {
		return nil, refuse(400, "invalidParameter", "Invalid field selection %s", text)
	}
	return selected.of(copied), nil
}
