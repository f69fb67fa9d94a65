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
	// scriptSays begins what Drover's script says of itself, on the console too (bootstrap/render).
	// No secret is in it.
	scriptSays = "drover: "
	// consoleLines and consoleLine bound what is told of a console: lines, and bytes of each.
	consoleLines, consoleLine = 3, 240
)

// consoles remembers what the consoles of machines that are late have shown. The zero value is
// ready for use.
type consoles struct {
	mu  sync.Mutex
	all map[types.NamespacedName]consoleLook
}

type consoleLook struct {
	token string // whose it is
	at    time.Time
	shown string // the end of a sentence; "" for nothing
}

// due tells whether it is time to look at the console of a VM that runs since then: when it is
// late, and each time that it has run for twice as long as at the last look.
func (l consoleLook) due(since time.Time) bool {
	return l.at.IsZero() || time.Since(since) >= 2*l.at.Sub(since)
}

func (c *consoles) of(s *machineScope) consoleLook {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.all[s.key()]; known.token == s.Spec.CreationToken {
		return known
	}
	return consoleLook{}
}

func (c *consoles) set(s *machineScope, shown string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[types.NamespacedName]consoleLook{}
	}
	c.all[s.key()] = consoleLook{s.Spec.CreationToken, time.Now(), shown}
}

func (c *consoles) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, key)
}

// console is what the console of a VM that runs since then has shown last, as the end of a
// sentence; "" for nothing. Its cloud is asked when that is due: it costs a call.
func (r *CloudMachineReconciler) console(ctx context.Context, s *machineScope, since time.Time) string {
	last := r.consoles.of(s)
	if s.account == nil || !last.due(since) {
		return last.shown
	}
	text, err := s.account.Console(ctx, s.reference())
	var queued *cloud.Queued
	if errors.As(err, &queued) {
		return last.shown // the next look asks again
	}
	shown := ""
	switch said := lastWords(text); {
	case err != nil:
		shown = "; its console can't be read: " + cloud.Clip(err.Error(), consoleLine)
	case said != "":
		shown = fmt.Sprintf("; at %s its console ended with %s", time.Now().UTC().Format(time.TimeOnly), said)
	}
	r.consoles.set(s, shown)
	return shown
}

// escape is a terminal's control sequence (ECMA-48), such as a colour.
var escape = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|[@-Z\\\\-_])")

// lastWords are the last lines of a console, in quotes: those in which Drover's script speaks,
// where there are any. What repeats is told once.
func lastWords(console []byte) string {
	var script, all []string
	for line := range strings.SplitSeq(strings.ReplaceAll(escape.ReplaceAllString(string(console), ""), "\r", "\n"), "\n") {
		line = oneLine(strings.ToValidUTF8(line, ""))
		if _, said, ok := strings.Cut(line, scriptSays); ok && !bootstrapToken.MatchString(said) {
			script = appendNew(script, said)
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
	// bootstrapToken is the form of the only secret that all machines are given.
	bootstrapToken = regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)
	// secretWords and secretForm are of lines that programs wrote of which nothing is known: what
	// they call a secret, and what looks like a key or a part of a file in base64.
	secretWords = regexp.MustCompile(`(?i)passw|passphrase|secret|token|credential|private|bearer|authorization|api.?key`)
	secretForm  = regexp.MustCompile(`[A-Za-z0-9+/_=-]{40,}`)
)

func mayBeSecret(line string) bool {
	return bootstrapToken.MatchString(line) || secretWords.MatchString(line) || secretForm.MatchString(line)
}
