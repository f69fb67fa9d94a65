// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

const (
	// minFieldValue is how long a field's value must be to be looked for in a message, in bytes.
	// Shorter ones are found by chance.
	minFieldValue = 3
	// maxRefusal is how much is shown of what the cloud says, in bytes. Field and remedy need the
	// rest of a condition's message.
	maxRefusal = 700
)

// invalidSpec says which field the cloud refuses, in the cloud's words, and what to do. The failure
// domain is the one that the Machine asks for, or "".
func invalidSpec(spec *infrav1.MachineCloud, name, domain, refusal string) string {
	field, named := "spec.cloud."+name, fieldsIn(refusal, spec)
	switch {
	case len(named) > 0:
		field = strings.Join(named, ", ")
	case domain != "" && hasWord(refusal, strconv.Quote(domain)):
		return fmt.Sprintf("the Machine's spec.failureDomain: %s; correct or remove spec.template.spec.failureDomain of the "+
			"MachineDeployment: the DroverAccount lists the account's in status.failureDomains", cloud.Clip(refusal, maxRefusal))
	}
	return fmt.Sprintf("%s: %s; templates can't be changed: create another DroverMachineTemplate with the field corrected, "+
		"and set its name in the MachineDeployment", field, cloud.Clip(refusal, maxRefusal))
}

// fieldsIn returns the paths of those fields whose values a message has, sorted. No cloud names the
// field of Drover's that it refuses, and all quote its value.
func fieldsIn(message string, spec *infrav1.MachineCloud) []string {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil
	}
	found := map[string]bool{}
	walk("spec.cloud", tree, func(path, value string) {
		if len(value) >= minFieldValue && hasWord(message, value) {
			found[path] = true
		}
	})
	return slices.Sorted(maps.Keys(found))
}

// walk calls visit for each string below a JSON value.
func walk(path string, value any, visit func(path, value string)) {
	switch value := value.(type) {
	case map[string]any:
		for name, child := range value {
			walk(path+"."+name, child, visit)
		}
	case []any:
		for i, child := range value {
			walk(fmt.Sprintf("%s[%d]", path, i), child, visit)
		}
	case string:
		visit(path, value)
	}
}

// hasWord reports whether a text has a word that is not a part of a longer one.
func hasWord(text, word string) bool {
	for {
		before, after, found := strings.Cut(text, word)
		if !found {
			return false
		}
		last, _ := utf8.DecodeLastRuneInString(before)
		first, _ := utf8.DecodeRuneInString(after)
		if !isWordRune(last) && !isWordRune(first) {
			return true
		}
		text = after
	}
}

// isWordRune reports whether a rune continues a name or an ID. A point may end a sentence.
func isWordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_'
}
