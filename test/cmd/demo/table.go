// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
	"unicode/utf8"
)

const (
	columns = 6
	// freshFor is how long a changed cell is marked, and goneFor how long a machine's row stays at
	// least after the machine, so that people can see both.
	freshFor = 2 * time.Second
	goneFor  = 2 * time.Second
)

// row is a row of the table.
type row struct{ machine, phase, vm, zone, node, waitsFor string }

func (r row) cells() [columns]string {
	return [columns]string{r.machine, r.phase, r.vm, r.zone, r.node, r.waitsFor}
}

var (
	head = row{"MACHINE", "PHASE", "VM", "ZONE", "NODE", "WAITS FOR"}
	// widest has the longest texts that are known before they are shown.
	widest = row{phase: "Provisioning", vm: "Terminated", node: "not Ready"}
)

// style is how a part of a line looks, as the terminal's code for it (SGR).
type style string

const (
	plain   style = ""
	bold    style = "1"
	dim     style = "2"
	red     style = "31"
	green   style = "32"
	yellow  style = "33"
	magenta style = "35"
)

// and returns a style that has both.
func (s style) and(other style) style {
	if other == plain {
		return s
	}
	return s + ";" + other
}

// span is a part of a line.
type span struct {
	text  string
	style style
}

// table keeps each machine in its place while others come and go.
type table struct {
	slots  []slot
	widths [columns]int // they only grow, so that no column moves back and forth
}

// slot is the place of one machine.
type slot struct {
	row
	fresh [columns]time.Time // until when a cell is marked as changed
	gone  time.Time          // when the machine went; zero while it exists
}

// update shows the current machines. A new machine takes the place of one that has been gone for a
// while, or the next place below.
func (t *table) update(rows []row, now time.Time) {
	left := map[string]row{}
	for _, r := range rows {
		left[r.machine] = r
	}
	for i := range t.slots {
		s := &t.slots[i]
		r, there := left[s.machine]
		switch {
		case there:
			s.gone = time.Time{}
			s.set(r, now)
			delete(left, s.machine)
		case s.gone.IsZero():
			s.gone = now
			s.set(row{machine: s.machine, phase: "gone"}, now)
		}
	}
	for _, r := range rows {
		if _, isNew := left[r.machine]; isNew {
			place := t.place(now)
			*place = slot{}
			place.set(r, now)
		}
	}
}

// place returns the place for a new machine.
func (t *table) place(now time.Time) *slot {
	for i := range t.slots {
		if s := &t.slots[i]; !s.gone.IsZero() && now.Sub(s.gone) >= goneFor {
			return s
		}
	}
	t.slots = append(t.slots, slot{})
	return &t.slots[len(t.slots)-1]
}

func (s *slot) set(r row, now time.Time) {
	before, after := s.cells(), r.cells()
	for i := range after {
		if before[i] != after[i] {
			s.fresh[i] = now.Add(freshFor)
		}
	}
	s.row = r
}

// tidy removes the rows of machines that are gone.
func (t *table) tidy() {
	var kept []slot
	for _, s := range t.slots {
		if s.gone.IsZero() {
			kept = append(kept, s)
		}
	}
	t.slots = kept
}

// lines returns the table as it looks now; nothing if it has no rows.
func (t *table) lines(now time.Time) [][]span {
	if len(t.slots) == 0 {
		return nil
	}
	t.measure(head)
	t.measure(widest)
	for i := range t.slots {
		t.measure(t.slots[i].row)
	}
	lines := [][]span{{{"  ", plain}}}
	for i, text := range head.cells() {
		lines[0] = append(lines[0], span{pad(text, t.widths[i]), bold})
	}
	for i := range t.slots {
		lines = append(lines, t.line(&t.slots[i], now))
	}
	return lines
}

// line returns a row. A dot precedes it, and its new cells are bold, while they are fresh.
func (t *table) line(s *slot, now time.Time) []span {
	line := []span{{"  ", plain}}
	for i, text := range s.cells() {
		look := s.look(i)
		if now.Before(s.fresh[i]) {
			line[0] = span{"• ", yellow}
			look = bold.and(look)
		}
		line = append(line, span{pad(text, t.widths[i]), look})
	}
	return line
}

// look returns the color of a cell.
func (s *slot) look(column int) style {
	if !s.gone.IsZero() {
		return dim
	}
	text := s.cells()[column]
	switch {
	case column == columns-1 || column == 3:
		return dim
	case column == 0 || text == "":
		return plain
	}
	switch text {
	case "Running", "Ready":
		return green
	case "Deleting", "Stopping", "Terminated", "Gone", "gone":
		return magenta
	case "Failed":
		return red
	default:
		return yellow
	}
}

func (t *table) measure(r row) {
	for i, text := range r.cells() {
		if i < columns-1 {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(text)+2)
		}
	}
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// cut shortens a line to width characters.
func cut(line []span, width int) []span {
	var short []span
	for i, s := range line {
		runes := []rune(s.text)
		last := i == len(line)-1
		if len(runes) < width || len(runes) == width && last {
			short = append(short, s)
			width -= len(runes)
			continue
		}
		return append(short, span{string(runes[:max(0, width-1)]) + "…", s.style})
	}
	return short
}

// paint returns a line as a terminal takes it.
func paint(line []span, color bool) string {
	var b strings.Builder
	for _, s := range line {
		if color && s.style != plain {
			b.WriteString("\x1b[" + string(s.style) + "m" + s.text + "\x1b[0m")
		} else {
			b.WriteString(s.text)
		}
	}
	return b.String()
}
