// SPDX-License-Identifier: Apache-2.0

package toycloud

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// TestCarrier runs the suite on a toy cloud that does not speak HTTP: each call and each answer is
// one line of JSON on a TCP connection. The driver is the same.
func TestCarrier(t *testing.T) {
	toy, _ := startToy(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { toy.serveLines(conn) })
		}
	})
	carriers := &carriers{}
	t.Cleanup(func() {
		listener.Close()
		carriers.close()
		serving.Wait()
	})
	row := Cloud()
	row.Carrier = carriers.carrier
	toy.conform(t, row, "toy://"+listener.Addr().String())
}

type lineCall struct{ Method, Path, Key, Body string }

type lineAnswer struct {
	Status           int
	RetryAfter, Body string
}

// serveLines answers the calls of one connection.
func (c *toy) serveLines(conn net.Conn) {
	defer conn.Close()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	for {
		var call lineCall
		if in.Decode(&call) != nil {
			return
		}
		req := httptest.NewRequest(call.Method, call.Path, strings.NewReader(call.Body))
		req.Header.Set("Authorization", call.Key)
		answer := httptest.NewRecorder()
		c.handler.ServeHTTP(answer, req)
		if out.Encode(lineAnswer{answer.Code, answer.Header().Get("Retry-After"), answer.Body.String()}) != nil {
			return
		}
	}
}

// carriers makes carriers, and closes their connections.
type carriers struct {
	mu  sync.Mutex
	all []*carrier
}

func (c *carriers) carrier(base *http.Transport, _ *tls.Config) http.RoundTripper {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := &carrier{dial: base.DialContext, idle: make(chan net.Conn, 8)}
	c.all = append(c.all, one)
	return one
}

func (c *carriers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		for len(one.idle) > 0 {
			(<-one.idle).Close()
		}
	}
}

// carrier carries the calls of one account. It keeps a few idle connections.
type carrier struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	idle chan net.Conn
}

// RoundTrip implements http.RoundTripper. A connection whose call fails is not used again.
func (c *carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	call := lineCall{Method: req.Method, Path: req.URL.RequestURI(), Key: req.Header.Get("Authorization")}
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
		call.Body = string(body)
	}
	var conn net.Conn
	select {
	case conn = <-c.idle:
	default:
		var err error
		if conn, err = c.dial(req.Context(), "tcp", req.URL.Host); err != nil {
			return nil, err
		}
	}
	answer, err := exchange(req.Context(), conn, call)
	if err != nil {
		conn.Close()
		return nil, err
	}
	select {
	case c.idle <- conn:
	default:
		conn.Close()
	}
	resp := &http.Response{StatusCode: answer.Status, Header: http.Header{}, Request: req, Body: io.NopCloser(strings.NewReader(answer.Body))}
	if answer.RetryAfter != "" {
		resp.Header.Set("Retry-After", answer.RetryAfter)
	}
	return resp, nil
}

// exchange sends a call and reads its answer, until the context ends.
func exchange(ctx context.Context, conn net.Conn, call lineCall) (answer lineAnswer, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err = json.NewEncoder(conn).Encode(call); err == nil {
		var line []byte
		if line, err = bufio.NewReader(conn).ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &answer)
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return answer, err
}
