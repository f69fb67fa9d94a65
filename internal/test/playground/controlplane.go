// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// startDeadline is many times what a start takes, because the computer may be busy. A program that
// ends before it is ready is noticed at once.
const startDeadline = 3 * time.Minute

// ControlPlaneOptions configure a ControlPlane. The zero value is valid.
type ControlPlaneOptions struct {
	// Name is the name of the cluster in kubeconfigs. Default: "playground".
	Name string
	// Dir is the folder for data, certificates and logs. By default it is a new folder, which Stop
	// removes.
	Dir string
	// Tools are the programs to run. hack/tool provides the missing ones.
	Tools Tools
	// Progress receives the output of hack/tool while it builds. By default it is discarded.
	Progress io.Writer
	// Addresses are additional addresses at which machines reach the API server through a network
	// of their own. Its certificate therefore names them. The server still listens only on
	// 127.0.0.1.
	Addresses []net.IP
	// APIServerArgs and ControllerManagerArgs are appended to the command lines, for example
	// "--node-monitor-grace-period=10s" for the latter.
	APIServerArgs, ControllerManagerArgs []string
	// Controllers are the controllers that kube-controller-manager runs. Default:
	// DefaultControllers.
	Controllers []string
	// NoControllerManager omits kube-controller-manager. Nothing then approves, signs,
	// garbage-collects or aggregates.
	NoControllerManager bool
}

// DefaultControllers returns the controllers that a cluster needs for namespaces, nodes, their
// certificates and tokens, pods on them, workloads that create pods, and aggregated roles. The
// approval of certificate requests is omitted, because that is Drover's job. There is no scheduler
// either: give pods a nodeName.
func DefaultControllers() []string {
	return []string{
		"bootstrap-signer-controller",
		"certificatesigningrequest-cleaner-controller",
		"certificatesigningrequest-signing-controller",
		"clusterrole-aggregation-controller",
		"daemonset-controller",
		"deployment-controller",
		"disruption-controller",
		"garbage-collector-controller",
		"namespace-controller",
		"node-lifecycle-controller",
		"pod-garbage-collector-controller",
		"replicaset-controller",
		"root-ca-certificate-publisher-controller",
		"serviceaccount-controller",
		"taint-eviction-controller",
		"token-cleaner-controller",
	}
}

// etcdFolder is the folder of etcd's data in a control plane's folder.
const etcdFolder = "etcd"

// ControlPlane is a Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager.
// Users authenticate with a client certificate, service account token or bootstrap token, and are
// authorized by Node and RBAC.
type ControlPlane struct {
	// Name is the cluster's name, Dir the folder with its data and logs, and URL the API server's
	// address.
	Name, Dir, URL string

	opts    ControlPlaneOptions
	ca      *authority
	admin   *rest.Config
	ownsDir bool

	etcd, apiServer, controllerManager, scheduler, autoscaler *Process
}

// StartControlPlane starts a control plane and returns once it serves. The context bounds only the
// start: always call Stop at the end, also after a failed test.
func StartControlPlane(ctx context.Context, opts ControlPlaneOptions) (_ *ControlPlane, err error) {
	c := &ControlPlane{Name: opts.Name, opts: opts}
	if c.Name == "" {
		c.Name = "playground"
	}
	if len(c.opts.Controllers) == 0 {
		c.opts.Controllers = DefaultControllers()
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the control plane %s: %w", c.Name, err), c.Stop())
		}
	}()
	if c.Dir, c.ownsDir, err = folder(opts.Dir); err != nil {
		return nil, err
	}
	needs := []string{"etcd", "kube-apiserver"}
	if !opts.NoControllerManager {
		needs = append(needs, "kube-controller-manager")
	}
	if c.opts.Tools, err = opts.Tools.with(ctx, opts.Progress, needs...); err != nil {
		return nil, err
	}
	if err := c.issueCertificates(); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return nil, err
	}
	c.apiServer, err = onFreePorts(1, func(ports []int) (*Process, error) {
		c.URL = "https://" + local(ports[0])
		return c.runAPIServer(ctx)
	})
	if err != nil {
		return nil, err
	}
	raw, err := c.Kubeconfig("playground-admin", "system:masters")
	if err != nil {
		return nil, err
	}
	if err := c.connect(raw); err != nil {
		return nil, err
	}
	if opts.NoControllerManager {
		return c, nil
	}
	return c, c.startControllerManager(ctx)
}

// existing returns a control plane that runs elsewhere, without processes. Its CA signs only the
// certificates of webhooks.
func existing(config *rest.Config, opts ControlPlaneOptions) (*ControlPlane, error) {
	c := &ControlPlane{Name: opts.Name, URL: config.Host, opts: opts}
	var err error
	if c.Dir, c.ownsDir, err = folder(opts.Dir); err != nil {
		return nil, err
	}
	if c.ca, err = newAuthority(c.Name + "-webhooks"); err != nil {
		return c, err
	}
	raw, err := kubeconfig(c.Name, c.URL, config.CAData, "admin",
		clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData})
	if err != nil {
		return c, err
	}
	return c, c.connect(raw)
}

