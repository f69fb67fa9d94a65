// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/base64"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestFilesAreFetched tests that files that are too large for user data are read from the workload
// cluster, only with the machine's token, and with the permissions that the book gives a
// kubeconfig. The files are deleted with the token, and created again with it.
func TestFilesAreFetched(t *testing.T) {
	e := newEnvironment(t)
	e.takes = 16 << 10
	g := NewWithT(t)
	for _, o := range scenario.Rights("adopter-of-files") {
		g.Expect(e.Create(t.Context(), o)).To(Succeed())
	}
	outer := t
	stop := e.manager(outer)
	cluster := e.cluster(t, "files", must(e.Kubeconfig("adopter-of-files"))(g))
	large := large(t, 20<<10)
	spec := bootstrapv1.DroverConfigSpec{Files: []bootstrapv1.File{{Path: "/srv/its own/large", Content: large, Permissions: "0640"}}}
	_, configA := e.machineWith(t, cluster, "files-a", "", spec)
	_, configB := e.machineWith(t, cluster, "files-b", "", spec)
	a, b := e.data(t, configA), e.data(t, configB)
	g.Expect(len(a.Data["value"])).To(BeNumerically("<", e.takes))
	secret := filesOf(a)
	e.eventually(g, secret, func(g Gomega) { g.Expect(secret.Data).To(HaveKey(render.FilesKey)) })

	t.Run("by whose they are", func(t *testing.T) {
		g := NewWithT(t)
		_, err := kubeletFrom(t, a, "files-a").client.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secret.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kubeletFrom(t, a, "files-a").rights(t, metav1.NamespaceSystem)).To(ContainElement("/secrets " + secret.Name + ": get"))
		_, err = kubeletFrom(t, b, "files-b").client.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secret.Name, metav1.GetOptions{})
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	})
	t.Run("by the machine", func(t *testing.T) {
		g := NewWithT(t)
		m := newMachine(t, a)
		said, err := m.fetch()
		g.Expect(err).NotTo(HaveOccurred(), said)
		file := filepath.Join(m.root, "srv/its own/large")
		got, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(got) == large).To(BeTrue())
		info, err := os.Stat(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o640)))

		g.Expect(os.WriteFile(file, []byte("changed"), 0o600)).To(Succeed())
		said, err = m.fetch()
		g.Expect(err).NotTo(HaveOccurred(), said)
		got, err = os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(got)).To(Equal("changed"), "once is enough")
	})
	t.Run("not with another's certificate", func(t *testing.T) {
		g := NewWithT(t)
		m := newMachine(t, a)
		other := must(os.ReadFile("../../bootstrap/render/testdata/ca.crt"))(g)
		g.Expect(os.WriteFile(m.root+render.CAPath, other, 0o600)).To(Succeed())
		said, err := m.fetch()
		g.Expect(err).To(HaveOccurred())
		g.Expect(said).To(And(ContainSubstring("could not be fetched from the cluster's API server: curl: (60)"),
			Not(ContainSubstring("Bearer"))))
	})
	t.Run("after a restart", func(t *testing.T) {
		g := NewWithT(t)
		stop()
		was := e.writes(g)
		stop = e.manager(outer)
		g.Consistently(func(g Gomega) {
			for verb, n := range e.writes(g) { // creates that find the object already there
				g.Expect(n-was[verb] == 0 || strings.HasPrefix(verb, "create ")).To(BeTrue(), "%s: %d", verb, n-was[verb])
			}
		}, quiet).Should(Succeed())
		g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
	})
	t.Run("they go with the token, and come again with it", func(t *testing.T) {
		g := NewWithT(t)
		stop()
		g.Expect(e.Delete(t.Context(), tokenOf(a))).To(Succeed())
		for _, o := range []client.Object{secret, &rbacv1.Role{ObjectMeta: filesOf(a).ObjectMeta},
			&rbacv1.RoleBinding{ObjectMeta: filesOf(a).ObjectMeta}} {
			e.eventuallyGone(g, o)
		}
		stop = e.manager(outer)
		g.Eventually(func() (string, error) { return newMachine(t, a).fetch() }, patience).ShouldNot(BeEmpty())
	})
	t.Run("other bytes are refused", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
		e.patch(g, secret, func() { secret.Data[render.FilesKey] = b.Data[render.FilesKey][:1000] })
		m := newMachine(t, a)
		said, err := m.fetch()
		g.Expect(err).To(HaveOccurred())
		g.Expect(said).To(ContainSubstring("has not the SHA-256 of its files"))
		_, err = os.Stat(m.root + "/srv")
		g.Expect(os.IsNotExist(err)).To(BeTrue(), "nothing was unpacked")
	})
	t.Run("what can't be done is told", func(t *testing.T) { e.filesRefused(t, cluster, spec) })
}

