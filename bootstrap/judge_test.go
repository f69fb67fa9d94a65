// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/connection"
)

// fakeClient returns one client for both clusters. It holds the objects of the management cluster
// and of the workload cluster.
func fakeClient(t *testing.T, hooks interceptor.Funcs, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme,
		infrav1.AddToScheme, controlplanev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&bootstrapv1.DroverConfig{}).
		WithIndex(&clusterv1.Machine{}, machineByNode, nodeOfMachine).WithInterceptorFuncs(hooks).Build()
}

// request returns the certificate request of the kubelet of the Node blue-1.
func request(t *testing.T, ips ...net.IP) []byte {
	t.Helper()
	return requestOf(t, x509.CertificateRequest{IPAddresses: ips})
}

// requestNamed returns the certificate request of the kubelet of the Node blue-1 for DNS names.
func requestNamed(t *testing.T, names ...string) []byte {
	t.Helper()
	return requestOf(t, x509.CertificateRequest{DNSNames: names})
}

func requestOf(t *testing.T, wanted x509.CertificateRequest) []byte {
	t.Helper()
	wanted.Subject = pkix.Name{CommonName: "system:node:blue-1", Organization: []string{"system:nodes"}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &wanted, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func testCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "blue", UID: "cluster-1"},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.100", Port: 6443}},
	}
}

func testMachine(name string, uid types.UID) *clusterv1.Machine {
	return &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, UID: uid, Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"}},
		Spec: clusterv1.MachineSpec{
			ClusterName: "blue", ProviderID: "simulated:///" + name,
			Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group,
				Kind: "DroverConfig", Name: name}},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine", Name: name},
		},
	}
}

// noKubeconfig is what a CSRReconciler knows of a cluster whose kubeconfig was not used.
func noKubeconfig(client.ObjectKey) string { return "" }

// TestTokenOfAnEarlierMachine: the token of an earlier Machine's VM does not work for a new Machine
// of the same name.
func TestTokenOfAnEarlierMachine(t *testing.T) {
	g := NewWithT(t)
	cluster, earlier := testCluster(), testMachine("blue-1", "machine-1")
	secret := holder(&scope{cluster: cluster, machine: earlier, config: &bootstrapv1.DroverConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "blue-1"},
	}}).Secret("abcdef.0123456789abcdef", time.Now().Add(time.Minute))
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Username:   "system:bootstrap:abcdef", Groups: []string{token.Group},
			Request: request(t),
		},
	}
	for uid, approved := range map[types.UID]bool{"machine-1": true, "machine-2": false} {
		c := fakeClient(t, interceptor.Funcs{}, cluster.DeepCopy(), testMachine("blue-1", uid), secret.DeepCopy())
		r := &CSRReconciler{Client: c, ClusterCache: clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster)),
			APIServer: noKubeconfig}
		v, err := r.judge(t.Context(), cluster, c, csr)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(v.approve).To(Equal(approved), "%s: %s", uid, v.why)
	}
}

// TestProgressNeverBlocks: if RBAC forbids listing certificate requests, their informer never
// syncs, and a read would block.
func TestProgressNeverBlocks(t *testing.T) {
	gvk := certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest")
	informers := func(i toolscache.SharedIndexInformer) *informertest.FakeInformers {
		return &informertest.FakeInformers{InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{gvk: i}}
	}
	for name, c := range map[string]struct {
		cache  *informertest.FakeInformers
		reason string
	}{
		"not watched": {nil, infrav1.NodeMissingReason},
		"not listed":  {informers(controllertest.NewFakeInformer()), infrav1.NodeMissingReason},
		"listed":      {informers(controllertest.NewFakeInformer(controllertest.Synced)), infrav1.NoCertificateRequestReason},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				cluster, machine := testCluster(), testMachine("blue-1", "machine-1")
				workload := fakeClient(t, interceptor.Funcs{List: func(ctx context.Context, inner client.WithWatch, list client.ObjectList,
					o ...client.ListOption) error {
					if _, ok := list.(*certificatesv1.CertificateSigningRequestList); ok && c.reason == infrav1.NodeMissingReason {
						ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // as ClusterCache does
						defer cancel()
						<-ctx.Done()
						return ctx.Err()
					}
					return inner.List(ctx, list, o...)
				}}, cluster, machine)
				clusters := clustercache.NewFakeClusterCache(workload, client.ObjectKeyFromObject(cluster))
				requests := &CSRReconciler{Client: workload, ClusterCache: clusters, APIServer: noKubeconfig}
				if c.cache != nil {
					keeper := cacheKeeper{watcher{}, func(kept cache.Cache) { requests.caches.Store(client.ObjectKeyFromObject(cluster), kept) }}
					g.Expect(keeper.Watch(c.cache)).To(Succeed())
				}
				joining := Joining{Configs: &ConfigReconciler{Client: workload, APIReader: workload, ClusterCache: clusters}, Requests: requests}
				begun := time.Now()
				reason, message, err := joining.Progress(t.Context(), cluster, machine)
				g.Expect(time.Since(begun)).To(BeZero(), "a worker waited")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(reason).To(Equal(c.reason), message)
				g.Expect(strings.Contains(message, "CertificateSigningRequests")).To(Equal(reason == infrav1.NodeMissingReason), message)
			})
		})
	}
}

