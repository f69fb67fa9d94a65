// SPDX-License-Identifier: Apache-2.0

package forwarder

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/internal/budget"
	"github.com/drover-io/drover/internal/kubeconfig"
)

// marked is in the tenant's credentials, and must not be in anything that a library gets.
const marked = "HUSH-51d0"

var blue, green = client.ObjectKey{Namespace: "team-a", Name: "blue"}, client.ObjectKey{Namespace: "team-b", Name: "green"}

// start runs a forwarder with bounds that small answers reach.
func start(t *testing.T, change func(*Forwarder)) *Forwarder {
	t.Helper()
	f, err := New(Options{Dial: (&net.Dialer{}).DialContext, OnRefuse: func(client.ObjectKey, string) {}, Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	f.limits.list, f.limits.other, f.answers = 64<<10, 16<<10, budget.New(256<<10)
	f.limits.items, f.limits.elements = map[string]int{"": 100, "nodes": 20}, 500
	if change != nil {
		change(f)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

// apiServer is an API server that a test answers for.
func apiServer(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

// parsed returns the kubeconfig of an API server.
func parsed(t testing.TB, server *httptest.Server, path string) *kubeconfig.Config {
	t.Helper()
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server:                   server.URL + path,
			CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: marked}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := kubeconfig.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// library returns the configuration that a library makes of a cluster's kubeconfig.
func library(t testing.TB, f *Forwarder, key client.ObjectKey, config *kubeconfig.Config) *rest.Config {
	t.Helper()
	data, err := f.Kubeconfig(key, config)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), marked) || strings.Contains(string(data), config.Server.Host) {
		t.Fatal("the library gets the tenant's credentials or address")
	}
	out := restConfig(t, data)
	out.ContentType = "application/vnd.kubernetes.protobuf"
	out.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return out
}

func restConfig(t testing.TB, data []byte) *rest.Config {
	t.Helper()
	out, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	out.UserAgent = "drover/test"
	return out
}

func clientset(t *testing.T, f *Forwarder, key client.ObjectKey, server *httptest.Server) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(library(t, f, key, parsed(t, server, "")))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestForward: an API server gets a library's request with the tenant's credentials and path, and
// the library gets the answer, and a watch's events as they come.
func TestForward(t *testing.T) {
	next := make(chan struct{})
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer "+marked {
			t.Errorf("the API server got the credentials %q", got)
		}
		if r.URL.Path != "/tenant/api/v1/nodes" || r.UserAgent() != "drover/test" || strings.Contains(r.Header.Get("Accept"), "protobuf") ||
			r.ProtoMajor != 2 {
			t.Errorf("the API server got %s %s from %s, which accepts %s", r.Proto, r.URL.Path, r.UserAgent(), r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"n-1"}}]}`)
			return
		}
		w.(http.Flusher).Flush()
		for i := range 3 {
			<-next
			_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n-%d"}}}`+"\n", i)
			w.(http.Flusher).Flush()
		}
	})
	f := start(t, nil)
	config := parsed(t, server, "/tenant")
	c, err := kubernetes.NewForConfig(library(t, f, blue, config))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != "n-1" {
		t.Fatalf("got %v, %v", nodes, err)
	}
	events, err := c.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		next <- struct{}{} // the event comes only now
		event := <-events.ResultChan()
		if node, ok := event.Object.(*corev1.Node); !ok || event.Type != watch.Added || node.Name != fmt.Sprintf("n-%d", i) {
			t.Fatalf("got %+v", event)
		}
	}
	if got := f.Host(blue); got != config.Server.Hostname() {
		t.Errorf("the host is %q", got)
	}
}

// many repeats a text, with commas in between.
func many(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }

