// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	driver "github.com/drover-io/drover/cloud/kubevirt"
	"github.com/drover-io/drover/test/playground"
)

// namespace is what the book's Role is for.
const namespace = "blue-machines"

// infra is the cluster that runs the VMs, which all tests share.
var infra *cluster

// cluster is a control plane with KubeVirt, and a hand behind the driver's back.
type cluster struct {
	*playground.ControlPlane
	kubevirt *playground.KubeVirt
	admin    client.WithWatch
	nodes    *nodes
	// kubeconfig is Drover's, with the rights that the book gives it.
	kubeconfig []byte
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var err error
	if infra, err = startCluster(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer infra.stop()
	return m.Run()
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kubevirtv1.AddToScheme, cdiv1.AddToScheme, instancetypev1.AddToScheme} {
		utilruntime.Must(add(s))
	}
	return s
}

func startCluster(ctx context.Context) (_ *cluster, err error) {
	c := &cluster{}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	c.ControlPlane, err = playground.StartControlPlane(ctx, playground.ControlPlaneOptions{
		Name: "infra", Progress: os.Stderr,
		// virt-api wants to know who may speak for others, and nobody may.
		APIServerArgs: []string{"--requestheader-client-ca-file=pki/ca.crt", "--requestheader-allowed-names=nobody",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group"},
	})
	if err != nil {
		return nil, err
	}
	if c.kubevirt, err = c.StartKubeVirt(ctx, os.Stderr); err != nil {
		return nil, err
	}
	if c.admin, err = client.NewWithWatch(c.AdminConfig(), client.Options{Scheme: scheme()}); err != nil {
		return nil, err
	}
	if c.nodes, err = startNodes(ctx, c); err != nil {
		return nil, err
	}
	return c, c.makeTenant(ctx)
}

func (c *cluster) stop() {
	if c.nodes != nil {
		c.nodes.stop()
	}
	if c.kubevirt != nil {
		c.kubevirt.Stop()
	}
	if c.ControlPlane != nil {
		if err := c.ControlPlane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// restart restarts the API server, and virt-controller, which does not survive that on a busy computer.
func (c *cluster) restart(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(c.RestartAPIServer(withoutEnd(t))).To(Succeed())
	NewWithT(t).Expect(c.kubevirt.RestartController(withoutEnd(t), c.ControlPlane)).To(Succeed())
}

// makeTenant makes the namespace, and in it Drover's user with no more rights than the book asks for.
func (c *cluster) makeTenant(ctx context.Context) error {
	role, err := bookRole()
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "drover"}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		role,
		&corev1.ServiceAccount{ObjectMeta: meta},
		binding(meta),
		&instancetypev1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
			Spec: instancetypev1.VirtualMachineInstancetypeSpec{CPU: instancetypev1.CPUInstancetype{Guest: 2}, Memory: instancetypev1.MemoryInstancetype{Guest: *mebibytes(512)}}},
	} {
		if err := c.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	c.kubeconfig, err = c.ServiceAccountKubeconfig(ctx, namespace, "drover")
	return err
}

// binding gives Drover's user the Role of the same name.
func binding(meta metav1.ObjectMeta) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "drover"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "drover"}}}
}

// bookRole is the Role that docs/clouds/kubevirt.md prints.
func bookRole() (*rbacv1.Role, error) {
	book, err := os.ReadFile("../../docs/clouds/kubevirt.md")
	if err != nil {
		return nil, err
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(book), -1) {
		for _, text := range strings.Split(block[1], "---\n") {
			role := &rbacv1.Role{}
			if strings.Contains(text, "kind: Role\n") {
				return role, yaml.UnmarshalStrict([]byte(text), role)
			}
		}
	}
	return nil, fmt.Errorf("the book has no Role")
}

// account is the driver's at the infrastructure cluster.
func account(domains ...infrav1.KubeVirtFailureDomain) *infrav1.CloudAccountSpec {
	return &infrav1.CloudAccountSpec{
		CredentialsRef: &infrav1.LocalReference{Name: "kubevirt"},
		KubeVirt:       &infrav1.KubeVirtAccount{Namespace: namespace, FailureDomains: domains},
	}
}

func credentials() map[string][]byte { return map[string][]byte{"kubeconfig": infra.kubeconfig} }

// badCredentials are well-formed, and not the API server's.
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

// machine is a small one; the stand-in nodes start whatever they get.
func machine(change func(*infrav1.KubeVirtMachine)) *infrav1.CloudMachineFields {
	m := &infrav1.KubeVirtMachine{
		CPU: &infrav1.KubeVirtCPU{Cores: 1}, MemoryMiB: 128, Architecture: "amd64",
		RootDisk: infrav1.KubeVirtRootDisk{ContainerDisk: &infrav1.KubeVirtContainerDisk{Image: "registry.example.com/node:1"}},
	}
	if change != nil {
		change(m)
	}
	return &infrav1.CloudMachineFields{KubeVirt: m}
}

// counted counts the calls that go through it, by their names, and may stand in the way of one.
type counted struct {
	http.RoundTripper
	mu     sync.Mutex
	calls  map[string]int
	before func(op string) error
	after  func(op string) error
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	op, _, _ := cloud.OperationOf(req.Context())
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

// connect makes a driver whose calls are counted.
func connect(t testing.TB, spec *infrav1.CloudAccountSpec) (cloud.Driver, *counted) {
	t.Helper()
	return connectBy(t, spec, credentials())
}

func connectBy(t testing.TB, spec *infrav1.CloudAccountSpec, credentials map[string][]byte) (cloud.Driver, *counted) {
	t.Helper()
	g := NewWithT(t)
	row := driver.Cloud()
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	carrier, err := row.Trusting(base, spec, credentials)
	g.Expect(err).NotTo(HaveOccurred())
	calls := &counted{RoundTripper: carrier}
	d, err := row.New(cloud.Config{Account: spec, Credentials: credentials, Transport: calls})
	g.Expect(err).NotTo(HaveOccurred())
	return d, calls
}

// left are the names of all that carries the ownership ID.
func (c *cluster) left(t testing.TB, owner string) (found []string) {
	t.Helper()
	for _, list := range []client.ObjectList{&kubevirtv1.VirtualMachineList{}, &kubevirtv1.VirtualMachineInstanceList{}, &cdiv1.DataVolumeList{}, &corev1.SecretList{}} {
		err := c.admin.List(withoutEnd(t), list, client.InNamespace(namespace), client.MatchingLabels{cloud.TagOwnership: owner})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		items := list
		switch l := items.(type) {
		case *kubevirtv1.VirtualMachineList:
			for _, o := range l.Items {
				found = append(found, "VM "+o.Name)
			}
		case *kubevirtv1.VirtualMachineInstanceList:
			for _, o := range l.Items {
				found = append(found, "VMI "+o.Name)
			}
		case *cdiv1.DataVolumeList:
			for _, o := range l.Items {
				found = append(found, "DataVolume "+o.Name)
			}
		case *corev1.SecretList:
			for _, o := range l.Items {
				found = append(found, "Secret "+o.Name)
			}
		}
	}
	return found
}

// until asks as long as it takes to come true. The bound is for what never comes: a busy computer takes minutes.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	NewWithT(t).Eventually(ok, 10*time.Minute, 100*time.Millisecond).Should(BeTrue(), what)
}

// withoutEnd is for cleanups, which come after the test's context has ended.
func withoutEnd(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }
