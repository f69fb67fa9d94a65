// SPDX-License-Identifier: Apache-2.0

package scan

// XML counts the elements and attributes of XML without keeping it. It counts at least what
// encoding/xml makes of a text: in a comment, it counts what looks like one. The zero value is at
// the beginning of a text.
type XML struct {
	// Elements counts all elements, and Items those named "item" or "member", as AWS names the
	// elements of lists.
	Elements, Items int64
	// Attributes counts the attributes of all elements.
	Attributes int64
	// Marks counts comments, directives, instructions and CDATA.
	Marks int64

	depth  int
	state  xmlState
	name   [len("member") + 1]byte // of an element: its beginning
	length int                     // of that
	last   byte                    // the byte before
	equals bool                    // after '=', before a quotation mark
}

type xmlState uint8

const (
	inText    xmlState = iota
	afterOpen          // after '<'
	inName             // of an element
	inTag              // after an element's name
)

// Next reads one byte.
func (s *XML) Next(c byte) error {
	err := s.next(c)
	s.last = c
	return err
}

func (s *XML) next(c byte) error {
	switch c {
	case '<': // also inside a tag: the tag may be a part of a comment
		s.state, s.equals = afterOpen, false
		return nil
	case '=':
		s.equals = true
	case '"', '\'':
		if s.equals {
			s.Attributes++
		}
		s.equals = false
	case ' ', '\t', '\r', '\n':
	default:
		s.equals = false
	}
	switch s.state {
	case afterOpen:
		return s.open(c)
	case inName:
		s.inName(c)
	}
	if c == '>' && s.state == inTag {
		s.state = inText
		if s.last == '/' {
			s.depth--
		}
	}
	return nil
}

// open reads the byte after '<'.
func (s *XML) open(c byte) error {
	s.state = inText
	switch c {
	case '/':
		s.depth--
		return nil
	case '!', '?':
		s.Marks++
		return nil
	}
	s.Elements++
	if s.depth = max(s.depth, 0) + 1; s.depth > MaxDepth {
		return ErrDepth
	}
	s.state, s.length = inName, 0
	s.inName(c)
	return nil
}

// inName reads a byte of an element's name, or the byte that ends it.
func (s *XML) inName(c byte) {
	switch c {
	case ':': // the name follows its namespace
		s.length = 0
		return
	case ' ', '\t', '\r', '\n', '/', '>':
		if name := string(s.name[:s.length]); name == "item" || name == "member" {
			s.Items++
		}
		s.state = inTag
		return
	}
	if s.length < len(s.name) {
		s.name[s.length] = c
		s.length++
	}
}
