// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
)

// TestStolenToken tests that with a machine's token, a thief can become only that machine's Node.
func TestStolenToken(t *testing.T) {
	e := newEnvironment(t)
	e.manager(t)
	cluster := e.cluster(t, "theft", nil)
	a, configA := e.machine(t, cluster, "theft-a")
	b, configB := e.machine(t, cluster, "theft-b")
	thief := kubeletFrom(t, e.data(t, configA), "theft-a")
	e.data(t, configB)

	t.Run("another machine's certificate", func(t *testing.T) {
		g := NewWithT(t)
		name, _ := thief.ask(t, clientSigner, "theft-b", nil)
		g.Eventually(func(g Gomega) { g.Expect(e.events(g, a)).To(ContainElement(ContainSubstring(name))) }, patience).Should(Succeed())
		g.Consistently(func(g Gomega) { e.leftAlone(g, name) }, quiet).Should(Succeed())
		g.Expect(e.events(g, a)).To(HaveLen(1))
		g.Expect(e.events(g, b)).To(BeEmpty())
		e.says(t, a, infrav1.CertificateNotApprovedReason, name, "not that of the machine's Node")
		e.says(t, b, infrav1.NoCertificateRequestReason, "check /var/log/drover-bootstrap.log")
	})
	t.Run("a serving certificate", func(t *testing.T) {
		g := NewWithT(t)
		name, _ := thief.ask(t, servingSigner, "theft-a", []string{"theft-a"})
		g.Consistently(func(g Gomega) { e.leftAlone(g, name) }, quiet).Should(Succeed())
	})
	var node *kubelet
	t.Run("a Node that was there before", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(e.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "theft-a"},
			Spec: corev1.NodeSpec{ProviderID: "other:///1"}})).To(Succeed())
		name, key := thief.ask(t, clientSigner, "theft-a", nil)
		g.Consistently(func(g Gomega) { e.leftAlone(g, name) }, quiet).Should(Succeed())
		g.Expect(e.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "theft-a"}})).To(Succeed())
		node = thief.become(t, e.certificate(t, name), key)
		e.says(t, a, infrav1.NodeMissingReason, name, "journalctl -u kubelet")
	})
	t.Run("a serving certificate of another machine's", func(t *testing.T) { e.foreignServing(t, node, a, b) })
	t.Run("Secrets, Nodes and more tokens", func(t *testing.T) {
		g := NewWithT(t)
		ctx := t.Context()
		for _, who := range []*kubelet{thief, node} {
			_, err := who.client.CoreV1().Secrets(cluster.Namespace).Get(ctx, "theft-b", metav1.GetOptions{})
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			_, err = who.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, tokenOf(e.data(t, configB)).Name, metav1.GetOptions{})
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			_, err = who.client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		}
		_, err := thief.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-aaaaaa"}}, metav1.CreateOptions{})
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		_, err = thief.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		for _, namespace := range []string{cluster.Namespace, metav1.NamespaceSystem, metav1.NamespaceDefault} {
			g.Expect(thief.rights(t, namespace)).To(ConsistOf(
				"certificates.k8s.io/certificatesigningrequests: create get list watch",
				"authorization.k8s.io/selfsubjectaccessreviews: create", "authorization.k8s.io/selfsubjectrulesreviews: create",
				"authentication.k8s.io/selfsubjectreviews: create",
			), "what every user may, and what a bootstrap token is for")
		}
	})
	t.Run("how far a machine came is told", func(t *testing.T) { e.progress(t, cluster) })
	t.Run("a Machine under deletion", func(t *testing.T) {
		g := NewWithT(t)
		e.patch(g, a, func() { a.Finalizers = []string{"test/hold"} })
		g.Expect(e.Delete(t.Context(), a)).To(Succeed())
		e.eventuallyGone(g, tokenOf(e.data(t, configA)))
		e.eventually(g, a, func(Gomega) {})
		e.patch(g, a, func() { a.Finalizers = nil })
	})
	t.Run("a token of an earlier Machine of that name", func(t *testing.T) {
		g := NewWithT(t)
		machine, config := e.machine(t, cluster, "theft-d")
		data := e.data(t, config)
		secret := tokenOf(data)
		g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
		bind := func(uid string) { e.patch(g, secret, func() { secret.Annotations[token.MachineUIDAnnotation] = uid }) }
		bind("another Machine's")
		name, _ := kubeletFrom(t, data, "theft-d").ask(t, clientSigner, "theft-d", nil)
		g.Consistently(func(g Gomega) { e.leftAlone(g, name) }, quiet).Should(Succeed())
		bind(string(machine.UID))
		e.certificate(t, name)
	})
	t.Run("a token of someone else's", func(t *testing.T) {
		g := NewWithT(t)
		data := e.data(t, configB)
		secret := tokenOf(data)
		g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
		e.patch(g, secret, func() { secret.Annotations[token.ClusterAnnotation] = "theft/other" })
		name, _ := kubeletFrom(t, data, "theft-b").ask(t, clientSigner, "theft-b", nil)
		g.Eventually(func(g Gomega) { g.Expect(e.events(g, cluster)).To(ContainElement(ContainSubstring(name))) }, patience).Should(Succeed())
		e.leftAlone(g, name)
	})
}

