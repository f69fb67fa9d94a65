// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
)

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
)

func clientKey(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

// tokenOf returns the token Secret that belongs to a data Secret.
func tokenOf(data *corev1.Secret) *corev1.Secret {
	id, _, _ := strings.Cut(string(data.Data["bootstrap-token"]), ".")
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}}
}

// droverMachine creates the machine's DroverMachine with the data that the cloud would report.
func (e *environment) droverMachine(t *testing.T, machine *clusterv1.Machine, ip string, more ...clusterv1.MachineAddress) {
	t.Helper()
	g := NewWithT(t)
	cm := &infrav1.DroverMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: machine.Namespace, Name: machine.Name, Labels: map[string]string{clusterv1.ClusterNameLabel: machine.Spec.ClusterName},
		},
		Spec: infrav1.DroverMachineSpec{ProviderID: "simulated:///" + machine.Name, DroverMachineFields: infrav1.DroverMachineFields{
			AccountRef: infrav1.LocalReference{Name: "a"},
			Cloud:      infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{InstanceType: "small", Image: "ubuntu"}},
		}},
	}
	g.Expect(e.Create(t.Context(), cm)).To(Succeed())
	e.patchStatus(g, cm, func() {
		cm.Status.Addresses = append(slices.Clone(more), clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: ip})
	})
}

// minus returns the difference from earlier counts.
func minus(now, before map[string]int) map[string]int {
	out := map[string]int{}
	for what, n := range now {
		if n -= before[what]; n != 0 {
			out[what] = n
		}
	}
	return out
}

// TestJoin tests all steps of a machine's join against the real API server, and counts the writes.
func TestJoin(t *testing.T) {
	e := newEnvironment(t)
	e.manager(t)
	cluster := e.cluster(t, "join", nil)

	// The first machine of a Cluster may find it not connected yet and report this. That write is
	// not counted.
	g := NewWithT(t)
	_, first := e.machine(t, cluster, "join-0")
	e.data(t, first)
	before := e.writes(g)

	machine, config := e.machine(t, cluster, "join-1")
	data := e.data(t, config)
	g.Expect(data.Name).To(Equal(config.Name))
	g.Expect(data.Type).To(Equal(clusterv1.ClusterSecretType))
	g.Expect(data.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, cluster.Name))
	g.Expect(metav1.IsControlledBy(data, config)).To(BeTrue())
	g.Expect(string(data.Data["format"])).To(Equal("cloud-config"))

	secret := tokenOf(data)
	g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
	g.Expect(secret.Annotations).To(HaveKeyWithValue(token.MachineAnnotation, "join/join-1"))
	g.Expect(secret.Annotations).To(HaveKeyWithValue(token.NodeAnnotation, "join-1"))
	g.Expect(secret.Data).NotTo(HaveKey("usage-bootstrap-signing"))

	booting := kubeletFrom(t, data, "join-1")
	name, key := booting.ask(t, clientSigner, "join-1", nil)
	node := booting.become(t, e.certificate(t, name), key)
	node.register(t, "simulated:///join-1")

	// The addresses come later than the request, so it waits for them.
	serving, _ := node.ask(t, servingSigner, "join-1", []string{"join-1"}, net.ParseIP("10.1.2.3"))
	g.Consistently(func(g Gomega) { e.leftAlone(g, serving) }, quiet).Should(Succeed())
	g.Expect(e.events(g, machine)).To(BeEmpty())
	e.droverMachine(t, machine, "10.1.2.3")
	e.certificate(t, serving)

	e.patchStatus(g, machine, func() { machine.Status.NodeRef.Name = "join-1" })
	e.eventuallyGone(g, secret)
	g.Eventually(func() error {
		_, err := booting.client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{},
			metav1.CreateOptions{})
		return err
	}, patience).Should(Satisfy(apierrors.IsUnauthorized), "a token is good for one machine, once")

	g.Eventually(func(g Gomega) {
		g.Expect(minus(e.writes(g), before)).To(Equal(map[string]int{
			"create secrets": 2, "patch droverconfigs/status": 1, "update certificatesigningrequests/approval": 2, "delete secrets": 1,
		}))
	}, patience).Should(Succeed())

	t.Run("a node renews its certificate, and no other", func(t *testing.T) {
		g := NewWithT(t)
		name, key := node.ask(t, clientSigner, "join-1", nil)
		renewed := node.become(t, e.certificate(t, name), key)
		_, err := renewed.client.CoreV1().Nodes().Get(t.Context(), "join-1", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())

		_, _, err = node.send(t, clientSigner, "join-2", nil)
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "NodeRestriction: %v", err)
	})
	t.Run("a serving certificate names the machine's addresses only", func(t *testing.T) {
		g := NewWithT(t)
		name, _ := node.ask(t, servingSigner, "join-1", []string{"join-1"}, net.ParseIP("10.1.2.3"), net.ParseIP("10.96.0.1"))
		g.Eventually(func(g Gomega) { g.Expect(e.events(g, machine)).To(ContainElement(ContainSubstring(name))) }, patience).Should(Succeed())
		e.leftAlone(g, name)
	})
	t.Run("after a restart nothing is written", func(t *testing.T) {
		g := NewWithT(t)
		before := e.writes(g)
		e.manager(t)
		g.Consistently(func(g Gomega) { g.Expect(e.writes(g)).To(Equal(before)) }, quiet).Should(Succeed())
	})
	t.Run("what is installed fits the API server", func(t *testing.T) { e.versions(t, cluster) })
	t.Run("an unknown system is reported", func(t *testing.T) { e.unknownSystem(t, cluster) })
	t.Run("Secrets are waited for", func(t *testing.T) { e.secrets(t, cluster) })
}

