// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/drover-io/drover/test/scenario"
)

// row is a row of the table.
type row struct{ machine, phase, vm, zone, node, waitsFor string }

func (r row) cells() string {
	return strings.Join([]string{r.machine, r.phase, r.vm, r.zone, r.node, r.waitsFor}, "\t")
}

var head = row{"MACHINE", "PHASE", "VM", "ZONE", "NODE", "WAITS FOR"}

// screen prints lines that stay, and on a terminal a table below them that it redraws in place.
// Elsewhere it prints a line for each change of a machine.
type screen struct {
	live  bool // a terminal that can be redrawn
	out   *os.File
	began time.Time

	closed chan struct{}

	mu    sync.Mutex
	step  string
	since time.Time
	rows  []row
	drawn int            // lines of the table on the screen
	told  map[string]row // by machine, if not live
}

func newScreen(out *os.File) *screen {
	s := &screen{
		live: term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb", out: out, began: time.Now(), told: map[string]row{},
		closed: make(chan struct{}),
	}
	if s.live {
		go s.tick()
	}
	return s
}

// tick redraws the elapsed seconds.
func (s *screen) tick() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-t.C:
			s.redraw(func() {})
		}
	}
}

// redraw calls change and draws the table again.
func (s *screen) redraw(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	change()
	s.draw()
}

// say prints a line above the table.
func (s *screen) say(format string, args ...any) {
	s.redraw(func() { fmt.Fprintf(s.out, format+"\n", args...) })
}

// title shows the current step. An empty title ends it.
func (s *screen) title(step string) {
	if step != "" && !s.live {
		s.say("%6.1f s  ▸ %s", time.Since(s.began).Seconds(), step)
	}
	s.redraw(func() { s.step, s.since = step, time.Now() })
}

// hideTable removes the table permanently.
func (s *screen) hideTable() { s.redraw(func() { s.step, s.rows = "", nil }) }

func (s *screen) close() {
	s.hideTable()
	close(s.closed)
}

// follow shows the rows again after each change, until ctx ends.
func (s *screen) follow(ctx context.Context, view *scenario.View, rows func(context.Context) ([]row, error)) {
	frame := time.NewTicker(100 * time.Millisecond)
	defer frame.Stop()
	for {
		changed := view.Changed()
		if now, err := rows(ctx); err == nil {
			s.update(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		<-frame.C
	}
}

func (s *screen) update(rows []row) {
	if s.live {
		s.redraw(func() { s.rows = rows })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(rows)
}

// tell prints each changed machine on a line.
func (s *screen) tell(rows []row) {
	now := map[string]row{}
	for _, r := range rows {
		now[r.machine] = r
		if s.told[r.machine] != r {
			s.line(r)
		}
	}
	for name := range s.told {
		if _, there := now[name]; !there {
			s.line(row{machine: name, phase: "gone"})
		}
	}
	s.told = now
}

func (s *screen) line(r row) {
	parts := []string{r.machine}
	if r.phase != "" {
		parts = append(parts, r.phase)
	}
	if r.vm != "" {
		parts = append(parts, "VM "+r.vm)
	}
	if r.node != "" {
		parts = append(parts, "Node "+r.node)
	}
	if r.waitsFor != "" {
		parts = append(parts, r.waitsFor)
	}
	fmt.Fprintf(s.out, "%6.1f s    %s\n", time.Since(s.began).Seconds(), strings.Join(parts, ", "))
}

// erase and draw are called with mu held. They do nothing if the screen can't be redrawn.
func (s *screen) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\r\x1b[J", s.drawn)
	}
	s.drawn = 0
}

func (s *screen) draw() {
	if !s.live || s.step == "" {
		return
	}
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 20 || height < 5 {
		width, height = 80, 24
	}
	lines := []string{"", fmt.Sprintf("▸ %s  %.0f s", s.step, time.Since(s.since).Seconds())}
	if len(s.rows) > 0 {
		lines = append(lines, strings.Split(strings.TrimRight(table(s.rows), "\n"), "\n")...)
	}
	if len(lines) > height-2 {
		lines = append(lines[:height-3], fmt.Sprintf("… and %d more", len(lines)-height+3))
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(cut(line, width-1) + "\n")
	}
	fmt.Fprint(s.out, b.String())
	s.drawn = len(lines)
}

func table(rows []row) string {
	var b strings.Builder
	writeTable(&b, rows)
	return b.String()
}

func writeTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head.cells())
	for _, r := range rows {
		fmt.Fprintln(t, r.cells())
	}
	_ = t.Flush()
}

// cut shortens a line to width characters.
func cut(line string, width int) string {
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:width-1]) + "…"
}
