// SPDX-License-Identifier: Apache-2.0

package forwarder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"mime"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// ServeHTTP forwards a request of a library, and a bounded answer of the cluster's API server.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := f.of(r)
	switch {
	case c == nil:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the forwarder does not know this token: read the kubeconfig again")
		return
	case r.Header.Get("Upgrade") != "":
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "the forwarder changes no protocols")
		return
	}
	if why := c.refusedBefore(f.now()); why != "" {
		refuse(w, http.StatusBadGateway, metav1.StatusReasonServiceUnavailable, why)
		return
	}
	c.requests.Add(1)
	defer func() { c.used(f.now()); c.requests.Add(-1) }()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	a := &answer{forwarder: f, cluster: c, kind: kindOf(r), cancel: cancel}
	defer func() { a.recordEnd(r.Context().Err() != nil) }()
	if a.kind.first {
		a.endList()
	}
	proxy := httputil.ReverseProxy{
		Rewrite:        c.rewrite,
		Transport:      c.upstream,
		FlushInterval:  -1,
		ModifyResponse: a.bound,
		ErrorHandler:   a.failed,
		ErrorLog:       log.New(io.Discard, "", 0), // errors are answered, or were logged with their reason
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// rewrite sends a request to the API server with the cluster's own credentials. Answers are asked
// for in JSON alone: unlike protobuf, JSON shows how many objects it becomes before it is decoded.
func (c *cluster) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(c.server)
	r.Out.Host = c.server.Host
	r.Out.Header.Del("Authorization")
	if c.bearer != "" {
		r.Out.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	r.Out.Header.Del("Accept-Encoding") // the transport unpacks, so that what is counted is what is read
	var accepted []string
	for kind := range strings.SplitSeq(r.In.Header.Get("Accept"), ",") {
		if kind = strings.TrimSpace(kind); strings.HasPrefix(kind, jsonType) {
			accepted = append(accepted, kind)
		}
	}
	if len(accepted) == 0 {
		accepted = []string{jsonType}
	}
	r.Out.Header.Set("Accept", strings.Join(accepted, ","))
}

const jsonType = "application/json"

// kind says what a request asks for.
type kind struct {
	list, watch, initial bool
	// path is the path of the collection, for lists and watches.
	path string
	// first is set for a list from its beginning, and a watch.
	first bool
}

// kindOf reads a request as the API server does.
func kindOf(r *http.Request) kind {
	query := r.URL.Query()
	if r.Method != http.MethodGet || !isCollection(r.URL.Path) {
		return kind{}
	}
	// A list of one object is a look at the API server, of which nobody keeps anything.
	isLook := query.Get("limit") == "1"
	k := kind{path: r.URL.Path, first: query.Get("continue") == "" && !isLook}
	k.watch = isTrue(query.Get("watch"))
	k.list = !k.watch && !isLook
	k.initial = k.watch && isTrue(query.Get("sendInitialEvents"))
	return k
}

func isTrue(text string) bool { return text != "" && text != "0" && text != "false" }

// isCollection reports whether a path is that of all objects of a resource.
func isCollection(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	default:
		return false
	}
	return len(parts) == 1 || len(parts) == 3 && parts[0] == "namespaces"
}

// answer is an answer on its way to the library.
type answer struct {
	forwarder *Forwarder
	cluster   *cluster
	kind      kind
	cancel    context.CancelCauseFunc
	body      *boundedBody // nil before the answer begins
	late      atomic.Bool  // it did not begin, or end, in time
}

// recordEnd records whether the API server hangs. abandoned: the library did not wait any longer.
// A watch shows that it does not when it begins, and ends for other reasons.
func (a *answer) recordEnd(abandoned bool) {
	if a.body == nil || !a.body.isOpenWatch() {
		a.cluster.hangs.Store(abandoned || a.late.Load())
	}
}