// TestCrash tests that the next manager continues what a stopped manager has written, for each
// step.
func TestCrash(t *testing.T) {
	e := newEnvironment(t)
	limited := e.limited(t, "limited")
	admin := must(e.Kubeconfig("adopter", "system:masters"))(NewWithT(t))
	kubeconfig := func(g *WithT, cluster *clusterv1.Cluster, raw []byte) {
		secret := &corev1.Secret{}
		g.Expect(e.Get(context.Background(), client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig"},
			secret)).To(Succeed())
		e.patch(g, secret, func() { secret.Data["value"] = raw })
	}
	// half creates a machine whose user data is written and whose token is not, because its
	// kubeconfig does not permit it.
	half := func(t *testing.T, name string) (*clusterv1.Cluster, *bootstrapv1.DroverConfig, *corev1.Secret) {
		g := NewWithT(t)
		cluster := e.cluster(t, name, limited)
		stop := e.manager(t)
		_, config := e.machine(t, cluster, name)
		e.eventually(g, config, func(g Gomega) { g.Expect(reason(config)).To(Equal(bootstrapv1.NotPermittedReason)) })
		g.Expect(config.Status.DataSecretName).To(BeEmpty())
		stop()
		data := &corev1.Secret{}
		g.Expect(e.Get(t.Context(), clientKey(config), data)).To(Succeed())
		kubeconfig(g, cluster, admin)
		return cluster, config, data
	}

	t.Run("after the user data", func(t *testing.T) {
		g := NewWithT(t)
		_, config, before := half(t, "after-data")
		stop := e.manager(t)
		data := e.data(t, config)
		g.Expect(data.Data).To(Equal(before.Data))
		g.Expect(e.Get(t.Context(), clientKey(tokenOf(data)), tokenOf(data))).To(Succeed())
		stop()
	})
	t.Run("after the user data, and another machine has a token of the same ID", func(t *testing.T) {
		g := NewWithT(t)
		_, config, before := half(t, "collision")
		foreign := tokenOf(before)
		foreign.Data = map[string][]byte{"token-id": []byte(strings.TrimPrefix(foreign.Name, "bootstrap-token-")),
			"token-secret": []byte("0123456789abcdef")}
		foreign.Type = "bootstrap.kubernetes.io/token"
		g.Expect(e.Create(t.Context(), foreign)).To(Succeed())
		stop := e.manager(t)
		data := e.data(t, config)
		g.Expect(tokenOf(data).Name).NotTo(Equal(foreign.Name))
		g.Expect(data.Data["value"]).NotTo(Equal(before.Data["value"]))
		g.Expect(e.Get(t.Context(), clientKey(tokenOf(data)), &corev1.Secret{})).To(Succeed())
		untouched := &corev1.Secret{}
		g.Expect(e.Get(t.Context(), clientKey(foreign), untouched)).To(Succeed())
		g.Expect(untouched.ResourceVersion).To(Equal(foreign.ResourceVersion))
		stop()
	})
	t.Run("after the token, which has nearly expired or was cleaned up meanwhile", func(t *testing.T) {
		g := NewWithT(t)
		cluster := e.cluster(t, "late", nil)
		stop := e.manager(t)
		_, config := e.machine(t, cluster, "late")
		data := e.data(t, config)
		token := tokenOf(data)
		g.Expect(e.Get(t.Context(), clientKey(token), token)).To(Succeed())
		fresh := string(token.Data["expiration"])
		stop()

		e.patch(g, token, func() { token.Data["expiration"] = []byte("2026-01-01T00:00:00Z") })
		e.patchStatus(g, config, func() { config.Status.DataSecretName = "" }) // as if the status had not been written
		stop = e.manager(t)
		g.Eventually(func(g Gomega) {
			again := &corev1.Secret{}
			g.Expect(e.Get(t.Context(), clientKey(token), again)).To(Succeed())
			g.Expect(string(again.Data["expiration"]) >= fresh).To(BeTrue())
			g.Expect(again.Data["token-secret"]).To(Equal(token.Data["token-secret"]))
		}, patience).Should(Succeed())
		g.Expect(e.data(t, config).Data).To(Equal(data.Data))
		stop()
	})
	t.Run("before the deletion of the token", func(t *testing.T) {
		g := NewWithT(t)
		cluster := e.cluster(t, "joined", nil)
		stop := e.manager(t)
		machine, config := e.machine(t, cluster, "joined")
		token := tokenOf(e.data(t, config))
		stop()
		e.patchStatus(g, machine, func() { machine.Status.NodeRef.Name = "joined" })
		stop = e.manager(t)
		e.eventuallyGone(g, token)
		stop()
	})
}

