// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// patience is how long a guest may take to become a Node: several times what it takes on two busy
// cores.
const patience = 30 * time.Minute

// alicesKey is an SSH key that no program creates.
const alicesKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMarked alice"

// namedByCloud is a command that fails if the cloud gave the guest another host name than the user
// data, which would hide that.
const namedByCloud = "test \"$(cloud-init query v1.local_hostname)\" = \"$(uname -n)\""

// cniConfig is the configuration of the Pod network, as a network's DaemonSet would write it.
const cniConfig = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// TestGuests boots one guest for each way to become a Node, and for each way to fail. Guests that
// fail mostly wait, so the limit on parallel guests does not apply to them.
func TestGuests(t *testing.T) {
	s := newStand(t)
	turns := make(chan struct{}, 2)
	inTurn := func(run func(*testing.T)) func(*testing.T) {
		return func(t *testing.T) {
			turns <- struct{}{}
			defer func() { <-turns }()
			run(t)
		}
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"a name server, a mirror and a file that are bad", s.badMirror},
		{"an API server and a token that are bad", s.badServer},
		{"from a prebuilt image", inTurn(s.prebuilt)},
		{"from a prebuilt image, by Ignition", inTurn(s.ignition)},
		{"from a bare image, with binaries", inTurn(s.binaries)},
		{"from a bare image, with packages", inTurn(s.packages)},
		{"from a bare image, by kubeadm", inTurn(s.kubeadm)},
		{"from what Azure was told", inTurn(s.azure)},
		{"from what Google Cloud was told", inTurn(s.gcp)},
		{"from what OpenStack was told", inTurn(s.openStack)},
		{"from what KubeVirt was told", inTurn(s.kubeVirt)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// common returns the config that all guests share: a network for Pods, a reachable registry, labels
// and taints.
func (s *stand) common() bootstrapv1.DroverConfigSpec {
	return bootstrapv1.DroverConfigSpec{
		Files: []bootstrapv1.File{{Path: "/etc/cni/net.d/10-pods.conflist", Content: cniConfig}},
		Containerd: bootstrapv1.Containerd{Registries: []bootstrapv1.Registry{{Host: "registry.k8s.io",
			Mirrors: []bootstrapv1.Mirror{{URL: s.mirror.forGuests()}}}}},
		NodeLabels: map[string]string{"example.org/color": "blue"},
		NodeTaints: []corev1.Taint{{Key: "example.org/reserved", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
	}
}

func (s *stand) pool(name, image string, config bootstrapv1.DroverConfigSpec) scenario.Pool {
	return scenario.Pool{
		Cluster: s.cluster, Name: name, Replicas: 1, Config: config,
		Machine: infrav1.SimulatedMachine{InstanceType: "small", Image: image},
	}
}

// prebuilt tests a guest with a file that is too large for user data. All its files come from its
// cluster's API server.
func (s *stand) prebuilt(t *testing.T) {
	config := s.common()
	large := make([]byte, 2*wire.MaxUserData)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(large) // never fails
	content := hex.EncodeToString(large)
	config.Files = append(config.Files, bootstrapv1.File{Path: "/srv/large", Content: content, Permissions: "0640", Owner: "daemon:adm"})
	config.PreKubeletCommands = []string{
		fmt.Sprintf("echo '%x  /srv/large' | sha256sum -c", sha256.Sum256([]byte(content))),
		"test \"$(stat -c '%U:%G %a' /srv/large)\" = 'daemon:adm 640'",
		"test ! -e /etc/kubernetes/drover-files.conf", // this file held the token
	}
	s.becomesNode(t, s.pool("prebuilt", "prebuilt", config))
}

// ignition tests a guest that Ignition sets up in the initrd. The commands check what is not
// visible from outside.
func (s *stand) ignition(t *testing.T) {
	config := s.common()
	config.Format = bootstrapv1.FormatIgnition
	config.Host.Users = []bootstrapv1.User{{Name: "alice", SSHAuthorizedKeys: []string{alicesKey}}}
	config.PreKubeletCommands = []string{
		"id -u alice",
		"grep -rq IMarked /home/alice/.ssh",
		"test ! -e /var/lib/cloud/instance", // cloud-init was not involved
	}
	s.becomesNode(t, s.pool("ignition", "prebuilt", config))
}

// binaries tests an installation from a mirror with a host name. The mirror lacks a file at first,
// and the condition reports this until the file exists.
func (s *stand) binaries(t *testing.T) {
	var complete atomic.Bool
	pool, dns := s.fromMirror(t, "binaries", func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		missing := !complete.Load() && strings.Contains(r.URL.Path, "/containerd-")
		if missing {
			http.NotFound(w, r)
		}
		return missing
	})
	dns.answers.Store(true)
	s.create(t, pool)
	s.says(t, pool, infrav1.NoCertificateRequestReason, "its console ended with",
		"-linux-amd64.tar.gz could not be fetched: curl: (22)", "404")
	complete.Store(true)
	s.isNode(t, pool, func(machine *clusterv1.Machine) {
		s.saysNothing(t, pool)
		s.logTells(t, machine, "The requested URL returned error: 404")
	})
}

func (s *stand) packages(t *testing.T) {
	g := NewWithT(t)
	config := s.common()
	packages, err := s.mirror.packages()
	g.Expect(err).NotTo(HaveOccurred())
	config.OperatingSystem, config.Install = "debian-12", bootstrapv1.Install{Mode: bootstrapv1.InstallPackages, Packages: packages}
	config.Containerd.PauseImage = pauseImage
	config.Host.CABundle = string(s.mirror.ca)
	s.becomesNode(t, s.pool("packages", "bare", config))
}

// kubeadm tests a guest that joins with kubeadm. The spec overrides the cluster's configuration of
// kubelets.
func (s *stand) kubeadm(t *testing.T) {
	g := NewWithT(t)
	config := s.common()
	binaries, err := s.mirror.binaries()
	g.Expect(err).NotTo(HaveOccurred())
	binaries.Kubeadm.SHA256, err = sumOf(s.mirror.kubeadm)
	g.Expect(err).NotTo(HaveOccurred())
	config.OperatingSystem, config.Install = "debian-12", bootstrapv1.Install{Mode: bootstrapv1.InstallBinaries, Binaries: *binaries}
	config.Containerd.PauseImage = pauseImage
	config.Join = bootstrapv1.Join{Method: bootstrapv1.JoinKubeadm, IgnorePreflightErrors: []string{"SystemVerification"}}
	config.Kubelet.MaxPods = 50
	s.becomesNode(t, s.pool("kubeadm", "bare", config), func(machine *clusterv1.Machine) {
		g.Expect(s.node(t, machine).Status.Capacity.Pods().Value()).To(Equal(int64(50)))
	})
}

// becomesNode creates the pool and checks the life of its only machine: joining as a Node, a Pod on
// it, the additional checks, and deletion.
func (s *stand) becomesNode(t *testing.T, pool scenario.Pool, also ...func(*clusterv1.Machine)) {
	t.Helper()
	s.create(t, pool)
	s.isNode(t, pool, also...)
}

func (s *stand) isNode(t *testing.T, pool scenario.Pool, also ...func(*clusterv1.Machine)) {
	t.Helper()
	began := time.Now()
	machine := s.ready(t, pool)
	t.Logf("its Machine is Ready after %s", time.Since(began).Round(time.Second))
	s.isWhatWasAsked(t, machine)
	s.joinedByTheBook(t, machine)
	s.runsPod(t, machine)
	s.keepsLog(t, machine)
	for _, see := range also {
		see(machine)
	}
	s.remove(t, pool)
}

func (s *stand) create(t *testing.T, pool scenario.Pool) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			s.hypervisor.show(t)
		}
	})
	NewWithT(t).Expect(scenario.Create(t.Context(), s.client, pool.Objects()...)).To(Succeed())
}

