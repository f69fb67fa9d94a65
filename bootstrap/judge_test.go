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
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/bootstrap/token"
)

// fakeClient is a client of both clusters: the management cluster's objects and the workload cluster's lie in one.
func fakeClient(t *testing.T, hooks interceptor.Funcs, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&bootstrapv1.CloudInitConfig{}).
		WithIndex(&clusterv1.Machine{}, machineByNode, nodeOfMachine).WithInterceptorFuncs(hooks).Build()
}

// request is what the kubelet of the Node blue-1 sends.
func request(t *testing.T, ips ...net.IP) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:blue-1", Organization: []string{"system:nodes"}}, IPAddresses: ips,
	}, key)
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
			Bootstrap:         clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "CloudInitConfig", Name: name}},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "CloudMachine", Name: name},
		},
	}
}

// TestTokenOfAnEarlierMachine: a Machine that was made anew under the name of another one is not joined by that one's VM.
func TestTokenOfAnEarlierMachine(t *testing.T) {
	g := NewWithT(t)
	cluster, earlier := testCluster(), testMachine("blue-1", "machine-1")
	secret := holder(&scope{cluster: cluster, machine: earlier, config: &bootstrapv1.CloudInitConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "blue-1"},
	}}).Secret("abcdef.0123456789abcdef", time.Now().Add(time.Minute))
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Username: "system:bootstrap:abcdef", Groups: []string{token.Group},
			Request: request(t),
		},
	}
	for uid, approved := range map[types.UID]bool{"machine-1": true, "machine-2": false} {
		c := fakeClient(t, interceptor.Funcs{}, cluster.DeepCopy(), testMachine("blue-1", uid), secret.DeepCopy())
		r := &CSRReconciler{Client: c, ClusterCache: clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster))}
		v, err := r.judge(t.Context(), cluster, c, csr)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(v.approve).To(Equal(approved), "%s: %s", uid, v.why)
	}
}

// TestProgressNeverBlocks: where certificate requests may not be listed, their informer never syncs, and a read waits for it.
func TestProgressNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cluster, machine := testCluster(), testMachine("blue-1", "machine-1")
		c := fakeClient(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, ok := list.(*certificatesv1.CertificateSigningRequestList); ok {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // as ClusterCache has it
				defer cancel()
				<-ctx.Done()
				return ctx.Err()
			}
			return c.List(ctx, list, o...)
		}}, cluster, machine)
		cache := clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster))
		joining := Joining{
			Configs:  &ConfigReconciler{Client: c, APIReader: c, ClusterCache: cache},
			Requests: &CSRReconciler{Client: c, ClusterCache: cache},
		}
		begun := time.Now()
		reason, message, err := joining.Progress(t.Context(), cluster, machine)
		g.Expect(time.Since(begun)).To(BeZero(), "a worker waited")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reason).To(Equal(infrav1.NodeMissingReason))
		g.Expect(message).To(ContainSubstring("CertificateSigningRequests"))
	})
}

// TestDeletionWithoutFilterLabel: a config that has our finalizer and no watch-filter label can be deleted.
func TestDeletionWithoutFilterLabel(t *testing.T) {
	for label, gone := range map[string]bool{"": true, "ours": true, "theirs": false} {
		g := NewWithT(t)
		config := &bootstrapv1.CloudInitConfig{ObjectMeta: metav1.ObjectMeta{
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

// TestServingJudgedByTheCluster: what the judge is told of the cluster is what is there.
func TestServingJudgedByTheCluster(t *testing.T) {
	cloudMachine := func(name string, addresses ...string) *infrav1.CloudMachine {
		out := &infrav1.CloudMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"}}}
		out.Spec.ProviderID = "simulated:///" + name
		for _, a := range addresses {
			out.Status.Addresses = append(out.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: a})
		}
		return out
	}
	node := func(name string, addresses ...string) *corev1.Node {
		out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "simulated:///" + name}}
		for _, a := range addresses {
			out.Status.Addresses = append(out.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return out
	}
	cluster := testCluster()
	cluster.Spec.ClusterNetwork.Services.CIDRBlocks = []string{"10.96.0.0/12"}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.43.0.1"}}}
	for asked, approved := range map[string]bool{
		"10.0.0.7": true, "192.0.2.100": false, "10.96.0.1": false, "10.97.1.1": false, "10.43.0.1": false, "10.0.0.8": false, "10.0.0.9": false,
		"127.0.0.1": false, "169.254.169.254": false, "0.0.0.0": false, "224.0.0.1": false,
	} {
		g := NewWithT(t)
		c := fakeClient(t, interceptor.Funcs{}, cluster.DeepCopy(), service.DeepCopy(), testMachine("blue-1", "machine-1"),
			cloudMachine("blue-1", asked), cloudMachine("blue-2", "10.0.0.8"), node("blue-1", asked), node("other", "10.0.0.9"))
		r := &CSRReconciler{Client: c, ClusterCache: clustercache.NewFakeClusterCache(c, client.ObjectKeyFromObject(cluster))}
		v, err := r.judge(t.Context(), cluster, c, &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			Username: "system:node:blue-1", Groups: []string{"system:nodes"},
			Request: request(t, net.ParseIP(asked)),
		}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(v.approve).To(Equal(approved), "%s: %s", asked, v.why)
	}
}
