// SPDX-License-Identifier: Apache-2.0

package forwarder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/internal/scan"
)

// limits bound the answers of one cluster.
type limits struct {
	// list bounds a list in bytes, also one that comes as a watch's initial events. A Node has 5 to
	// 20 KiB.
	list int64
	// other bounds any other answer, and each event of a watch, in bytes. Etcd takes 1.5 MiB.
	other int64
	// inFlight bounds all answers in progress together, in bytes.
	inFlight int64
	// items bounds the objects of a collection, by the last part of its path, and "" all others.
	items map[string]int
	// header is how long an API server may take to begin an answer.
	header time.Duration
	// duration bounds a list and any other answer, but not a watch.
	duration time.Duration
	// pause is how long a cluster is not asked after an answer was refused.
	pause time.Duration
}

var defaults = limits{
	list: 64 << 20, other: 4 << 20, inFlight: 128 << 20,
	items:  map[string]int{"": 10_000, "nodes": 10_000, "certificatesigningrequests": 1_000},
	header: 10 * time.Second, duration: time.Minute, pause: time.Minute,
}

const (
	// bytesPerElement is the least that an element of an array has on average. The shortest of real
	// answers are the verbs in those to discovery, whose elements have some 20 bytes with what is
	// around them. An empty element has 3, and takes up to 1 KiB when it is decoded.
	bytesPerElement = 10
	// freeElements are the elements that a small answer may have whatever its size.
	freeElements = 1024
)

// itemsOf returns how many objects a collection may have.
func (l limits) itemsOf(path string) int {
	if n, ok := l.items[path[strings.LastIndexByte(path, '/')+1:]]; ok {
		return n
	}
	return l.items[""]
}

// boundedBody reads an answer's body and ends with an error where a bound is exceeded. What it has
// returned before was within all bounds.
type boundedBody struct {
	answer         *answer
	body           io.ReadCloser
	json           bool
	watch, initial bool
	limit          int64
	timer          *time.Timer // or nil

	scan    scan.JSON
	size    int64  // of the answer, or of the initial events
	frame   int64  // of the current event
	head    []byte // of the current event: its beginning, or all of it while initial events are sent
	counted int64  // in the cluster's bytes in flight
	begun   bool   // the cluster's count was set
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if refused := b.accept(p[:n]); refused != nil {
		return 0, refused
	}
	if err != nil {
		b.release()
	}
	return n, err
}

func (b *boundedBody) Close() error {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.release()
	return b.body.Close()
}

// release takes the answer out of the cluster's bytes in flight.
func (b *boundedBody) release() {
	b.answer.cluster.bytes.Add(-b.counted)
	b.counted = 0
}

// accept counts a part of the body, and returns an error if it exceeds a bound.
func (b *boundedBody) accept(part []byte) error {
	a := b.answer
	b.size += int64(len(part))
	if b.inFlight() {
		b.counted += int64(len(part))
		if a.cluster.bytes.Add(int64(len(part))) > a.forwarder.limits.inFlight {
			return a.refuse(reasonSize, fmt.Sprintf("sent answers of more than %d MiB at the same time", a.forwarder.limits.inFlight>>20))
		}
	}
	switch {
	case !b.watch && b.size > b.limit:
		return a.refuse(reasonSize, fmt.Sprintf("sent an answer of more than %d MiB", b.limit>>20))
	case b.initial && b.size > a.forwarder.limits.list:
		return a.refuse(reasonSize, fmt.Sprintf("sent a list of more than %d MiB", a.forwarder.limits.list>>20))
	case !b.json:
		return nil
	case b.watch:
		return b.acceptEvents(part)
	}
	return b.acceptObject(part)
}

// inFlight reports whether the library keeps what it reads until the end of the answer.
func (b *boundedBody) inFlight() bool { return !b.watch || b.initial }

