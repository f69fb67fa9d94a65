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
	// maxEvent bounds one event, in bytes. An API server takes no object of more than 3 MiB.
	maxEvent = 8 << 20
	// leastStream is how long a stream that works lives at least. One may be cut off as young as it
	// is; where two in a row end sooner, streams don't work, and each would cost a call.
	leastStream = time.Second
)

// eventReader makes of an event's object as of which version it is, and the change that it is, if
// it is one.
type eventReader func(kind watch.EventType, object []byte) (version string, change func() []string, err error)

// stream is the watch of one kind.
type stream struct {
	op   operation
	path string
	read eventReader

	// What follows belongs to who hears the news.

	version string    // how far it has told
	sign    time.Time // when it last told anything
}

// news is what a stream tells: how far it is and what has changed, or why it can't go on.
type news struct {
	of      *stream
	at      time.Time
	version string
	// change returns the tokens of the machines that it is about; nil: nothing has changed.
	change func() []string
	err    error
}

// watch tells what becomes of a kind's objects after a version, for as long as ctx lasts and
// streams can be had. One that has ended, as planned or cut off, is begun anew from where it was.
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
		if time.Since(began) < cloud.StreamTime-time.Second { // cut off: it may go on elsewhere
			if _, err := d.prove(ctx); err != nil {
				return err
			}
		}
		worked = lasted
	}
}

// watchOnce reads one stream to its end, which is no error, and notes in version how far it came.
// The API server is asked to end it in time, and for bookmarks: signs of how far it is, about once
// a minute and right before the end ("Watch bookmarks" in Kubernetes' API concepts).
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
		case err != nil: // it has ended, as planned or cut off; an event that did not come whole comes again
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

// hear makes news of an event, which comes after a version.
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
	case order < 0: // what was read before has not happened: the API server's store came back old
		return n, outdated(s.op, "the API server has gone back in time")
	}
	return n, nil
}

// outdated is for a stream that can't go on where it was: all must be read anew.
func outdated(op operation, why string) error {
	return &cloud.Error{Code: cloud.Unavailable, Message: op.name + ": " + why, Err: statusError{http: http.StatusGone}}
}

func isOutdated(err error) bool {
	var answer statusError
	return errors.As(err, &answer) && answer.http == http.StatusGone
}

// kept is what the API server keeps.
type kept[T any] interface {
	*T
	metav1.Object
	runtime.Object
}

// shelf holds the objects of one kind that carry Drover's tags.
type shelf[T any, P kept[T]] struct {
	kind   string
	keep   func(*T) T        // what is needed of an object
	tokens map[string]string // of the objects, by their names
	all    map[string]map[string]P
}

func newShelf[T any, P kept[T]](kind string, keep func(*T) T, found []T) *shelf[T, P] {
	s := &shelf[T, P]{kind: kind, keep: keep, tokens: map[string]string{}, all: map[string]map[string]P{}}
	for _, o := range found { // copies, so that what is gone does not stay for what was found with it
		s.put(&o)
	}
	return s
}

// put takes an object in, and returns the machines that it was and is of.
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

// remove takes an object out, and returns the machine that it was of.
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

// of are a machine's.
func (s *shelf[T, P]) of(token string) (all []T) {
	for _, o := range s.all[token] {
		all = append(all, *o)
	}
	return all
}

// read makes a change of an event's object.
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
