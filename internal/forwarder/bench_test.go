// SPDX-License-Identifier: Apache-2.0

package forwarder

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// BenchmarkClusters lists the Nodes of 50 clusters with 60 Nodes each, and reads one change of each
// Node by a watch: directly in protobuf and in JSON, and through the forwarder. Besides the time,
// it reports the requests and connections that API servers see, and the CPU time of this process,
// which has the API servers in it, too.
func BenchmarkClusters(b *testing.B) {
	const clusters, each = 50, 60
	list, events := answers(b, each)
	var requests, connections atomic.Int64
	servers := make([]*httptest.Server, clusters)
	for i := range servers {
		servers[i] = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			in := "application/json"
			if strings.Contains(r.Header.Get("Accept"), "protobuf") {
				in = runtime.ContentTypeProtobuf
			}
			if r.URL.Query().Get("watch") == "" {
				w.Header().Set("Content-Type", in)
				_, _ = w.Write(list[in])
				return
			}
			if in != "application/json" {
				in += ";stream=watch"
			}
			w.Header().Set("Content-Type", in)
			_, _ = w.Write(events[strings.TrimSuffix(in, ";stream=watch")])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
		servers[i].EnableHTTP2 = true
		servers[i].Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				connections.Add(1)
			}
		}
		servers[i].StartTLS()
		b.Cleanup(func() { servers[i].CloseClientConnections(); servers[i].Close() })
	}
	f, err := New(Options{Dial: (&net.Dialer{}).DialContext, OnRefuse: func(client.ObjectKey, string) {}, Metrics: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Start(ctx) })
	defer running.Wait()
	defer stop()
	for name, config := range map[string]func(i int) *rest.Config{
		"direct, protobuf": func(i int) *rest.Config { return direct(b, servers[i], runtime.ContentTypeProtobuf) },
		"direct, JSON":     func(i int) *rest.Config { return direct(b, servers[i], "application/json") },
		"forwarded": func(i int) *rest.Config {
			return library(b, f, client.ObjectKey{Namespace: "bench", Name: fmt.Sprint(i)}, parsed(b, servers[i], ""))
		},
	} {
		b.Run(name, func(b *testing.B) {
			var clients []*kubernetes.Clientset
			for i := range clusters {
				c, err := kubernetes.NewForConfig(config(i))
				if err != nil {
					b.Fatal(err)
				}
				clients = append(clients, c)
			}
			requests.Store(0)
			connections.Store(0)
			before := cpu(b)
			for b.Loop() {
				for _, c := range clients {
					readAll(b, c, each)
				}
			}
			b.ReportMetric(float64(requests.Load())/float64(b.N), "requests/op")
			b.ReportMetric(float64(connections.Load()), "connections")
			b.ReportMetric(float64((cpu(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

// readAll lists a cluster's Nodes, and reads one event of each.
func readAll(b *testing.B, c *kubernetes.Clientset, each int) {
	nodes, err := c.CoreV1().Nodes().List(b.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != each {
		b.Fatalf("%d Nodes, %v", len(nodes.Items), err)
	}
	changes, err := c.CoreV1().Nodes().Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer changes.Stop()
	for range each {
		if event := <-changes.ResultChan(); event.Object == nil {
			b.Fatalf("the watch ended: %v", event.Type)
		}
	}
}

func direct(b *testing.B, server *httptest.Server, contentType string) *rest.Config {
	b.Helper()
	config := parsed(b, server, "")
	text, err := config.Serialize("direct")
	if err != nil {
		b.Fatal(err)
	}
	out := restConfig(b, text)
	out.ContentType, out.AcceptContentTypes = contentType, contentType
	return out
}

// answers returns a list of Nodes of about 10 KiB each, and an event of each, in two formats.
func answers(b *testing.B, n int) (list, events map[string][]byte) {
	b.Helper()
	nodes := &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	for i := range n {
		node := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		for k := range 50 { // images are most of a Node
			node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
				Names: []string{fmt.Sprintf("registry.example.com/some/image-%d@sha256:%064d", k, i),
					fmt.Sprintf("registry.example.com/some/image-%d:v1.2.%d", k, i)},
				SizeBytes: 123456789,
			})
		}
		nodes.Items = append(nodes.Items, node)
	}
	raw := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	whole := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	list, events = map[string][]byte{}, map[string][]byte{}
	var err error
	if list["application/json"], err = json.Marshal(nodes); err != nil {
		b.Fatal(err)
	}
	var out strings.Builder
	if err := whole.Encode(nodes, &out); err != nil {
		b.Fatal(err)
	}
	list[runtime.ContentTypeProtobuf] = []byte(out.String())
	framed := &strings.Builder{}
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(framed)
	for i := range nodes.Items {
		node, err := json.Marshal(&nodes.Items[i])
		if err != nil {
			b.Fatal(err)
		}
		events["application/json"] = append(events["application/json"], []byte(`{"type":"MODIFIED","object":`+string(node)+"}\n")...)
		var inner, event strings.Builder
		if err := whole.Encode(&nodes.Items[i], &inner); err != nil {
			b.Fatal(err)
		}
		if err := raw.Encode(&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: []byte(inner.String())}},
			&event); err != nil {
			b.Fatal(err)
		}
		if _, err := frames.Write([]byte(event.String())); err != nil {
			b.Fatal(err)
		}
	}
	events[runtime.ContentTypeProtobuf] = []byte(framed.String())
	return list, events
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
