// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// sender is a body that sends size bytes, some each second, and then nothing until its call ends,
// unless it is complete.
type sender struct {
	ctx               context.Context
	size, each, total int
}

func (s *sender) Read(p []byte) (int, error) {
	switch {
	case s.total == s.size:
		return 0, io.EOF
	case s.each == 0:
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	if s.total%s.each == 0 && s.total > 0 {
		select {
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		case <-time.After(time.Second):
		}
	}
	n := min(len(p), s.each-s.total%s.each, s.size-s.total)
	s.total += n
	return n, nil
}

func (s *sender) Close() error { return nil }

// sending is a transport whose answers come as each says.
type sending struct{ size, each int }

func (s sending) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: &sender{ctx: r.Context(), size: s.size, each: s.each}}, nil
}

// get makes a call of an account of its own, as part of a driver's call.
func (m *memory) get(ctx context.Context, from http.RoundTripper, call *driverCall) *http.Response {
	var l atomic.Pointer[limiter]
	l.Store(newLimiter(cloud.Limits{Read: cloud.Limit{PerSecond: 100, Burst: 100}}, &workers{}))
	t := &transport{base: from, limiter: &l, times: TimesFor(time.Hour), meter: &meter{metrics: newMetrics()}, memory: m}
	req, _ := http.NewRequestWithContext(withDriverCall(ctx, call), http.MethodGet, "http://cloud", nil)
	resp, _ := t.RoundTrip(req)
	return resp
}

const large = 8 << 20

// TestLargeAnswersTakeTurns: two of the largest answers are decoded at a time. A third one waits
// until a driver has closed one, and has its turn before a fourth one.
func TestLargeAnswersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, m := NewWithT(t), newMemory()
		var bodies []io.ReadCloser
		var calls [4]driverCall
		var order []int
		for i := range 4 {
			body := m.get(t.Context(), sending{size: large, each: large}, &calls[i]).Body
			bodies = append(bodies, body)
			go func() {
				_, _ = body.Read(make([]byte, 1))
				order = append(order, i)
			}()
			synctest.Wait()
		}
		g.Expect(order).To(Equal([]int{0, 1}))
		small := m.get(t.Context(), sending{size: freeBody, each: freeBody}, &driverCall{}).Body
		g.Expect(io.ReadAll(small)).To(HaveLen(freeBody), "a small answer never waits")
		for i := range 4 {
			g.Expect(bodies[i].Close()).To(Succeed())
			synctest.Wait()
			g.Expect(order).To(HaveLen(min(i+2, 4)), "the driver has not read yet what was decoded")
			if i%2 == 0 {
				calls[i].next()
			} else {
				calls[i].release()
			}
			synctest.Wait()
		}
		g.Expect(order).To(Equal([]int{0, 1, 2, 3}))
		g.Expect(m.free).To(BeEquivalentTo(maxBodies))
		g.Expect(m.decoding.TryAcquire(maxDecoded)).To(BeTrue(), "all is given back")
	})
}

// TestTurnEndsByItself: a method that waits for something else, after it has decoded an answer, does
// not hold up the answers of others.
func TestTurnEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, m := NewWithT(t), newMemory()
		for range 2 {
			body := m.get(t.Context(), sending{size: large, each: large}, &driverCall{}).Body
			_, err := io.ReadAll(body)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(body.Close()).To(Succeed())
		}
		g.Expect(m.decoding.TryAcquire(1)).To(BeFalse())
		time.Sleep(maxTurn)
		synctest.Wait()
		g.Expect(m.decoding.TryAcquire(maxDecoded)).To(BeTrue())
	})
}

// TestParallelCallsTakeTurns: calls that a driver's method makes in parallel do not wait for its
// end.
func TestParallelCallsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, m := NewWithT(t), newMemory()
		var call driverCall
		var bodies [6]io.ReadCloser
		for i := range bodies {
			bodies[i] = m.get(t.Context(), sending{size: large, each: large}, &call).Body
		}
		var read atomic.Int32
		for _, body := range bodies {
			go func() {
				_, _ = io.ReadAll(body)
				_ = body.Close()
				read.Add(1)
			}()
		}
		synctest.Wait()
		g.Expect(read.Load()).To(BeEquivalentTo(len(bodies)))
		call.release()
		g.Expect(m.decoding.TryAcquire(maxDecoded)).To(BeTrue())
	})
}

