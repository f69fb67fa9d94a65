// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-io/drover/cloud/simulated/simulator/host"
	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

const (
	// kubeletPoll is the interval at which a kubelet looks at files: those it starts from, and the
	// manifests of static pods.
	kubeletPoll = 500 * time.Millisecond
	// healthPort is where kubeadm asks for the kubelet's health (KubeletHealthzPort).
	healthPort = 10248
)

// controlPlane is a machine of a control plane. The real kubeadm, etcd and Kubernetes programs run
// on it, in namespaces of its own; only the kubelet and cloud-init are simulated.
type controlPlane struct {
	*Body
	host *host.Host
	pods map[string]*staticPod // by file name
}

// startsControlPlane reports whether the user data make the machine one of a control plane.
func startsControlPlane(disk userdata.Machine, does outcome) bool {
	if does.init {
		return true
	}
	config, err := joinConfiguration(disk, does.join)
	return err == nil && config.ControlPlane != nil
}

// runControlPlane is the life of a machine of a control plane, from power on to power off.
func (b *Body) runControlPlane(ctx context.Context) {
	h, err := host.Open(ctx, host.Options{Name: b.machine.Hostname, IP: b.machine.IP, Dir: b.folder, Path: b.machine.ControlPlanePath})
	if err != nil {
		b.say("%v", err)
		b.enter(ctx, PhaseFailed)
		return
	}
	c := &controlPlane{Body: b, host: h, pods: map[string]*staticPod{}}
	var tasks sync.WaitGroup
	tasks.Go(func() { c.serveHealth(ctx) })
	tasks.Go(func() { c.keepStaticPods(ctx) })
	tasks.Go(func() { c.runKubelet(ctx) })
	if b.first != nil {
		disk := *b.first
		b.first = nil
		tasks.Go(func() { c.cloudInit(ctx, disk) })
	}
	<-ctx.Done()
	h.Close()
	tasks.Wait()
}

// cloudInit writes the files and runs the commands, in one script as cloud-init does.
func (c *controlPlane) cloudInit(ctx context.Context, disk userdata.Machine) {
	for name, file := range disk.Files {
		mode, err := strconv.ParseUint(file.Permissions, 8, 32)
		if err == nil {
			err = c.host.WriteFile(name, file.Content, fs.FileMode(mode))
		}
		if err != nil {
			c.say("cloud-init: writing %s: %v", name, err)
		}
	}
	err := c.host.Run(ctx, &lines{say: c.say}, nil, "sh", "-c", strings.Join(disk.Commands, "\n"))
	if err == nil {
		c.say("cloud-init: done")
		return
	}
	c.say("cloud-init: running commands: %v", err)
	if ctx.Err() == nil && c.Report().Phase != PhaseJoined {
		c.enter(ctx, PhaseFailed)
	}
}

// lines prints what is written to it, line by line.
type lines struct {
	say  func(format string, args ...any)
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.say("%s", line)
		l.rest = rest
	}
}

// serveHealth answers kubeadm, which waits for the kubelet.
func (c *controlPlane) serveHealth(ctx context.Context) {
	c.serve(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(healthPort)), nil,
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }))
}

// serve serves HTTP on an address of the machine until ctx ends, or HTTPS if config is not nil.
func (c *controlPlane) serve(ctx context.Context, address string, config *tls.Config, handler http.Handler) {
	l, err := c.host.Listen(address)
	if err != nil {
		if ctx.Err() == nil {
			c.say("kubelet: %v", err)
		}
		return
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: requestTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if config != nil {
		l = tls.NewListener(l, config)
	}
	_ = server.Serve(l)
}

// runKubelet does a kubelet's part once its files are there.
func (c *controlPlane) runKubelet(ctx context.Context) {
	if c.kubelet == nil && !c.configure(ctx) {
		return
	}
	if !c.becomeNode(ctx) {
		return
	}
	var tasks sync.WaitGroup
	tasks.Go(func() { c.servePortForward(ctx) })
	c.keepPods(ctx)
	tasks.Wait()
}

// configure waits for the kubelet's configuration and credentials. Those of kubeadm's join are for
// the TLS bootstrap; kubeadm then waits for the kubeconfig that comes of it.
func (c *controlPlane) configure(ctx context.Context) bool {
	for said := ""; ctx.Err() == nil; pause(ctx, kubeletPoll) {
		k, n, err := c.readFiles()
		if err == nil && n == nil {
			if n, err = c.bootstrapped(ctx, k); err == nil {
				err = c.writeKubeconfig(k, n.cert)
			}
		}
		if err == nil {
			c.mu.Lock()
			c.kubelet, c.node, c.machine.UserData = k, n, nil
			c.mu.Unlock()
			return true
		}
		if text := plain(err); k != nil && text != said {
			said = text
			c.say("kubelet: %s", text)
		}
	}
	return false
}

// readFiles returns the kubelet, and its credentials unless it needs the TLS bootstrap. The kubelet
// is nil until all its files are there.
func (c *controlPlane) readFiles() (*kubelet, *node, error) {
	disk := userdata.Machine{Files: map[string]userdata.File{}}
	for _, name := range append([]string{kubeletConfigFile, kubeletKubeconfig, bootstrapKubeconfig, authorityFile}, environmentFiles...) {
		content, err := c.host.ReadFile(name)
		if err == nil {
			disk.Files[name] = userdata.File{Content: content}
		}
	}
	k, err := configured(disk, c.machine)
	if err != nil {
		return nil, nil, err
	}
	if _, there := disk.Files[kubeletKubeconfig]; !there {
		err = k.readBootstrap(disk, bootstrapKubeconfig)
		if err != nil {
			return nil, nil, err
		}
		return k, nil, nil
	}
	user, err := k.readCluster(disk, kubeletKubeconfig)
	if err != nil {
		return nil, nil, err
	}
	cert, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
	if err != nil {
		return nil, nil, fmt.Errorf("the kubeconfig %s: %w", kubeletKubeconfig, err)
	}
	cluster, err := c.fleet.clusterOf(k)
	if err != nil {
		return nil, nil, err
	}
	n, err := newNode(cluster, &cert)
	return k, n, err
}

// bootstrapped does the TLS bootstrap.
func (c *controlPlane) bootstrapped(ctx context.Context, k *kubelet) (*node, error) {
	c.mu.Lock()
	c.kubelet = k
	c.mu.Unlock()
	n, err := c.bootstrap(ctx)
	if err != nil {
		c.mu.Lock()
		c.kubelet = nil
		c.mu.Unlock()
	}
	return n, err
}

// writeKubeconfig writes the kubelet's kubeconfig, which kubeadm uses from then on.
func (c *controlPlane) writeKubeconfig(k *kubelet, cert *tls.Certificate) error {
	der, err := x509.MarshalECPrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	var chain []byte
	for _, der := range cert.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	config, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"kubernetes": {Server: k.server, TLSServerName: k.serverName, CertificateAuthorityData: k.ca}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"kubelet": {
			ClientCertificateData: chain, ClientKeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		}},
		Contexts:       map[string]*clientcmdapi.Context{"kubelet": {Cluster: "kubernetes", AuthInfo: "kubelet"}},
		CurrentContext: "kubelet",
	})
	if err != nil {
		return err
	}
	return c.host.WriteFile(kubeletKubeconfig, config, 0o600)
}

// log returns the file that gets a program's output, in the machine's folder.
func (c *controlPlane) log(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(c.folder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}