// TestHostileAnswers: each answer that exceeds a bound is refused, so that the library does not get
// it whole; the cluster is not asked again at once; another cluster does not notice.
func TestHostileAnswers(t *testing.T) {
	node := `{"metadata":{"name":"n-%d","annotations":{"a":"` + strings.Repeat("x", 100) + `"}}}`
	added := func(n int, object string) string {
		out := &strings.Builder{}
		for i := range n {
			out.WriteString(`{"type":"ADDED","object":` + strings.ReplaceAll(object, "%d", fmt.Sprint(i)) + "}\n")
		}
		return out.String()
	}
	list := func(items string) string {
		return `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` + items + `]}`
	}
	large := strings.Repeat("x", 64<<10)
	bookmark := `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	for name, c := range map[string]struct {
		path, answer string
		header       map[string]string
		reason       string
	}{
		"object too large": {"/api/v1/nodes/n-1", `{"metadata":{"name":"` + large + `"}}`, nil, "size"},
		"error too large":  {"/missing", `{"message":"` + large + `"}`, nil, "size"},
		"list too large":   {"/api/v1/nodes", list(`{"metadata":{"name":"` + large + `"}}`), nil, "size"},
		"list too large for gzip": {"/api/v1/nodes", list(`{"metadata":{"name":"` + large + `"}}`),
			map[string]string{"Content-Encoding": "gzip"}, "size"},
		"too many items": {"/api/v1/nodes", list(many(21, `{"metadata":{"name":"a-name-of-a-node"}}`)), nil, "count"},
		"too many items of other kinds": {"/apis/apps/v1/namespaces/a/deployments", list(many(101, `{"metadata":{"name":"a-name"}}`)), nil,
			"count"},
		"too many items, in parts": {"/api/v1/nodes", list(many(21, `{"metadata":{"name":"`+strings.Repeat("x", 2500)+`"}}`)), nil,
			"count"},
		"items in two arrays": {"/api/v1/nodes", `{"items":[` + many(11, `{"metadata":{"name":"a-name-of-a-node"}}`) +
			`],"items":[` + many(11, `{"metadata":{"name":"a-name-of-a-node"}}`) + `]}`, nil, "count"},
		"arrays of nothing": {"/api/v1/nodes/n-1", `{"status":{"conditions":[` + many(3000, "{}") + `]}}`, nil, "count"},
		"arrays of nothing, nested": {"/api/v1/nodes", list(`{"status":{"images":[` + many(800, `{"names":[{},{},{}]}`) + `]}}`), nil,
			"count"},
		"an object with many elements": {"/api/v1/nodes/n-1",
			`{"kind":"Pod","apiVersion":"v1","spec":{"containers":[` + many(600, "{}") + `]}}`, nil, "count"},
		"an event with many elements": {"/api/v1/nodes?watch=true", `{"type":"ERROR","object":{"kind":"NodeList","apiVersion":"v1","items":[` +
			many(600, "{}") + `]}}`, nil, "count"},
		"a list of another kind": {"/api/v1/nodes", `{"kind":"PodList","apiVersion":"v1","items":[{"spec":{"containers":[{},{}]}}]}`, nil,
			"format"},
		"a list of two kinds":        {"/api/v1/nodes", `{"kind":"NodeList","apiVersion":"v1","items":[],"\u006bind":"PodList"}`, nil, "format"},
		"a list of two kinds, cased": {"/api/v1/nodes", `{"kind":"NodeList","apiVersion":"v1","items":[],"KIND":"PodList"}`, nil, "format"},
		"a list of a kind that is an object": {"/api/v1/nodes", `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{},{}]}}`, nil,
			"format"},
		"a list of a kind without end": {"/api/v1/nodes", `{"kind":"` + strings.Repeat("x", 10<<10) + `"}`, nil, "format"},
		"maps of nothing":              {"/api/v1/nodes", list(`{"status":{"capacity":{` + many(4000, `"aaaa":0`) + `}}}`), nil, "count"},
		"maps of nothing in initial events": {"/api/v1/nodes?watch=true&sendInitialEvents=true",
			added(4, `{"metadata":{"name":"n-%d"},"status":{"capacity":{`+many(1000, `"aaaa":0`)+`}}}`), nil, "count"},
		"nested too deep": {"/api/v1/nodes/n-1", strings.Repeat(`{"a":`, 101), nil, "format"},
		"not an object":   {"/api/v1/nodes/n-1", `[[]]`, nil, "format"},
		"brackets":        {"/api/v1/nodes/n-1", `{"a":[}]`, nil, "format"},
		"a list in protobuf": {"/api/v1/nodes", "k8s\x00",
			map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf"}, "encoding"},
		"a watch in protobuf": {"/api/v1/nodes?watch=true", "\x7f\xff\xff\xff",
			map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf;stream=watch"}, "encoding"},
		"an unknown encoding": {"/api/v1/nodes/n-1", "x", map[string]string{"Content-Encoding": "zstd"}, "encoding"},
		"event too large": {"/api/v1/nodes?watch=1", `{"type":"ADDED","object":{"metadata":{"name":"` + large + `"}}}`, nil,
			"size"},
		"event without end": {"/api/v1/nodes?watch=true", `{"type":"ADDED","object":{"metadata":{"name":"` + large, nil, "size"},
		"event of nothing": {"/api/v1/nodes?watch=true", `{"type":"ADDED","object":{"status":{"conditions":[` +
			many(3000, "{}") + `]}}}`, nil, "count"},
		"too many events": {"/api/v1/nodes?watch=true", added(21, node), nil, "count"},
		"too many events of unknown objects": {"/api/v1/nodes?watch=true", strings.ReplaceAll(added(21, node), "ADDED", "MODIFIED"), nil,
			"count"},
		"deletions of unknown objects": {"/api/v1/nodes?watch=true", unpaired(21), nil, "count"},
		"deletions of one object": {"/api/v1/nodes?watch=true", regexp.MustCompile(`gone-\d+`).ReplaceAllString(unpaired(21), "gone"),
			nil, "count"},
		"an object without metadata": {"/api/v1/nodes?watch=true", `{"type":"ADDED","object":{"metadata":"x"}}`, nil, "format"},
		"event of two types":         {"/api/v1/nodes?watch=true", `{"type":"DELETED","object":{},"type":"ADDED"}`, nil, "format"},
		"event of two types, cased":  {"/api/v1/nodes?watch=true", `{"type":"DELETED","object":{},"Type":"ADDED"}`, nil, "format"},
		"event in another order":     {"/api/v1/nodes?watch=true", `{"object":{},"type":"ADDED"}`, nil, "format"},
		"text between events":        {"/api/v1/nodes?watch=true", `"x"`, nil, "format"},
		"initial events too many":    {"/api/v1/nodes?watch=true&sendInitialEvents=true", added(21, node), nil, "count"},
		"initial events too large": {"/apis/apps/v1/deployments?watch=true&sendInitialEvents=true",
			added(60, `{"metadata":{"name":"n-%d","annotations":{"a":"`+strings.Repeat("x", 2000)+`"}}}`), nil, "size"},
		"initial events with a false end": {"/apis/apps/v1/deployments?watch=true&sendInitialEvents=true",
			strings.Repeat(`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"no","a":"`+strings.Repeat("x",
				2000)+`"}}}}`, 60), nil, "size"},
		"initial events, then more": {"/api/v1/nodes?watch=true&sendInitialEvents=true",
			added(15, node) + bookmark + added(6, node), nil, "count"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.Header().Set("Content-Type", "application/json")
				for key, value := range c.header {
					w.Header().Set(key, value)
				}
				var out io.Writer = w
				if c.header["Content-Encoding"] == "gzip" {
					zipped := gzip.NewWriter(w)
					defer zipped.Close()
					out = zipped
				}
				if r.URL.Path == "/missing" {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = io.WriteString(out, c.answer)
				if r.URL.Query().Get("watch") != "" {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}
			})
			now := time.Now()
			var said atomic.Int64
			f := start(t, func(f *Forwarder) {
				f.now = func() time.Time { return now }
				f.onRefuse = func(key client.ObjectKey, message string) {
					if key == blue && strings.HasPrefix(message, "the API server ") {
						said.Add(1)
					}
				}
			})
			config := library(t, f, blue, parsed(t, server, ""))
			if err := get(t, config, c.path); err == nil {
				t.Fatal("the library read the whole answer")
			}
			if got := counted(t, f)[c.reason]; got != 1 {
				t.Errorf("refusals: %v, want one by %s", counted(t, f), c.reason)
			}
			if said.Load() != 1 {
				t.Errorf("the refusal was said %d times, want once", said.Load())
			}
			if err := get(t, config, "/version"); err == nil || !strings.Contains(err.Error(), "the API server ") || asked.Load() != 1 {
				t.Errorf("the cluster is asked again at once (%d requests): %v", asked.Load(), err)
			}
			good := apiServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
			if err := get(t, library(t, f, green, parsed(t, good, "")), "/version"); err != nil {
				t.Errorf("another cluster: %v", err)
			}
			now = now.Add(f.limits.pause + time.Second)
			_ = get(t, config, "/api/v1/nodes/other")
			if asked.Load() != 2 {
				t.Errorf("after the pause, the API server was asked %d times, want twice", asked.Load())
			}
		})
	}
}

