// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzJSON compares the scanner with encoding/json: it accepts every object, and counts as many
// elements, items and keys.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"items":[]}`, `{"items":[1,"a",null,true,{"b":[[],[1]]}],"x":{"y":["]",{"z":"\"[,:"}]}}`, ` {"a" : [ ] , "b":[ [ ] ]}`, `[1]`,
		`{"a":[}`, `{"a":1}}`, `"x"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := JSON{}
		var refused error
		for _, c := range data {
			if refused = s.Next(c); refused != nil {
				break
			}
			if s.Depth > MaxDepth {
				t.Fatal("deeper than permitted")
			}
		}
		var raw map[string]json.RawMessage
		if json.Unmarshal(data, &raw) != nil || bytes.TrimSpace(data)[0] != '{' {
			return
		}
		decoder := json.NewDecoder(bytes.NewReader(data))
		elements, items, keys, depth := count(t, decoder)
		if depth > MaxDepth {
			return
		}
		if refused != nil || s.Depth != 0 || s.Elements != elements || s.Items != items || s.Keys != keys {
			t.Fatalf("%q: %v, depth %d, %d elements (want %d), %d items (want %d), %d keys (want %d)",
				data, refused, s.Depth, s.Elements, elements, s.Items, items, s.Keys, keys)
		}
	})
}

// count counts by encoding/json's tokens.
func count(t *testing.T, decoder *json.Decoder) (elements int64, items, keys, deepest int) {
	t.Helper()
	var stack []json.Delim
	tokens := []int{}
	for {
		token, err := decoder.Token()
		if err != nil {
			return elements, items, keys, deepest
		}
		d, isDelim := token.(json.Delim)
		if isDelim && (d == ']' || d == '}') {
			stack, tokens = stack[:len(stack)-1], tokens[:len(tokens)-1]
			continue
		}
		if n := len(stack); n > 0 {
			switch {
			case stack[n-1] == '[':
				elements++
				if n == 2 {
					items++
				}
			case n == 1 && tokens[0]%2 == 0:
				keys++
			}
			tokens[n-1]++
		}
		if isDelim {
			stack, tokens = append(stack, d), append(tokens, 0)
			deepest = max(deepest, len(stack))
		}
	}
}
