// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// shown returns the machines of a table's rows, with what is marked as changed.
func shown(t *table, now time.Time) []string {
	var machines []string
	for _, line := range t.lines(now)[1:] {
		machines = append(machines, strings.TrimSpace(line[0].text+line[1].text))
	}
	return machines
}

// TestTable tests that a machine keeps its place, that changes are marked for a while, and that a
// new machine takes the place of one that has been gone for long enough to be seen.
func TestTable(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	a, b, c, d := row{machine: "a"}, row{machine: "b"}, row{machine: "c"}, row{machine: "d"}
	tab := &table{}
	tab.update([]row{a, b}, at(0))
	g.Expect(shown(tab, at(1))).To(Equal([]string{"• a", "• b"}))
	g.Expect(shown(tab, at(3))).To(Equal([]string{"a", "b"}))

	tab.update([]row{b, c}, at(10))
	g.Expect(shown(tab, at(11))).To(Equal([]string{"• a", "b", "• c"}))
	g.Expect(paint(tab.lines(at(11))[1], false)).To(ContainSubstring("gone"))

	tab.update([]row{b, c, d}, at(13))
	g.Expect(shown(tab, at(13))).To(Equal([]string{"• d", "b", "c"}))

	tab.update([]row{d, c}, at(20))
	tab.tidy()
	g.Expect(shown(tab, at(30))).To(Equal([]string{"d", "c"}))
}

// TestColumnsStay tests that a column does not move back when the longest text in it has gone.
func TestColumnsStay(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	tab := &table{}
	tab.update([]row{{machine: "a", phase: "ProvisioningForLong", node: "Ready"}}, time.Now())
	wide := strings.Index(paint(tab.lines(time.Now())[1], false), "Ready")
	tab.update([]row{{machine: "a", phase: "Up", node: "Ready"}}, time.Now())
	g.Expect(strings.Index(paint(tab.lines(time.Now())[1], false), "Ready")).To(Equal(wide))
}

// TestPaint tests colors, their absence, and lines that are too long.
func TestPaint(t *testing.T) {
	t.Parallel()
	line := []span{{"one ", plain}, {"two", bold.and(green)}}
	for _, tc := range []struct {
		name  string
		width int
		color bool
		want  string
	}{
		{"with colors", 80, true, "one \x1b[1;32mtwo\x1b[0m"},
		{"without", 80, false, "one two"},
		{"exactly as wide", 7, false, "one two"},
		{"too wide", 6, false, "one t…"},
		{"too wide in the first part", 3, false, "on…"},
		{"as wide as the first part", 4, false, "one…"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(paint(cut(line, tc.width), tc.color)).To(Equal(tc.want))
		})
	}
}

// TestNoTerminal tests that there are no control characters in a file, and a line for each change.
func TestNoTerminal(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "out")
	file, err := os.Create(path)
	g.Expect(err).NotTo(HaveOccurred())
	s := newScreen(file, nil)
	s.title("scale")
	s.update([]row{{machine: "a", phase: "Running"}})
	s.update([]row{{machine: "a", phase: "Running"}})
	s.update(nil)
	s.note("scale", ": done")
	s.close()
	g.Expect(file.Close()).To(Succeed())
	out, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).To(MatchRegexp(`^ +0\.\d s  ▸ scale
 +0\.\d s    a, Running
 +0\.\d s    a, gone
 +0\.\d s  scale: done
$`))
}

// TestFilm tests that a picture has a frame for each step and the report, escaped.
func TestFilm(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	f := &film{}
	f.add([][]span{{{"step <1>", bold}}}, true)
	f.add([][]span{{{"too soon", plain}}}, false)
	f.note([]span{{"  1 s ", dim}, {"done", green}})
	path := filepath.Join(t.TempDir(), "film.svg")
	g.Expect(f.write(path)).To(Succeed())
	out, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Count(string(out), "<g ")).To(Equal(2))
	g.Expect(string(out)).To(And(ContainSubstring(`class="b">step &lt;1&gt;</text>`), ContainSubstring(`class="g">done</text>`),
		Not(ContainSubstring("too soon"))))
}

// TestFilmBeginsWithAFullFrame tests that the first frame of a picture is not an empty terminal.
func TestFilmBeginsWithAFullFrame(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	f := &film{}
	f.add([][]span{{{"one line", plain}}}, true)
	f.add(slices.Repeat([][]span{{{"a machine", plain}}}, filmStart), true)
	f.add([][]span{{{"the end", plain}}}, true)
	path := filepath.Join(t.TempDir(), "film.svg")
	g.Expect(f.write(path)).To(Succeed())
	out, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).To(And(Not(ContainSubstring("one line")), ContainSubstring("a machine"), ContainSubstring("the end")))
}