// bound refuses an answer that can't be bounded, and bounds every other.
func (a *answer) bound(response *http.Response) error {
	if response.StatusCode == http.StatusSwitchingProtocols {
		return a.refuse(reasonProtocol, "changed the protocol, which nobody asked for")
	}
	if encoding := response.Header.Get("Content-Encoding"); encoding != "" {
		return a.refuse(reasonEncoding, "sent an answer with an encoding that nobody asked for")
	}
	if response.StatusCode >= 300 && response.StatusCode < 400 {
		response.Header.Del("Location") // a library must not follow it past the forwarder
	}
	body := &boundedBody{answer: a, body: response.Body}
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	body.json = media == jsonType
	// client-go decodes an answer of any of these codes.
	good := response.StatusCode >= 200 && response.StatusCode < 300
	switch {
	case body.json:
	case good && a.kind.path != "":
		return a.refuse(reasonEncoding, "did not send JSON")
	case !strings.HasPrefix(media, "text/"): // there may be a decoder for what nobody counts
		response.Header.Set("Content-Type", "application/octet-stream")
	}
	if response.StatusCode == http.StatusOK {
		body.watch, body.initial = a.kind.watch, a.kind.initial
	}
	if good && a.kind.list {
		body.limit = a.forwarder.limits.list
		a.cluster.mu.Lock()
		body.list = a.cluster.collection(a.kind.path)
		body.list.stop() // this part holds the list from here
		body.before = body.list.bytes
		a.cluster.mu.Unlock()
	} else {
		body.limit = a.forwarder.limits.other
	}
	if body.initial || !body.watch {
		body.timer = time.AfterFunc(a.forwarder.limits.duration, func() {
			a.late.Store(true)
			a.cancel(a.refuse(reasonTime, fmt.Sprintf("did not complete an answer in %s", a.forwarder.limits.duration)))
		})
	}
	if body.isOpenWatch() {
		a.cluster.hangs.Store(false)
	}
	a.body, response.Body = body, body
	return nil
}

// failed answers a library when the API server did not.
func (a *answer) failed(w http.ResponseWriter, r *http.Request, err error) {
	code, message := http.StatusBadGateway, "the API server can't be reached: "+err.Error()
	var refused *refusal
	switch timeout, ok := err.(interface{ Timeout() bool }); {
	case errors.As(err, &refused):
		message = refused.Error()
	case errors.Is(err, fs.ErrPermission):
		message = "the API server can't be reached: " + fs.ErrPermission.Error()
	case ok && timeout.Timeout():
		a.late.Store(true)
		code, message = http.StatusGatewayTimeout, fmt.Sprintf("the API server does not answer within %s", a.forwarder.limits.header)
	}
	refuse(w, code, metav1.StatusReasonServiceUnavailable, message)
}

// refuse answers a library itself, as an API server does.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

// refusal is why an answer is not read to its end.
type refusal struct {
	message string
	until   time.Time
}

func (r *refusal) Error() string { return r.message }

// The values of the label reason.
const (
	reasonSize     = "size"
	reasonCount    = "count"
	reasonFormat   = "format"
	reasonEncoding = "encoding"
	reasonProtocol = "protocol"
	reasonTime     = "time"
	reasonLoad     = "load"
)

// refuse records why an answer is not read to its end. For a while, the cluster is not asked again.
func (a *answer) refuse(reason, what string) error {
	f, c := a.forwarder, a.cluster
	r := &refusal{message: "the API server " + what, until: f.now().Add(f.limits.pause)}
	f.refusals.WithLabelValues(reason).Inc()
	c.mu.Lock()
	c.refused = r
	c.mu.Unlock()
	ctrllog.Log.WithName("forwarder").Info("An answer of a workload cluster is refused, and the cluster is not asked for a while",
		"cluster", c.key.String(), "reason", r.message, "until", r.until.UTC().Format(time.RFC3339))
	f.onRefuse(c.key, r.message)
	return r
}

// refusedBefore returns why the cluster is not asked now, or "".
func (c *state) refusedBefore(now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil || now.After(c.refused.until) {
		return ""
	}
	return c.refused.message
}
