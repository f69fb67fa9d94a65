// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// The size of a frame, in characters.
	filmWidth, filmNotes, filmHeight = 100, 8, 23
	// filmStart is how many lines the first frame has, if any has so many.
	filmStart = 12
	// betweenFrames is the time between two frames of one step. Each is shown for a second.
	betweenFrames = 2 * time.Second
	// The size of a character, in pixels.
	charWidth, charHeight = 7.8, 18
)

// film is what a terminal shows during the demo, for an animated picture.
type film struct {
	notes  [][]span
	frames [][][]span
	last   time.Time
}

// note adds a line of the report to the frames that follow. A film that is nil records nothing.
func (f *film) note(line []span) {
	if f != nil {
		f.notes = append(f.notes, cut(line, filmWidth))
	}
}

// add adds a frame: always, or if the last one is old enough. It is called with the screen's lock.
func (f *film) add(lines [][]span, always bool) {
	if !always && time.Since(f.last) < betweenFrames {
		return
	}
	f.last = time.Now()
	frame := slices.Clone(f.notes[max(0, len(f.notes)-filmNotes):])
	for _, line := range lines[:min(len(lines), filmHeight-filmNotes)] {
		frame = append(frame, cut(line, filmWidth))
	}
	f.frames = append(f.frames, frame)
}

// write writes the film as an SVG. The last frame has the whole report, and stays for longest. It
// is also what is shown to those who want no motion.
func (f *film) write(path string) error {
	// A reader meets the first frame before anything moves, so it shows machines.
	first := max(0, slices.IndexFunc(f.frames, func(frame [][]span) bool { return len(frame) >= filmStart }))
	frames := append(slices.Clone(f.frames[first:]), f.notes)
	seconds := len(frames) + 4
	width, height := filmWidth*charWidth+24, float64(filmHeight*charHeight+24)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img">
<title>A recording of make demo: machines come, roll, heal and go</title>
<style>
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d0d7de}
.b{font-weight:bold}.d{fill:#8b949e}.r{fill:#ff7b72}.g{fill:#56d364}.y{fill:#e3b341}.m{fill:#d2a8ff}
g{visibility:hidden;animation:f %ds step-end infinite}
g:last-child{visibility:visible;animation-name:l}
@keyframes f{0%%{visibility:visible}%.3f%%{visibility:hidden}}
@keyframes l{0%%{visibility:visible}%.3f%%{visibility:hidden}}
@media (prefers-reduced-motion){g{animation:none!important}}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, width, height, seconds, 100/float64(seconds), 500/float64(seconds))
	for i, frame := range frames {
		fmt.Fprintf(&b, "<g style=\"animation-delay:%ds\">\n", i-seconds)
		for y, line := range frame {
			writeLine(&b, line, y)
		}
		fmt.Fprintln(&b, "</g>")
	}
	fmt.Fprintln(&b, "</svg>")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the film: %w", err)
	}
	return nil
}

// writeLine writes a line. Each span has its place and its length, because fonts differ in width.
func writeLine(b *bytes.Buffer, line []span, y int) {
	column := 0
	for _, s := range line {
		indent := len(s.text) - len(strings.TrimLeft(s.text, " "))
		if text := strings.TrimSpace(s.text); text != "" {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f"%s>%s</text>`, 12+float64(column+indent)*charWidth, 26+y*charHeight,
				float64(utf8.RuneCountInString(text))*charWidth, s.style.class(), html.EscapeString(text))
		}
		column += utf8.RuneCountInString(s.text)
	}
	if column > 0 {
		b.WriteByte('\n')
	}
}

// class returns the style's names in the picture.
func (s style) class() string {
	names := map[style]string{bold: "b", dim: "d", red: "r", green: "g", yellow: "y", magenta: "m"}
	var classes []string
	for _, code := range strings.Split(string(s), ";") {
		if name := names[style(code)]; name != "" {
			classes = append(classes, name)
		}
	}
	if len(classes) == 0 {
		return ""
	}
	return ` class="` + strings.Join(classes, " ") + `"`
}
