// SPDX-License-Identifier: Apache-2.0

package forwarder

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzScanner compares the scanner with encoding/json: it accepts every object, and counts as many
// elements, items and keys.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"items":[]}`, `{"items":[1,"a",null,true,{"b":[[],[1]]}],"x":{"y":["]",{"z":"\"[,:"}]}}`, ` {"a" : [ ] , "b":[ [ ] ]}`, `[1]`, `{"a":[}`, `{"a":1}}`, `"x"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := scanner{}
		var refused error
		for _, c := range data {
			if refused = s.next(c); refused != nil {
				break
			}
			if s.depth > maxDepth {
				t.Fatal("deeper than permitted")
			}
		}
		var raw map[string]json.RawMessage
		if json.Unmarshal(data, &raw) != nil || bytes.TrimSpace(data)[0] != '{' {
			return
		}
		decoder := json.NewDecoder(bytes.NewReader(data))
		elements, items, keys, depth := count(t, decoder)
		if depth > maxDepth {
			return
		}
		if refused != nil || s.depth != 0 || s.elements != elements || s.items != items || s.keys != keys {
			t.Fatalf("%q: %v, depth %d, %d elements (want %d), %d items (want %d), %d keys (want %d)",
				data, refused, s.depth, s.elements, elements, s.items, items, s.keys, keys)
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
			return
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