// folder creates a folder for a playground. own reports whether it is a new one that must be
// removed at the end.
func folder(dir string) (path string, own bool, err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "drover-playground-"); err != nil {
			return "", false, fmt.Errorf("make a folder: %w", err)
		}
		return dir, true, nil
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", false, fmt.Errorf("find the folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", false, fmt.Errorf("make a folder: %w", err)
	}
	return dir, false, nil
}

// issueCertificates creates the cluster's CA, the API server's certificate and the key of service
// account tokens.
func (c *ControlPlane) issueCertificates() error {
	ca, err := newAuthority(c.Name + "-ca")
	if err != nil {
		return err
	}
	c.ca = ca
	caKey, err := encodeKey(ca.key)
	if err != nil {
		return err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the key of service accounts: %w", err)
	}
	tokenKey, err := encodeKey(tokens)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(tokens.Public())
	if err != nil {
		return fmt.Errorf("encode the key of service accounts: %w", err)
	}
	server, err := ca.server("kube-apiserver", c.opts.Addresses, "kubernetes", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	return writeFiles(filepath.Join(c.Dir, "pki"), map[string][]byte{
		"ca.crt": ca.pem, "ca.key": caKey,
		"apiserver.crt": server.cert, "apiserver.key": server.key,
		"sa.key": tokenKey, "sa.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	})
}

// startEtcd starts etcd on a socket in the control plane's folder, so no other user's program can
// reach it, and it takes no port. Socket names are relative, because a socket's path may have at
// most 107 bytes.
func (c *ControlPlane) startEtcd(ctx context.Context) error {
	p, err := start(command{name: "etcd", path: c.opts.Tools["etcd"], dir: c.Dir, args: []string{
		"--data-dir=" + etcdFolder, "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=unix://etcd.sock", "--advertise-client-urls=unix://etcd.sock:0",
		"--listen-peer-urls=unix://peer.sock:0", "--initial-advertise-peer-urls=unix://peer.sock:0",
		"--initial-cluster=default=unix://peer.sock:0",
		"--quota-backend-bytes=8589934592",
	}})
	if err != nil {
		return err
	}
	c.etcd = p
	socket := filepath.Join(c.Dir, "etcd.sock")
	// kube-apiserver waits for etcd by itself. Here it is enough that etcd listens.
	return p.waitFor(ctx, "etcd listens", startDeadline, func(context.Context) error {
		_, err := os.Stat(socket)
		return err
	})
}

// runAPIServer runs kube-apiserver on the port of c.URL and waits until it is ready.
func (c *ControlPlane) runAPIServer(ctx context.Context) (*Process, error) {
	args := []string{
		"--etcd-servers=unix://etcd.sock",
		"--bind-address=127.0.0.1", "--secure-port=" + c.URL[strings.LastIndex(c.URL, ":")+1:],
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged",
		"--client-ca-file=pki/ca.crt", "--tls-cert-file=pki/apiserver.crt", "--tls-private-key-file=pki/apiserver.key",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=pki/sa.pub", "--service-account-signing-key-file=pki/sa.key",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth",
	}
	p, err := start(command{
		name: "kube-apiserver", path: c.opts.Tools["kube-apiserver"], dir: c.Dir, env: lazyGC,
		args: append(args, c.opts.APIServerArgs...),
	})
	if err != nil {
		return nil, err
	}
	ready, err := c.readiness()
	if err != nil {
		return p, err
	}
	return p, p.waitFor(ctx, "kube-apiserver is ready", startDeadline, ready)
}

// readiness returns a probe of the API server's /readyz.
func (c *ControlPlane) readiness() (func(context.Context) error, error) {
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem}, Timeout: 5 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("make a client for /readyz: %w", err)
	}
	return probe(client, c.URL+"/readyz"), nil
}

// probe returns a function that requests a URL. Any answer but 200 is an error.
func probe(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		if err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %s: %s", url, res.Status, body)
		}
		return nil
	}
}

