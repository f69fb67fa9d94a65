// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/drover-io/drover/cloud"
)

const (
	// maxCalls is how many calls of the cloud one method may make.
	maxCalls = 1000
	// maxText is how long the text of an error may be, in bytes.
	maxText = 2048
)

// internals are parts of what Go's decoders say.
var internals = []string{"cannot unmarshal", "Go struct field", "Go value", "UnmarshalJSON", "UnmarshalText", "parsing time", "strconv."}

// panicked calls a method, and returns a panic of it as the engine does.
func (f *findings) panicked(method string, target *Target, do func() error) error {
	err := cloud.Recover(do)
	if p, panicked := errors.AsType[*cloud.PanicError](err); panicked {
		if target.Recovers != nil && target.Recovers(p) {
			f.recovered++
		} else {
			f.note(method, "a panic: %v\n%s", p, p.Stack)
		}
	}
	return err
}

// judge judges what a method has returned, and how many calls it has made.
func (f *findings) judge(method string, target *Target, err error, p *player) {
	if p.calls > maxCalls {
		f.note(method, "more than %d calls, the last one of %s", maxCalls, p.last)
	}
	f.called[method]++
	if err == nil {
		return
	}
	f.errors[method]++
	text := err.Error()
	for _, secret := range target.Secrets {
		if strings.Contains(text, secret) {
			f.note(method, "an error holds the secret %q: %s", secret, text)
		}
	}
	for _, word := range internals {
		if strings.Contains(text, word) {
			f.note(method, "an error shows internals of the program: %s", text)
		}
	}
	if len(text) > maxText {
		f.note(method, "an error of %d bytes: %.512s", len(text), text)
	}
	if !utf8.ValidString(text) {
		f.note(method, "an error that is not UTF-8: %q", text)
	}
}