// TestMove tests that the user data stays the same after "clusterctl move", which drops the status
// and changes the UIDs.
func TestMove(t *testing.T) {
	e := newEnvironment(t)
	g := NewWithT(t)
	cluster := e.cluster(t, "move", nil)
	stop := e.manager(t)
	machine, config := e.machine(t, cluster, "move-1")
	data := e.data(t, config)
	e.patch(g, machine, func() { machine.Spec.Bootstrap.DataSecretName = ptr.To(config.Status.DataSecretName) })
	stop()
	secret := tokenOf(data)
	g.Expect(e.Get(t.Context(), clientKey(secret), secret)).To(Succeed())
	g.Expect(secret.Annotations).To(HaveKeyWithValue(token.MachineUIDAnnotation, string(machine.UID)))
	e.patch(g, secret, func() { secret.Annotations[token.MachineUIDAnnotation] = "the one before the move" })

	e.patch(g, config, func() { config.Finalizers = nil })
	g.Expect(e.Delete(t.Context(), config, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
	e.eventuallyGone(g, config)
	moved := &bootstrapv1.DroverConfig{ObjectMeta: metav1.ObjectMeta{
		Namespace: config.Namespace, Name: config.Name, Labels: config.Labels, OwnerReferences: config.OwnerReferences,
	}}
	g.Expect(e.Create(t.Context(), moved)).To(Succeed())

	e.manager(t)
	after := e.data(t, moved)
	g.Expect(after.Data).To(Equal(data.Data))
	g.Expect(metav1.IsControlledBy(after, moved)).To(BeTrue())
	g.Expect(moved.Finalizers).To(ContainElement(bootstrapv1.ConfigFinalizer))
	e.eventually(g, secret, func(g Gomega) {
		g.Expect(secret.Annotations).To(HaveKeyWithValue(token.MachineUIDAnnotation, string(machine.UID)), "the token is bound again")
	})
}

// TestEnd tests that deleting a config deletes its token, and that the config is not held forever
// if this is impossible.
func TestEnd(t *testing.T) {
	e := newEnvironment(t)
	e.manager(t)

	t.Run("the token goes first", func(t *testing.T) {
		g := NewWithT(t)
		_, config := e.machine(t, e.cluster(t, "end", nil), "end-1")
		token := tokenOf(e.data(t, config))
		g.Expect(e.Delete(t.Context(), config)).To(Succeed())
		e.eventuallyGone(g, config)
		g.Expect(apierrors.IsNotFound(e.Get(t.Context(), clientKey(token), token))).To(BeTrue())
	})
	t.Run("the workload cluster does not let it, then the Cluster goes", func(t *testing.T) {
		g := NewWithT(t)
		cluster := e.cluster(t, "gone", e.limited(t, "gone"))
		_, config := e.machine(t, cluster, "gone-1")
		e.eventually(g, config, func(g Gomega) { g.Expect(reason(config)).To(Equal(bootstrapv1.NotPermittedReason)) })
		g.Expect(e.Delete(t.Context(), config)).To(Succeed())
		e.eventually(g, config, func(g Gomega) { g.Expect(reason(config)).To(Equal(bootstrapv1.DeletingReason)) })
		g.Expect(e.Delete(t.Context(), cluster)).To(Succeed())
		e.eventuallyGone(g, config)
	})
	t.Run("a foreign Secret in place of the user data is not touched", func(t *testing.T) {
		g := NewWithT(t)
		cluster := e.cluster(t, "foreign", nil)
		foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: "foreign-1"},
			Data: map[string][]byte{"value": []byte("mine")}}
		g.Expect(e.Create(t.Context(), foreign)).To(Succeed())
		_, config := e.machine(t, cluster, "foreign-1")
		e.eventually(g, config, func(g Gomega) {
			g.Expect(config.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("does not belong"))))
		})
		after := &corev1.Secret{}
		g.Expect(e.Get(t.Context(), clientKey(foreign), after)).To(Succeed())
		g.Expect(after.ResourceVersion).To(Equal(foreign.ResourceVersion))
	})
	t.Run("nothing is written for a paused Cluster", func(t *testing.T) {
		g := NewWithT(t)
		cluster := e.cluster(t, "paused", nil)
		e.patch(g, cluster, func() { cluster.Spec.Paused = ptr.To(true) })
		_, config := e.machine(t, cluster, "paused-1")
		e.eventually(g, config, func(g Gomega) {
			g.Expect(config.Status.Conditions).To(ContainElement(And(HaveField("Type", "Paused"), HaveField("Status", metav1.ConditionTrue))))
		})
		g.Expect(apierrors.IsNotFound(e.Get(t.Context(), clientKey(config), &corev1.Secret{}))).To(BeTrue())
		e.patch(g, cluster, func() { cluster.Spec.Paused = ptr.To(false) })
		e.data(t, config)
	})
	t.Run("a kubeconfig that would run a program is refused", func(t *testing.T) {
		g := NewWithT(t)
		cluster := e.cluster(t, "exec", nil)
		kubeconfig := &corev1.Secret{}
		g.Expect(e.Get(t.Context(), client.ObjectKey{Namespace: "exec", Name: "exec-kubeconfig"}, kubeconfig)).To(Succeed())
		_, first := e.machine(t, cluster, "exec-1") // uses the valid kubeconfig to connect
		e.data(t, first)
		changed, err := clientcmd.Load(kubeconfig.Data["value"])
		g.Expect(err).NotTo(HaveOccurred())
		changed.AuthInfos[changed.Contexts[changed.CurrentContext].AuthInfo] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: "marked-secret", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}}
		text, err := clientcmd.Write(*changed)
		g.Expect(err).NotTo(HaveOccurred())
		e.patch(g, kubeconfig, func() { kubeconfig.Data["value"] = text })
		_, config := e.machine(t, cluster, "exec-2")
		e.eventually(g, config, func(g Gomega) { g.Expect(reason(config)).To(Equal(bootstrapv1.KubeconfigInvalidReason)) })
		for _, c := range config.Status.Conditions {
			g.Expect(c.Message).NotTo(ContainSubstring("marked-secret"))
		}
	})
}
