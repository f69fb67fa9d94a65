// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/drover-io/drover/internal/test/playground"
)

// TestKubernetes runs a proxy before a real API server.
func TestKubernetes(t *testing.T) {
	cluster, err := playground.StartControlPlane(t.Context(), playground.ControlPlaneOptions{NoControllerManager: true, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	}()
	proxy, err := Start(Options{Name: "api", Upstream: cluster.URL, CA: cluster.CA(), Parse: Kubernetes})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	direct := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	through := throughProxy(t, cluster, direct, proxy)

	t.Run("calls pass and are recorded", func(t *testing.T) { passes(t, through, proxy) })
	t.Run("a rule cuts before and after", func(t *testing.T) { cuts(t, direct, through, proxy) })
	t.Run("a rule answers in the place of upstream", func(t *testing.T) { refuses(t, direct, through, proxy) })
	t.Run("a call that is held dies with its caller", func(t *testing.T) { holds(t, direct, through, proxy) })
	t.Run("dead connections carry nothing, and new ones work", func(t *testing.T) { kills(t, through, proxy) })
	t.Run("watches lag and are cut", func(t *testing.T) { lags(t, direct, through, proxy) })
}

// TestSkew checks that shift changes only timestamps, and does not change the length.
func TestSkew(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"at":"2026-02-28T23:59:30Z"}`, `{"at":"2026-03-01T00:04:30Z"}`},
		{`{"at":"2026-02-28T23:59:30.123456Z","b":"2026-02-28T00:00:00Z"}`, `{"at":"2026-03-01T00:04:30.123456Z","b":"2026-02-28T00:05:00Z"}`},
		{`{"at":null,"name":"2026-02-28","n":20260228,"bad":"2026-13-40T99:99:99Z"}`,
			`{"at":null,"name":"2026-02-28","n":20260228,"bad":"2026-13-40T99:99:99Z"}`},
	} {
		got := string(shift([]byte(c.in), 5*time.Minute))
		if got != c.want {
			t.Errorf("%s became %s, want %s", c.in, got, c.want)
		}
		if back := string(shift([]byte(got), -5*time.Minute)); back != c.in {
			t.Errorf("%s came back as %s", c.in, back)
		}
	}
	lines := newShiftedLines(io.NopCloser(strings.NewReader("{\"a\":\"2026-01-01T00:00:00Z\"}\n{\"b\":\"2026-01-01T00:00:01Z\"}\n")),
		time.Hour)
	if got, err := io.ReadAll(lines); err != nil || string(got) != "{\"a\":\"2026-01-01T01:00:00Z\"}\n{\"b\":\"2026-01-01T01:00:01Z\"}\n" {
		t.Errorf("a watch became %q, %v", got, err)
	}
}

// throughProxy returns a client that sends its bearer token through the proxy.
func throughProxy(t *testing.T, cluster *playground.ControlPlane, direct *kubernetes.Clientset, proxy *Proxy) *kubernetes.Clientset {
	t.Helper()
	ctx := t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "caller", Namespace: "default"}}
	if _, err := direct.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "caller"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "caller"}},
	}
	if _, err := direct.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	raw, err := cluster.ServiceAccountKubeconfig(ctx, "default", "caller")
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = proxy.Kubeconfig(raw); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = "caller/1"
	return kubernetes.NewForConfigOrDie(config)
}

func passes(t *testing.T, through *kubernetes.Clientset, proxy *Proxy) {
	ctx := t.Context()
	proxy.Reset()
	who, err := through.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := who.Status.UserInfo.Username, "system:serviceaccount:default:caller"; got != want {
		t.Errorf("the API server sees %q, want %q", got, want)
	}
	maps := through.CoreV1().ConfigMaps("default")
	for _, contentType := range []string{"json", "protobuf"} {
		if _, err := maps.Create(ctx, configMap(contentType), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch := []byte(`{"metadata":{"resourceVersion":null,"labels":{"a":"b"}},"data":{"k":"v"}}`)
	if _, err := maps.Patch(ctx, "json", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "json", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range proxy.Calls() {
		if c.Agent != "caller/1" {
			t.Errorf("%s came from %q", c, c.Agent)
		}
		if c.Write() {
			got = append(got, c.Kind()+" "+c.Name)
		}
	}
	want := []string{"create configmaps json", "create configmaps protobuf", "patch configmaps {data.k metadata.labels} json",
		"delete configmaps json"}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func cuts(t *testing.T, direct, through *kubernetes.Clientset, proxy *Proxy) {
	defer proxy.SetRule(nil)
	for _, at := range []Point{Before, After} {
		name := "cut-" + string(at)
		proxy.SetRule(func(_ context.Context, c Call, when Point) Verdict {
			return Verdict{Cut: c.Name == name && c.Verb == "create" && when == at}
		})
		_, err := through.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(name), metav1.CreateOptions{})
		if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Errorf("cut %s: got %v, want an error that is no answer", at, err)
		}
		_, err = direct.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
		if exists := err == nil; exists != (at == After) {
			t.Errorf("cut %s: the object exists: %t", at, exists)
		}
	}
}

func refuses(t *testing.T, direct, through *kubernetes.Clientset, proxy *Proxy) {
	defer proxy.SetRule(nil)
	proxy.SetRule(func(_ context.Context, c Call, at Point) Verdict {
		if c.Verb == "create" && at == After {
			return Refuse(apierrors.NewConflict(schema.GroupResource{Resource: c.Resource}, c.Name, errors.New("made up")))
		}
		return Verdict{}
	})
	_, err := through.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("refused"), metav1.CreateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if _, err := direct.CoreV1().ConfigMaps("default").Get(t.Context(), "refused", metav1.GetOptions{}); err != nil {
		t.Errorf("upstream did not do it: %v", err)
	}
	calls := proxy.Calls()
	if last := calls[len(calls)-1]; last.Status != http.StatusCreated || last.Fate != "answered 409 after" {
		t.Errorf("recorded %s", last)
	}
}

func holds(t *testing.T, direct, through *kubernetes.Clientset, proxy *Proxy) {
	defer proxy.SetRule(nil)
	held, done := make(chan struct{}), make(chan struct{})
	proxy.SetRule(func(ctx context.Context, c Call, at Point) Verdict {
		if c.Verb != "create" || at != Before {
			return Verdict{}
		}
		close(held)
		defer close(done)
		<-ctx.Done()
		return Verdict{} // passes, but the caller is gone
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-held
		cancel()
	}()
	if _, err := through.CoreV1().ConfigMaps("default").Create(ctx, configMap("held"), metav1.CreateOptions{}); err == nil {
		t.Error("the call passed")
	}
	<-done
	if _, err := direct.CoreV1().ConfigMaps("default").Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the call of a caller that is gone was forwarded: %v", err)
	}
}

func kills(t *testing.T, through *kubernetes.Clientset, proxy *Proxy) {
	read := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := through.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err
	}
	if err := read(time.Minute); err != nil {
		t.Fatal(err)
	}
	proxy.KillConnections()
	if err := read(300 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call on a dead connection ended with %v", err)
	}
	utilnet.CloseIdleConnectionsFor(through.CoreV1().RESTClient().(*rest.RESTClient).Client.Transport)
	if err := read(time.Minute); err != nil {
		t.Errorf("a call on a new connection: %v", err)
	}
}

func lags(t *testing.T, direct, through *kubernetes.Clientset, proxy *Proxy) {
	g := NewWithT(t)
	defer proxy.SetLag(nil)
	w, err := through.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=watched"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func() string {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return "closed"
			}
			return string(e.Type)
		case <-time.After(2 * time.Minute):
			return "nothing"
		}
	}
	if _, err := direct.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("watched"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.Expect(next()).To(Equal("ADDED"))

	const lag = 700 * time.Millisecond
	proxy.SetLag(func(c Call) time.Duration {
		if c.Resource == "configmaps" {
			return lag
		}
		return 0
	})
	start := time.Now()
	if err := direct.CoreV1().ConfigMaps("default").Delete(t.Context(), "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.Expect(next()).To(Equal("DELETED"))
	g.Expect(time.Since(start)).To(BeNumerically(">=", lag))

	proxy.CutStreams()
	g.Expect(next()).To(Or(Equal("closed"), Equal("ERROR"))) // client-go reports a broken connection as an event
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{}}
}

// TestCloud runs a proxy before a plain HTTP server.
func TestCloud(t *testing.T) {
	var mu sync.Mutex
	seen := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen++
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Header.Get("Authorization"), r.URL.Path, body)
	}))
	defer upstream.Close()
	proxy, err := Start(Options{Name: "cloud", Upstream: upstream.URL, Parse: Cloud})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	const body = `{"name":"pool-1","clientToken":"t"}`
	call := func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, proxy.URL()+"/v1/RunInstances", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer x")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		var answer bytes.Buffer
		_, err = answer.ReadFrom(resp.Body)
		return answer.String(), err
	}

	if got, err := call(t.Context()); err != nil || got != "Bearer x /v1/RunInstances "+body {
		t.Errorf("got %q, %v", got, err)
	}
	if c := proxy.Calls()[0]; c.Verb != "RunInstances" || c.Name != "pool-1" || c.Status != http.StatusOK {
		t.Errorf("recorded %s", c)
	}
	proxy.SetRule(func(_ context.Context, _ Call, at Point) Verdict { return Verdict{Cut: at == After} })
	if _, err := call(t.Context()); err == nil {
		t.Error("a call that was cut has an answer")
	}
	proxy.SetRule(func(ctx context.Context, _ Call, _ Point) Verdict { return Hang(ctx) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that hangs: %v", err)
	}
	upstream.Close()
	proxy.SetRule(nil)
	if _, err := call(t.Context()); err == nil {
		t.Error("an upstream that is down answers")
	}
	mu.Lock()
	defer mu.Unlock()
	if seen != 2 {
		t.Errorf("upstream saw %d calls, want 2", seen)
	}
}

// TestFields checks the fields that are read from patches.
func TestFields(t *testing.T) {
	for patch, want := range map[string]string{
		`{"metadata":{"finalizers":["x"],"resourceVersion":"1"},"spec":{"creation":{"token":"t"}}}`: "metadata.finalizers spec.creation",
		`{"status":{"conditions":[],"addresses":null}}`:                                             "status.addresses status.conditions",
		`[{"op":"add","path":"/metadata/labels/x","value":"y"}]`:                                    "metadata.labels",
		`{"apiVersion":"v1","kind":"X","metadata":{"name":"n"},"type":"Opaque"}`:                    "type",
		`not json`: "",
	} {
		if got := strings.Join(fields([]byte(patch)), " "); got != want {
			t.Errorf("%s: got %q, want %q", patch, got, want)
		}
	}
}
