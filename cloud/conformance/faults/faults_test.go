// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"strings"
	"testing"
)

// TestAim: a fault hits the calls of its operation, after those that pass and as many as it says;
// the first of two wins, until it is undone.
func TestAim(t *testing.T) {
	for name, test := range map[string]struct {
		aims []Aim
		want string // the faults of six calls, by number; "-" for none
	}{
		"none":              {want: "------"},
		"all":               {aims: []Aim{{}}, want: "000000"},
		"another operation": {aims: []Aim{{Operation: "delete"}}, want: "------"},
		"some":              {aims: []Aim{{Operation: "create", Skip: 1, Count: 2}}, want: "-00---"},
		"two":               {aims: []Aim{{Count: 1}, {Skip: 1, Count: 3}}, want: "0-111-"},
	} {
		var faults List[string]
		var undo []func()
		for i, aim := range test.aims {
			undo = append(undo, faults.Inject(aim, string(rune('0'+i))))
		}
		var got strings.Builder
		draw := func() {
			if f := faults.Draw("create"); f != "" {
				got.WriteString(f)
				return
			}
			got.WriteByte('-')
		}
		for range 6 {
			draw()
		}
		for _, do := range undo {
			do()
		}
		draw()
		if got.String() != test.want+"-" {
			t.Errorf("%s: got %s, want %s-", name, got.String(), test.want)
		}
	}
}
