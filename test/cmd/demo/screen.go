// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/drover-io/drover/test/internal/scenario"
)

// screen prints lines that stay, and on a terminal a table below them that it redraws in place.
// Elsewhere it prints a line for each change of a machine.
type screen struct {
	live  bool // a terminal that can be redrawn
	color bool
	out   *os.File
	film  *film // nil: nothing is recorded
	began time.Time

	closed chan struct{}

	mu    sync.Mutex
	step  string
	since time.Time
	table table
	drawn int            // lines of the table on the screen
	told  map[string]row // by machine, if not live
}

func newScreen(out *os.File, f *film) *screen {
	s := &screen{
		live: term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb", out: out, film: f, began: time.Now(), told: map[string]row{},
		closed: make(chan struct{}),
	}
	s.color = s.live && os.Getenv("NO_COLOR") == "" // see no-color.org
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

// note prints a line of the report above the table, with the time since the start. What was done
// stands out from how it went.
func (s *screen) note(done, how string) {
	line := []span{{fmt.Sprintf("%6.1f s  ", time.Since(s.began).Seconds()), dim}, {done, bold.and(green)}, {how, plain}}
	s.redraw(func() {
		fmt.Fprintln(s.out, paint(line, s.color))
		s.film.note(line)
	})
}

// title shows the current step. An empty title ends it.
func (s *screen) title(step string) {
	if step != "" && !s.live {
		s.say("%6.1f s  ▸ %s", time.Since(s.began).Seconds(), step)
	}
	s.record(true)
	s.redraw(func() {
		s.step, s.since = step, time.Now()
		if step != "" {
			s.table.tidy()
		}
	})
}

// hideTable removes the table permanently.
func (s *screen) hideTable() { s.redraw(func() { s.step, s.table = "", table{} }) }

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
			s.record(false)
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
	s.redraw(func() {
		s.table.update(rows, time.Now())
		if !s.live {
			s.tell(rows)
		}
	})
}

// record adds what the screen shows to the film.
func (s *screen) record(always bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.film != nil && s.step != "" {
		s.film.add(s.lines(), always)
	}
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
	lines := s.lines()
	if len(lines) > height-2 {
		lines = append(lines[:height-3], []span{{fmt.Sprintf("… and %d more", len(lines)-height+3), dim}})
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(paint(cut(line, width-1), s.color) + "\n")
	}
	fmt.Fprint(s.out, b.String())
	s.drawn = len(lines)
}

// lines returns the step and the table.
func (s *screen) lines() [][]span {
	title := []span{{"▸ " + s.step, bold}, {fmt.Sprintf("  %.0f s", time.Since(s.since).Seconds()), dim}}
	return append([][]span{{{"", plain}}, title}, s.table.lines(time.Now())...)
}