// watcher does nothing.
type watcher struct{ clustercache.Watcher }

func (watcher) Watch(cache.Cache) error { return nil }

// TestDeletionWithoutFilterLabel: a config with Drover's finalizer and without a watch-filter label
// can be deleted.
func TestDeletionWithoutFilterLabel(t *testing.T) {
	for label, gone := range map[string]bool{"": true, "ours": true, "theirs": false} {
		g := NewWithT(t)
		config := &bootstrapv1.DroverConfig{ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant", Name: "blue-1", UID: "config-1", Finalizers: []string{bootstrapv1.ConfigFinalizer},
		}}
		if label != "" {
			config.Labels = map[string]string{clusterv1.WatchLabel: label}
		}
		c := fakeClient(t, interceptor.Funcs{}, config)
		g.Expect(c.Delete(t.Context(), config)).To(Succeed())
		r := &ConfigReconciler{Client: c, APIReader: c, ClusterCache: clustercache.NewFakeEmptyClusterCache(), WatchFilterValue: "ours"}
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(config)})
		g.Expect(err).NotTo(HaveOccurred())
		err = c.Get(t.Context(), client.ObjectKeyFromObject(config), config)
		g.Expect(err != nil).To(Equal(gone), "label %q", label)
	}
}

// TestServingJudgedByTheCluster: the judge uses the objects of both clusters. blue-1 requests one
// address, which both its infrastructure and its Node report unless the test changes that.
func TestServingJudgedByTheCluster(t *testing.T) {
	type objects struct {
		cluster *clusterv1.Cluster
		machine *clusterv1.Machine
		cloud   *infrav1.DroverMachine
		node    *corev1.Node
	}
	guest := func(o *objects) {
		o.cloud.Status.GuestReportedAddresses = []string{o.cloud.Status.Addresses[0].Address}
	}
	foreign := func(o *objects) {
		o.machine.Spec.InfrastructureRef.Kind, o.machine.Status.Addresses = "AWSMachine", o.cloud.Status.Addresses
		o.cloud.Name, o.cloud.Labels = "elsewhere", nil
	}
	nodeSilent := func(o *objects) { o.node.Status.Addresses = nil }
	for name, c := range map[string]struct {
		asked    string
		change   []func(*objects)
		approved bool
	}{
		"its own":                               {"10.0.0.7", nil, true},
		"its own, and its Node has none yet":    {"10.0.0.7", []func(*objects){nodeSilent}, true},
		"control plane endpoint":                {"192.0.2.100", nil, false},
		"first Service":                         {"10.96.0.1", nil, false},
		"another Service":                       {"10.97.1.1", nil, false},
		"Service kubernetes, outside of ranges": {"10.43.0.1", nil, false},
		"another DroverMachine's":               {"10.0.0.8", nil, false},
		"another Node's":                        {"10.0.0.9", nil, false},
		"of a VM that is gone":                  {"10.0.0.10", nil, true},
		"of a machine of another cluster":       {"10.0.0.11", nil, true},
		"loopback":                              {"127.0.0.1", nil, false},
		"the guest and the Node report it":      {"10.0.0.7", []func(*objects){guest}, true},
		"the guest alone reports it":            {"10.0.0.7", []func(*objects){guest, nodeSilent}, false},
		"the Machine has an old copy": {"10.0.0.7", []func(*objects){func(o *objects) {
			o.machine.Status.Addresses, o.cloud.Status.Addresses[0].Address = o.cloud.DeepCopy().Status.Addresses, "10.0.0.70"
		}}, false},
		"another provider and the Node": {"10.0.0.7", []func(*objects){foreign}, true},
		"another provider alone":        {"10.0.0.7", []func(*objects){foreign, nodeSilent}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := &objects{testCluster(), testMachine("blue-1", "machine-1"), droverMachine("blue-1", c.asked), testNode("blue-1", c.asked)}
			o.cluster.Spec.ClusterNetwork.Services.CIDRBlocks = []string{"10.96.0.0/12"}
			for _, change := range c.change {
				change(o)
			}
			gone, elsewhere := droverMachine("blue-3", "10.0.0.10"), droverMachine("red-1", "10.0.0.11")
			gone.Status.InstanceState = infrav1.InstanceStateGone
			elsewhere.Labels[clusterv1.ClusterNameLabel] = "red"
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
				Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.43.0.1"}}}
			all := fakeClient(t, interceptor.Funcs{}, o.cluster, o.machine, o.cloud, o.node, service, gone, elsewhere,
				droverMachine("blue-2", "10.0.0.8"), testNode("other", "10.0.0.9"))
			r := &CSRReconciler{Client: all, ClusterCache: clustercache.NewFakeClusterCache(all, client.ObjectKeyFromObject(o.cluster)),
				APIServer: noKubeconfig}
			v, err := r.judge(t.Context(), o.cluster, all, servingRequest(t, c.asked))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(v.approve).To(Equal(c.approved), v.why)
		})
	}
}

