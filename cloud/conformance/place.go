// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// place checks what the engine needs of Info.Place: it is set, never changes, holds no secret, and
// differs for credentials that lead elsewhere.
func (s *suite) place() {
	first, err := s.driver.Probe(s.Context())
	if err != nil {
		s.Fatalf("Probe: %v", err)
	}
	if first.Place == "" || strings.ContainsFunc(first.Place, func(r rune) bool { return r <= ' ' || r > '~' }) || len(first.Place) > 512 {
		s.Errorf("Place is %q, want 1 to 512 printable characters", first.Place)
	}
	s.driver.(*checked).noSecret("Place", first.Place)
	for name, driver := range map[string]cloud.Driver{"Probe again": s.driver, "a driver of the same account": s.newDriver(s.Credentials)} {
		if again, err := driver.Probe(s.Context()); err != nil || again.Place != first.Place {
			s.Errorf("%s: Place is %q, then %q (%v)", name, first.Place, again.Place, err)
		}
	}
	if s.OtherPlace == nil {
		s.omitCredential("credentials of another place")
		return
	}
	elsewhere := *s
	if s.OtherPlace.Account != nil {
		elsewhere.Account = s.OtherPlace.Account
	}
	other, err := elsewhere.newDriver(s.OtherPlace.Credentials).Probe(s.Context())
	if err != nil || other.Place == "" || other.Place == first.Place {
		s.Errorf("credentials of another place: Place is %q, and the account's is %q (%v)", other.Place, first.Place, err)
	}
}

// permissions makes the endpoint hide the machines that the credentials may no longer see. No read
// may then miss a machine without an error.
func (s *suite) permissions() {
	if s.LosePermissions == nil {
		s.omitCredential("permissions that are lost")
		return
	}
	made := s.ensure(s.request(s.token()))
	s.wantOne(made.Token, made.ID)
	undo := s.LosePermissions(s.T)
	for name, read := range map[string]func() ([]cloud.Resource, error){
		"List": func() ([]cloud.Resource, error) { return s.driver.List(s.Context()) },
		"Describe": func() ([]cloud.Resource, error) {
			return s.driver.Describe(s.Context(), []cloud.Reference{s.reference(made)})
		},
		"Describe by token": func() ([]cloud.Resource, error) {
			return s.driver.Describe(s.Context(), []cloud.Reference{{Token: made.Token, OwnershipID: s.owner}})
		},
	} {
		found, err := read()
		if err == nil && !slices.ContainsFunc(found, func(r cloud.Resource) bool { return r.ID == made.ID }) {
			s.Errorf("%s misses a machine that it may not see, and returns no error", name)
		}
		if err != nil {
			s.wantCode(err, cloud.Unauthorized)
		}
	}
	undo()
	s.wantOne(made.Token, made.ID)
}

// turnAfterDeadline makes the transport refuse a call whose turn in the rate limit comes too late.
// The engine must find the *Queued in the error's chain.
func (s *suite) turnAfterDeadline() {
	made := s.ensure(s.request(s.token()))
	late := func(req *http.Request, _ func() (*http.Response, error), _ func()) (*http.Response, error) {
		closeBody(req)
		return nil, &cloud.Queued{After: time.Minute}
	}
	for name, step := range map[string]struct {
		class cloud.Class
		do    func(context.Context) error
	}{
		"Ensure": {cloud.ClassCreate, func(ctx context.Context) error { _, err := s.driver.Ensure(ctx, s.request(s.token())); return err }},
		"List":   {cloud.ClassRead, func(ctx context.Context) error { _, err := s.driver.List(ctx); return err }},
		"Delete": {cloud.ClassDelete, func(ctx context.Context) error { return s.driver.Delete(ctx, []cloud.Resource{made})[0] }},
		"Describe": {cloud.ClassRead, func(ctx context.Context) error {
			_, err := s.driver.Describe(ctx, []cloud.Reference{s.reference(made)})
			return err
		}},
	} {
		happened, err := s.during(step.class, 0, late, step.do)
		var queued *cloud.Queued
		if happened && (!errors.As(err, &queued) || queued.After != time.Minute) {
			s.Errorf("%s: the transport's *Queued is not in the error chain of %T: %v", name, err, err)
		}
	}
}

// createInProgress makes the endpoint leave a create without an answer and carry it out later. A
// create that is repeated meanwhile must make no second instance.
func (s *suite) createInProgress() {
	if s.LateCreates == nil {
		s.omitCredential("a create that takes effect after its response was lost")
		return
	}
	req := s.request(s.token())
	undo := s.LateCreates(s.T)
	_, err := s.driver.Ensure(s.Context(), req)
	undo()
	s.wantCode(err, cloud.Unavailable, cloud.Unknown)
	req.MaybeSent = true
	made := s.ensure(req)
	s.eventually("List returns the instance", func() bool {
		found, err := s.driver.Describe(s.Context(), []cloud.Reference{s.reference(made)})
		return err == nil && len(found) > 0
	})
	s.wantOne(req.Token, made.ID)
}

// callTime bounds the call that a dead connection may lose.
const callTime = 3 * time.Second

// deadConnection makes the network swallow all data on the open connections. Only one call may be
// lost.
func (s *suite) deadConnection() {
	base, ok := s.net.shared.(*http.Transport)
	if !ok {
		s.omitCredential("a dead connection")
		return
	}
	lines := &lines{dial: base.DialContext}
	if lines.dial == nil {
		lines.dial = new(net.Dialer).DialContext
	}
	mortal := base.Clone()
	mortal.DialContext = lines.connect
	// As the engine does, but sooner.
	mortal.HTTP2 = &http.HTTP2Config{SendPingTimeout: callTime / 6, PingTimeout: callTime / 6}
	s.Cleanup(mortal.CloseIdleConnections)
	through := *s
	through.net = &network{shared: mortal, t: s.T, calls: map[cloud.Class]int{}}
	driver := through.newDriver(s.Credentials)
	list := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(s.Context(), limit)
		defer cancel()
		_, err := driver.List(ctx)
		return err
	}
	s.eventually("List succeeds", func() bool { return list(s.Timeout) == nil })
	lines.cut()
	if err := list(callTime); err != nil {
		s.wantCode(err, cloud.Unavailable, cloud.Unknown)
	}
	if err := list(s.Timeout); err != nil {
		s.Errorf("the call after the lost one: %v", err)
	}
}

// lines are a transport's connections, which can go dead together.
type lines struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	open []*line
}

func (l *lines) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	one := &line{Conn: conn, dead: make(chan struct{}), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, one)
	return one, nil
}

// cut makes the open connections go dead.
func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.open {
		close(one.dead)
	}
	l.open = nil
}

// line is a connection. Once it is dead, it swallows what is sent, and receives nothing.
type line struct {
	net.Conn
	dead, closed chan struct{}
	once         sync.Once
}

func (l *line) Write(p []byte) (int, error) {
	select {
	case <-l.dead:
		return len(p), nil
	default:
		return l.Conn.Write(p)
	}
}

func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	select {
	case <-l.dead:
		<-l.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}