// TestSilentEndpointsHoldLittle: many endpoints that stop in the middle of a large answer keep
// nobody else from reading, and are given up when their memory is needed.
func TestSilentEndpointsHoldLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, m := NewWithT(t), newMemory()
		var given atomic.Int32
		for range 100 {
			body := m.get(t.Context(), stalled(4<<20), &driverCall{}).Body
			go func() {
				_, err := io.ReadAll(body)
				if cloud.CodeOf(err) == cloud.Unavailable {
					given.Add(1)
				}
				_ = body.Close()
			}()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		g.Expect(maxBodies - m.free).To(BeNumerically("<=", int64(maxBodies)))
		for range 3 {
			var call driverCall
			body := m.get(t.Context(), sending{size: large, each: 1 << 20}, &call).Body
			g.Expect(io.ReadAll(body)).To(HaveLen(large))
			g.Expect(body.Close()).To(Succeed())
			call.release()
		}
		synctest.Wait()
		g.Expect(given.Load()).To(BeNumerically(">=", 76), "those that hold more than there is room for")
		g.Expect(given.Load()).To(BeNumerically("<", 82), "nobody is given up without need")
	})
}

// stalled sends some bytes of a large answer at once, and then nothing.
type stalled int

func (s stalled) RoundTrip(r *http.Request) (*http.Response, error) {
	rest := &sender{ctx: r.Context(), size: large}
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader(strings.Repeat("x", int(s))), rest), rest}}, nil
}

// TestWaitingEndsWithTheCall: a call that ends gives back what it has, whether it waits, or its
// driver did not close the body.
func TestWaitingEndsWithTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, m := NewWithT(t), newMemory()
		var open driverCall
		for range 2 {
			_, _ = m.get(t.Context(), sending{size: large, each: large}, &open).Body.Read(make([]byte, 1))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		body := m.get(ctx, sending{size: large, each: large}, &driverCall{}).Body
		_, err := io.ReadAll(body)
		g.Expect(errors.Is(err, context.DeadlineExceeded)).To(BeTrue(), "%v", err)
		g.Expect(body.Close()).To(Succeed())
		open.release()
		g.Expect(m.free).To(BeEquivalentTo(maxBodies))
		g.Expect(m.decoding.TryAcquire(maxDecoded)).To(BeTrue())
	})
}

// TestAnswerLargerThanAnyDriverReads: the engine does not keep what no driver accepts.
func TestAnswerLargerThanAnyDriverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		body := newMemory().get(t.Context(), sending{size: 4 * large, each: 4 * large}, &driverCall{}).Body
		text, err := io.ReadAll(body)
		g.Expect(text).To(HaveLen(maxBody))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
		g.Expect(body.Close()).To(Succeed())
	})
}

// TestEventsAreNotKept: a stream returns each event at once, and holds the memory of the longest,
// however many lines it has. A decoder of JSON keeps an event until its last bracket, and the spaces
// before it.
func TestEventsAreNotKept(t *testing.T) {
	text := strings.Repeat("x", 1<<20)
	for name, event := range map[string]string{
		"a line":            text + "\n",
		"JSON in a line":    `{"a":"` + text + "\"}\n",
		"JSON in lines":     "{\n" + strings.Repeat(strings.Repeat(" ", freeBody-1)+"\n", 64) + "}\n",
		"JSON without ends": `{"a":{"b":["}` + text + `"]}}`,
		"an array":          "[\n" + strings.Repeat(`"\"]",`+"\n", 64<<10) + "0]\n",
		"after empty lines": strings.Repeat(" \n", 512<<10) + "{}",
		"what is not JSON":  `"{` + text + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, m := NewWithT(t), newMemory()
				body := m.get(cloud.WithStream(t.Context(), "Watch", cloud.ClassRead), events(strings.Repeat(event, 20)), &driverCall{}).Body
				g.Expect(io.ReadAll(body)).To(HaveLen(20 * len(event)))
				g.Expect(maxBodies - m.free).To(BeEquivalentTo(len(event) - freeBody))
				g.Expect(body.Close()).To(Succeed())
				g.Expect(m.free).To(BeEquivalentTo(maxBodies))
			})
		})
	}
}

func BenchmarkReadStream(b *testing.B) {
	event := `{"type":"MODIFIED","object":{"metadata":{"labels":{` + strings.Repeat(`"label":"value",`, 500) + `"a":"b"}}}}` + "\n"
	b.SetBytes(int64(len(event)))
	part := make([]byte, 4<<10)
	for b.Loop() {
		text := &body{ReadCloser: io.NopCloser(strings.NewReader(event))}
		for err := error(nil); err == nil; {
			_, err = text.readStream(part)
		}
	}
}

type events string

func (e events) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: io.NopCloser(strings.NewReader(string(e)))}, nil
}
