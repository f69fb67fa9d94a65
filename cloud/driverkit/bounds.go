// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/scan"
)

// MaxAnswer is the largest answer, and the largest event of a stream, in bytes after unpacking.
const MaxAnswer = 8 << 20

// ErrTooLarge is the cause of an error for an answer that exceeds a bound.
var ErrTooLarge = errors.New("the response is too large")

// Bounds are what an answer may contain, at any size. An empty element has 3 to 7 bytes, and takes
// up to 2 KiB when it is decoded. With these defaults, the worst answer takes less than 64 MiB.
type Bounds struct {
	// Items bounds the elements of JSON's outermost arrays: 2,048 if it is 0. They are the listed
	// resources, which take most.
	Items int64
	// Elements bounds the elements of arrays at any depth, in XML those named "item" and "member":
	// 28,672 if it is 0.
	Elements int64
	// Members bounds the members of JSON's objects: 393,216 if it is 0.
	Members int64
	// Tags bounds the elements of XML of any name: 524,288 if it is 0.
	Tags int64
	// Repeated bounds XML's elements with the name of an earlier sibling: if it is 0, only Tags
	// does.
	Repeated int64
}

const (
	// freeElements and bytesPerElement bound the elements of arrays by the size of an answer, so
	// that a small one does not take much either. Real ones have more bytes on average.
	freeElements    = 512
	bytesPerElement = 12
	// maxAttributes bounds the attributes of XML's elements, which encoding/xml keeps for each
	// element.
	maxAttributes = 64 << 10
	// maxMarks bounds what could hide the end of an element from the scanner.
	maxMarks = 1 << 10
)

type boundsKey struct{}

// WithBounds sets other bounds for the answers to calls under the returned context.
func WithBounds(ctx context.Context, b Bounds) context.Context {
	return context.WithValue(ctx, boundsKey{}, b)
}

func boundsOf(ctx context.Context) Bounds {
	b, _ := ctx.Value(boundsKey{}).(Bounds)
	return Bounds{
		Items: cmp.Or(b.Items, 2<<10), Elements: cmp.Or(b.Elements, 28<<10), Members: cmp.Or(b.Members, 384<<10),
		Tags: cmp.Or(b.Tags, 512<<10), Repeated: cmp.Or(b.Repeated, 512<<10),
	}
}

// bounded is a transport whose answers end with an error where they exceed a bound, before they are
// decoded.
type bounded struct{ http.RoundTripper }

func (t bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	ctx := req.Context()
	op := cloud.OperationOf(ctx)
	body := &boundedBody{ReadCloser: resp.Body, operation: op.Name, stream: op.Stream &&
		!op.Poll, bounds: boundsOf(ctx), json: scan.JSON{Arrays: true}}
	body.listing, _ = ctx.Value(listingKey{}).(*atomic.Int64)
	if resp.ContentLength > MaxAnswer && !body.stream {
		_ = resp.Body.Close()
		return nil, body.refuse("is larger than %s", inBytes(MaxAnswer))
	}
	resp.Body = body
	return resp, nil
}

// format is what a decoder may find in a body.
type format uint8

const (
	unknownFormat format = iota // nothing but spaces yet
	jsonFormat
	otherFormat
)

// boundedBody counts what it reads. What it has returned is within all bounds.
type boundedBody struct {
	io.ReadCloser
	operation string
	stream    bool
	bounds    Bounds
	listing   *atomic.Int64 // the bytes of the listing that the answer is a part of, or nil

	size   int64 // of the answer, or of a stream's event
	format format
	json   scan.JSON
	xml    scan.XML
	err    error
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	if b.err = b.accept(p[:n]); b.err != nil {
		return 0, b.err
	}
	return n, err
}

// accept counts a part of the body, and returns an error if it exceeds a bound.
func (b *boundedBody) accept(part []byte) error {
	if b.listing != nil && b.listing.Add(int64(len(part))) > maxListing {
		return b.refuse("is part of a listing larger than %s", inBytes(maxListing))
	}
	for _, c := range part {
		if b.size++; b.size > MaxAnswer {
			return b.refuse("is larger than %s", inBytes(MaxAnswer))
		}
		if err := b.count(c); err != nil {
			return err
		}
	}
	return b.check()
}

// count counts a byte. A decoder of JSON reads only what begins as JSON. A decoder of XML ignores
// text before the first element, and so may read anything as XML.
func (b *boundedBody) count(c byte) error {
	if b.format == unknownFormat && c != ' ' && c != '\t' && c != '\r' && c != '\n' {
		b.format = otherFormat
		if c == '{' || c == '[' {
			b.format = jsonFormat
		}
	}
	if b.format == jsonFormat {
		if err := b.json.Next(c); errors.Is(err, scan.ErrDepth) {
			return b.refuse("%s", err)
		} else if err != nil {
			b.format = otherFormat // no decoder of JSON accepts it
		}
		if b.stream && b.json.Depth == 0 {
			return b.endEvent()
		}
	}
	if err := b.xml.Next(c); err != nil {
		return b.refuse("%s", err)
	}
	return nil
}

// endEvent begins the next event of a stream.
func (b *boundedBody) endEvent() error {
	err := b.check()
	b.size, b.xml, b.format = 0, scan.XML{}, unknownFormat
	b.json.Restart()
	return err
}

// check returns an error if what was counted exceeds a bound. Elements and members together may be
// no more than a third more than one of them alone.
func (b *boundedBody) check() error {
	elements, most := max(b.json.Elements, b.xml.Items), b.bounds
	switch bySize := freeElements + b.size/bytesPerElement; {
	case elements > bySize, most.Repeated < most.Tags && b.xml.Repeated > bySize:
		return b.refuse("has more than %d elements in %s", bySize, inBytes(int(b.size)))
	case elements > most.Elements:
		return b.refuse("has more than %d elements", most.Elements)
	case int64(b.json.Items) > most.Items:
		return b.refuse("has more than %d items", most.Items)
	case b.json.Members > most.Members, float64(elements)/float64(most.Elements)+float64(b.json.Members)/float64(most.Members) > 4./3:
		return b.refuse("has too many elements and members")
	case b.xml.Elements > most.Tags:
		return b.refuse("has more than %d elements", most.Tags)
	case b.xml.Repeated > most.Repeated:
		return b.refuse("has more than %d elements of arrays", most.Repeated)
	case b.xml.Attributes > maxAttributes:
		return b.refuse("has more than %d attributes", maxAttributes)
	case b.xml.Marks > maxMarks:
		return b.refuse("has more than %d comments", maxMarks)
	}
	return nil
}

func (b *boundedBody) refuse(why string, args ...any) error {
	return &cloud.Error{Code: cloud.Unknown, Message: b.operation + ": the response " + fmt.Sprintf(why, args...), Err: ErrTooLarge}
}