// TestReservedNodeName: a machine whose Node would have a name of the cluster's own DNS gets no
// certificate. The Cluster says which domain that is.
func TestReservedNodeName(t *testing.T) {
	for domain, approved := range map[string]bool{"": true, "example.org": true, "blue-1": false, "BLUE-1.": false} {
		t.Run(domain, func(t *testing.T) {
			g := NewWithT(t)
			cluster, machine := testCluster(), testMachine("blue-1", "machine-1")
			cluster.Spec.ClusterNetwork.ServiceDomain = domain
			machine.Status.NodeRef.Name = "blue-1"
			c := fakeClient(t, interceptor.Funcs{}, cluster, machine, droverMachine("blue-1", "10.0.0.7"), testNode("blue-1", "10.0.0.7"))
			r := &CSRReconciler{Client: c, ClusterCache: clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster)),
				APIServer: noKubeconfig}
			serving := servingRequest(t, "10.0.0.7")
			serving.Spec.Request = requestNamed(t, "blue-1")
			for _, csr := range []*certificatesv1.CertificateSigningRequest{renewalRequest(t), serving} {
				v, err := r.judge(t.Context(), cluster, c, csr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(v.approve).To(Equal(approved), v.why)
			}
		})
	}
}

// TestOthersMachines: certificates are judged only for machines whose infrastructure or bootstrap
// provider is Drover, and requests are watched only in clusters that have something of Drover's.
func TestOthersMachines(t *testing.T) {
	aws := func(m *clusterv1.Machine) { m.Spec.InfrastructureRef.Kind = "AWSMachine" }
	kubeadm := func(m *clusterv1.Machine) {
		m.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig",
			Name: m.Name}
	}
	byHand := func(m *clusterv1.Machine) { m.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: new("data")} }
	ref := func(group, kind string) clusterv1.ContractVersionedObjectReference {
		return clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: "blue"}
	}
	awsCluster := ref("infrastructure.cluster.x-k8s.io", "AWSCluster")
	kubeadmPlane := ref("controlplane.cluster.x-k8s.io", "KubeadmControlPlane")
	type changes = []func(*clusterv1.Machine)
	for name, c := range map[string]struct {
		infrastructure, controlPlane clusterv1.ContractVersionedObjectReference
		machine                      changes
		watched, judged              bool
	}{
		"another provider's cluster and machine": {awsCluster, kubeadmPlane, changes{aws, kubeadm}, false, false},
		"another provider's user data by hand":   {awsCluster, kubeadmPlane, changes{aws, byHand}, false, false},
		"a kind of the same name": {ref("example.org", "DroverCluster"), ref("example.org", "AdoptedControlPlane"),
			changes{aws, kubeadm}, false, false},
		"another provider's machine in Drover's cluster": {
			ref(infrav1.GroupVersion.Group, "DroverCluster"), kubeadmPlane, changes{aws, kubeadm}, true, false,
		},
		"another provider's machine in an adopted cluster": {
			awsCluster, ref(controlplanev1.GroupVersion.Group, "AdoptedControlPlane"), changes{aws, kubeadm}, true, false,
		},
		"Drover's infrastructure": {awsCluster, kubeadmPlane, changes{kubeadm}, true, true},
		"Drover's bootstrap":      {awsCluster, kubeadmPlane, changes{aws}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster, machine := testCluster(), testMachine("blue-1", "machine-1")
			cluster.Spec.InfrastructureRef, cluster.Spec.ControlPlaneRef = c.infrastructure, c.controlPlane
			for _, change := range c.machine {
				change(machine)
			}
			machine.Status.NodeRef.Name = "blue-1"
			machine.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.7"}}
			objects := []client.Object{cluster, machine, testNode("blue-1", "10.0.0.7")}
			if onDroverMachine(machine) {
				objects = append(objects, droverMachine("blue-1", "10.0.0.7"))
			}
			all := fakeClient(t, interceptor.Funcs{}, objects...)
			clusters := &watchedClusters{ClusterCache: clustercache.NewFakeClusterCache(all, client.ObjectKeyFromObject(cluster))}
			r := &CSRReconciler{Client: all, ClusterCache: clusters, APIServer: noKubeconfig}

			_, err := r.watch(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(clusters.watches > 0).To(Equal(c.watched))
			g.Expect(len(clusterOfMachine(t.Context(), machine)) > 0).To(Equal(c.judged), "a Machine that comes later starts the watch")

			for _, csr := range []*certificatesv1.CertificateSigningRequest{renewalRequest(t), servingRequest(t, "10.0.0.7")} {
				v, err := r.judge(t.Context(), cluster, all, csr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(v.approve).To(Equal(c.judged), v.why)
				if !c.judged {
					g.Expect(v).To(Equal(verdict{}), "it says something about others' requests")
				}
			}
		})
	}
}

