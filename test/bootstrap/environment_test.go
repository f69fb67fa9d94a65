// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap"
	"github.com/drover-io/drover/internal/connection"
	"github.com/drover-io/drover/internal/forwarder"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/test/playground"
)

const (
	patience = 30 * time.Second
	// agent marks the requests of the manager under test in the API server's audit log.
	agent = "drover-under-test"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
`

// environment is one control plane with the CRDs installed, shared by the subtests of a test.
type environment struct {
	*playground.ControlPlane
	client.Client
	scheme *runtime.Scheme
	audit  string
	// joining is that of the running manager.
	joining bootstrap.Joining
	// takes is the cloud's limit for user data in bytes. 0 means no limit.
	takes int
}

// newEnvironment starts a control plane. args are added to the API server's.
func newEnvironment(t *testing.T, args ...string) *environment {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	e := &environment{audit: filepath.Join(dir, "audit.log"), scheme: runtime.NewScheme()}
	policy := filepath.Join(dir, "policy.yaml")
	g.Expect(os.WriteFile(policy, []byte(auditPolicy), 0o600)).To(Succeed())
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme,
		infrav1.AddToScheme} {
		g.Expect(add(e.scheme)).To(Succeed())
	}
	ctrl.SetLogger(logr.Discard())

	var err error
	e.ControlPlane, err = playground.StartControlPlane(t.Context(), playground.ControlPlaneOptions{
		Progress: os.Stderr, APIServerArgs: append(args, "--audit-policy-file="+policy, "--audit-log-path="+e.audit),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(e.Stop()).To(Succeed()) })

	root, err := playground.Root(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = envtest.InstallCRDs(e.AdminConfig(), envtest.CRDInstallOptions{
		ErrorIfPathMissing: true,
		Paths:              []string{filepath.Join(root, "config", "crd", "bases"), coreKinds(t.Context(), g)},
	})
	g.Expect(err).NotTo(HaveOccurred())
	e.Client, err = client.New(e.AdminConfig(), client.Options{Scheme: e.scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return e
}

// manager runs the controllers until stop is called. Stopping loses their memory, as a crash does.
func (e *environment) manager(t *testing.T) (stop func()) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c := e.AdminConfig()
	c.UserAgent = agent
	mgr, err := ctrl.NewManager(c, ctrl.Options{
		Scheme: e.scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		// ClusterCache blocks forever on the channel of a controller that has stopped before it.
		GracefulShutdownTimeout: ptr.To(2 * time.Second),
		Client:                  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	forwarder, err := forwarder.New(forwarder.Options{Dial: (&net.Dialer{}).DialContext, OnRefuse: func(client.ObjectKey, string) {},
		Metrics: prometheus.NewRegistry()})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mgr.Add(forwarder)).To(Succeed())
	cache, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient: kubeconfig.Reader{Live: mgr.GetAPIReader(), Write: forwarder.Kubeconfig},
		Client:       clustercache.ClientOptions{UserAgent: agent, QPS: 100, Burst: 200},
	}, controller.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	forTests, ok := cache.(interface {
		SetConnectionCreationRetryInterval(time.Duration)
		Shutdown()
	})
	g.Expect(ok).To(BeTrue())
	forTests.SetConnectionCreationRetryInterval(time.Second)
	e.joining = bootstrap.Joining{
		Configs: &bootstrap.ConfigReconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: cache, Recorder: mgr.GetEventRecorder("config"),
			Host: func(_ context.Context, m *clusterv1.Machine) (bootstrap.Host, error) {
				return bootstrap.Host{ProviderID: "simulated:///" + m.Name, Takes: func(data []byte) error {
					if e.takes > 0 && len(data) > e.takes {
						return fmt.Errorf("more than %d bytes", e.takes)
					}
					return nil
				}}, nil
			},
		},
		Requests: &bootstrap.CSRReconciler{Client: mgr.GetClient(), ClusterCache: cache, APIServer: forwarder.Host,
			Watches: &connection.Watches{}, Recorder: mgr.GetEventRecorder("csr")},
	}
	g.Expect(e.joining.Configs.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: 4})).To(Succeed())
	g.Expect(e.joining.Requests.SetupWithManager(ctx, mgr,
		controller.TypedOptions[bootstrap.CSRRequest]{MaxConcurrentReconciles: 4})).To(Succeed())

	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Log(err) // that it did not stop in time, which a crash does not either
		}
		forTests.Shutdown()
	}
	t.Cleanup(stop)
	return stop
}

// cluster creates a namespace with a Cluster that is up, which the given kubeconfig connects to.
// nil means an administrator's kubeconfig.
func (e *environment) cluster(t *testing.T, name string, kubeconfig []byte) *clusterv1.Cluster {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	if kubeconfig == nil {
		kubeconfig = must(e.Kubeconfig("adopter", "system:masters"))(g)
	}
	g.Expect(e.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	g.Expect(e.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: name}},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": kubeconfig},
	})).To(Succeed())
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: e.port()},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster",
				Name: name},
		},
	}
	g.Expect(e.Create(ctx, cluster)).To(Succeed())
	e.patchStatus(g, cluster, func() {
		cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true),
			ControlPlaneInitialized: ptr.To(true)}
	})
	return cluster
}

func (e *environment) port() int32 {
	var port int32
	_, _ = fmt.Sscanf(e.URL[strings.LastIndex(e.URL, ":")+1:], "%d", &port)
	return port
}

// machine creates a Machine with its config, as Cluster API and the webhook would.
func (e *environment) machine(t *testing.T, cluster *clusterv1.Cluster, name string) (*clusterv1.Machine, *bootstrapv1.DroverConfig) {
	t.Helper()
	return e.machineWith(t, cluster, name, "", bootstrapv1.DroverConfigSpec{})
}

// machineWith creates a Machine with a version and a spec.
func (e *environment) machineWith(t *testing.T, cluster *clusterv1.Cluster, name, version string,
	spec bootstrapv1.DroverConfigSpec) (*clusterv1.Machine, *bootstrapv1.DroverConfig) {
	t.Helper()
	g := NewWithT(t)
	labels := map[string]string{clusterv1.ClusterNameLabel: cluster.Name}
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name, Labels: labels},
		Spec: clusterv1.MachineSpec{
			ClusterName: cluster.Name,
			Version:     version,
			Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group,
				Kind: "DroverConfig", Name: name}},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine", Name: name},
		},
	}
	g.Expect(e.Create(t.Context(), machine)).To(Succeed())
	config := &bootstrapv1.DroverConfig{Spec: spec, ObjectMeta: metav1.ObjectMeta{
		Namespace: cluster.Namespace, Name: name, Labels: labels, Finalizers: []string{bootstrapv1.ConfigFinalizer},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(machine, clusterv1.GroupVersion.WithKind("Machine"))},
	}}
	g.Expect(e.Create(t.Context(), config)).To(Succeed())
	return machine, config
}

// data waits for the config's user data and returns its Secret.
func (e *environment) data(t *testing.T, config *bootstrapv1.DroverConfig) *corev1.Secret {
	t.Helper()
	g := NewWithT(t)
	e.eventually(g, config, func(g Gomega) {
		g.Expect(config.Status.DataSecretName).NotTo(BeEmpty(), "%+v", config.Status)
		g.Expect(reason(config)).To(Equal(bootstrapv1.ReadyReason))
	})
	secret := &corev1.Secret{}
	g.Expect(e.Get(t.Context(), client.ObjectKey{Namespace: config.Namespace, Name: config.Status.DataSecretName}, secret)).To(Succeed())
	return secret
}

// eventually reads the object until check passes.
func (e *environment) eventually(g *WithT, o client.Object, check func(Gomega)) {
	g.Eventually(func(g Gomega) {
		g.Expect(e.Get(context.Background(), client.ObjectKeyFromObject(o), o)).To(Succeed())
		check(g)
	}, patience, 50*time.Millisecond).Should(Succeed())
}

func (e *environment) eventuallyGone(g *WithT, o client.Object) {
	g.Eventually(func() error {
		return e.Get(context.Background(), client.ObjectKeyFromObject(o), o)
	}, patience, 50*time.Millisecond).Should(MatchError(ContainSubstring("not found")))
}

// patchStatus changes an object's status as another controller would.
func (e *environment) patchStatus(g *WithT, o client.Object, change func()) {
	before, ok := o.DeepCopyObject().(client.Object)
	g.Expect(ok).To(BeTrue())
	change()
	g.Expect(e.Status().Patch(context.Background(), o, client.MergeFrom(before))).To(Succeed())
}

func (e *environment) patch(g *WithT, o client.Object, change func()) {
	before, ok := o.DeepCopyObject().(client.Object)
	g.Expect(ok).To(BeTrue())
	change()
	g.Expect(e.Patch(context.Background(), o, client.MergeFrom(before))).To(Succeed())
}

// events returns the notes of the Events on an object.
func (e *environment) events(g Gomega, o client.Object) []string {
	list := &eventsv1.EventList{}
	g.Expect(e.List(context.Background(), list, client.InNamespace(o.GetNamespace()))).To(Succeed())
	var out []string
	for _, event := range list.Items {
		if event.Regarding.UID == o.GetUID() {
			out = append(out, event.Note)
		}
	}
	return out
}

// writes counts the writes of the manager under test, except Events and the binding that it writes
// once.
func (e *environment) writes(g Gomega) map[string]int {
	raw, err := os.ReadFile(e.audit)
	g.Expect(err).NotTo(HaveOccurred())
	out := map[string]int{}
	for line := range bytes.Lines(raw[:bytes.LastIndexByte(raw, '\n')+1]) {
		event := struct {
			Verb, UserAgent string
			ObjectRef       struct{ Resource, Subresource string }
		}{}
		g.Expect(json.Unmarshal(line, &event)).To(Succeed())
		if strings.HasPrefix(event.UserAgent, agent) && event.ObjectRef.Resource != "events" &&
			event.ObjectRef.Resource != "clusterrolebindings" {
			out[strings.TrimSuffix(event.Verb+" "+event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/")]++
		}
	}
	return out
}

// limited creates a user of the workload cluster that may bind the tokens' role, but may not write
// Secrets, and returns a kubeconfig for it.
func (e *environment) limited(t *testing.T, name string) []byte {
	t.Helper()
	g := NewWithT(t)
	g.Expect(e.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterrolebindings"}, Verbs: []string{"get", "create", "patch"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}, ResourceNames: []string{"system:node-bootstrapper"},
			Verbs: []string{"bind"}},
		{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"},
			Verbs: []string{"get", "list", "watch"}},
		{NonResourceURLs: []string{"/"}, Verbs: []string{"get"}},
	}})).To(Succeed())
	g.Expect(e.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})).To(Succeed())
	return must(e.Kubeconfig(name))(g)
}

func reason(config *bootstrapv1.DroverConfig) string {
	for _, c := range config.Status.Conditions {
		if c.Type == clusterv1.ReadyCondition {
			return c.Reason
		}
	}
	return ""
}

func must[T any](v T, err error) func(*WithT) T {
	return func(g *WithT) T {
		g.Expect(err).NotTo(HaveOccurred())
		return v
	}
}

// coreKinds returns the folder with the CRDs of Cluster API's core, in its module.
func coreKinds(ctx context.Context, g *WithT) string {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	g.Expect(err).NotTo(HaveOccurred())
	return filepath.Join(strings.TrimSpace(string(out)), "core", "config", "crd", "bases")
}
