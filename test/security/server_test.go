// SPDX-License-Identifier: Apache-2.0

package security

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// apiServer is a tenant's program that answers as an API server does, as far as Drover asks, and
// remembers what Drover has sent. Paths in answers are answered by the test. It refuses Cluster
// API's own manager, which connects, too.
type apiServer struct {
	*httptest.Server
	answers map[string]http.HandlerFunc

	mu     sync.Mutex
	tokens map[string]bool
	asked  map[string]int // by path
}

func newAPIServer(t *testing.T, answers map[string]http.HandlerFunc) *apiServer {
	t.Helper()
	s := &apiServer{answers: answers, tokens: map[string]bool{}, asked: map[string]int{}}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if !strings.HasPrefix(r.UserAgent(), "drover") {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	s.mu.Lock()
	s.tokens[r.Header.Get("Authorization")] = true
	s.asked[r.URL.Path]++
	s.mu.Unlock()
	if answer := s.answers[r.URL.Path]; answer != nil {
		answer(w, r)
		return
	}
	if r.URL.Query().Get("watch") != "" {
		<-r.Context().Done()
		return
	}
	object, ok := discovery[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		object = metav1.Status{TypeMeta: kind("Status"), Status: metav1.StatusFailure, Code: http.StatusNotFound,
			Reason: metav1.StatusReasonNotFound}
	}
	_ = json.NewEncoder(w).Encode(object)
}

func kind(name string) metav1.TypeMeta { return metav1.TypeMeta{Kind: name, APIVersion: "v1"} }

func resource(name, kind string) metav1.APIResource {
	return metav1.APIResource{Name: name, Kind: kind, Verbs: []string{"get", "list", "watch", "create"}}
}

// discovery are the answers of a server that knows Nodes and certificate requests, and has none.
var discovery = map[string]any{
	"/":        map[string]string{},
	"/version": map[string]string{"gitVersion": "v1.36.0"},
	"/api":     metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
	"/api/v1": metav1.APIResourceList{TypeMeta: kind("APIResourceList"), GroupVersion: "v1", APIResources: []metav1.APIResource{
		resource("nodes", "Node"),
	}},
	"/apis": metav1.APIGroupList{TypeMeta: kind("APIGroupList"), Groups: []metav1.APIGroup{{
		TypeMeta: kind("APIGroup"), Name: "certificates.k8s.io",
		Versions:         []metav1.GroupVersionForDiscovery{{GroupVersion: "certificates.k8s.io/v1", Version: "v1"}},
		PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: "certificates.k8s.io/v1", Version: "v1"},
	}}},
	"/apis/certificates.k8s.io/v1": metav1.APIResourceList{TypeMeta: kind("APIResourceList"), GroupVersion: "certificates.k8s.io/v1",
		APIResources: []metav1.APIResource{resource("certificatesigningrequests", "CertificateSigningRequest")}},
	nodes: corev1.NodeList{TypeMeta: kind("NodeList"), ListMeta: metav1.ListMeta{ResourceVersion: "1"}},
	requests: map[string]any{"kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1",
		"metadata": map[string]string{"resourceVersion": "1"}, "items": []any{}},
}

const (
	nodes    = "/api/v1/nodes"
	requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
)

// invalid is how a server answers that does not send initial events. Drover then lists.
func invalid(w http.ResponseWriter) {
	w.WriteHeader(http.StatusUnprocessableEntity)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: kind("Status"), Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity,
		Reason: metav1.StatusReasonInvalid})
}

// got reports whether Drover has sent a bearer token that contains part.
func (s *apiServer) got(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.tokens {
		if strings.Contains(token, part) {
			return true
		}
	}
	return false
}

// requests returns how often Drover has asked for a path, or for any path.
func (s *apiServer) requests(path string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, times := range s.asked {
		if path == "" || p == path {
			n += times
		}
	}
	return n
}

// kubeconfig leads to the server. change makes it another one.
func (s *apiServer) kubeconfig(t *testing.T, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	c := &clientcmdapi.Cluster{Server: s.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: s.Certificate().Raw})}
	u := &clientcmdapi.AuthInfo{Token: "the-tenants-own"}
	if change != nil {
		change(c, u)
	}
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": c}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": u},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// connect makes what a tenant needs to have Drover connect to a server: a Cluster, a DroverCluster,
// and the Secret that Cluster API reads.
func connect(t *testing.T, namespace, name string, kubeconfig []byte) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: name},
	}, Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": kubeconfig}}
	endpoint := clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}
	cluster := &clusterv1.Cluster{ObjectMeta: meta, Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: endpoint,
		InfrastructureRef:    clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster", Name: name},
	}}
	for _, o := range []client.Object{secret, &infrav1.DroverCluster{ObjectMeta: meta,
		Spec: infrav1.DroverClusterSpec{ControlPlaneEndpoint: endpoint}}, cluster} {
		if err := env.client.Create(t.Context(), o); err != nil {
			t.Fatalf("creating a %T: %v", o, err)
		}
	}
	t.Cleanup(func() {
		_ = env.client.Delete(context.Background(), cluster)
		_ = env.client.Delete(context.Background(), secret)
	})
}

// namespace makes a namespace named after the test.
func namespace(t *testing.T) string {
	t.Helper()
	return namespaceOf(t, strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())))
}

func namespaceOf(t *testing.T, name string) string {
	t.Helper()
	if err := env.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
	return name
}
