// SPDX-License-Identifier: Apache-2.0

package scan

import "slices"

// XML counts the elements and attributes of XML without keeping it. It counts at least what
// encoding/xml makes of a text: in a comment, it counts what looks like one. The zero value is at
// the beginning of a text.
type XML struct {
	// Elements counts all elements, and Items those named "item" or "member", as AWS names the
	// elements of lists.
	Elements, Items int64
	// Repeated counts elements whose name an earlier child of the same parent had, and so all
	// elements of arrays but the first.
	Repeated int64
	// Attributes counts the attributes of all elements.
	Attributes int64
	// Marks counts comments, directives, instructions and CDATA.
	Marks int64

	depth  int
	state  xmlState
	name   [len("member") + 1]byte // of an element: its beginning
	length int                     // of that
	hash   uint64                  // of the whole name
	seen   []names                 // by depth: of the children of what is open
	last   byte                    // the byte before
	equals bool                    // after '=', before a quotation mark
}

// names are digests of the first names of a parent's children. If there are more, each child counts
// as repeated.
type names struct {
	all  [24]uint64
	many uint8
}

// add adds a name, and reports whether it was there, or there is no room.
func (n *names) add(name uint64) bool {
	if slices.Contains(n.all[:n.many], name) || int(n.many) == len(n.all) {
		return true
	}
	n.all[n.many] = name
	n.many++
	return false
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
	s.state = inName
	s.beginName()
	s.inName(c)
	return nil
}

// inName reads a byte of an element's name, or the byte that ends it.
func (s *XML) inName(c byte) {
	switch c {
	case ':': // the name follows its namespace
		s.beginName()
		return
	case ' ', '\t', '\r', '\n', '/', '>':
		if name := string(s.name[:s.length]); name == "item" || name == "member" {
			s.Items++
		}
		s.endName()
		s.state = inTag
		return
	}
	if s.length < len(s.name) {
		s.name[s.length] = c
		s.length++
	}
	s.hash = (s.hash ^ uint64(c)) * 1099511628211
}

// beginName begins the FNV-1a digest of a name.
func (s *XML) beginName() { s.length, s.hash = 0, 14695981039346656037 }

// endName compares the name of an element with those of its siblings.
func (s *XML) endName() {
	for len(s.seen) <= s.depth {
		s.seen = append(s.seen, names{})
	}
	if s.seen[s.depth-1].add(s.hash) {
		s.Repeated++
	}
	s.seen[s.depth].many = 0
}