// TestHostileParts: a list that comes in parts has the bounds of one that comes at once. It counts
// until its library goes on to watch, or has had the time to.
func TestHostileParts(t *testing.T) {
	g := NewWithT(t)
	var end, asked atomic.Int64
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			return
		}
		next := "x"
		if asked.Add(1) == end.Load() {
			next = ""
		}
		_, _ = fmt.Fprintf(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"%s"},
			"items":[{"metadata":{"name":"n-1","annotations":{"a":"%s"}}}]}`, next, strings.Repeat("x", 30<<10))
	})
	f := start(t, func(f *Forwarder) { f.limits.pause = 0 })
	nodes := clientset(t, f, blue, server).CoreV1().Nodes()
	list := func(parts int64) error {
		asked.Store(0)
		end.Store(parts)
		_, _, err := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(t.Context(), options)
		})).List(t.Context(), metav1.ListOptions{})
		return err
	}
	used := func() int64 { return f.answers.Used(blue.Namespace) }
	for range 3 {
		g.Expect(list(2)).To(Succeed(), "60 KiB, with a bound of 64 KiB")
	}
	g.Expect(used()).To(BeNumerically(">", 60<<10), "the library has decoded nothing yet")
	events, err := nodes.Watch(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	events.Stop()
	g.Expect(used()).To(BeZero(), "the library watches")

	g.Expect(list(1000)).NotTo(Succeed())
	g.Expect(asked.Load()).To(BeEquivalentTo(3))
	g.Expect(counted(t, f)).To(Equal(map[string]int{"size": 1}))
	g.Eventually(used).WithTimeout(time.Minute).Should(BeZero(), "the list is refused")

	f = start(t, func(f *Forwarder) { f.limits.kept = time.Millisecond })
	nodes = clientset(t, f, blue, server).CoreV1().Nodes()
	g.Expect(list(2)).To(Succeed())
	g.Eventually(used).WithTimeout(time.Minute).Should(BeZero(), "the library had the time to decode")
}

// TestContentTypes: no library decodes what was not counted, whatever an API server says that it is.
func TestContentTypes(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	nothing := `{"groups":[` + many(3000, "{}") + `]}`
	for name, c := range map[string]struct {
		path, sent, body string
		code             int
		want, reason     string
	}{
		"an object in protobuf":       {"/api/v1/nodes/n-1", protobuf, "k8s\x00", 200, "application/octet-stream", ""},
		"an object in CBOR":           {"/api/v1/nodes/n-1", "application/cbor", "\xd9", 200, "application/octet-stream", ""},
		"an object in YAML":           {"/api/v1/nodes/n-1", "application/yaml", "a: 1", 201, "application/octet-stream", ""},
		"an object without a type":    {"/api/v1/nodes/n-1", "", "k8s\x00", 200, "application/octet-stream", ""},
		"an error in protobuf":        {"/api/v1/nodes", protobuf, "k8s\x00", 404, "application/octet-stream", ""},
		"text":                        {"/healthz", "text/plain", "[+]ping ok", 200, "text/plain", ""},
		"JSON that is called text":    {"/apis", "text/plain", " \n" + nothing, 200, "", "count"},
		"JSON without a type":         {"/apis", "", nothing, 500, "", "count"},
		"a list in protobuf, partial": {"/api/v1/nodes", protobuf, "k8s\x00", 206, "", "encoding"},
		"a list as text, created":     {"/api/v1/nodes", "text/plain", "x", 201, "", "encoding"},
		"an error as large as a list": {"/api/v1/nodes", "application/json",
			`{"message":"` + strings.Repeat("x", 20<<10) + `"}`, 500, "", "size"},
	} {
		t.Run(name, func(t *testing.T) {
			server := apiServer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.sent)
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			})
			f := start(t, nil)
			config := library(t, f, blue, parsed(t, server, ""))
			if c.reason != "" {
				if err := get(t, config, c.path); err == nil || counted(t, f)[c.reason] != 1 {
					t.Errorf("got %v, and refusals %v", err, counted(t, f))
				}
				return
			}
			client, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Get(config.Host + c.path)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if got := response.Header.Get("Content-Type"); err != nil || string(body) != c.body || got != c.want || len(counted(t, f)) > 0 {
				t.Errorf("got %q of type %q, want %q: %v, refusals %v", body, got, c.want, err, counted(t, f))
			}
		})
	}
}

// TestLook: a list of one object, which nobody keeps, does not make the forwarder forget what the
// library keeps, nor what it reads.
func TestLook(t *testing.T) {
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":"x"},"items":[{"metadata":{"name":"a"}}]}`)
			return
		}
		for i := range 15 {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"metadata":{"name":"%s-%d"}}}`, r.URL.Query().Get("resourceVersion"), i)
		}
	})
	f := start(t, nil)
	config := library(t, f, blue, parsed(t, server, ""))
	for _, query := range []string{"watch=true&resourceVersion=1", "limit=1"} {
		if err := get(t, config, "/api/v1/nodes?"+query); err != nil {
			t.Fatal(err)
		}
	}
	if err := get(t, config, "/api/v1/nodes?watch=true&resourceVersion=2"); err == nil {
		t.Error("30 Nodes were read, with a bound of 20")
	}
}

// TestHonestNodes: of real Nodes, a list may have almost as many bytes as it may have of others.
// These have the least bytes for their members: kubeadm's, with managed fields and without images.
func TestHonestNodes(t *testing.T) {
	const node = `{"metadata":{"name":"n-%d","uid":"0b0e9b62-5a2a-4b1e-a3f7-3f9bbf7a5d11","resourceVersion":"1234",` +
		`"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"beta.kubernetes.io/arch":"amd64","beta.kubernetes.io/os":"linux",` +
		`"kubernetes.io/arch":"amd64","kubernetes.io/hostname":"n-1","kubernetes.io/os":"linux"},"annotations":` +
		`{"node.alpha.kubernetes.io/ttl":"0","volumes.kubernetes.io/controller-managed-attach-detach":"true"},"managedFields":[` +
		`{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":` +
		`{"f:metadata":{"f:annotations":{".":{},"f:volumes.kubernetes.io/controller-managed-attach-detach":{}},"f:labels":{".":{},` +
		`"f:beta.kubernetes.io/arch":{},"f:beta.kubernetes.io/os":{},"f:kubernetes.io/arch":{},"f:kubernetes.io/hostname":{},` +
		`"f:kubernetes.io/os":{}}}}},{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z",` +
		`"fieldsType":"FieldsV1","subresource":"status","fieldsV1":{"f:status":{"f:allocatable":{"f:ephemeral-storage":{},` +
		`"f:memory":{},"f:cpu":{}},"f:capacity":{"f:cpu":{},"f:memory":{}},"f:conditions":{"k:{\"type\":\"Ready\"}":` +
		`{"f:lastHeartbeatTime":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{}},` +
		`"k:{\"type\":\"DiskPressure\"}":{"f:lastHeartbeatTime":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},` +
		`"f:status":{}}},"f:nodeInfo":{"f:bootID":{}}}}}]},"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"],` +
		`"providerID":"x:///1"},"status":{"capacity":{"cpu":"4","ephemeral-storage":"20134592Ki","hugepages-1Gi":"0",` +
		`"hugepages-2Mi":"0","memory":"8148384Ki","pods":"110"},"allocatable":{"cpu":"4","ephemeral-storage":"20134592Ki",` +
		`"hugepages-1Gi":"0","hugepages-2Mi":"0","memory":"8148384Ki","pods":"110"},"conditions":[{"type":"DiskPressure",` +
		`"status":"False","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z",` +
		`"reason":"KubeletHasNoDiskPressure","message":"kubelet has no disk pressure"},{"type":"Ready","status":"True",` +
		`"lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"KubeletReady",` +
		`"message":"kubelet is posting ready status"}],"addresses":[{"type":"InternalIP","address":"10.0.0.1"},{"type":"Hostname",` +
		`"address":"n-1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"nodeInfo":{"machineID":` +
		`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","systemUUID":"0b0e9b62-5a2a-4b1e-a3f7-3f9bbf7a5d11","bootID":` +
		`"0b0e9b62-5a2a-4b1e-a3f7-3f9bbf7a5d11","kernelVersion":"6.1.0-1","osImage":"Debian GNU/Linux 12","containerRuntimeVersion":` +
		`"containerd://1.7.1","kubeletVersion":"v1.34.0","kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64"}}}`
	const nodes = 500
	items := many(nodes, node)
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[`+items+`]}`)
			return
		}
		_, _ = io.WriteString(w, strings.Repeat(`{"type":"ADDED","object":`+node+"}\n", nodes))
	})
	f := start(t, func(f *Forwarder) {
		f.limits.items["nodes"], f.limits.list, f.answers = nodes, int64(len(items))*9/8, budget.New(int64(len(items))*9/4)
	})
	config := library(t, f, blue, parsed(t, server, ""))
	for _, path := range []string{"/api/v1/nodes", "/api/v1/nodes?watch=true&sendInitialEvents=true"} {
		if err := get(t, config, path); err != nil || len(counted(t, f)) > 0 {
			t.Errorf("%s: %v, %v", path, err, counted(t, f))
		}
	}
}

// TestHonestKinds: a library gets the lists that it asks for.
func TestHonestKinds(t *testing.T) {
	kinds := map[string]string{
		"/api/v1/nodes": "NodeList", "/api/v1/namespaces/kube-system/secrets": "SecretList",
		"/api/v1/namespaces/default/endpoints":                    "EndpointsList",
		"/apis/certificates.k8s.io/v1/certificatesigningrequests": "CertificateSigningRequestList",
		"/apis/networking.k8s.io/v1/networkpolicies":              "NetworkPolicyList",
		"/apis/networking.k8s.io/v1/ingressclasses":               "IngressClassList",
		"/api/v1/pods": "PartialObjectMetadataList", "/api/v1/services": "",
	}
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"%s","apiVersion":"v1","metadata":{},"items":[{}]}`+"\n", kinds[r.URL.Path])
	})
	f := start(t, nil)
	config := library(t, f, blue, parsed(t, server, ""))
	for path, kind := range kinds {
		if err := get(t, config, path); err != nil {
			t.Errorf("a %s: %v", kind, err)
		}
	}
}

