// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// answers is a transport that answers everything with a body of unknown length.
type answers func() io.Reader

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(a()), ContentLength: -1, Request: req}, nil
}

// read returns what a driver reads of an answer.
func read(ctx context.Context, t *testing.T, body io.Reader) (int64, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cloud.test", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := Client(answers(func() io.Reader { return body })).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(io.Discard, resp.Body)
}

// full is an element of the usual size.
const full = `{"a":"text"}`

func array(element string, n int) string {
	return `{"items":[` + element + strings.Repeat(","+element, n-1) + `]}`
}

// TestBounds: an answer is read up to a bound, and refused beyond it.
func TestBounds(t *testing.T) {
	t.Parallel()
	items := func(name string, n int) string {
		return "<a>" + strings.Repeat("<"+name+">text</"+name+">", n) + "</a>"
	}
	for name, tt := range map[string]struct{ within, beyond, message string }{
		"items": {array(full, 2048), array(full, 2049), "more than 2048 items"},
		"items without a name": {"[" + strings.Repeat(full+",", 2047) + "0]", "[" + strings.Repeat(full+",", 2048) + "0]",
			"more than 2048 items"},
		"nested elements": {`{"a":[` + array(full, 28671) + `]}`, `{"a":[` + array(full, 28672) + `]}`,
			"more than 28672 elements"},
		"elements for their size":   {array("{}", 600), array("{}", 1000), "elements in 3011 bytes"},
		"numbers":                   {array("0", 600), array("0", 1000), "elements in 2011 bytes"},
		"elements behind a bracket": {array(`"[[[[[[[,\""`, 2048), array(`"[[[[[[[,\""`, 2049), "more than 2048 items"},
		"members": {"{" + strings.Repeat(`"a":0,`, 384<<10-1) + `"a":0}`, "{" + strings.Repeat(`"a":0,`, 384<<10) +
			`"a":0}`, "too many"},
		"elements with many members": {`{"a":[` + array(`{"a":0,"b":0,"c":0,"d":0}`, 20000) + `]}`, `{"a":[` +
			array(`{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0}`, 28000) + `]}`, "too many"},
		"depth":         {strings.Repeat("[", 100), strings.Repeat("[", 101), "more than 100 levels"},
		"XML's items":   {items("item", 28672), items("item", 28673), "more than 28672 elements"},
		"XML's members": {items("n:member", 28672), items("n:member", 28673), "more than 28672 elements"},
		"XML's items for their size": {"<a>" + strings.Repeat("<item/>", 1000) + "</a>", "<a>" + strings.Repeat("<item/>", 2000) + "</a>",
			"elements in 14007 bytes"},
		"XML's elements": {"<a>" + strings.Repeat("<b/>", 512<<10-1) + "</a>", "<a>" + strings.Repeat("<b/>", 512<<10) + "</a>",
			"more than 524288 elements"},
		"XML behind text": {"{" + items("item", 28672), `{"` + items("item", 28673), "more than 28672 elements"},
		"XML's attributes": {"<a" + strings.Repeat(" b=''", 64<<10) + "/>", "<a" + strings.Repeat(" b = ''", 64<<10+1) + "/>",
			"more than 65536 attributes"},
		"XML's comments": {strings.Repeat("<!---->", 1024), strings.Repeat("<!---->", 1025), "more than 1024 comments"},
		"XML's depth":    {strings.Repeat("<a>", 100), strings.Repeat("<a>", 101), "more than 100 levels"},
		"bytes":          {strings.Repeat("x", MaxAnswer), strings.Repeat("x", MaxAnswer+1), "larger than 8 MiB"},
		"bytes of JSON": {`"` + strings.Repeat("x", MaxAnswer-2) + `"`, `"` + strings.Repeat("x", MaxAnswer-1) + `"`,
			"larger than 8 MiB"},
		"what begins as JSON and is not": {"[    1.2] boot\n[    1.3] {ready}\n", array(full, 2049), "more than 2048 items"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx := cloud.WithOperation(t.Context(), "ListThings", cloud.ClassRead)
			n, err := read(ctx, t, strings.NewReader(tt.within))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(n).To(BeEquivalentTo(len(tt.within)))
			n, err = read(ctx, t, strings.NewReader(tt.beyond))
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
			g.Expect(err).To(MatchError(ErrTooLarge))
			g.Expect(err).To(MatchError(And(ContainSubstring("ListThings: "), ContainSubstring(tt.message))))
			g.Expect(n).To(BeNumerically("<=", MaxAnswer))
		})
	}
}

