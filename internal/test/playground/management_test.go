// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestManagement(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	began := time.Now()
	m, err := StartManagement(t.Context(), ManagementOptions{ControlPlaneOptions: ControlPlaneOptions{Progress: os.Stderr}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("started in %s", time.Since(began).Round(time.Millisecond))
	stopped := false
	defer func() {
		if !stopped {
			g.Expect(m.Stop()).To(Succeed())
		}
	}()
	admin := adminClient(t, m)

	t.Run("Cluster API's webhooks admit what is good", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(admin.Create(t.Context(), cluster("good"))).To(Succeed())
		g.Eventually(func(g Gomega) { // its controllers work too
			c := &clusterv1.Cluster{}
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster("good")), c)).To(Succeed())
			g.Expect(c.Finalizers).To(ContainElement(clusterv1.ClusterFinalizer))
			g.Expect(c.Status.Conditions).NotTo(BeEmpty())
		}, patience).Should(Succeed())
	})
	t.Run("and refuse what is not", func(t *testing.T) {
		g := NewWithT(t)
		bad := cluster("bad")
		bad.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.0.0.0/99"} // the schema accepts it
		g.Expect(admin.Create(t.Context(), bad)).To(MatchError(And(ContainSubstring("admission webhook"), ContainSubstring("10.0.0.0/99"))))
	})
	t.Run("Drover's kinds and roles are there, and no more rights than these", func(t *testing.T) {
		droverInstalled(t, m, admin)
	})
	t.Run("old versions are converted", func(t *testing.T) {
		g := NewWithT(t)
		old := &unstructured.Unstructured{}
		old.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Cluster"))
		old.SetAPIVersion(clusterv1.GroupVersion.Group + "/v1beta1")
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster("good")), old)).To(Succeed())
		version, _, err := unstructured.NestedString(old.Object, "spec", "infrastructureRef", "apiVersion")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(version).NotTo(BeEmpty(), "v1beta2 has no such field")
	})
	t.Run("all goes on after a restart of the API server", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(m.RestartAPIServer(t.Context())).To(Succeed())
		g.Expect(admin.Create(t.Context(), cluster("later"))).To(Succeed())
		g.Eventually(func(g Gomega) {
			c := &clusterv1.Cluster{}
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(cluster("later")), c)).To(Succeed())
			g.Expect(c.Status.Conditions).NotTo(BeEmpty())
		}, patience).Should(Succeed())
	})

	processes := append([]*Process{m.etcd, m.apiServer, m.controllerManager}, m.managers...)
	addresses := []string{address(t, m.URL), address(t, m.core.Health), address(t, m.core.Metrics)}
	for _, s := range m.services {
		addresses = append(addresses, address(t, s.url()))
	}
	for _, a := range addresses {
		c, err := net.Dial("tcp", a)
		g.Expect(err).NotTo(HaveOccurred())
		c.Close()
	}
	g.Expect(m.Stop()).To(Succeed())
	stopped = true
	for _, p := range processes {
		g.Expect(syscall.Kill(p.PID(), 0)).To(MatchError(syscall.ESRCH), "%s is still there", p.Name)
	}
	for _, a := range addresses {
		_, err := net.Dial("tcp", a)
		g.Expect(err).To(MatchError(syscall.ECONNREFUSED), a)
	}
	g.Expect(m.Dir).NotTo(BeADirectory())
	g.Expect(m.Stop()).To(Succeed(), "a second time")
}

// droverInstalled installs Drover's part and checks that its service account has exactly the
// permissions of its roles.
func droverInstalled(t *testing.T, m *Management, admin client.Client) {
	g := NewWithT(t)
	g.Expect(m.InstallDrover(t.Context())).To(Succeed())
	g.Expect(m.InstallDrover(t.Context())).To(Succeed(), "a second time")
	raw, err := m.ServiceAccountKubeconfig(t.Context(), "drover-system", "drover-manager")
	g.Expect(err).NotTo(HaveOccurred())
	drover := clientFor(t, raw)
	for _, c := range []struct {
		verb, group, resource string
		allowed               bool
	}{
		{"patch", "infrastructure.cluster.x-k8s.io", "drovermachines", true},
		{"list", "cluster.x-k8s.io", "machines", true},
		{"delete", "cluster.x-k8s.io", "machines", true}, // for machines that a cloud reclaims
		{"delete", "cluster.x-k8s.io", "machinesets", false},
		{"delete", "", "nodes", false},
		{"*", "*", "*", false},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: c.verb, Group: c.group, Resource: c.resource},
		}}
		g.Eventually(func() (bool, error) { // the authorizer sees the roles through a watch
			got, err := drover.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil {
				return false, err
			}
			return got.Status.Allowed, nil
		}, patience).Should(Equal(c.allowed), "%v", c)
	}
}

func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	m, err := StartManagement(t.Context(), ManagementOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(m.Stop()).To(Succeed()) }()
	w, err := StartControlPlane(t.Context(), ControlPlaneOptions{Name: "workload", NoControllerManager: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Stop()).To(Succeed()) }()

	// As for an adopted control plane, Cluster API reaches the other cluster by a kubeconfig in a
	// Secret.
	admin := adminClient(t, m)
	raw, err := w.Kubeconfig("adopter", "system:masters")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = clientFor(t, raw).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = kubernetes.NewForConfigOrDie(m.AdminConfig()).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "remote-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "remote"}},
		Type:       clusterv1.ClusterSecretType, StringData: map[string]string{"value": string(raw)},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	remote := cluster("remote")
	remote.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{}
	remote.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "controlplane.cluster.x-k8s.io",
		Kind: "AdoptedControlPlane", Name: "remote"}
	g.Expect(admin.Create(t.Context(), remote)).To(Succeed())
	g.Eventually(func(g Gomega) {
		c := &clusterv1.Cluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(remote), c)).To(Succeed())
		g.Expect(c.Status.Conditions).To(ContainElement(And(
			HaveField("Type", clusterv1.ClusterRemoteConnectionProbeCondition), HaveField("Status", metav1.ConditionTrue))))
	}, patience).Should(Succeed())
}

func adminClient(t *testing.T, m *Management) client.Client {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(m.AdminConfig(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

func cluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "DroverCluster", Name: name,
		}},
	}
}

func address(t *testing.T, s string) string {
	t.Helper()
	u, err := url.Parse(s)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return u.Host
}