// unpaired returns n events that add an object, each after one that deletes another object.
func unpaired(n int) string {
	out := &strings.Builder{}
	for i := range n {
		fmt.Fprintf(out, `{"type":"DELETED","object":{"metadata":{"name":"gone-%[1]d"}}}{"type":"ADDED","object":{"metadata":{"name":"new-%[1]d"}}}`, i)
	}
	return out.String()
}

// get reads one answer to its end.
func get(t *testing.T, config *rest.Config, path string) error {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 500 {
		return fmt.Errorf("HTTP %d: %s", response.StatusCode, body)
	}
	return err
}

// counted returns the refusals by reason.
func counted(t *testing.T, f *Forwarder) map[string]int {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.refusals)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, family := range families {
		for _, m := range family.Metric {
			out[m.Label[0].GetValue()] = int(m.Counter.GetValue())
		}
	}
	return out
}

// TestHonestWatch: objects that come and go do not add up, and a watch may send more than a list.
func TestHonestWatch(t *testing.T) {
	const rounds = 200
	server := apiServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := range rounds {
			for _, event := range []string{"ADDED", "MODIFIED", "DELETED"} {
				_, _ = fmt.Fprintf(w, `{"type":"%s","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n-%d","annotations":{"a":"%s"}}}}`+"\n", event, i, strings.Repeat(`\"}]x`, 100))
			}
		}
	})
	f := start(t, nil)
	events, err := clientset(t, f, blue, server).CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			t.Fatalf("got %+v", event.Object)
		}
		n++
	}
	if n != 3*rounds {
		t.Errorf("%d events came, want %d: %v", n, 3*rounds, counted(t, f))
	}
}