// ready waits until the pool's machine is a Node, and Cluster API reports it as Ready and healthy.
func (s *stand) ready(t *testing.T, pool scenario.Pool) *clusterv1.Machine {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g.Expect(s.view.Until(ctx, "the machine is Ready", pool.Ready(s.view, 1))).To(Succeed())
	machine := s.machine(t, g, pool)
	for _, condition := range []string{clusterv1.MachineReadyCondition, clusterv1.MachineNodeHealthyCondition} {
		g.Expect(conditions.IsTrue(machine, condition)).To(BeTrue(), "%s: %s", condition, scenario.Message(machine, condition))
	}
	return machine
}

// machine returns the pool's only machine.
func (s *stand) machine(t *testing.T, g Gomega, pool scenario.Pool) *clusterv1.Machine {
	t.Helper()
	list := &clusterv1.MachineList{}
	g.Expect(s.client.List(t.Context(), list, client.InNamespace(pool.Cluster.Namespace),
		client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: pool.Name})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

func (s *stand) node(t *testing.T, machine *clusterv1.Machine) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	NewWithT(t).Expect(s.nodes.Get(t.Context(), client.ObjectKey{Name: machine.Status.NodeRef.Name}, node)).To(Succeed())
	return node
}

func (s *stand) guestOf(t *testing.T, machine *clusterv1.Machine) *guest {
	t.Helper()
	g := NewWithT(t)
	guest := s.hypervisor.guest(machine.Spec.ProviderID[strings.LastIndex(machine.Spec.ProviderID, "/")+1:])
	g.Expect(guest).NotTo(BeNil(), machine.Spec.ProviderID)
	return guest
}

