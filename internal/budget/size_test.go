// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/internal/budget"
)

func TestSizeOf(t *testing.T) {
	type inner struct {
		text string
		n    *int
	}
	text := strings.Repeat("a", 1000)
	n := 1
	for name, c := range map[string]struct {
		value any
		least int64
	}{
		"nothing":       {nil, 0},
		"a text":        {text, 1016},
		"texts":         {[]string{text, text}, 2056},
		"bytes":         {[]byte(text), 1024},
		"a pointer":     {&inner{text: text, n: &n}, 1040},
		"an interface":  {[]any{text, inner{text: text}}, 2072},
		"a map":         {map[string]any{"a": text, text: 1}, 2064},
		"a nil pointer": {(*inner)(nil), 8},
		"a time":        {time.Now(), 24},
		"an array":      {[2]inner{{text: text}, {text: text}}, 2048},
	} {
		if got := budget.SizeOf(c.value); got < c.least || got > c.least+100 {
			t.Errorf("%s takes %d bytes, not about %d", name, got, c.least)
		}
	}
}
