// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
)

const (
	// scriptPrefix is the prefix of each line that Drover's script writes about itself, on the
	// console too (bootstrap/render). These lines contain no secret.
	scriptPrefix = "drover: "
	// consoleLines and consoleLine bound the excerpt of a console: the number of lines, and the
	// bytes of each line.
	consoleLines, consoleLine = 3, 240
)

// consoles remembers what late machines' consoles have shown. The zero value is ready for use.
type consoles struct {
	mu  sync.Mutex
	all map[types.NamespacedName]consoleExcerpt
}

type consoleExcerpt struct {
	token string // the creation token of the VM
	at    time.Time
	text  string // the end of a sentence; "" for nothing
}

// due reports whether it is time to read the console of a VM that has run since the given time:
// first when the VM is late, then each time that it has run twice as long as at the last read.
func (l consoleExcerpt) due(since time.Time) bool {
	return l.at.IsZero() || time.Since(since) >= 2*l.at.Sub(since)
}

func (c *consoles) of(s *machineScope) consoleExcerpt {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.all[s.key()]; known.token == s.Spec.Creation.Token {
		return known
	}
	return consoleExcerpt{}
}

func (c *consoles) set(s *machineScope, shown string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[types.NamespacedName]consoleExcerpt{}
	}
	c.all[s.key()] = consoleExcerpt{s.Spec.Creation.Token, time.Now(), shown}
}

func (c *consoles) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, key)
}

// console returns what the console of a VM that has run since the given time showed last, as the
// end of a sentence; "" for nothing. It asks the cloud only when a read is due, to save calls.
func (r *NodeReconciler) console(ctx context.Context, s *machineScope, since time.Time) string {
	last := r.consoles.of(s)
	if s.account == nil || !last.due(since) {
		return last.text
	}
	text, err := s.account.Console(ctx, s.reference())
	var queued *cloud.Queued
	if errors.As(err, &queued) {
		return last.text // the next check retries
	}
	excerpt := ""
	switch lines := lastLines(text); {
	case err != nil:
		excerpt = "; its console can't be read: " + cloud.Clip(err.Error(), consoleLine)
	case lines != "":
		excerpt = fmt.Sprintf("; at %s its console ended with %s", time.Now().UTC().Format(time.TimeOnly), lines)
	}
	r.consoles.set(s, excerpt)
	return excerpt
}

// escape matches a terminal's control sequence (ECMA-48), such as a color.
var escape = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|[@-Z\\\\-_])")

// lastLines returns the last lines of a console, in quotes: only those of Drover's script, if there
// are any. Consecutive equal lines appear once.
func lastLines(console []byte) string {
	var script, all []string
	for line := range strings.SplitSeq(strings.ReplaceAll(escape.ReplaceAllString(string(console), ""), "\r", "\n"), "\n") {
		line = oneLine(strings.ToValidUTF8(line, ""))
		if _, text, ok := strings.Cut(line, scriptPrefix); ok && !bootstrapToken.MatchString(text) {
			script = appendNew(script, text)
		}
		if line != "" && !mayBeSecret(line) {
			all = appendNew(all, line)
		}
	}
	if len(script) > 0 {
		all = script
	}
	var out []string
	for _, line := range all[max(0, len(all)-consoleLines):] {
		out = append(out, `"`+cloud.Clip(line, consoleLine)+`"`)
	}
	return strings.Join(out, ", ")
}

func appendNew(lines []string, line string) []string {
	if n := len(lines); n > 0 && lines[n-1] == line {
		return lines
	}
	return append(lines, line)
}

var (
	// bootstrapToken matches the only secret that all machines receive.
	bootstrapToken = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)
	// secretWords and secretForm match lines of other programs that may hold secrets: the words for
	// a secret, and what looks like a key or a part of a base64 file.
	secretWords = regexp.MustCompile(`(?i)passw|passphrase|secret|token|credential|private|bearer|authorization|api.?key`)
	secretForm  = regexp.MustCompile(`[A-Za-z0-9+/_=-]{40,}`)
)

func mayBeSecret(line string) bool {
	return bootstrapToken.MatchString(line) || secretWords.MatchString(line) || secretForm.MatchString(line)
}