// isWhatWasAsked compares the Node with the DroverConfig and with what the cloud reports of the
// machine.
func (s *stand) isWhatWasAsked(t *testing.T, machine *clusterv1.Machine) {
	t.Helper()
	g := NewWithT(t)
	node, guest := s.node(t, machine), s.guestOf(t, machine)
	g.Expect(node.Name).To(Equal(machine.Name))
	g.Expect(node.Labels).To(HaveKeyWithValue("example.org/color", "blue"))
	g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelHostname, machine.Name))
	g.Eventually(func() []corev1.Taint { return s.node(t, machine).Spec.Taints }, time.Minute,
		time.Second).Should( // the not-ready taint is removed a moment later
		ConsistOf(corev1.Taint{Key: "example.org/reserved", Value: "yes", Effect: corev1.TaintEffectNoSchedule}))
	g.Expect(node.Spec.ProviderID).To(Equal(machine.Spec.ProviderID))
	if guest.knowsItself() {
		g.Expect(firstWriter(node, "f:providerID")).To(Equal("kubelet"), "it knew its provider ID by itself, from instance data")
	}
	g.Expect(node.Status.Addresses).To(ConsistOf(
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: guest.machine.IP},
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: machine.Name}))
	g.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(machine.Spec.Version))
	g.Expect(node.Status.NodeInfo.OSImage).To(HavePrefix("Debian GNU/Linux 12"))
	g.Expect(node.Status.NodeInfo.ContainerRuntimeVersion).To(HavePrefix("containerd://"))
}