// watchedClusters counts the watches.
type watchedClusters struct {
	clustercache.ClusterCache
	watches int
}

func (w *watchedClusters) Watch(context.Context, client.ObjectKey, clustercache.Watcher) error {
	w.watches++
	return nil
}

// TestCertificateLifetime: a request for a longer lifetime than the DroverConfig permits is not
// approved. Requests for no lifetime, as kubelets send them, are.
func TestCertificateLifetime(t *testing.T) {
	for name, c := range map[string]struct {
		limit     int32
		requested *int32
		approved  bool
	}{
		"no limit":       {0, new(int32(315360000)), true},
		"none requested": {3600, nil, true},
		"less":           {3600, new(int32(600)), true},
		"as much":        {3600, new(int32(3600)), true},
		"more":           {3600, new(int32(3601)), false},
		"a year":         {86400, new(int32(31536000)), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster, machine := testCluster(), testMachine("blue-1", "machine-1")
			machine.Status.NodeRef.Name = "blue-1"
			config := &bootstrapv1.DroverConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "blue-1"}}
			config.Spec.MaxCertificateSeconds = c.limit
			secret := holder(&scope{cluster: cluster, machine: machine, config: config}).Secret("abcdef.0123456789abcdef",
				time.Now().Add(time.Minute))
			all := fakeClient(t, interceptor.Funcs{}, cluster, machine, config, secret, droverMachine("blue-1", "10.0.0.7"),
				testNode("blue-1", "10.0.0.7"))
			r := &CSRReconciler{Client: all, ClusterCache: clustercache.NewFakeClusterCache(all, client.ObjectKeyFromObject(cluster)),
				APIServer: noKubeconfig}
			first := renewalRequest(t)
			first.Spec.Username, first.Spec.Groups = "system:bootstrap:abcdef", []string{token.Group}
			for _, csr := range []*certificatesv1.CertificateSigningRequest{first, renewalRequest(t), servingRequest(t, "10.0.0.7")} {
				csr.Spec.ExpirationSeconds = c.requested
				v, err := r.judge(t.Context(), cluster, all, csr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(v.approve).To(Equal(c.approved), v.why)
			}
		})
	}
}

// TestMachineNamedAsAnotherNode: a Machine whose name is another machine's Node does not keep that
// Node from renewing its certificate. A Node with the name of one machine that is linked to another
// one gets no serving certificate for the addresses of the other.
func TestMachineNamedAsAnotherNode(t *testing.T) {
	named, linked := testMachine("blue-1", "machine-2"), testMachine("machine-3", "machine-3")
	linked.Status.NodeRef.Name = "blue-1"
	for name, c := range map[string]struct {
		host             string // that the cloud reports for the machine that is linked to the Node blue-1
		other            *clusterv1.Machine
		renewal, serving bool
	}{
		"alone":                         {renewal: true, serving: true},
		"with a host name":              {host: "blue-1", other: named, renewal: true, serving: true},
		"with a name that is not known": {other: named, renewal: true},
		"another one is linked, too":    {other: linked},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster, machine, cloud, node := testCluster(), testMachine("machine-1", "machine-1"), droverMachine("machine-1", "10.0.0.7"),
				testNode("blue-1", "10.0.0.7")
			machine.Status.NodeRef.Name = "blue-1"
			if c.host != "" {
				cloud.Status.Addresses = append(cloud.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: c.host})
			}
			objects := []client.Object{cluster, machine, cloud, node}
			if c.other != nil {
				objects = append(objects, c.other)
			}
			all := fakeClient(t, interceptor.Funcs{}, objects...)
			r := &CSRReconciler{Client: all, ClusterCache: clustercache.NewFakeClusterCache(all, client.ObjectKeyFromObject(cluster)),
				APIServer: noKubeconfig}
			v, err := r.judge(t.Context(), cluster, all, renewalRequest(t))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(v.approve).To(Equal(c.renewal), v.why)
			v, err = r.judge(t.Context(), cluster, all, servingRequest(t, "10.0.0.7"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(v.approve).To(Equal(c.serving), v.why)
		})
	}
}