// TestOtherBounds: a call may set bounds of its own, and the others stay.
func TestOtherBounds(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := WithBounds(t.Context(), Bounds{Tags: 3, Items: 5000, Repeated: 1})
	_, err := read(ctx, t, strings.NewReader("<a><b/><b/></a>"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = read(ctx, t, strings.NewReader("<a><b/><b/><b/></a>"))
	g.Expect(err).To(MatchError(ErrTooLarge))
	_, err = read(WithBounds(t.Context(), Bounds{Tags: 3, Repeated: 1}), t, strings.NewReader("<a><b/><b/></a>"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = read(WithBounds(t.Context(), Bounds{Repeated: 1}), t, strings.NewReader("<a><b/><b/><b/></a>"))
	g.Expect(err).To(MatchError(ErrTooLarge))
	_, err = read(ctx, t, strings.NewReader(array(full, 5000)))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = read(ctx, t, strings.NewReader(array(`["text","text","text","text","text"]`, 4900)))
	g.Expect(err).To(MatchError(ErrTooLarge))
}

// TestBoundsOfStreams: a stream may be endless. Each of its events is bounded.
func TestBoundsOfStreams(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := cloud.WithStream(t.Context(), "WatchThings", cloud.ClassRead)
	event := array(full, 2000) + "\n"
	n, err := read(ctx, t, strings.NewReader(strings.Repeat(event, 2000)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n).To(BeNumerically(">", MaxAnswer))
	_, err = read(ctx, t, strings.NewReader(event+array(full, 2049)))
	g.Expect(err).To(MatchError(ErrTooLarge))
	_, err = read(ctx, t, strings.NewReader(event+`{"a":"`+strings.Repeat("x", MaxAnswer)))
	g.Expect(err).To(MatchError(ErrTooLarge))
}

// TestBytesOfAListing: small pages are not a way around the bound of one listing.
func TestBytesOfAListing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	page, pages := strings.Repeat(" ", MaxAnswer), 0
	_, err := Pages(t.Context(), "List", func(ctx context.Context, _ string) ([]int, string, error) {
		pages++
		_, err := read(ctx, t, strings.NewReader(page))
		return nil, fmt.Sprint("mark-", pages), err
	})
	g.Expect(err).To(MatchError(ContainSubstring("larger than 256 MiB")))
	g.Expect(pages).To(Equal(maxListing/MaxAnswer + 1))
}

// TestSizedPages: a listing whose page is too large starts over with half the items, and later
// listings begin with what was small enough.
func TestSizedPages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var sizes PageSizes
	var asked []int
	list := func(operation string, fits int) ([]int, error) {
		asked = nil
		return SizedPages(t.Context(), operation, &sizes, 1, 100, func(_ context.Context, mark string, size int) ([]int, string, error) {
			asked = append(asked, size)
			switch {
			case mark == "":
				return []int{0}, "next", nil
			case size > fits:
				return nil, "", &cloud.Error{Code: cloud.Unknown, Err: ErrTooLarge}
			}
			return []int{1}, "", nil
		})
	}
	g.Expect(list("List", 30)).To(Equal([]int{0, 1}))
	g.Expect(asked).To(Equal([]int{100, 100, 50, 50, 25, 25}))
	g.Expect(list("List", 30)).To(HaveLen(2))
	g.Expect(asked).To(Equal([]int{25, 25}))
	g.Expect(list("ListOthers", 100)).To(HaveLen(2))
	g.Expect(asked).To(Equal([]int{100, 100}), "another listing has pages of its own")
	_, err := list("List", 0)
	g.Expect(err).To(MatchError(ErrTooLarge), "one item alone is too large")
	g.Expect(asked).To(Equal([]int{25, 25, 12, 12, 6, 6, 3, 3, 1, 1}))
}