// firstWriter returns the field manager of a field of a Node's spec, or "".
func firstWriter(node *corev1.Node, field string) string {
	for _, m := range node.ManagedFields {
		if m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"`+field+`"`) {
			return m.Manager
		}
	}
	return ""
}

// joinedByTheBook checks that Drover approved the kubelet's requests, and that its token is
// deleted.
func (s *stand) joinedByTheBook(t *testing.T, machine *clusterv1.Machine) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		requests := &certificatesv1.CertificateSigningRequestList{}
		g.Expect(s.nodes.List(t.Context(), requests)).To(Succeed())
		issued := map[string]bool{}
		for _, r := range requests.Items {
			if r.Spec.Username == "system:node:"+machine.Name || strings.HasPrefix(r.Spec.Username, bootstrapapi.BootstrapUserPrefix) {
				issued[r.Spec.SignerName] = issued[r.Spec.SignerName] || len(r.Status.Certificate) > 0
			}
		}
		g.Expect(issued).To(HaveKeyWithValue(certificatesv1.KubeAPIServerClientKubeletSignerName, true))
		g.Expect(issued).To(HaveKeyWithValue(certificatesv1.KubeletServingSignerName, true))
		g.Expect(s.tokens(t, machine)).To(BeEmpty())
	}, time.Minute, 200*time.Millisecond).Should(Succeed())
}

// tokens returns the bootstrap tokens of a machine in the workload cluster.
func (s *stand) tokens(t *testing.T, machine *clusterv1.Machine) (found []corev1.Secret) {
	t.Helper()
	secrets := &corev1.SecretList{}
	NewWithT(t).Expect(s.nodes.List(t.Context(), secrets, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
	for _, secret := range secrets.Items {
		if secret.Type == bootstrapapi.SecretTypeBootstrapToken &&
			secret.Annotations[token.MachineAnnotation] == machine.Namespace+"/"+machine.Name {
			found = append(found, secret)
		}
	}
	return found
}

// runsPod runs a Pod, whose image comes through the registry's mirror. It reads the Pod's output
// from the kubelet, over TLS with the certificate that Drover approved.
func (s *stand) runsPod(t *testing.T, machine *clusterv1.Machine) {
	t.Helper()
	g := NewWithT(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: machine.Name},
		Spec: corev1.PodSpec{
			NodeName: machine.Name, TerminationGracePeriodSeconds: new(int64),
			Containers:  []corev1.Container{{Name: "pause", Image: pauseImage}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	g.Expect(s.nodes.Create(t.Context(), pod)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(s.nodes.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning), "%+v", pod.Status)
		g.Expect(pod.Status.PodIP).To(HavePrefix("10.99.0."))
	}, 2*time.Minute, 500*time.Millisecond).Should(Succeed())
	g.Eventually(func() (string, error) {
		return s.askKubelet(t, machine, "/containerLogs/"+pod.Namespace+"/"+pod.Name+"/pause")
	}, time.Minute, time.Second).Should(Equal("here\n"))
	g.Expect(s.nodes.Delete(t.Context(), pod)).To(Succeed())
}

// keepsLog checks that the log of the first boot is where the documentation says.
func (s *stand) keepsLog(t *testing.T, machine *clusterv1.Machine) {
	t.Helper()
	g := NewWithT(t)
	log, err := s.askKubelet(t, machine, "/logs"+strings.TrimPrefix(render.LogPath, "/var/log"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(log).To(ContainSubstring("drover: Done"))
}

// askKubelet sends a request to a guest's kubelet as an administrator. The kubelet's certificate
// must be valid for the Node's name.
func (s *stand) askKubelet(t *testing.T, machine *clusterv1.Machine, path string) (string, error) {
	t.Helper()
	config, err := rest.TLSConfigFor(s.workload.AdminConfig())
	if err != nil {
		return "", err
	}
	config.ServerName = machine.Name
	kubelet := s.guestOf(t, machine).kubelet
	transport := &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", kubelet)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+machine.Name+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the kubelet answers %s: %s", answer.Status, text)
	}
	return string(text), err
}

// remove deletes the pool's machine, and checks that its guest, its Node and all objects are
// deleted.
func (s *stand) remove(t *testing.T, pool scenario.Pool) {
	t.Helper()
	g := NewWithT(t)
	machine := s.machine(t, g, pool)
	guest := s.guestOf(t, machine)
	g.Expect(s.client.Delete(t.Context(), pool.Deployment())).To(Succeed())
	gone := func(c client.Client, o client.Object) func() bool {
		return func() bool { return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(o), o)) }
	}
	g.Eventually(gone(s.client, machine), 3*time.Minute, time.Second).Should(BeTrue(), "the Machine is still there")
	g.Expect(gone(s.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Name}})()).To(BeTrue(), "the Node is still there")
	g.Eventually(guest.Done(), time.Minute).Should(BeClosed(), "the guest still runs")
}