// TestSlowAnswers: an API server that begins no answer, or does not end one, is left.
func TestSlowAnswers(t *testing.T) {
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/nodes" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"items":[`)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	})
	hasty := start(t, func(f *Forwarder) { f.limits.header = 50 * time.Millisecond })
	if err := get(t, library(t, hasty, blue, parsed(t, server, "")), "/version"); err == nil ||
		!strings.Contains(err.Error(), "does not answer within") {
		t.Errorf("without a header: %v", err)
	}
	f := start(t, func(f *Forwarder) { f.limits.duration = 50 * time.Millisecond })
	for _, path := range []string{"/api/v1/nodes", "/api/v1/nodes?watch=true&sendInitialEvents=true"} {
		if err := get(t, library(t, f, client.ObjectKey{Namespace: "team-a", Name: path}, parsed(t, server, "")), path); err == nil {
			t.Errorf("%s was read to its end", path)
		}
	}
	if got := counted(t, f)["time"]; got != 2 {
		t.Errorf("refusals: %v, want two by time", counted(t, f))
	}
}

// TestHangs: a cluster hangs from a request that ends by a deadline, whoever set it, until one that
// is answered. The end of a watch says nothing.
func TestHangs(t *testing.T) {
	var hang atomic.Bool
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if hang.Load() && r.URL.Path == "/version" {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "" && hang.Load():
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"kind":"Node","metadata":{"name":"a"}}}`)
		case query.Get("sendInitialEvents") != "":
			_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		case query.Get("watch") != "":
		case hang.Load():
			_, _ = io.WriteString(w, `{"items":[`)
		default:
			_, _ = io.WriteString(w, `{"items":[]}`)
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	for name, deadline := range map[string]func(*Forwarder, *rest.Config){
		"the header's":    func(f *Forwarder, _ *rest.Config) { f.limits.header = 50 * time.Millisecond },
		"the library's":   func(_ *Forwarder, c *rest.Config) { c.Timeout = 50 * time.Millisecond },
		"the whole's":     func(f *Forwarder, _ *rest.Config) { f.limits.duration = 50 * time.Millisecond },
		"initial events'": func(f *Forwarder, _ *rest.Config) { f.limits.duration = 50 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := map[string]string{"the whole's": "/api/v1/nodes", "initial events'": "/api/v1/nodes?watch=true&sendInitialEvents=true"}[name]
			if path == "" {
				path = "/version"
			}
			f := start(t, func(f *Forwarder) { f.limits.pause = 0; deadline(f, &rest.Config{}) })
			config := library(t, f, blue, parsed(t, server, ""))
			g.Expect(f.Hangs(blue)).To(BeFalse(), "before the first request")
			hang.Store(true)
			hasty := rest.CopyConfig(config)
			deadline(f, hasty)
			g.Eventually(func() bool { // a hasty library may give up before it is connected
				g.Expect(get(t, hasty, path)).NotTo(Succeed())
				return f.Hangs(blue)
			}).Should(BeTrue())
			g.Expect(f.Hangs(green)).To(BeFalse(), "another cluster")

			hang.Store(false)
			g.Eventually(func() bool { _ = get(t, config, "/api/v1/pods"); return f.Hangs(blue) }).Should(BeFalse())
		})
	}

	f := start(t, nil)
	config := library(t, f, blue, parsed(t, server, ""))
	for _, path := range []string{"/api/v1/nodes?watch=true", "/api/v1/nodes?watch=true&sendInitialEvents=true"} {
		t.Run(path, func(t *testing.T) {
			g := NewWithT(t)
			f.clusters[blue].hangs.Store(true)
			c, err := rest.HTTPClientFor(config)
			g.Expect(err).NotTo(HaveOccurred())
			response, err := c.Get(config.Host + path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func() bool { return f.Hangs(blue) }).Should(BeFalse(), "it has begun")
			g.Expect(response.Body.Close()).To(Succeed())
			g.Eventually(f.clusters[blue].requests.Load).Should(BeZero())
			g.Expect(f.Hangs(blue)).To(BeFalse(), "it has ended")
		})
	}
}

// TestBytesInFlight: the answers of a namespace's clusters together are bounded, and what has been
// read no longer counts. The cluster is asked again at once: it did nothing wrong.
func TestBytesInFlight(t *testing.T) {
	hold := make(chan struct{})
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"a":"`+strings.Repeat("x", 60<<10)+`"`)
		w.(http.Flusher).Flush()
		if r.URL.Query().Get("hold") != "" {
			<-hold
		}
		_, _ = io.WriteString(w, "}")
	})
	f := start(t, func(f *Forwarder) { f.limits.other, f.limits.decoding = 64<<10, time.Millisecond })
	used := func() int64 { return f.answers.Used(blue.Namespace) }
	config := library(t, f, blue, parsed(t, server, ""))
	second := library(t, f, client.ObjectKey{Namespace: blue.Namespace, Name: "second"}, parsed(t, server, ""))
	for range 5 {
		if err := get(t, config, "/version"); err != nil {
			t.Fatalf("one after the other: %v", err)
		}
		NewWithT(t).Eventually(used).WithTimeout(time.Minute).Should(BeZero(), "the library had the time to decode")
	}
	results := make(chan error, 3)
	for _, of := range []*rest.Config{config, second, config} {
		go func() { results <- get(t, of, "/version?hold=1") }()
	}
	if err := <-results; err == nil { // the first result while two are held is a refusal
		t.Error("three answers of 60 KiB were held at the same time, with a bound of 128 KiB")
	}
	if err := get(t, library(t, f, green, parsed(t, server, "")), "/version"); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	close(hold)
	_, _ = <-results, <-results
	NewWithT(t).Eventually(used).WithTimeout(time.Minute).Should(BeZero(), "bytes are still counted")
	if err := get(t, config, "/version"); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}

