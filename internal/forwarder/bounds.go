// SPDX-License-Identifier: Apache-2.0

package forwarder

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/json"

	"github.com/drover-io/drover/internal/scan"
)

// limits bound the answers of one cluster.
type limits struct {
	// list bounds a list in bytes, also one that comes in parts, or as a watch's initial events. A Node
	// has 5 to 20 KiB.
	list int64
	// other bounds any other answer, and each event of a watch, in bytes. Etcd takes 1.5 MiB.
	other int64
	// items bounds the objects of a collection, by the last part of its path, and "" all others.
	items map[string]int
	// elements bounds the elements of arrays in any answer but a list, and in each event. Discovery of
	// some thousand resources has the most. Decoded, one takes up to 1 KiB.
	elements int64
	// header is how long an API server may take to begin an answer.
	header time.Duration
	// duration bounds a list and any other answer, but not a watch.
	duration time.Duration
	// pause is how long a cluster is not asked after an answer was refused.
	pause time.Duration
	// kept is how long a list counts after its end, or that of a part, unless its library goes on
	// before: longer than the next part takes to begin.
	kept time.Duration
	// decoding is how long any other answer, or an event, counts after its end, if it is large: the
	// library decodes it only then.
	decoding time.Duration
}

var defaults = limits{
	list: 64 << 20, other: 4 << 20,
	items:    map[string]int{"": 10_000, "nodes": 10_000, "certificatesigningrequests": 1_000},
	elements: 64 << 10, header: 10 * time.Second, duration: time.Minute, pause: time.Minute, kept: 20 * time.Second,
	decoding: 2 * time.Second,
}