// acceptObject counts a part of a list or of a single object.
func (b *boundedBody) acceptObject(part []byte) error {
	for _, c := range part {
		if err := b.scan.Next(c); err != nil {
			return b.answer.refuse(reasonFormat, "sent JSON that "+err.Error())
		}
	}
	if err := b.elements(b.size); err != nil {
		return err
	}
	if !b.answer.kind.list {
		return nil
	}
	n, reset := b.scan.Items, b.answer.kind.first && !b.begun
	b.scan.Items, b.begun = 0, true
	return b.count(n, reset)
}

// elements bounds how much memory an answer of some bytes takes when it is decoded.
func (b *boundedBody) elements(size int64) error {
	if b.scan.Elements <= freeElements+size/bytesPerElement {
		return nil
	}
	return b.answer.refuse(reasonCount, fmt.Sprintf("sent %d elements of arrays in %d bytes", b.scan.Elements, size))
}

// count adds to the objects of the collection, or begins again from 0.
func (b *boundedBody) count(n int, reset bool) error {
	c, path := b.answer.cluster, b.answer.kind.path
	c.mu.Lock()
	if reset {
		c.counts[path] = 0
	}
	c.counts[path] = max(0, c.counts[path]+n)
	total := c.counts[path]
	c.mu.Unlock()
	if most := b.answer.forwarder.limits.itemsOf(path); total > most {
		return b.answer.refuse(reasonCount, fmt.Sprintf("has more than %d objects at %s", most, path))
	}
	return nil
}

// acceptEvents counts a part of a watch, event by event.
func (b *boundedBody) acceptEvents(part []byte) error {
	for _, c := range part {
		b.frame++
		if b.frame > b.answer.forwarder.limits.other {
			return b.answer.refuse(reasonSize, fmt.Sprintf("sent an event of more than %d MiB", b.answer.forwarder.limits.other>>20))
		}
		if b.initial || len(b.head) < len(longestHead) {
			if b.scan.Depth > 0 || c == '{' {
				b.head = append(b.head, c)
			}
		}
		if err := b.scan.Next(c); err != nil {
			return b.answer.refuse(reasonFormat, "sent JSON that "+err.Error())
		}
		if b.scan.Depth == 0 && c == '}' {
			if err := b.endEvent(); err != nil {
				return err
			}
		}
	}
	return nil
}

// The types of events. An event begins with its type, and has nothing but its type and its object,
// as Kubernetes writes it: so nobody reads another type than the one that is counted.
const (
	headBegins  = `{"type":"`
	headEnds    = `","object":`
	longestHead = headBegins + "MODIFIED" + headEnds
)

// endEvent counts a complete event.
func (b *boundedBody) endEvent() error {
	if err := b.elements(b.frame); err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(b.head, []byte(headBegins))
	kind, _, closed := bytes.Cut(rest, []byte(headEnds))
	if !ok || !closed || b.scan.Keys != 2 {
		return b.answer.refuse(reasonFormat, "sent an event that does not consist of a type and an object")
	}
	err := b.countEvent(string(kind))
	b.frame, b.head = 0, b.head[:0]
	b.scan.Restart()
	return err
}

func (b *boundedBody) countEvent(kind string) error {
	switch kind {
	case "ADDED":
		reset := b.initial && !b.begun
		b.begun = true
		return b.count(1, reset)
	case "DELETED":
		return b.count(-1, false)
	case "BOOKMARK":
		if b.initial && endsInitialEvents(b.head) {
			b.initial = false
			b.timer.Stop()
			b.release()
			b.head = nil
		}
	case "MODIFIED", "ERROR":
	default:
		return b.answer.refuse(reasonFormat, "sent an event of a type that Kubernetes does not have")
	}
	return nil
}

// endsInitialEvents reports whether the library takes this event for the end of the initial events.
func endsInitialEvents(event []byte) bool {
	var bookmark struct {
		Object metav1.PartialObjectMetadata `json:"object"`
	}
	return json.Unmarshal(event, &bookmark) == nil && bookmark.Object.Annotations[metav1.InitialEventsAnnotationKey] == "true"
}
