// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
)

const patience = 40 * time.Second

// world is a real control plane with a simulated cloud whose machines join it.
type world struct {
	plane *playground.ControlPlane
	kube  *kubernetes.Clientset
	admin simulator.Admin
	next  int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	g := NewWithT(t)
	plane, err := playground.StartControlPlane(t.Context(), playground.ControlPlaneOptions{
		Progress:              os.Stderr,
		ControllerManagerArgs: []string{"--node-monitor-grace-period=6s", "--node-monitor-period=1s"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(plane.Stop()).To(Succeed()) })
	w := &world{plane: plane, kube: kubernetes.NewForConfigOrDie(plane.AdminConfig())}
	g.Expect(allowBootstrap(t.Context(), w.kube)).To(Succeed())
	s, err := simulator.New(simulator.Options{
		Settings: simulator.Settings{BootMin: simulator.Duration{Duration: time.Millisecond}, Throttle: simulator.ThrottleNone},
		Bodies:   body.Options{LeaseInterval: simulator.Duration{Duration: time.Second}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	server := httptest.NewServer(s.Handler())
	t.Cleanup(func() { stop(); <-ended; server.Close() })
	w.admin = simulator.Admin{URL: server.URL}
	approving, stopApproving := context.WithCancel(context.Background())
	approved := make(chan struct{})
	go func() { defer close(approved); approveAll(approving, w.kube) }()
	t.Cleanup(func() { stopApproving(); <-approved })
	return w
}

// allowBootstrap allows bootstrap tokens to create signing requests, as kubeadm does.
func allowBootstrap(ctx context.Context, kube *kubernetes.Clientset) error {
	_, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:bootstrappers"}},
	}, metav1.CreateOptions{})
	return err
}

func makeToken(ctx context.Context, kube *kubernetes.Clientset, n int) (string, error) {
	id, secret := fmt.Sprintf("tok%03d", n), "0123456789abcdef"
	_, err := kube.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true"},
	}, metav1.CreateOptions{})
	return id + "." + secret, err
}

