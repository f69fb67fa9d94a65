// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"cmp"
	"context"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var draw = flag.String("draw", "", "the file that TestQueries draws the dashboard to: ../../../docs/pictures/dashboard.svg. By default one that is thrown away.")

// The size of a unit of Grafana's grid and the space around the curves of a panel, in points.
const (
	column, row              = 48, 34
	above, below, left, gaps = 30, 34, 52, 8
	legendWidth, moreWidth   = 6.3, 80 // width of a letter, and of the note that there are more
)

var (
	colors = []string{"#3274d9", "#e0752d", "#37872d", "#8f3bb8", "#c4162a", "#b58e00", "#0a95a4", "#7c4a2b", "#5c6b7a", "#d96aa3"}
	named  = regexp.MustCompile(`{{(\w+)}}`)
)

// series is one answer to a query over time: seconds since 1970, and a value as text.
type series struct {
	Metric map[string]string
	Values [][2]any
}

// point returns the point at index i. ok is false if it has no value.
func (s series) point(i int) (at, value float64, ok bool) {
	at, _ = s.Values[i][0].(float64)
	text, _ := s.Values[i][1].(string)
	value, err := strconv.ParseFloat(text, 64)
	return at, value, err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// over queries Prometheus for a time range.
func (s server) over(ctx context.Context, query string, from, to time.Time) (answer struct{ Result []series }, err error) {
	err = s.get(ctx, fmt.Sprintf("/api/v1/query_range?query=%s&start=%d&end=%d&step=1", url.QueryEscape(query), from.Unix(), to.Unix()),
		&answer)
	return answer, err
}

// drawDashboard draws the dashboard for the run so far as Grafana would, with its titles,
// positions, queries and units. Grafana itself is not available where the tests run. A panel
// without data is an error.
func drawDashboard(t *testing.T, prometheus server, from time.Time) {
	t.Helper()
	file := cmp.Or(*draw, filepath.Join(t.TempDir(), "dashboard.svg"))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	height, to := 0, time.Now()
	for _, p := range readDashboard(t).Panels {
		height = max(height, (p.GridPos.Y+p.GridPos.H)*row)
		fmt.Fprintf(&all, `<g transform="translate(%d %d)">`, p.GridPos.X*column, p.GridPos.Y*row)
		if shown := p.draw(t, &all, prometheus, from, to); !shown {
			t.Errorf("the panel %q has nothing to show", p.Title)
		}
		all.WriteString("</g>\n")
	}
	picture := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#24292e">
<style>@media (prefers-color-scheme:dark){svg{filter:invert(1) hue-rotate(180deg)}}</style>
<rect width="100%%" height="100%%" fill="#f4f5f5"/>
%s</svg>
`, 24*column, height, all.String())
	if err := os.WriteFile(file, []byte(picture), 0o644); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
}

// draw writes the panel, and reports whether it shows a value.
func (p panel) draw(t *testing.T, w io.Writer, prometheus server, from, to time.Time) bool {
	t.Helper()
	width, height := float64(p.GridPos.W*column), float64(p.GridPos.H*row)
	if p.Type == "row" {
		fmt.Fprintf(w, `<text x="%d" y="23" font-weight="bold" font-size="14">%s</text>`, gaps, escaped(p.Title))
		return true
	}
	fmt.Fprintf(w, `<rect x="%d" y="%d" width="%g" height="%g" fill="#fff" stroke="#dde0e3"/>`, gaps/2, gaps/2, width-gaps, height-gaps)
	fmt.Fprintf(w, `<text x="%d" y="22" font-weight="bold">%s</text>`, gaps+4, escaped(p.Title))
	var found []series
	var names []string
	for _, target := range p.Targets {
		answer, err := prometheus.over(t.Context(), target.asked(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range answer.Result {
			found = append(found, s)
			names = append(names, named.ReplaceAllStringFunc(target.LegendFormat,
				func(name string) string { return s.Metric[strings.Trim(name, "{}")] }))
		}
	}
	if p.Type == "stat" {
		return p.drawNumber(w, found, width, height)
	}
	most, shown := 0., false
	for _, s := range found {
		for i := range s.Values {
			if _, v, ok := s.point(i); ok {
				most, shown = max(most, v), true
			}
		}
	}
	scale := map[bool]float64{true: 1 << 20, false: 1}[p.FieldConfig.Defaults.Unit == "bytes"]
	most = scale * roundUp(most/scale)
	x := func(at float64) float64 {
		return left + (at-float64(from.Unix()))/to.Sub(from).Seconds()*(width-left-2*gaps)
	}
	y := func(v float64) float64 { return height - below - v/most*(height-above-below) }
	for i := range 5 {
		v := most * float64(i) / 4
		fmt.Fprintf(w, `<path d="M%d %.1fH%g" stroke="#e8eaec"/><text x="%d" y="%.1f" font-size="10" fill="#6b7280" text-anchor="end">%s</text>`,
			left, y(v), width-2*gaps, left-5, y(v)+3, p.inUnits(v))
	}
	at := float64(left)
	for i, s := range found {
		fmt.Fprintf(w, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`, s.path(x, y), colors[i%len(colors)])
	}
	for i, name := range names {
		wide := float64(len(name))*legendWidth + 14
		if i+1 < len(names) && at+wide > width-moreWidth {
			fmt.Fprintf(w, `<text x="%.0f" y="%g" font-size="11">and %d more</text>`, at, height-gaps-6, len(names)-i)
			break
		}
		fmt.Fprintf(w, `<text x="%.0f" y="%g" font-size="11" fill="%s">%s</text>`, at, height-gaps-6, colors[i%len(colors)], escaped(name))
		at += wide
	}
	return shown
}

// drawNumber writes the last value of the panel.
func (p panel) drawNumber(w io.Writer, found []series, width, height float64) bool {
	if len(found) == 0 {
		return false
	}
	_, v, ok := found[0].point(len(found[0].Values) - 1)
	fmt.Fprintf(w, `<text x="%g" y="%g" font-size="40" text-anchor="middle" fill="#3274d9">%s</text>`, width/2, height/2+28, p.inUnits(v))
	return ok
}

// path returns the curve of the series, with gaps where it has no value.
func (s series) path(x, y func(float64) float64) string {
	var d strings.Builder
	last := math.Inf(-1)
	for i := range s.Values {
		at, v, ok := s.point(i)
		if !ok {
			continue
		}
		fmt.Fprintf(&d, "%s%.1f %.1f", map[bool]string{true: "L", false: "M"}[at-last < 1.5], x(at), y(v))
		last = at
	}
	return d.String()
}

// roundUp returns the end of an axis that shows v.
func roundUp(v float64) float64 {
	if v == 0 {
		return 1
	}
	ten := math.Pow(10, math.Floor(math.Log10(v)))
	steps := []float64{1, 2, 4, 5, 8, 10}
	return ten * steps[slices.IndexFunc(steps, func(s float64) bool { return s*ten >= v*(1-1e-9) })]
}

// inUnits formats a value as the panel does.
func (p panel) inUnits(v float64) string {
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch unit := p.FieldConfig.Defaults.Unit; {
	case unit == "s" && v > 0 && v < 1:
		return short(v*1000) + " ms"
	case unit == "s":
		return short(v) + " s"
	case unit == "ops":
		return short(v) + "/s"
	case unit == "percentunit":
		return short(v*100) + " %"
	case unit == "bytes":
		return short(v/(1<<20)) + " MiB"
	default:
		return short(v)
	}
}

func escaped(text string) string {
	var s strings.Builder
	_ = xml.EscapeText(&s, []byte(text))
	return s.String()
}