// foreignServing tests serving certificates that a thief with machine A's Node could request: for
// another machine, or for the API server.
func (e *environment) foreignServing(t *testing.T, node *kubelet, a, b *clusterv1.Machine) {
	g := NewWithT(t)
	node.register(t, "simulated:///"+a.Name)
	e.droverMachine(t, a, "10.3.0.1")
	e.droverMachine(t, b, "10.3.0.2")
	own, _ := node.ask(t, servingSigner, a.Name, []string{a.Name}, net.ParseIP("10.3.0.1"))
	e.certificate(t, own)

	_, _, err := node.send(t, servingSigner, b.Name, []string{b.Name}, net.ParseIP("10.3.0.2"))
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "NodeRestriction: %v", err)
	var asked []string
	for _, names := range [][]string{{b.Name}, {a.Name, "kubernetes.default.svc"}, {a.Name, "*"}} {
		name, _ := node.ask(t, servingSigner, a.Name, names, net.ParseIP("10.3.0.1"))
		asked = append(asked, name)
	}
	name, _ := node.ask(t, servingSigner, a.Name, []string{a.Name}, net.ParseIP("10.3.0.1"), net.ParseIP("10.3.0.2"))
	for _, ip := range e.claim(t, g, a) {
		name, _ := node.ask(t, servingSigner, a.Name, []string{a.Name}, ip)
		asked = append(asked, name)
	}
	g.Consistently(func(g Gomega) {
		for _, name := range append(asked, name) {
			e.leftAlone(g, name)
		}
	}, quiet).Should(Succeed())
}

// claim makes the machine's guest report the addresses of the API server, of a Service and of
// machine B, and an address that nobody else has and its Node does not report.
func (e *environment) claim(t *testing.T, g *WithT, machine *clusterv1.Machine) (claimed []net.IP) {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}}
	e.eventually(g, service, func(g Gomega) { g.Expect(service.Spec.ClusterIP).NotTo(BeEmpty()) })
	cm := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: machine.Namespace, Name: machine.Name}}
	g.Expect(e.Get(t.Context(), clientKey(cm), cm)).To(Succeed())
	e.patchStatus(g, cm, func() {
		for _, ip := range []string{service.Spec.ClusterIP, "127.0.0.1", "10.3.0.2", "10.3.0.77"} {
			cm.Status.Addresses = append(cm.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: ip})
			cm.Status.GuestReportedAddresses = append(cm.Status.GuestReportedAddresses, ip)
			claimed = append(claimed, net.ParseIP(ip))
		}
	})
	return claimed
}

