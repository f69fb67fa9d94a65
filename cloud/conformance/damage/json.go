// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// maxDocument is how large a damaged document may become, in bytes.
const maxDocument = 1 << 20

// damagedJSON returns a JSON document with damage in one to four places.
func damagedJSON(r *rand.Rand, text []byte) []byte {
	var doc any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&doc) != nil {
		return text
	}
	for range 1 + r.IntN(4) {
		all := count(doc)
		at := r.IntN(all)
		other := nodeAt(doc, r.IntN(all))
		doc, _ = replace(r, doc, &at, other)
	}
	out, err := json.Marshal(doc)
	if err != nil || len(out) > maxDocument {
		return text
	}
	return out
}

// children returns a node's children, in an order that does not change.
func children(node any) []any {
	switch node := node.(type) {
	case map[string]any:
		all := make([]any, 0, len(node))
		for _, key := range sortedKeys(node) {
			all = append(all, node[key])
		}
		return all
	case []any:
		return node
	}
	return nil
}

func sortedKeys[M ~map[string]V, V any](m M) []string { return slices.Sorted(maps.Keys(m)) }

// count returns how many nodes a document has.
func count(node any) int {
	n := 1
	for _, child := range children(node) {
		n += count(child)
	}
	return n
}

// nodeAt returns the node with this number, in the order of count.
func nodeAt(node any, i int) any {
	if i == 0 {
		return node
	}
	i--
	for _, child := range children(node) {
		n := count(child)
		if i < n {
			return nodeAt(child, i)
		}
		i -= n
	}
	return nil
}

// removed takes the place of a node that its parent loses.
type removed struct{}

// MarshalJSON implements json.Marshaler, for a document that is nothing else.
func (removed) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// replace replaces the node with this number. done is true if it was in this tree.
func replace(r *rand.Rand, node any, at *int, other any) (result any, done bool) {
	if *at == 0 {
		return mutant(r, node, other), true
	}
	*at--
	switch node := node.(type) {
	case map[string]any:
		for _, key := range sortedKeys(node) {
			child, done := replace(r, node[key], at, other)
			if !done {
				continue
			}
			if child == (removed{}) {
				delete(node, key)
			} else {
				node[key] = child
			}
			return node, true
		}
	case []any:
		for i := range node {
			child, done := replace(r, node[i], at, other)
			if !done {
				continue
			}
			if child == (removed{}) {
				return slices.Delete(node, i, i+1), true
			}
			node[i] = child
			return node, true
		}
	}
	return node, false
}

// copied returns a copy that shares nothing with the original, so that a document never holds
// itself.
func copied(node any) any {
	switch node := node.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, child := range node {
			out[key] = copied(child)
		}
		return out
	case []any:
		out := make([]any, len(node))
		for i, child := range node {
			out[i] = copied(child)
		}
		return out
	}
	return node
}

// mutant returns what takes the place of a node: itself changed, another node, or a word.
func mutant(r *rand.Rand, node, other any) any {
	switch r.IntN(8) {
	case 0:
		if list, ok := node.([]any); ok && len(list) > 0 {
			out := slices.Clone(list)
			for range r.IntN(40) {
				out = append(out, copied(one(r, list)))
			}
			return out
		}
	case 1:
		return copied(other)
	case 2:
		if s, ok := node.(string); ok {
			return mutantString(r, s)
		}
	case 3:
		return []any{copied(node)}
	}
	return copied(one(r, words))
}

func mutantString(r *rand.Rand, s string) string {
	switch r.IntN(5) {
	case 0:
		return s + s
	case 1:
		return s[:r.IntN(len(s)+1)]
	case 2:
		return strings.Repeat(s+"x", 1000)
	case 3:
		return strings.ToUpper(s)
	}
	return strings.NewReplacer("/", "", ":", "", "-", "").Replace(s)
}

// words are values that take the place of others.
var words = []any{
	nil, nil, nil, removed{}, removed{}, removed{}, true, false, map[string]any{}, []any{}, []any{nil}, map[string]any{"": nil},
	json.Number("-1"), json.Number("0"), json.Number("1e308"), json.Number("9223372036854775808"), json.Number("1.5"),
	json.RawMessage(strings.Repeat("[", nested/4) + strings.Repeat("]", nested/4)),
	"", "x", "/", "//", "a/b", ":", "::", "[", "0", "-1", "1e309", "%zz", "\x00", "../../x", "http://[::1", "https://", "ssh-rsa", "true",
	"9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-13-45", "10.0.0.1/33", "fe80::1%eth0", "300.1.1.1", "::ffff:1.2.3.4",
	"999999999999999999Gi", "-5Gi", "1n", "/subscriptions//resourceGroups/", "projects/x/zones/", "/zones/", "aws:///",
}