const (
	// bytesPerElement is the least that an element of an array has on average. The shortest of real
	// answers are the verbs in those to discovery, whose elements have some 20 bytes with what is
	// around them. An empty element has 3, and takes up to 1 KiB when it is decoded.
	bytesPerElement = 10
	// freeElements are the elements that a small answer may have whatever its size.
	freeElements = 1024
	// bytesOfMember and bytesOfElement are what members of objects and elements of arrays count for in
	// a list, if that is more than its bytes. Decoded, each may take 112: an entry of a map, or a
	// condition. Real Nodes have one element in 100 bytes, and one member in 23 or more, most of them
	// of managed fields.
	bytesOfMember, bytesOfElement = 24, 32
	// maxOutline bounds a list's text outside of its metadata and items, in bytes: its kind and version.
	maxOutline = 4 << 10
	// maxAnswers bounds the answers in progress of all clusters, in bytes. A namespace has half.
	maxAnswers = 256 << 20
	// maxObjects bounds what the libraries keep of all clusters' objects, in bytes. objectSize is
	// what one takes at most: a Node of which cmd keeps what Drover reads. requestSize is what a
	// certificate request takes at most.
	maxObjects  = 256 << 20
	objectSize  = 4 << 10
	requestSize = 16 << 10
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
	json           bool // the answer is said to be JSON, or begins as it
	watch, initial bool
	limit          int64
	timer          *time.Timer // or nil
	list           *collection // that the answer is a part of, or nil
	outline        []byte      // of the list: its outermost object, without what is inside others
	before         int64       // what the list's parts before this one count for

	scan   scan.JSON
	size   int64  // of the answer, or of the initial events
	events int64  // what members and elements of the complete initial events count for
	event  []byte // the current event, as far as it was read
	seen   bool   // the answer has begun
	begun  bool   // the cluster's count was set
	ended  bool   // the list, or its part, was read to its end
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if refused := b.accept(p[:n]); refused != nil {
		return 0, refused
	}
	switch {
	case err == io.EOF && b.list != nil:
		b.endPart()
	case err == io.EOF && !b.watch:
		if refused := b.linger(); refused != nil {
			return 0, refused
		}
	case err != nil:
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

// hold sets how many bytes of the answer the library has to keep now. It returns an error if the
// answers of the namespace's clusters exceed their share: then this answer ends, and the library
// asks again.
func (b *boundedBody) hold(size int64) error {
	a, holder := b.answer, any(b)
	if b.list != nil {
		holder = b.list
	}
	if a.forwarder.answers.Set(a.cluster.key.Namespace, holder, size) {
		return nil
	}
	a.forwarder.refusals.WithLabelValues(reasonLoad).Inc()
	return errors.New("the API servers of the namespace's clusters send more at the same time than the manager has memory for")
}

// linger lets an answer or an event that has ended count for as long as it takes to decode it.
func (b *boundedBody) linger() error {
	weight := b.weight()
	b.release()
	if weight <= keptEvent {
		return nil
	}
	ended := &boundedBody{answer: b.answer}
	err := ended.hold(weight)
	time.AfterFunc(b.answer.forwarder.limits.decoding, ended.release)
	return err
}

// release takes the answer out of the namespace's bytes in flight. A list that was read to its end
// stays until its library goes on to watch: it decodes the list only now, and keeps it whole while
// it asks for the next part.
func (b *boundedBody) release() {
	if !b.ended {
		_ = b.hold(0)
	}
}

// endPart notes what a list counts for with the part that ends, once.
func (b *boundedBody) endPart() {
	f, c, list := b.answer.forwarder, b.answer.cluster, b.list
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.ended {
		return
	}
	b.ended = true
	list.bytes = b.before + b.weight()
	list.stop()
	list.kept = time.AfterFunc(f.limits.kept, func() { f.answers.Set(c.key.Namespace, list, 0) })
}

// endList notes that a library has decoded the collection's last list, because it begins another,
// or watches.
func (a *answer) endList() {
	c := a.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.collections[a.kind.path]; all != nil {
		all.bytes = 0
		all.stop()
		a.forwarder.answers.Set(c.key.Namespace, all, 0)
	}
}

// accept counts a part of the body, and returns an error if it exceeds a bound.
func (b *boundedBody) accept(part []byte) error {
	a := b.answer
	// client-go decodes some answers as JSON whatever they are said to be.
	if text := bytes.TrimLeft(part, " \t\r\n"); !b.seen && len(text) > 0 {
		b.seen, b.json = true, b.json || text[0] == '{'
	}
	b.size += int64(len(part))
	var err error
	switch {
	case !b.watch && b.size > b.limit:
		err = a.refuse(reasonSize, fmt.Sprintf("sent an answer of more than %d MiB", b.limit>>20))
	case b.initial && b.size > a.forwarder.limits.list:
		err = a.refuse(reasonSize, fmt.Sprintf("sent a list of more than %d MiB", a.forwarder.limits.list>>20))
	case b.watch:
		err = b.acceptEvents(part)
	case b.json:
		err = b.acceptObject(part)
	}
	if err != nil {
		return err
	}
	return b.weigh()
}

// weight returns what the answer, or the current event of an open watch, counts for.
func (b *boundedBody) weight() int64 {
	decoded := b.scan.Members*bytesOfMember + b.scan.Elements*bytesOfElement
	if b.isOpenWatch() {
		return max(int64(len(b.event)), decoded)
	}
	return max(b.size, b.events+decoded)
}

// weigh bounds a list by what it counts for, and all answers by what the namespace has.
func (b *boundedBody) weigh() error {
	weight, most := b.weight(), b.answer.forwarder.limits.list
	switch isList := b.list != nil || b.initial; {
	case isList && weight > most:
		return b.answer.refuse(reasonCount, fmt.Sprintf("sent a list that takes too much memory for the %d bytes that it has", b.size))
	case isList && b.before+weight > most:
		return b.answer.refuse(reasonSize, fmt.Sprintf("sent a list of more than %d MiB in parts", most>>20))
	}
	return b.hold(b.before + weight)
}

// isOpenWatch reports whether this is a watch that has sent its initial events, if any are due.
func (b *boundedBody) isOpenWatch() bool { return b.watch && !b.initial }

// acceptObject counts a part of a list or of a single object.
func (b *boundedBody) acceptObject(part []byte) error {
	for _, c := range part {
		depth := b.scan.Depth
		if err := b.scan.Next(c); err != nil {
			return b.answer.refuse(reasonFormat, "sent JSON that "+err.Error())
		}
		if b.list != nil && min(depth, b.scan.Depth) <= 1 && len(b.outline) <= maxOutline {
			b.outline = append(b.outline, c)
		}
	}
	if err := b.elements(b.size); err != nil {
		return err
	}
	if b.list == nil {
		return nil
	}
	if b.answer.kind.first && !b.begun {
		b.forget()
	}
	n := b.scan.Items
	b.scan.Items, b.begun = 0, true
	if err := b.count(n, func(*collection) {}); err != nil {
		return err
	}
	if b.scan.Depth == 0 && len(b.outline) > 0 {
		return b.checkKind()
	}
	return nil
}

// checkKind refuses a complete list that is not one of the collection's resource. client-go makes of
// it what it says it is, and the elements of some kinds, such as a Pod's containers, take ten times
// as much memory as those of a Node.
func (b *boundedBody) checkKind() error {
	if len(b.outline) > maxOutline {
		return b.answer.refuse(reasonFormat, "sent a list that has more than metadata and items")
	}
	var list metav1.TypeMeta
	// As client-go reads it, which ignores the case of this key alone: a kind that is given twice is
	// the same for both. What is not JSON, it decodes no further.
	if stdjson.Unmarshal(b.outline, &list) != nil || list.Kind == "" || list.Kind == "PartialObjectMetadataList" {
		return nil
	}
	kind, isList := strings.CutSuffix(list.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	if path := b.answer.kind.path; !isList || resource.Resource != path[strings.LastIndexByte(path, '/')+1:] {
		return b.answer.refuse(reasonFormat, "sent a list of another kind than it was asked for")
	}
	return nil
}

// elements bounds how much memory an answer of some bytes takes when it is decoded.
func (b *boundedBody) elements(size int64) error {
	if b.scan.Elements <= freeElements+size/bytesPerElement && (b.list != nil || b.scan.Elements <= b.answer.forwarder.limits.elements) {
		return nil
	}
	return b.answer.refuse(reasonCount, fmt.Sprintf("sent %d elements of arrays in %d bytes", b.scan.Elements, size))
}

// forget begins to count the collection's objects again: the library replaces what it has.
func (b *boundedBody) forget() {
	c := b.answer.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.collections[b.answer.kind.path]; all != nil {
		all.count, all.named = 0, map[uint64]struct{}{}
	}
}

// count adds n to the collection's objects, changes what is known of their names, and bounds both.
func (b *boundedBody) count(n int, change func(*collection)) error {
	c, path := b.answer.cluster, b.answer.kind.path
	c.mu.Lock()
	all := c.collection(path)
	all.count = max(0, all.count+n)
	change(all)
	total := max(all.count, len(all.named))
	c.mu.Unlock()
	if most := b.answer.forwarder.limits.itemsOf(path); total > most {
		return b.answer.refuse(reasonCount, fmt.Sprintf("has more than %d objects at %s", most, path))
	}
	size := int64(objectSize)
	if strings.HasSuffix(path, "/certificatesigningrequests") {
		size = requestSize
	}
	if !b.answer.forwarder.objects.Set(c.key.Namespace, all, int64(total)*size) {
		return b.answer.refuse(reasonCount, fmt.Sprintf("has %d objects at %s, for which the namespace's clusters have no memory left",
			total, path))
	}
	return nil
}

// acceptEvents counts a part of a watch, event by event.
func (b *boundedBody) acceptEvents(part []byte) error {
	for _, c := range part {
		if b.scan.Depth > 0 || c == '{' {
			b.event = append(b.event, c)
		}
		if int64(len(b.event)) > b.answer.forwarder.limits.other {
			return b.answer.refuse(reasonSize, fmt.Sprintf("sent an event of more than %d MiB", b.answer.forwarder.limits.other>>20))
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

// An event begins with its type, and has nothing but its type and its object, as Kubernetes writes
// it: so nobody reads another type than the one that is counted.
const (
	eventBegins = `{"type":"`
	typeEnds    = `","object":`
)

// endEvent counts a complete event.
func (b *boundedBody) endEvent() error {
	if err := b.elements(int64(len(b.event))); err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(b.event, []byte(eventBegins))
	kind, _, closed := bytes.Cut(rest, []byte(typeEnds))
	if !ok || !closed || b.scan.Keys != 2 {
		return b.answer.refuse(reasonFormat, "sent an event that does not consist of a type and an object")
	}
	err := b.countEvent(string(kind))
	if err == nil && b.isOpenWatch() {
		err = b.linger()
	}
	b.event = b.event[:0]
	b.events += b.scan.Members*bytesOfMember + b.scan.Elements*bytesOfElement
	b.scan.Restart()
	if cap(b.event) > keptEvent {
		b.event = nil
	}
	return err
}

// keptEvent is how much memory a watch keeps for its next event, in bytes: enough for most Nodes.
const keptEvent = 32 << 10

func (b *boundedBody) countEvent(kind string) error {
	if kind == string(watch.Error) {
		return nil
	}
	var event struct {
		Object struct {
			Metadata struct {
				Namespace   string            `json:"namespace"`
				Name        string            `json:"name"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		} `json:"object"`
	}
	// As client-go reads it: a name that is given twice is the same for both.
	if err := json.UnmarshalCaseSensitivePreserveInts(b.event, &event); err != nil {
		return b.answer.refuse(reasonFormat, "sent an event whose object has no metadata of Kubernetes")
	}
	if b.initial && !b.begun {
		b.forget()
		b.begun = true
	}
	object := event.Object.Metadata
	name := maphash.String(b.answer.forwarder.seed, object.Namespace+"/"+object.Name)
	add := func(c *collection) { c.named[name] = struct{}{} }
	switch watch.EventType(kind) {
	case watch.Added:
		return b.count(1, add)
	case watch.Modified: // a library adds what it does not know
		return b.count(0, add)
	case watch.Deleted:
		return b.count(-1, func(c *collection) { delete(c.named, name) })
	case watch.Bookmark:
		if b.initial && object.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			b.initial = false
			b.answer.cluster.hangs.Store(false)
			b.timer.Stop()
			b.release()
		}
		return nil
	}
	return b.answer.refuse(reasonFormat, "sent an event of a type that Kubernetes does not have")
}
