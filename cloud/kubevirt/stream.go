// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"reflect"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// maxStored bounds the objects that an account keeps in memory, in bytes: those of more than
	// 10,000 machines.
	maxStored = 96 << 20
	// minStreamTime is how long a working stream lasts at least. A single stream may be cut off
	// earlier. If two in a row end sooner, streams don't work, and each new one would cost a call.
	minStreamTime = time.Second
)

// eventReader decodes an event's object. It returns the resource version and, if the event is a
// change, the change.
type eventReader func(kind watch.EventType, object []byte) (version string, change func() []string, err error)

// stream is the watch of one kind.
type stream struct {
	op   operation
	path string
	read eventReader

	// The fields below belong to the reader of the events.

	version   string    // the latest that it has reported
	lastEvent time.Time // when it last sent anything
}

// streamEvent is what a stream reports: its version and what has changed, or why it can't continue.
type streamEvent struct {
	stream  *stream
	at      time.Time
	version string
	// change returns the tokens of the machines that changed. nil means that nothing has changed.
	change func() []string
	err    error
}

// watchKind reports changes of a kind's objects after a version, until ctx ends or streams fail. A
// stream that has ended, as planned or cut off, is restarted from its last version.
func (d *driver) watchKind(ctx context.Context, s *stream, version string, send func(streamEvent)) error {
	for worked := true; ; {
		began := time.Now()
		err := d.readStream(ctx, s, &version, send)
		lasted := time.Since(began) >= minStreamTime
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return driverkit.Redactor{}.NoResponse(s.op.name, ctx.Err())
		case !worked && !lasted:
			return cloud.Errorf(cloud.Unavailable, "%s: two streams in a row ended early", s.op.name)
		}
		if time.Since(began) < cloud.StreamTime-time.Second { // cut off: another cluster may answer now
			if _, err := d.verifyPlace(ctx); err != nil {
				return err
			}
		}
		worked = lasted
	}
}