// token creates a bootstrap token.
func (w *world) token(t *testing.T) string {
	t.Helper()
	w.next++
	token, err := makeToken(t.Context(), w.kube, w.next)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// userData returns the user data of Drover's own bootstrap provider.
func (w *world) userData(t *testing.T, node string, change func(*render.Input)) []byte {
	t.Helper()
	in := render.Input{
		Spec: &bootstrapv1.DroverConfigSpec{NodeLabels: map[string]string{"pool": "blue"},
			NodeTaints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}},
		NodeName: node, ProviderID: "simulated:///{{ v1.availability_zone }}/{{ v1.instance_id }}",
		Server: w.plane.URL, CA: w.plane.CA(), Token: w.token(t),
	}
	if change != nil {
		change(&in)
	}
	data, err := render.UserData(in)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (w *world) run(t *testing.T, data []byte) wire.Resource {
	t.Helper()
	r, err := w.admin.Run(t.Context(), "default",
		wire.RunInstancesRequest{Region: "sim-1", InstanceType: "small", Image: "node-image", UserData: data})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) node(t *testing.T, g Gomega, name string) *corev1.Node {
	t.Helper()
	n, err := w.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	return n
}

func ready(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// eventually polls check, and prints the machine's console if it fails.
func (w *world) eventually(t *testing.T, id string, check func(g Gomega)) {
	t.Helper()
	NewWithT(t).Eventually(check, patience, 100*time.Millisecond).Should(Succeed(), func() string {
		r, err := w.admin.Body(t.Context(), id)
		return fmt.Sprintf("%s %v\n%s", r.Phase, err, strings.Join(r.Console, "\n"))
	})
}

func TestBodies(t *testing.T) {
	w := newWorld(t)
	t.Run("a machine joins, lives and dies", func(t *testing.T) { testLife(t, w) })
	t.Run("pods run and are finalized", func(t *testing.T) { testPods(t, w) })
	t.Run("wrong user data does not join", func(t *testing.T) { testWrong(t, w) })
	t.Run("a machine that is switched off and on is the same node", func(t *testing.T) { testPower(t, w) })
	t.Run("a restart of the API server is survived", func(t *testing.T) { testRestart(t, w) })
}

func testLife(t *testing.T, w *world) {
	g := NewWithT(t)
	data := w.userData(t, "life", nil)
	r := w.run(t, data)
	w.eventually(t, r.ID, func(g Gomega) { g.Expect(ready(w.node(t, g, "life"))).To(Equal(corev1.ConditionTrue)) })
	n := w.node(t, g, "life")
	g.Expect(n.Spec.ProviderID).To(Equal("simulated:///" + r.Zone + "/" + r.ID))
	g.Expect(n.Labels).To(HaveKeyWithValue("pool", "blue"))
	g.Expect(n.Labels).To(HaveKeyWithValue(corev1.LabelHostname, "life"))
	g.Expect(n.Spec.Taints).To(ContainElement(HaveField("Key", "node.cluster.x-k8s.io/uninitialized")))
	g.Expect(n.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
	g.Expect(n.Status.NodeInfo.KubeletVersion).To(Equal(body.DefaultKubeletVersion))

	requests, err := w.kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(requests.Items).To(ContainElement(And(HaveField("Spec.SignerName", certificatesv1.KubeAPIServerClientKubeletSignerName),
		HaveField("Spec.Username", HavePrefix("system:bootstrap:")))))
	w.eventually(t, r.ID, func(g Gomega) {
		requests, err := w.kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(requests.Items).To(ContainElement(And(HaveField("Spec.SignerName", certificatesv1.KubeletServingSignerName),
			HaveField("Spec.Username", "system:node:life"), HaveField("Status.Certificate", Not(BeEmpty())))))
	})
	lease := func(g Gomega) time.Time {
		l, err := w.kube.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "life", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(l.OwnerReferences).To(ContainElement(HaveField("UID", n.UID)))
		return l.Spec.RenewTime.Time
	}
	first := lease(g)
	w.eventually(t, r.ID, func(g Gomega) { g.Expect(lease(g)).To(BeTemporally(">", first.Add(2*time.Second))) })

	g.Expect(w.admin.Act(t.Context(), r.ID, simulator.ActTerminate)).To(Succeed())
	killed := time.Now()
	g.Consistently(func() time.Time { return lease(g) }, 3*time.Second).Should(BeTemporally("<=", killed), "a body stops with its machine")
	w.eventually(t, r.ID, func(g Gomega) { g.Expect(ready(w.node(t, g, "life"))).To(Equal(corev1.ConditionUnknown)) })
}

func testPods(t *testing.T, w *world) {
	g := NewWithT(t)
	r := w.run(t, w.userData(t, "pods", nil))
	w.eventually(t, r.ID, func(g Gomega) { w.node(t, g, "pods") })
	pods := w.kube.CoreV1().Pods("default")
	g.Eventually(func() error {
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec:       corev1.PodSpec{NodeName: "pods", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		return err
	}, patience).Should(Succeed())
	w.eventually(t, r.ID, func(g Gomega) {
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.Status.Phase).To(Equal(corev1.PodRunning))
		g.Expect(p.Status.ContainerStatuses[0].Ready).To(BeTrue())
	})
	g.Expect(pods.Delete(t.Context(), "p", metav1.DeleteOptions{})).To(Succeed())
	w.eventually(t, r.ID, func(g Gomega) {
		_, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	})
}

func testWrong(t *testing.T, w *world) {
	for name, c := range map[string]struct {
		data  []byte
		phase body.Phase
		says  string
	}{
		"no cloud-config":  {[]byte("#!/bin/sh\nsystemctl start kubelet\n"), body.PhaseFailed, "#cloud-config"},
		"nothing to start": {[]byte("#cloud-config\nhostname: a\n"), body.PhaseIdle, "starts the kubelet"},
		"no kubeconfig":    {[]byte("#cloud-config\nruncmd: [systemctl start kubelet]\n"), body.PhaseFailed, "there is no file"},
		"wrong token": {w.userData(t, "wrong-token", func(in *render.Input) { in.Token = "aaaaaa.bbbbbbbbbbbbbbbb" }), body.PhaseJoining,
			"Unauthorized"},
		"wrong authority": {w.userData(t, "wrong-ca", func(in *render.Input) {
			ca, err := os.ReadFile("../../../bootstrap/render/testdata/ca.crt")
			if err != nil {
				t.Fatal(err)
			}
			in.CA = ca
		}), body.PhaseJoining, "certificate"},
		"a command that fails": {w.userData(t, "wrong-command", func(in *render.Input) {
			in.Spec.PreKubeletCommands = []string{"exit 3"}
		}), body.PhaseIdle, "starts the kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.run(t, c.data)
			w.eventually(t, r.ID, func(g Gomega) {
				report, err := w.admin.Body(t.Context(), r.ID)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(report.Phase).To(Equal(c.phase))
				g.Expect(strings.Join(report.Console, "\n")).To(ContainSubstring(c.says))
				g.Expect(strings.Join(report.Console, "\n")).NotTo(ContainSubstring("bbbbbbbbbbbbbbbb"))
			})
			nodes, err := w.kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			g := NewWithT(t)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(nodes.Items).NotTo(ContainElement(HaveField("Name", HavePrefix("wrong"))))
		})
	}
}

func testPower(t *testing.T, w *world) {
	g := NewWithT(t)
	r := w.run(t, w.userData(t, "power", nil))
	w.eventually(t, r.ID, func(g Gomega) { g.Expect(ready(w.node(t, g, "power"))).To(Equal(corev1.ConditionTrue)) })
	uid := w.node(t, g, "power").UID
	g.Expect(w.admin.Act(t.Context(), r.ID, simulator.ActStop)).To(Succeed())
	w.eventually(t, r.ID, func(g Gomega) { g.Expect(ready(w.node(t, g, "power"))).To(Equal(corev1.ConditionUnknown)) })
	g.Expect(w.admin.Act(t.Context(), r.ID, simulator.ActStart)).To(Succeed())
	w.eventually(t, r.ID, func(g Gomega) {
		n := w.node(t, g, "power")
		g.Expect(ready(n)).To(Equal(corev1.ConditionTrue))
		g.Expect(n.UID).To(Equal(uid))
	})
}

func testRestart(t *testing.T, w *world) {
	g := NewWithT(t)
	before := w.run(t, w.userData(t, "before", nil))
	w.eventually(t, before.ID, func(g Gomega) { g.Expect(ready(w.node(t, g, "before"))).To(Equal(corev1.ConditionTrue)) })
	during := w.userData(t, "during", nil)
	w.plane.StopAPIServer()
	started := w.run(t, during)
	w.eventually(t, started.ID, func(g Gomega) {
		report, err := w.admin.Body(t.Context(), started.ID)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Join(report.Console, "\n")).To(ContainSubstring("no connection to the API server"))
	})
	g.Expect(w.plane.StartAPIServer(t.Context())).To(Succeed())
	for _, c := range []struct{ id, node string }{{before.ID, "before"}, {started.ID, "during"}} {
		w.eventually(t, c.id, func(g Gomega) {
			g.Expect(ready(w.node(t, g, c.node))).To(Equal(corev1.ConditionTrue))
			l, err := w.kube.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), c.node, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(time.Since(l.Spec.RenewTime.Time)).To(BeNumerically("<", 3*time.Second))
		})
	}
}