// TestDecoding: an answer, or an event of a watch, counts for a while after its end, if it is large.
func TestDecoding(t *testing.T) {
	text := `{"type":"ADDED","object":{"metadata":{"name":"a","annotations":{"a":"` + strings.Repeat("x", 40<<10) + `"}}}}`
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
		w.(http.Flusher).Flush()
		if r.URL.Query().Get("watch") != "" {
			<-r.Context().Done()
		}
	})
	for _, path := range []string{"/api/v1/nodes/n-1", "/api/v1/nodes?watch=true"} {
		for decoding, want := range map[time.Duration]int{time.Hour: len(text), time.Millisecond: 0} {
			g := NewWithT(t)
			f := start(t, func(f *Forwarder) { f.limits.other, f.limits.decoding = 64<<10, decoding })
			config := library(t, f, blue, parsed(t, server, ""))
			c, err := rest.HTTPClientFor(config)
			g.Expect(err).NotTo(HaveOccurred())
			response, err := c.Get(config.Host + path)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = io.ReadFull(response.Body, make([]byte, len(text)))
			g.Expect(err).NotTo(HaveOccurred())
			if !strings.HasSuffix(path, "watch=true") {
				_, err = io.ReadAll(response.Body) // as a library does, to the end
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Eventually(f.answers.Used).WithArguments(blue.Namespace).WithTimeout(time.Minute).Should(BeEquivalentTo(want), path)
			g.Expect(response.Body.Close()).To(Succeed())
			g.Eventually(f.clusters[blue].requests.Load).WithTimeout(time.Minute).Should(BeZero())
			g.Expect(f.answers.Used(blue.Namespace)).To(BeEquivalentTo(want), path)
		}
	}
}

