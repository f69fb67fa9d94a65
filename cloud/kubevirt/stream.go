// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// maxEvent is the largest event, in bytes. An API server accepts no object larger than 3 MiB.
	maxEvent = 8 << 20
	// leastStream is how long a working stream lasts at least. A single stream may be cut off
	// earlier. If two in a row end sooner, streams don't work, and each new one would cost a call.
	leastStream = time.Second
)

// eventReader decodes an event's object. It returns the resource version and, if the event is a
// change, the change.
type eventReader func(kind watch.EventType, object []byte) (version string, change func() []string, err error)

// stream is the watch of one kind.
type stream struct {
	op   operation
	path string
	read eventReader

	// The fields below belong to the reader of the news.

	version string    // the latest that it has reported
	sign    time.Time // when it last sent anything
}

// news is what a stream reports: its version and what has changed, or why it can't continue.
type news struct {
	of      *stream
	at      time.Time
	version string
	// change returns the tokens of the machines that changed. nil means that nothing has changed.
	change func() []string
	err    error
}

// watch reports changes of a kind's objects after a version, until ctx ends or streams fail. A
// stream that has ended, as planned or cut off, is restarted from its last version.
func (d *driver) watch(ctx context.Context, s *stream, version string, tell func(news)) error {
	for worked := true; ; {
		began := time.Now()
		err := d.watchOnce(ctx, s, &version, tell)
		lasted := time.Since(began) >= leastStream
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return driverkit.Redactor{}.NoAnswer(s.op.name, ctx.Err())
		case !worked && !lasted:
			return cloud.Errorf(cloud.Unavailable, "%s: the stream has ended before its time, twice", s.op.name)
		}
		if time.Since(began) < cloud.StreamTime-time.Second { // cut off: another cluster may answer now
			if _, err := d.prove(ctx); err != nil {
				return err
			}
		}
		worked = lasted
	}
}

// watchOnce reads one stream to its end, which is no error, and stores the last version in version.
// The request asks for an end in time and for bookmarks: the current version, about once a minute
// and right before the end ("Watch bookmarks" in the Kubernetes API concepts).
func (d *driver) watchOnce(ctx context.Context, s *stream, version *string, tell func(news)) error {
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
		bounded.N = maxEvent
		var e metav1.WatchEvent
		err := events.Decode(&e)
		var garbled *json.SyntaxError
		var other *json.UnmarshalTypeError
		switch {
		case bounded.N <= 0:
			return cloud.Errorf(cloud.Unknown, "%s: an event of more than %d bytes", s.op.name, maxEvent)
		case errors.As(err, &garbled), errors.As(err, &other):
			return cloud.Errorf(cloud.Unknown, "%s: the answer is no stream of events: does the endpoint belong to a Kubernetes API server?", s.op.name)
		case err != nil: // the stream has ended; a partial event is sent again
			return nil
		}
		n, err := s.hear(e, *version, answer.redactor)
		if err != nil {
			return err
		}
		*version = n.version
		tell(n)
	}
}

// hear turns an event that follows a version into news.
func (s *stream) hear(e metav1.WatchEvent, after string, redactor driverkit.Redactor) (news, error) {
	n := news{of: s, at: time.Now()}
	kind := watch.EventType(e.Type)
	if kind == watch.Error {
		var said metav1.Status
		if json.Unmarshal(e.Object.Raw, &said) != nil || said.Kind != "Status" {
			return n, cloud.Errorf(cloud.Unknown, "%s: the stream ends with an error that can't be read", s.op.name)
		}
		return n, refusedBy(s.op, int(said.Code), &said, http.Header{}, redactor)
	}
	var err error
	if n.version, n.change, err = s.read(kind, e.Object.Raw); err != nil {
		return n, err
	}
	order, err := resourceversion.CompareResourceVersion(n.version, after)
	switch {
	case err != nil:
		return n, cloud.Errorf(cloud.Unknown, "%s: versions of the API server's can't be compared", s.op.name)
	case order < 0: // the API server's store is older now: earlier reads are void
		return n, outdated(s.op, "the API server has gone back in time")
	}
	return n, nil
}

// outdated returns the error of a stream that can't continue: everything must be read again.
func outdated(op operation, why string) error {
	return &cloud.Error{Code: cloud.Unavailable, Message: op.name + ": " + why, Err: statusError{http: http.StatusGone}}
}

func isOutdated(err error) bool {
	var answer statusError
	return errors.As(err, &answer) && answer.http == http.StatusGone
}

// kept is an object type of the API server.
type kept[T any] interface {
	*T
	metav1.Object
	runtime.Object
}

// shelf holds the objects of one kind that carry Drover's tags.
type shelf[T any, P kept[T]] struct {
	kind   string
	keep   func(*T) T        // returns the needed part of an object
	tokens map[string]string // by object name
	all    map[string]map[string]P
}

func newShelf[T any, P kept[T]](kind string, keep func(*T) T, found []T) *shelf[T, P] {
	s := &shelf[T, P]{kind: kind, keep: keep, tokens: map[string]string{}, all: map[string]map[string]P{}}
	for _, o := range found { // copies, so that a deleted object does not stay in memory with its page
		s.put(&o)
	}
	return s
}

// put stores an object, and returns the tokens of the machines that it belonged and belongs to.
func (s *shelf[T, P]) put(o P) []string {
	token := o.GetLabels()[cloud.TagToken]
	was := s.remove(o.GetName())
	if token == "" {
		return was
	}
	s.tokens[o.GetName()] = token
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
func (s *shelf[T, P]) remove(name string) []string {
	token, ok := s.tokens[name]
	if !ok {
		return nil
	}
	delete(s.tokens, name)
	if delete(s.all[token], name); len(s.all[token]) == 0 {
		delete(s.all, token)
	}
	return []string{token}
}

// of returns a machine's objects.
func (s *shelf[T, P]) of(token string) (all []T) {
	for _, o := range s.all[token] {
		all = append(all, *o)
	}
	return all
}

// read turns an event's object into a change.
func (s *shelf[T, P]) read(kind watch.EventType, object []byte) (version string, change func() []string, err error) {
	o := P(new(T))
	if json.Unmarshal(object, o) != nil || o.GetObjectKind().GroupVersionKind().Kind != s.kind {
		return "", nil, cloud.Errorf(cloud.Unknown, "an event's object is no %s: does the endpoint belong to a Kubernetes API server?", s.kind)
	}
	switch kind {
	case watch.Added, watch.Modified:
		slim := s.keep(o)
		change = func() []string { return s.put(&slim) }
	case watch.Deleted:
		change = func() []string { return s.remove(o.GetName()) }
	}
	return o.GetResourceVersion(), change, nil
}