// filesRefused tests a cluster whose kubeconfig may not create roles, and a config that can't be
// split.
func (e *environment) filesRefused(t *testing.T, cluster *clusterv1.Cluster, spec bootstrapv1.DroverConfigSpec) {
	g := NewWithT(t)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "drover-adopter"}}
	g.Expect(e.Get(t.Context(), client.ObjectKeyFromObject(role), role)).To(Succeed())
	e.patch(g, role, func() { role.Rules = role.Rules[:1] })
	_, config := e.machineWith(t, cluster, "files-c", "", spec)
	says := func(config *bootstrapv1.DroverConfig, why string, words ...string) {
		e.eventually(g, config, func(g Gomega) {
			g.Expect(reason(config)).To(Equal(why))
			for _, w := range words {
				g.Expect(scenario.Message(config, clusterv1.ReadyCondition)).To(ContainSubstring(w))
			}
		})
	}
	says(config, bootstrapv1.NotPermittedReason, "the Secret, Role and RoleBinding with a machine's files", "kube-system")
	spec.Format = bootstrapv1.FormatIgnition
	_, config = e.machineWith(t, cluster, "files-d", "", spec)
	says(config, bootstrapv1.InvalidSpecReason, "more than 16384 bytes", "by Ignition can't fetch files")
}

func filesOf(data *corev1.Secret) *corev1.Secret {
	id, _, _ := strings.Cut(string(data.Data["bootstrap-token"]), ".")
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: render.FilesSecretName(id)}}
}

// machine runs the part of the script that fetches files, in a folder that stands for its root.
type machine struct {
	t          *testing.T
	root, step string
}

func newMachine(t *testing.T, data *corev1.Secret) *machine {
	t.Helper()
	g := NewWithT(t)
	m := &machine{t: t, root: t.TempDir()}
	moved := strings.NewReplacer("/etc/", m.root+"/etc/", "/var/", m.root+"/var/", " -C /", " -C "+m.root)
	for path, content := range filesIn(g, data) {
		if path == render.ScriptPath {
			_, rest, found := strings.Cut(string(content), "\nsay 'Fetching the files'\n")
			g.Expect(found).To(BeTrue())
			m.step, _, _ = strings.Cut(rest, "\nsay '")
		}
		g.Expect(os.MkdirAll(filepath.Dir(m.root+path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(m.root+path, []byte(moved.Replace(string(content))), 0o600)).To(Succeed())
	}
	m.step = "set -eu\nsay() { echo \"$*\"; }\nretry() { \"$@\"; }\n" + moved.Replace(m.step) + "\nsay Done\n"
	return m
}

func (m *machine) fetch() (string, error) {
	out, err := exec.CommandContext(m.t.Context(), "/bin/sh", "-c", m.step).CombinedOutput()
	return string(out), err
}

// large returns text that does not compress well.
func large(t *testing.T, n int) string {
	t.Helper()
	source := rand.NewChaCha8([32]byte{1})
	raw := make([]byte, n*3/4)
	_, _ = source.Read(raw)
	return base64.StdEncoding.EncodeToString(raw)
}
