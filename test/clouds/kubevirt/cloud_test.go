// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	driver "github.com/drover-io/drover/cloud/kubevirt"
	"github.com/drover-io/drover/test/internal/virt"
)

// namespace is the namespace of the book's Role.
const namespace = "blue-machines"

// infra is the cluster that runs the VMs. All tests share it.
var infra *cluster

// cluster is the infrastructure cluster with Drover's user.
type cluster struct {
	*virt.Cluster
	// kubeconfig is Drover's kubeconfig, with the permissions from the book.
	kubeconfig []byte
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	code := 1
	started, err := virt.Start(ctx)
	if err == nil {
		infra = &cluster{Cluster: started}
		if err = infra.makeTenant(ctx); err == nil {
			code = m.Run()
		}
		err = errors.Join(err, started.Stop())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// restart restarts the API server, and virt-controller, which exits when the API server restarts on
// a busy computer.
func (c *cluster) restart(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(c.RestartAPIServer(withoutEnd(t))).To(Succeed())
	NewWithT(t).Expect(c.KubeVirt.RestartController(withoutEnd(t), c.ControlPlane)).To(Succeed())
}

// makeTenant creates the namespace and an instancetype in it.
func (c *cluster) makeTenant(ctx context.Context) error {
	if err := c.NewTenant(ctx, namespace); err != nil {
		return err
	}
	small := &instancetypev1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
		Spec: instancetypev1.VirtualMachineInstancetypeSpec{CPU: instancetypev1.CPUInstancetype{Guest: 2},
			Memory: instancetypev1.MemoryInstancetype{Guest: *mebibytes(512)}}}
	if err := c.Admin.Create(ctx, small); err != nil {
		return fmt.Errorf("make the instancetype: %w", err)
	}
	var err error
	c.kubeconfig, err = c.ServiceAccountKubeconfig(ctx, namespace, virt.User)
	return err
}

func mebibytes(n int64) *resource.Quantity { return resource.NewQuantity(n<<20, resource.BinarySI) }

// account returns the spec of an account at the infrastructure cluster.
func account(domains ...infrav1.KubeVirtFailureDomain) *infrav1.DroverAccountSpec {
	return &infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "kubevirt"},
		Cloud:          infrav1.AccountCloud{KubeVirt: &infrav1.KubeVirtAccount{Namespace: namespace, FailureDomains: domains}},
	}
}

func credentials() map[string][]byte { return map[string][]byte{"kubeconfig": infra.kubeconfig} }

// badCredentials returns well-formed credentials that the API server refuses.
func badCredentials(t testing.TB) map[string][]byte {
	config, err := clientcmd.Load(infra.kubeconfig)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, user := range config.AuthInfos {
		user.Token = "marked-but-wrong"
	}
	bad, err := clientcmd.Write(*config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return map[string][]byte{"kubeconfig": bad}
}

// machine returns a small machine. The stand-in nodes start every machine.
func machine(change func(*infrav1.KubeVirtMachine)) *infrav1.DroverMachineFields {
	m := &infrav1.KubeVirtMachine{
		CPU: infrav1.KubeVirtCPU{Cores: 1}, MemoryMiB: 128, Architecture: "amd64",
		RootDisk: infrav1.KubeVirtRootDisk{ContainerDisk: &infrav1.KubeVirtContainerDisk{Image: "registry.example.com/node:1"}},
	}
	if change != nil {
		change(m)
	}
	return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: m}}
}

// counted counts calls by name, and can make a call fail before or after it is sent.
type counted struct {
	http.RoundTripper
	mu     sync.Mutex
	calls  map[string]int
	before func(op string) error
	after  func(op string) error
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context()).Name
	c.mu.Lock()
	if c.calls == nil {
		c.calls = map[string]int{}
	}
	c.calls[op]++
	before, after := c.before, c.after
	c.mu.Unlock()
	if before != nil {
		if err := before(op); err != nil {
			return nil, err
		}
	}
	resp, err := c.RoundTripper.RoundTrip(req)
	if err == nil && after != nil {
		if err = after(op); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, err
}

func (c *counted) count(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[op]
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = nil
}

// connect returns a driver whose calls are counted.
func connect(t testing.TB, spec *infrav1.DroverAccountSpec) (cloud.Driver, *counted) {
	t.Helper()
	return connectBy(t, spec, credentials())
}

func connectBy(t testing.TB, spec *infrav1.DroverAccountSpec, credentials map[string][]byte) (cloud.Driver, *counted) {
	t.Helper()
	g := NewWithT(t)
	row := driver.Cloud()
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	calls := &counted{}
	d, err := row.New(cloud.Config{Account: spec, Credentials: credentials, Connect: func(trust *tls.Config) (http.RoundTripper, error) {
		carrier, err := cloud.Connect(base, trust)
		calls.RoundTripper = carrier
		return calls, err
	}})
	g.Expect(err).NotTo(HaveOccurred())
	return d, calls
}

// left returns the kinds and names of everything with the ownership ID.
func (c *cluster) left(t testing.TB, owner string) (found []string) {
	t.Helper()
	for _, kind := range []struct {
		name string
		list client.ObjectList
	}{
		{"VM", &kubevirtv1.VirtualMachineList{}}, {"VMI", &kubevirtv1.VirtualMachineInstanceList{}}, {"DataVolume", &cdiv1.DataVolumeList{}},
		{"Secret", &corev1.SecretList{}}, {"Service", &corev1.ServiceList{}}, {"EndpointSlice", &discoveryv1.EndpointSliceList{}},
	} {
		g := NewWithT(t)
		g.Expect(c.Admin.List(withoutEnd(t), kind.list, client.InNamespace(namespace),
			client.MatchingLabels{cloud.TagOwnership: owner})).To(Succeed())
		g.Expect(meta.EachListItem(kind.list, func(o runtime.Object) error {
			found = append(found, kind.name+" "+o.(client.Object).GetName())
			return nil
		})).To(Succeed())
	}
	return found
}

// until polls until ok returns true. The limit is high because a busy computer takes minutes.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	NewWithT(t).Eventually(ok, 10*time.Minute, 100*time.Millisecond).Should(BeTrue(), what)
}

// withoutEnd returns a context for cleanups, which run after the test's context has ended.
func withoutEnd(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }
