// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/drover-io/drover/cloud"
)

// These tests cover streams that a real API server does not produce on demand. test/clouds/kubevirt
// follows a real one.

// streams is a fake API server that has no objects at version 10. Each test writes its watches.
type streams struct {
	*driver
	mu      sync.Mutex
	asked   map[string]int // number of calls, by "list " or "watch " and the kind
	changes []cloud.Update
	// say writes the nth watch of a kind, counted from 1. The watch ends when say returns.
	say func(kind string, n int, w http.ResponseWriter, req *http.Request)
	// noCDI makes the server answer as one without DataVolumes.
	noCDI atomic.Bool
	// noRight makes the server refuse to read Services.
	noRight atomic.Bool
}

func newStreams(t *testing.T, say func(kind string, n int, w http.ResponseWriter, req *http.Request)) *streams {
	t.Helper()
	s := &streams{say: say, asked: map[string]int{}}
	s.driver = served(t, s.serve)
	s.streamTimeout, s.absentInterval = time.Minute, time.Hour
	return s
}

func (s *streams) serve(w http.ResponseWriter, req *http.Request) {
	list := listKind(req)
	kind := strings.TrimSuffix(list, "List")
	verb := "list "
	if req.URL.Query().Get("watch") != "" {
		verb = "watch "
	}
	s.mu.Lock()
	s.asked[verb+kind]++
	n := s.asked[verb+kind]
	s.mu.Unlock()
	switch {
	case strings.HasSuffix(req.URL.Path, "/kube-system"):
		write(w, 200, map[string]any{"kind": "PartialObjectMetadata", "metadata": map[string]any{"uid": "uid-a"}})
	case kind == "DataVolume" && s.noCDI.Load():
		http.Error(w, "404 page not found", http.StatusNotFound)
	case kind == "Service" && s.noRight.Load():
		write(w, 403, refusal(403, metav1.StatusReasonForbidden, `User "drover" cannot list resource "services"`))
	case verb == "list ":
		write(w, 200, map[string]any{"kind": list, "metadata": map[string]any{"resourceVersion": "10"}, "items": []any{}})
	default:
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		s.say(kind, n, w, req)
	}
}

func (s *streams) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[call]
}

func (s *streams) told() []cloud.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]cloud.Update(nil), s.changes...)
}

func (s *streams) of(token string) (all []cloud.Update) {
	for _, c := range s.told() {
		if c.Token == token {
			all = append(all, c)
		}
	}
	return all
}

// watch runs Watch until the streams end or ctx is done.
func (s *streams) follow(ctx context.Context) error {
	return s.Watch(ctx, func(c cloud.Update) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, c)
	})
}

// event writes one event.
func event(w http.ResponseWriter, kind string, o any) {
	text, _ := json.Marshal(o)
	fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", kind, text)
	_ = http.NewResponseController(w).Flush()
}

// bookmark writes a bookmark to a kind's stream.
func bookmark(w http.ResponseWriter, kind, version string) {
	event(w, "BOOKMARK", map[string]any{"kind": kind, "metadata": map[string]any{"resourceVersion": version}})
}

func at(kind, name, version string) metav1.PartialObjectMetadata {
	m := meta(name)
	m.ResourceVersion = version
	return metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: kind}, ObjectMeta: m}
}

func running(name, version string) kubevirtv1.VirtualMachineInstance {
	vmi := kubevirtv1.VirtualMachineInstance{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachineInstance"}, ObjectMeta: meta(name)}
	vmi.ResourceVersion, vmi.Status.Phase = version, kubevirtv1.Running
	return vmi
}

// untilGone keeps a stream open until its client disconnects.
func untilGone(req *http.Request) { <-req.Context().Done() }

// TestUnexpectedStreams: a response that is not a watch of an API server ends Watch with an error,
// and nothing in it is reported.
func TestUnexpectedStreams(t *testing.T) {
	for name, test := range map[string]struct {
		say  func(w http.ResponseWriter, req *http.Request)
		code cloud.Code
		word string
	}{
		"HTML": {code: cloud.Unknown, word: "not a stream of events", say: func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				if _, err := fmt.Fprintln(w, "<html><p>marked-page</p></html>"); err != nil {
					return
				}
			}
		}},
		"another kind": {code: cloud.Unknown, word: "not a VirtualMachine", say: func(w http.ResponseWriter, req *http.Request) {
			event(w, "ADDED", at("Pod", "token-1", "11"))
			untilGone(req)
		}},
		"no object": {code: cloud.Unknown, word: "not a VirtualMachine", say: func(w http.ResponseWriter, req *http.Request) {
			fmt.Fprintln(w, `{"type":"ADDED"}`)
		}},
		"endless event": {code: cloud.Unknown, word: "more than 8388608 bytes", say: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"type":"ADDED","object":{"kind":"`)
			for junk := []byte(strings.Repeat("x", 1<<20)); ; {
				if _, err := w.Write(junk); err != nil {
					return
				}
			}
		}},
		"no version": {code: cloud.Unknown, word: "can't be compared", say: func(w http.ResponseWriter, req *http.Request) {
			event(w, "ADDED", at("VirtualMachine", "token-1", ""))
			untilGone(req)
		}},
		"error": {code: cloud.Unauthorized, word: "not any more", say: func(w http.ResponseWriter, _ *http.Request) {
			event(w, "ERROR", refusal(403, metav1.StatusReasonForbidden, "not any more marked-token"))
		}},
		"error of nobody's": {code: cloud.Unknown, word: "can't be decoded", say: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"type":"ERROR","object":{"said":"marked-token"}}`)
		}},
		"end at once": {code: cloud.Unavailable, word: "ended early", say: func(http.ResponseWriter, *http.Request) {}},
		"half an event": {code: cloud.Unavailable, word: "ended early",
			say: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"type":"ADDED","object":{"ki`) }},
		"silence": {code: cloud.Unavailable, word: "stopped sending events",
			say: func(_ http.ResponseWriter, req *http.Request) { untilGone(req) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStreams(t, func(kind string, _ int, w http.ResponseWriter, req *http.Request) {
				if kind == "VirtualMachine" {
					test.say(w, req)
					return
				}
				for ; req.Context().Err() == nil; time.Sleep(50 * time.Millisecond) {
					bookmark(w, kind, "11")
				}
			})
			if name == "silence" {
				s.streamTimeout = 500 * time.Millisecond
			}
			err := s.follow(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(err).To(MatchError(And(ContainSubstring(test.word), Not(ContainSubstring("marked")))))
			g.Expect(s.told()).To(HaveLen(1), "everything at first, and no sign of life: one of the streams never gave one")
			g.Expect(s.told()[0].All).To(BeTrue())
			g.Expect(s.count("watch VirtualMachine")).To(BeNumerically("<=", 2), "what does not work is not asked for on and on")
		})
	}
}

// TestResume: a stream that is cut off resumes from the last version. An event that was cut off is
// reported once.
func TestResume(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	var from []string
	s := newStreams(t, func(kind string, n int, w http.ResponseWriter, req *http.Request) {
		if kind != "VirtualMachine" {
			untilGone(req)
			return
		}
		from = append(from, req.URL.Query().Get("resourceVersion"))
		if n == 1 {
			event(w, "ADDED", at("VirtualMachine", "token-1", "11"))
			fmt.Fprint(w, `{"type":"ADDED","object":{"kind":"VirtualMachine","metadata":{"name":"token-2"`)
			return // sooner than leastStream
		}
		event(w, "ADDED", at("VirtualMachine", "token-2", "12"))
		untilGone(req)
	})
	ended := make(chan error, 1)
	go func() { ended <- s.follow(ctx) }()
	g.Eventually(func() []cloud.Update { return s.of("token-2") }, "2m").Should(HaveLen(1))
	cancel()
	g.Eventually(ended, "2m").Should(Receive(HaveOccurred()))
	g.Expect(from).To(Equal([]string{"10", "11"}))
	g.Expect(s.of("token-1")).To(HaveLen(1))
	g.Expect(s.count("list VirtualMachine")).To(Equal(1))
}

// TestOutdated: if the API server no longer has a version, or does not have it yet, everything is
// listed again. If that does not help, Watch returns an error.
func TestOutdated(t *testing.T) {
	for name, outdate := range map[string]func(w http.ResponseWriter){
		"expired":       func(w http.ResponseWriter) { event(w, "ERROR", refusal(410, metav1.StatusReasonExpired, "too old")) },
		"back in time":  func(w http.ResponseWriter) { bookmark(w, "VirtualMachine", "9") },
		"back for good": func(w http.ResponseWriter) { event(w, "ADDED", at("VirtualMachine", "token-1", "9")) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStreams(t, func(kind string, n int, w http.ResponseWriter, req *http.Request) {
				if kind == "VirtualMachine" && n <= 2 {
					bookmark(w, "VirtualMachine", "11")
					time.Sleep(100 * time.Millisecond) // lets the bookmark arrive first
				}
				if kind == "VirtualMachine" {
					outdate(w)
				}
				untilGone(req)
			})
			err := s.follow(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
			g.Expect(s.told()).To(HaveLen(3), "everything, each time")
			g.Expect(s.count("list VirtualMachine")).To(Equal(3))
			g.Expect(s.of("token-1")).To(BeEmpty())
		})
	}
}

// TestOrder: a guest that arrives before its VM is reported with it. A guest whose VM is gone is
// reported once that is certain.
func TestOrder(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	guests, machines, marks := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := newStreams(t, func(kind string, _ int, w http.ResponseWriter, req *http.Request) {
		switch kind {
		case "VirtualMachineInstance":
			event(w, "ADDED", running("token-1", "20"))
			event(w, "ADDED", running("alone", "21"))
			close(guests)
		case "VirtualMachine":
			<-machines
			bookmark(w, kind, "15")
			event(w, "ADDED", at("VirtualMachine", "token-1", "16"))
			<-marks
			bookmark(w, kind, "22")
		}
		untilGone(req)
	})
	ended := make(chan error, 1)
	go func() { ended <- s.follow(ctx) }()
	<-guests
	g.Consistently(s.told, "300ms").Should(HaveLen(1), "only what was there at first")
	close(machines)
	g.Eventually(func() []cloud.Update { return s.of("token-1") }, "2m").Should(HaveLen(1))
	g.Expect(s.of("token-1")[0].Resources).To(HaveExactElements(And(HaveField("ID", "uid-1"), HaveField("State", cloud.StateRunning))))
	g.Expect(s.of("alone")).To(BeEmpty())
	close(marks)
	g.Eventually(func() []cloud.Update { return s.of("alone") }, "2m").Should(HaveLen(1))
	g.Expect(s.of("alone")[0].Resources).To(HaveExactElements(And(HaveField("ID", "vmi/uid-1"), HaveField("State", cloud.StateStopping))))
	cancel()
	g.Eventually(ended, "2m").Should(Receive(HaveOccurred()))
}

// TestHeartbeats: a heartbeat follows when every stream has sent something, also in a cluster
// without CDI. Its time is that of the oldest.
func TestHeartbeats(t *testing.T) {
	for _, noCDI := range []bool{false, true} {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		var late time.Time
		last := make(chan struct{})
		s := newStreams(t, func(kind string, _ int, w http.ResponseWriter, req *http.Request) {
			if kind == "VirtualMachine" {
				<-last
			}
			bookmark(w, kind, "11")
			untilGone(req)
		})
		s.noCDI.Store(noCDI)
		ended := make(chan error, 1)
		go func() { ended <- s.follow(ctx) }()
		g.Eventually(s.told, "2m").Should(HaveLen(1))
		g.Consistently(s.told, "300ms").Should(HaveLen(1))
		late = time.Now()
		close(last)
		g.Eventually(s.told, "2m").Should(HaveLen(2))
		sign := s.told()[1]
		g.Expect(sign.All || sign.Token != "").To(BeFalse())
		g.Expect(sign.At).To(BeTemporally("<", late))
		g.Expect(sign.At).To(BeTemporally(">", s.told()[0].At))
		cancel()
		g.Eventually(ended, "2m").Should(Receive(HaveOccurred()))
		g.Expect(s.count("watch DataVolume")).To(Equal(map[bool]int{true: 0, false: 1}[noCDI]))
	}
}

// TestWatchedLater: volumes are watched once CDI is installed, and load balancers once the right to
// read them is there.
func TestWatchedLater(t *testing.T) {
	for kind, isAbsent := range map[string]func(*streams) *atomic.Bool{
		"DataVolume": func(s *streams) *atomic.Bool { return &s.noCDI },
		"Service":    func(s *streams) *atomic.Bool { return &s.noRight },
	} {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		s := newStreams(t, func(kind string, _ int, w http.ResponseWriter, req *http.Request) {
			bookmark(w, kind, "11")
			untilGone(req)
		})
		isAbsent(s).Store(true)
		s.absentInterval = 200 * time.Millisecond
		ended := make(chan error, 1)
		go func() { ended <- s.follow(ctx) }()
		g.Eventually(func() int { return s.count("list " + kind) }, "2m").Should(BeNumerically(">=", 3), "it is looked for")
		g.Expect(s.count("watch " + kind)).To(BeZero())
		isAbsent(s).Store(false)
		g.Eventually(func() int { return s.count("watch " + kind) }, "2m").Should(Equal(1))
		g.Expect(s.count("list VirtualMachine")).To(Equal(2), "everything is read again")
		cancel()
		g.Eventually(ended, "2m").Should(Receive(HaveOccurred()))
	}
}

// TestLabels: a VM that loses its labels, or gets another machine's, is reported for both tokens.
func TestLabels(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := newStreams(t, func(kind string, _ int, w http.ResponseWriter, req *http.Request) {
		if kind == "VirtualMachine" {
			vm := at("VirtualMachine", "token-1", "11")
			event(w, "ADDED", vm)
			vm.ResourceVersion, vm.Labels[cloud.TagToken] = "12", "token-2"
			event(w, "MODIFIED", vm)
			vm.ResourceVersion, vm.Labels = "13", nil
			event(w, "MODIFIED", vm)
			event(w, "DELETED", at("VirtualMachine", "never-seen", "14"))
		}
		untilGone(req)
	})
	ended := make(chan error, 1)
	go func() { ended <- s.follow(ctx) }()
	g.Eventually(func() []cloud.Update { return s.of("token-2") }, "2m").Should(HaveLen(2))
	cancel()
	g.Eventually(ended, "2m").Should(Receive(HaveOccurred()))
	g.Expect(s.of("token-1")).To(HaveExactElements(HaveField("Resources", HaveLen(1)), HaveField("Resources", BeEmpty())))
	g.Expect(s.of("token-2")).To(HaveEach(HaveField("Resources", BeEmpty())), "it has not the name")
	g.Expect(s.of("never-seen")).To(BeEmpty())
}

// panicking is a transport that panics when a watch of a kind is asked for.
type panicking struct {
	http.RoundTripper
	kind string
}

func (p panicking) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") != "" && listKind(req) == p.kind+"List" {
		panic("bad answer")
	}
	return p.RoundTripper.RoundTrip(req)
}

// TestStreamThatPanics: a panic in a stream's goroutine ends the watch with an error.
func TestStreamThatPanics(t *testing.T) {
	for _, kind := range []string{"VirtualMachine", "DataVolume", "EndpointSlice"} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			s := newStreams(t, func(_ string, _ int, _ http.ResponseWriter, req *http.Request) { untilGone(req) })
			s.http.Transport = panicking{s.http.Transport, kind}
			_, panicked := errors.AsType[*cloud.PanicError](s.follow(t.Context()))
			g.Expect(panicked).To(BeTrue())
		})
	}
}