// TestObjectsOfANamespace: many clusters of one tenant together make the libraries keep no more
// than its share, and those of other tenants keep theirs.
func TestObjectsOfANamespace(t *testing.T) {
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","items":[`+many(20, `{"metadata":{"name":"a-name-of-a-node"}}`)+`]}`)
	})
	f := start(t, func(f *Forwarder) { f.objects = budget.New(100 * objectSize) })
	ask := func(key client.ObjectKey) error {
		return get(t, library(t, f, key, parsed(t, server, "")), "/api/v1/nodes")
	}
	for _, name := range []string{"1", "2", "2", "1"} {
		if err := ask(client.ObjectKey{Namespace: "a", Name: name}); err != nil {
			t.Fatalf("cluster %s: %v", name, err)
		}
	}
	if err := ask(client.ObjectKey{Namespace: "a", Name: "3"}); err == nil {
		t.Error("the libraries keep 60 Nodes of one namespace, with a bound of 50")
	}
	if err := ask(client.ObjectKey{Namespace: "b", Name: "1"}); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	f.now = func() time.Time { return time.Now().Add(2 * unusedAfter) }
	f.forget()
	f.now = time.Now
	if used := f.objects.Used("a"); used != 0 {
		t.Errorf("clusters that nobody asks for have %d bytes", used)
	}
	if err := ask(client.ObjectKey{Namespace: "a", Name: "3"}); err != nil {
		t.Errorf("after the others were forgotten: %v", err)
	}
}