// rights returns what the API server lets the kubelet do in a namespace and in the whole cluster,
// as "group/resource [names]: verbs".
func (k *kubelet) rights(t *testing.T, namespace string) []string {
	t.Helper()
	g := NewWithT(t)
	review, err := k.client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, rule := range review.Status.ResourceRules {
		verbs := slices.Sorted(slices.Values(rule.Verbs))
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				what := strings.Join(append([]string{group + "/" + resource}, rule.ResourceNames...), " ")
				out = append(out, what+": "+strings.Join(verbs, " "))
			}
		}
	}
	return out
}

// says waits until Progress reports the reason and the words for a machine.
func (e *environment) says(t *testing.T, machine *clusterv1.Machine, reason string, words ...string) {
	t.Helper()
	g := NewWithT(t)
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = machine.Namespace, machine.Spec.ClusterName
	g.Expect(e.Get(t.Context(), clientKey(cluster), cluster)).To(Succeed())
	told := machine.DeepCopy()
	told.Spec.Bootstrap.DataSecretName = ptr.To(machine.Name) // Cluster API sets this
	g.Eventually(func(g Gomega) {
		is, message, err := e.joining.Progress(context.Background(), cluster, told)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(is).To(Equal(reason), message)
		for _, w := range words {
			g.Expect(message).To(ContainSubstring(w))
		}
	}, patience).Should(Succeed())
}

// progress tests what is reported for machines that do not become Nodes, where no other test covers
// it.
func (e *environment) progress(t *testing.T, cluster *clusterv1.Cluster) {
	g := NewWithT(t)
	machine, config := e.machine(t, cluster, "theft-c")
	data := e.data(t, config)
	token := tokenOf(data)
	again := func(why string) { // triggers a reconcile before the next retry
		g.Expect(e.Get(t.Context(), clientKey(config), config)).To(Succeed())
		e.patch(g, config, func() { metav1.SetMetaDataAnnotation(&config.ObjectMeta, "test", why) })
	}
	healthy := func() {
		e.says(t, machine, infrav1.NoCertificateRequestReason, cluster.Spec.ControlPlaneEndpoint.String(), "check /var/log/drover-bootstrap.log")
	}
	healthy()

	g.Expect(e.Delete(t.Context(), token)).To(Succeed())
	e.says(t, machine, infrav1.NoCertificateRequestReason, "its bootstrap token has expired or was deleted", "within 15m0s")
	again("deleted")
	healthy()
	g.Expect(e.Get(t.Context(), clientKey(token), token)).To(Succeed())
	e.patch(g, token, func() { token.Data["expiration"] = []byte("2026-01-01T00:00:00Z") })
	e.says(t, machine, infrav1.NoCertificateRequestReason, "its bootstrap token has expired or was deleted")
	again("expired")
	healthy()

	ready := config.DeepCopy().Status.Conditions
	e.patchStatus(g, config, func() {
		for i := range config.Status.Conditions {
			if c := &config.Status.Conditions[i]; c.Type == clusterv1.ReadyCondition {
				c.Status, c.Reason, c.Message = metav1.ConditionFalse, bootstrapv1.NotPermittedReason, "it may not"
			}
		}
	})
	e.says(t, machine, infrav1.NoCertificateRequestReason, `DroverConfig "theft-c" says: it may not`)
	e.patchStatus(g, config, func() { config.Status.Conditions = ready })

	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "theft-c"}}
	g.Expect(e.Create(t.Context(), other)).To(Succeed())
	name, _ := kubeletFrom(t, data, "theft-c").ask(t, clientSigner, "theft-c", nil)
	e.says(t, machine, infrav1.CertificateNotApprovedReason, name, "is waiting for approval")
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Expect(e.Get(t.Context(), clientKey(csr), csr)).To(Succeed())
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "Suspicious", Message: "a person says no",
	}}
	g.Expect(e.SubResource("approval").Update(t.Context(), csr)).To(Succeed())
	e.says(t, machine, infrav1.CertificateNotApprovedReason, name, "Denied", "a person says no")

	reason, _, err := e.joining.Progress(t.Context(), cluster, &clusterv1.Machine{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reason).To(BeEmpty(), "how a machine of another bootstrap provider's joins is not known")
}