// connect writes the administrator's kubeconfig to admin.kubeconfig, and uses it.
func (c *ControlPlane) connect(raw []byte) (err error) {
	if err := writeFiles(c.Dir, map[string][]byte{"admin.kubeconfig": raw}); err != nil {
		return err
	}
	if c.admin, err = clientcmd.RESTConfigFromKubeConfig(raw); err != nil {
		return fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	c.admin.QPS = -1 // no client-side throttling for tests and the demo
	c.admin.WarningHandler = rest.NoWarnings{}
	return nil
}

// startControllerManager starts kube-controller-manager and waits until one of its controllers has
// created something.
func (c *ControlPlane) startControllerManager(ctx context.Context) error {
	args := []string{
		"--kubeconfig=admin.kubeconfig", "--leader-elect=false", "--secure-port=0",
		"--controllers=" + strings.Join(c.opts.Controllers, ","),
		"--cluster-signing-cert-file=pki/ca.crt", "--cluster-signing-key-file=pki/ca.key", "--root-ca-file=pki/ca.crt",
		"--service-account-private-key-file=pki/sa.key",
		"--kube-api-qps=200", "--kube-api-burst=400",
	}
	p, err := start(command{
		name: "kube-controller-manager", path: c.opts.Tools["kube-controller-manager"], dir: c.Dir,
		args: append(args, c.opts.ControllerManagerArgs...),
	})
	if err != nil {
		return err
	}
	c.controllerManager = p
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return p.waitFor(ctx, "kube-controller-manager works", startDeadline, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// AdminConfig returns a copy of a configuration with all permissions.
func (c *ControlPlane) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// AdminKubeconfig returns the path of a kubeconfig file with all permissions.
func (c *ControlPlane) AdminKubeconfig() string { return filepath.Join(c.Dir, "admin.kubeconfig") }

// CA returns, as PEM, the certificate of the CA that signs the certificates of the API server, the
// users and the kubelets.
func (c *ControlPlane) CA() []byte { return append([]byte(nil), c.ca.pem...) }

// Kubeconfig creates a kubeconfig with a client certificate for a user in groups. The group
// "system:masters" has all permissions.
func (c *ControlPlane) Kubeconfig(user string, groups ...string) ([]byte, error) {
	p, err := c.ca.client(user, groups)
	if err != nil {
		return nil, err
	}
	return kubeconfig(c.Name, c.URL, c.ca.pem, user, clientcmdapi.AuthInfo{ClientCertificateData: p.cert, ClientKeyData: p.key})
}

// ServiceAccountKubeconfig creates a kubeconfig for an existing service account, with a token that
// is valid for a day.
func (c *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) ([]byte, error) {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(24 * 60 * 60))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token for service account %s/%s: %w", namespace, name, err)
	}
	return kubeconfig(c.Name, c.URL, c.admin.CAData, name, clientcmdapi.AuthInfo{Token: token.Status.Token})
}

// APIServer, Etcd and ControllerManager return the running processes, for tests to measure or harm.
func (c *ControlPlane) APIServer() *Process         { return c.apiServer }
func (c *ControlPlane) Etcd() *Process              { return c.etcd }
func (c *ControlPlane) ControllerManager() *Process { return c.controllerManager }

// StopAPIServer kills the API server, as an outage does. StartAPIServer restarts it at the same
// address.
func (c *ControlPlane) StopAPIServer() { c.apiServer.Kill() }

// StartAPIServer starts the API server after StopAPIServer and returns once it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	p, err := c.runAPIServer(ctx)
	if p != nil {
		c.apiServer = p
	}
	if err != nil {
		return fmt.Errorf("start the API server of %s: %w", c.Name, err)
	}
	return nil
}

// RestartAPIServer kills the API server and restarts it at the same address, with the same data.
func (c *ControlPlane) RestartAPIServer(ctx context.Context) error {
	c.StopAPIServer()
	return c.StartAPIServer(ctx)
}

// Backup copies the current data of etcd, as a snapshot of its disk would, and returns the copy's
// folder.
func (c *ControlPlane) Backup() (string, error) {
	c.etcd.Signal(syscall.SIGSTOP)
	defer c.etcd.Signal(syscall.SIGCONT)
	backup, err := os.MkdirTemp(c.Dir, "backup-")
	if err == nil {
		err = os.CopyFS(backup, os.DirFS(c.etcdData()))
	}
	if err != nil {
		return "", fmt.Errorf("back up etcd of %s: %w", c.Name, err)
	}
	return backup, nil
}

// restore goes back to a backup. It restarts all processes, as operators do after a restore,
// because what they hold in memory is no longer true.
func (c *ControlPlane) restore(ctx context.Context, backup string) error {
	for _, p := range []*Process{c.controllerManager, c.apiServer, c.etcd} {
		p.Kill()
	}
	err := os.RemoveAll(c.etcdData())
	if err == nil {
		err = os.Rename(backup, c.etcdData())
	}
	if err == nil {
		err = c.startEtcd(ctx)
	}
	if err == nil {
		err = c.StartAPIServer(ctx)
	}
	if err == nil {
		err = c.startControllerManager(ctx)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.Name, err)
	}
	return nil
}

func (c *ControlPlane) etcdData() string { return filepath.Join(c.Dir, etcdFolder) }

// Stop ends all processes and removes the folder, unless the caller provided it. The stored data
// are lost. It may be called twice.
func (c *ControlPlane) Stop() error {
	for _, p := range []*Process{c.autoscaler, c.scheduler, c.controllerManager, c.apiServer, c.etcd} {
		if p != nil {
			p.Kill() // no data are kept, so no orderly shutdown is needed
		}
	}
	if c.ownsDir {
		if err := os.RemoveAll(c.Dir); err != nil {
			return fmt.Errorf("remove the folder of %s: %w", c.Name, err)
		}
	}
	return nil
}