// TestWatchesHoldNothing: a watch that has sent its initial events, or waits between two events,
// does not count against the bytes in flight. One in the middle of an event does.
func TestWatchesHoldNothing(t *testing.T) {
	const event = `{"type":"ADDED","object":{"metadata":{"name":"a","annotations":{"a":"%s"}}}}`
	large := fmt.Sprintf(event, strings.Repeat("x", 10<<10))
	bookmark := `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Query().Get("send") {
		case "initial":
			_, _ = io.WriteString(w, large+bookmark)
		case "events":
			_, _ = io.WriteString(w, large+large)
		case "half":
			_, _ = io.WriteString(w, large+large[:9<<10])
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	for query, want := range map[string]int64{"initial&sendInitialEvents=true": 0, "events": 0, "half": 9 << 10} {
		f := start(t, nil)
		config := library(t, f, blue, parsed(t, server, ""))
		ctx, cancel := context.WithCancel(t.Context())
		c, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/api/v1/nodes?watch=true&send="+query, nil)
		response, err := c.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		size := 2 * len(large)
		switch {
		case want > 0:
			size = len(large) + int(want)
		case strings.HasPrefix(query, "initial"):
			size = len(large) + len(bookmark)
		}
		if _, err := io.ReadFull(response.Body, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if got := f.answers.Used(blue.Namespace); got != want {
			t.Errorf("%s: %d bytes are in flight, want %d", query, got, want)
		}
		cancel()
		response.Body.Close()
		NewWithT(t).Eventually(f.answers.Used).WithArguments(blue.Namespace).WithTimeout(time.Minute).Should(BeZero(), query)
	}
}

// TestBoundsStayWithAChangedKubeconfig: a tenant who changes the kubeconfig neither ends a pause
// nor makes the forwarder forget what the library keeps.
func TestBoundsStayWithAChangedKubeconfig(t *testing.T) {
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := range 15 {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"metadata":{"name":"%s-%d"}}}`, strings.Trim(r.URL.Query().Get("labelSelector"), "="), i)
		}
	})
	f := start(t, nil)
	if err := get(t, library(t, f, blue, parsed(t, server, "")), "/api/v1/nodes?watch=true&labelSelector=a"); err != nil {
		t.Fatal(err)
	}
	if err := get(t, library(t, f, blue, parsed(t, server, "/second")), "/api/v1/nodes?watch=true&labelSelector=b"); err == nil {
		t.Error("30 Nodes were read with two kubeconfigs, with a bound of 20")
	}
	if err := get(t, library(t, f, blue, parsed(t, server, "/third")), "/version"); err == nil ||
		!strings.Contains(err.Error(), "more than 20 objects") {
		t.Errorf("a third kubeconfig during the pause: %v", err)
	}
}

// TestRefusedRequests: without the token that a kubeconfig carries, nobody is forwarded; nobody
// changes the protocol; and no redirect leads past the forwarder.
func TestRefusedRequests(t *testing.T) {
	server := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://169.254.169.254/", http.StatusFound)
	})
	f := start(t, nil)
	ask := func(header map[string]string) *http.Response {
		t.Helper()
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/version", nil)
		for key, value := range header {
			r.Header.Set(key, value)
		}
		f.ServeHTTP(w, r)
		return w.Result()
	}
	token := library(t, f, blue, parsed(t, server, "")).BearerToken
	for _, header := range []map[string]string{nil, {"Authorization": "Bearer "}, {"Authorization": "Bearer " + token[1:]},
		{"Authorization": token}} {
		if got := ask(header); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("with %v: %s", header, got.Status)
		}
	}
	if got := ask(map[string]string{"Authorization": "Bearer " + token, "Upgrade": "websocket",
		"Connection": "Upgrade"}); got.StatusCode != http.StatusForbidden {
		t.Errorf("an upgrade: %s", got.Status)
	}
	if got := ask(map[string]string{"Authorization": "Bearer " + token}); got.Header.Get("Location") != "" {
		t.Errorf("a redirect: %s", got.Header.Get("Location"))
	}
}

// TestKubeconfigChanges: a library's connection continues with the new kubeconfig, and one that
// nobody uses is forgotten.
func TestKubeconfigChanges(t *testing.T) {
	var asked [2]atomic.Int64
	servers := [2]*httptest.Server{}
	for i := range servers {
		servers[i] = apiServer(t, func(w http.ResponseWriter, _ *http.Request) { asked[i].Add(1); _, _ = io.WriteString(w, "{}") })
	}
	now := time.Now()
	f := start(t, func(f *Forwarder) { f.now = func() time.Time { return now } })
	before := library(t, f, blue, parsed(t, servers[0], ""))
	if err := get(t, before, "/version"); err != nil {
		t.Fatal(err)
	}
	after := library(t, f, blue, parsed(t, servers[1], ""))
	if before.BearerToken != after.BearerToken || before.ServerName != after.ServerName || before.Host != after.Host {
		t.Error("the library would have to connect again")
	}
	if err := get(t, before, "/version"); err != nil || asked[0].Load() != 1 || asked[1].Load() != 1 {
		t.Errorf("the servers were asked %d and %d times: %v", asked[0].Load(), asked[1].Load(), err)
	}
	f.forget()
	if err := get(t, before, "/version"); err != nil {
		t.Errorf("a cluster in use: %v", err)
	}
	now = now.Add(2 * unusedAfter)
	f.forget()
	c, err := kubernetes.NewForConfig(before)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("an unused cluster: %v, want Unauthorized, at which Cluster API reads the kubeconfig again", err)
	}
	if other := library(t, f, green, parsed(t, servers[0], "")); other.ServerName == before.ServerName ||
		other.BearerToken == before.BearerToken {
		t.Error("two clusters share a connection or a token")
	}
}

// TestDialer: the forwarder connects only where its dialer does.
func TestDialer(t *testing.T) {
	server := apiServer(t, func(http.ResponseWriter, *http.Request) { t.Error("the API server was asked") })
	f := start(t, func(f *Forwarder) {
		f.dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, fmt.Errorf("no: %w", fs.ErrPermission)
		}
	})
	if err := get(t, library(t, f, blue, parsed(t, server, "")), "/version"); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got %v", err)
	}
}
