// SPDX-License-Identifier: Apache-2.0

// Package scan counts what a text becomes when it is decoded, without decoding it. An empty element
// has a few bytes, and takes up to some KiB in memory. It must not import other packages of this
// module.
package scan

import (
	"errors"
	"fmt"
)

// MaxDepth bounds how deep a text is nested.
const MaxDepth = 100

// ErrDepth is the error for a text that is nested too deep.
var ErrDepth = fmt.Errorf("is nested more than %d levels deep", MaxDepth)

// The errors for a text that is not JSON. They follow the name of what was read.
var (
	errNotObject = errors.New("is not an object")
	errOutside   = errors.New("has text outside of objects")
	errBrackets  = errors.New("has brackets that do not match")
)

// JSON follows the structure of JSON without keeping it. It accepts all JSON whose outermost value
// is an object, and other texts. The zero value is at the beginning of a text.
type JSON struct {
	// Arrays makes it accept an array as the outermost value, too.
	Arrays bool
	// Depth is how many brackets are open.
	Depth int
	// Elements counts those of arrays at any depth, and Members those of objects.
	Elements, Members int64
	// Items counts the elements of arrays in the outermost object. Readers may reset it.
	Items int
	// Keys counts the members of the outermost object.
	Keys int

	stack    []byte // the open brackets
	inString bool
	escaped  bool
	fresh    bool // after '[', before its first element
}

// Restart continues with another text.
func (s *JSON) Restart() { *s = JSON{Arrays: s.Arrays, stack: s.stack[:0]} }

// Next reads one byte.
func (s *JSON) Next(c byte) error {
	if s.inString {
		switch {
		case s.escaped:
			s.escaped = false
		case c == '\\':
			s.escaped = true
		case c == '"':
			s.inString = false
		}
		return nil
	}
	switch c {
	case ' ', '\t', '\r', '\n':
		return nil
	case ']', '}':
		s.fresh = false
		return s.pop(c)
	}
	if s.fresh {
		s.fresh = false
		s.element()
	}
	switch c {
	case '"':
		s.inString = true
		return s.inside()
	case '{', '[':
		return s.push(c)
	case ',':
		if s.Depth > 0 && s.stack[s.Depth-1] == '[' {
			s.element()
		}
		return s.inside()
	case ':':
		s.Members++
		if s.Depth == 1 {
			s.Keys++
		}
		return s.inside()
	}
	return s.inside()
}

func (s *JSON) element() {
	s.Elements++
	if s.Depth <= 2 {
		s.Items++
	}
}

func (s *JSON) inside() error {
	if s.Depth == 0 {
		return errOutside
	}
	return nil
}

func (s *JSON) push(c byte) error {
	switch {
	case s.Depth == 0 && c == '[' && !s.Arrays:
		return errNotObject
	case s.Depth == MaxDepth:
		return ErrDepth
	}
	s.stack, s.fresh = append(s.stack[:s.Depth], c), c == '['
	s.Depth++
	return nil
}

func (s *JSON) pop(c byte) error {
	if s.Depth == 0 || (s.stack[s.Depth-1] == '{') != (c == '}') {
		return errBrackets
	}
	s.Depth--
	return nil
}