// readStream reads one stream to its end, which is no error, and stores the last version in
// version. The request asks for an end in time and for bookmarks: the current version, about
// once a minute and right before the end ("Watch bookmarks" in the Kubernetes API concepts). It
// decodes the events itself: client-go's decoder takes an event of any size, and its Reflector
// waits and retries, which is the engine's part.
func (d *driver) readStream(ctx context.Context, s *stream, version *string, send func(streamEvent)) error {
	query := url.Values{
		"watch": {"true"}, "labelSelector": {ofDrover}, "resourceVersion": {*version}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {strconv.Itoa(int(cloud.StreamTime / time.Second))},
	}
	answer, err := d.send(cloud.WithStream(ctx, s.op.name, s.op.class), s.op, s.path, query, nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	bounded := &io.LimitedReader{R: answer}
	for events := json.NewDecoder(bounded); ; {
		bounded.N = driverkit.MaxAnswer
		var e metav1.WatchEvent
		err := events.Decode(&e)
		var garbled *json.SyntaxError
		var other *json.UnmarshalTypeError
		switch {
		case bounded.N <= 0:
			return cloud.Errorf(cloud.Unknown, "%s: an event of more than %d bytes", s.op.name, driverkit.MaxAnswer)
		case errors.Is(err, driverkit.ErrTooLarge):
			return answer.redactor.NoResponse(s.op.name, err)
		case errors.As(err, &garbled), errors.As(err, &other):
			return cloud.Errorf(cloud.Unknown, "%s: unexpected response, not a stream of events: check the kubeconfig's server", s.op.name)
		case err != nil: // the stream has ended; a partial event is sent again
			return nil
		}
		n, err := s.toStreamEvent(e, *version, answer.redactor)
		if err != nil {
			return err
		}
		*version = n.version
		send(n)
	}
}

// toStreamEvent turns an event that follows a version into a streamEvent.
func (s *stream) toStreamEvent(e metav1.WatchEvent, after string, redactor driverkit.Redactor) (streamEvent, error) {
	n := streamEvent{stream: s, at: time.Now()}
	kind := watch.EventType(e.Type)
	if kind == watch.Error {
		var status metav1.Status
		if json.Unmarshal(e.Object.Raw, &status) != nil || status.Kind != "Status" {
			return n, cloud.Errorf(cloud.Unknown, "%s: the stream ended with an error that can't be decoded", s.op.name)
		}
		return n, refused(s.op, &status, redactor)
	}
	var err error
	if n.version, n.change, err = s.read(kind, e.Object.Raw); err != nil {
		return n, err
	}
	order, err := resourceversion.CompareResourceVersion(n.version, after)
	switch {
	case err != nil:
		return n, cloud.Errorf(cloud.Unknown, "%s: the API server's resource versions can't be compared", s.op.name)
	case order < 0: // the API server's store is older now: earlier reads are void
		return n, outdated(s.op, "the API server's resource version went back")
	}
	return n, nil
}

// outdated returns the error of a stream that can't continue: everything must be read again.
func outdated(op operation, why string) error {
	return &cloud.Error{Code: cloud.Unavailable, Message: op.name + ": " + why, Err: apierrors.NewResourceExpired(why)}
}

func isOutdated(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// storedObject is an object type of the API server.
type storedObject[T any] interface {
	*T
	metav1.Object
	runtime.Object
}

// store holds the objects of one kind that carry Drover's tags.
type store[T any, P storedObject[T]] struct {
	kind   string
	prune  func(*T) T        // returns the needed part of an object
	tokens map[string]string // by object name
	sizes  map[string]int64  // by object name
	bytes  int64             // the sum of sizes
	all    map[string]map[string]P
}

// memoryOf returns about how much memory an object takes, and never much less: its texts may have
// any length.
func memoryOf[T any](o *T) int64 {
	text, _ := json.Marshal(o) // it was decoded from JSON
	return int64(len(text)) + int64(reflect.TypeFor[T]().Size()) + 512
}

func newStore[T any, P storedObject[T]](kind string, keep func(*T) T, found []T) *store[T, P] {
	s := &store[T, P]{kind: kind, prune: keep, tokens: map[string]string{}, sizes: map[string]int64{}, all: map[string]map[string]P{}}
	for _, o := range found { // copies, so that a deleted object does not stay in memory with its page
		s.put(&o)
	}
	return s
}

// put stores an object, and returns the tokens of the machines that it belonged and belongs to.
func (s *store[T, P]) put(o P) []string {
	token := o.GetLabels()[cloud.TagToken]
	was := s.remove(o.GetName())
	if token == "" {
		return was
	}
	size := memoryOf((*T)(o))
	s.tokens[o.GetName()], s.sizes[o.GetName()] = token, size
	s.bytes += size
	if s.all[token] == nil {
		s.all[token] = map[string]P{}
	}
	s.all[token][o.GetName()] = o
	if len(was) == 1 && was[0] == token {
		return was
	}
	return append(was, token)
}

// remove deletes an object, and returns the token of the machine that it belonged to.
func (s *store[T, P]) remove(name string) []string {
	token, ok := s.tokens[name]
	if !ok {
		return nil
	}
	s.bytes -= s.sizes[name]
	delete(s.tokens, name)
	delete(s.sizes, name)
	if delete(s.all[token], name); len(s.all[token]) == 0 {
		delete(s.all, token)
	}
	return []string{token}
}

// byToken returns a machine's objects.
func (s *store[T, P]) byToken(token string) (all []T) {
	for _, o := range s.all[token] {
		all = append(all, *o)
	}
	return all
}

// ofOwner returns the objects of a cluster.
func (s *store[T, P]) ofOwner(owner string) (all []T) {
	for _, objects := range s.all {
		for _, o := range objects {
			if o.GetLabels()[cloud.TagOwnership] == owner {
				all = append(all, *o)
			}
		}
	}
	return all
}

// toChange turns an event's object into a change.
func (s *store[T, P]) toChange(kind watch.EventType, object []byte) (version string, change func() []string, err error) {
	o := P(new(T))
	if json.Unmarshal(object, o) != nil || o.GetObjectKind().GroupVersionKind().Kind != s.kind {
		return "", nil, cloud.Errorf(cloud.Unknown, "unexpected event, its object is not a %s: check the kubeconfig's server", s.kind)
	}
	switch kind {
	case watch.Added, watch.Modified:
		slim := s.prune(o)
		change = func() []string { return s.put(&slim) }
	case watch.Deleted:
		change = func() []string { return s.remove(o.GetName()) }
	}
	return o.GetResourceVersion(), change, nil
}
