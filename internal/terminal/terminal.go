// SPDX-License-Identifier: Apache-2.0

// Package terminal makes texts of others fit to be shown on a terminal.
package terminal

import (
	"strings"
	"unicode"
)

// Printable returns a text without control characters: names of zones, for example, are whatever
// the cloud answers.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