// TestServiceMayNotBeRead: without the right to read the Service, the controller tries once, and
// still approves certificates.
func TestServiceMayNotBeRead(t *testing.T) {
	g := NewWithT(t)
	asked := 0
	cluster := testCluster()
	c := fakeClient(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
		opts ...client.GetOption) error {
		if _, ok := o.(*corev1.Service); ok {
			asked++
			return apierrors.NewForbidden(corev1.Resource("services"), key.Name, nil)
		}
		return c.Get(ctx, key, o, opts...)
	}}, cluster, testMachine("blue-1", "machine-1"), droverMachine("blue-1", "10.0.0.7"), testNode("blue-1", "10.0.0.7"))
	r := &CSRReconciler{Client: c, ClusterCache: clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster)),
		APIServer: noKubeconfig, Watches: &connection.Watches{}}
	for range 2 {
		v, err := r.judge(t.Context(), cluster, c, servingRequest(t, "10.0.0.7"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(v.approve).To(BeTrue(), v.why)
	}
	g.Expect(asked).To(Equal(1))

	// The state of a Cluster is dropped when the Cluster is deleted.
	r.reported.Store(CSRRequest{Cluster: client.ObjectKeyFromObject(cluster), Name: "csr-1"}, report{})
	g.Expect(c.Delete(t.Context(), cluster)).To(Succeed())
	_, err := r.watch(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
	g.Expect(err).NotTo(HaveOccurred())
	for _, m := range []*sync.Map{&r.services, &r.reported, &r.caches} {
		m.Range(func(key, _ any) bool {
			t.Errorf("%v is still known", key)
			return true
		})
	}
}

// TestDecisionsAreRecorded: the log says once of each request that it was approved, or why not.
func TestDecisionsAreRecorded(t *testing.T) {
	g := NewWithT(t)
	cluster, approved, refused := testCluster(), servingRequest(t, "10.0.0.7"), servingRequest(t, "10.0.0.8")
	approved.Name, refused.Name = "approved", "refused"
	approval := interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, _ string, o client.Object,
		_ ...client.SubResourceUpdateOption) error {
		return c.Status().Update(ctx, o)
	}}
	c := fakeClient(t, approval, cluster, testMachine("blue-1", "machine-1"), droverMachine("blue-1", "10.0.0.7"),
		testNode("blue-1", "10.0.0.7"), approved, refused)
	var log []string
	r := &CSRReconciler{
		Client: c, ClusterCache: clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster)), APIServer: noKubeconfig,
		Recorder: events.NewFakeRecorder(10),
		Log:      funcr.New(func(_, line string) { log = append(log, line) }, funcr.Options{}),
	}
	for range 2 {
		for _, name := range []string{"approved", "refused"} {
			_, err := r.Reconcile(t.Context(), CSRRequest{Cluster: client.ObjectKeyFromObject(cluster), Name: name})
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(log).To(HaveExactElements(
		And(ContainSubstring(`"Approved the certificate request"`), ContainSubstring(`"certificate"="approved"`),
			ContainSubstring(`"cluster"="tenant/blue"`)),
		And(ContainSubstring(`"The certificate request is not approved"`), ContainSubstring(`"certificate"="refused"`),
			ContainSubstring("10.0.0.8")),
	))
}

func servingRequest(t *testing.T, ip string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: certificatesv1.KubeletServingSignerName,
		Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		Username:   "system:node:blue-1", Groups: []string{"system:nodes"}, Request: request(t, net.ParseIP(ip)),
	}}
}

func renewalRequest(t *testing.T) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		Username:   "system:node:blue-1", Groups: []string{"system:nodes"}, Request: request(t),
	}}
}

func droverMachine(name, address string) *infrav1.DroverMachine {
	out := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name,
		Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"}}}
	out.Spec.ProviderID = "simulated:///" + name
	out.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: address}}
	return out
}

func testNode(name, address string) *corev1.Node {
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "simulated:///" + name}}
	out.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	return out
}
