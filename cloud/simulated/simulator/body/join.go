// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	// With kubeadm's unit, systemd restarts a kubelet after 10 s. Here the first retries are
	// faster.
	retryFirst, retryLast = time.Second, 10 * time.Second
	// certificateWait is how long a kubelet waits for a certificate before it requests a new one.
	certificateWait = 15 * time.Minute
)

// backoff increases its delay, with jitter so that a thousand machines do not retry at once.
type backoff struct{ next time.Duration }

func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, retryFirst), retryLast)
	pause(ctx, b.next/2+time.Duration(mathrand.Int64N(int64(b.next))))
	return ctx.Err() == nil
}

// node is what the machine has after it joined the cluster.
type node struct {
	cert      *tls.Certificate
	transport *http.Transport
	core      *coreclient.CoreV1Client
	leases    coordinationclient.LeaseInterface
	signer    signer
	heartbeat heartbeat
}

// join does the TLS bootstrap and registers the Node. It retries until it succeeds or ctx ends.
func (b *Body) join(ctx context.Context) bool {
	var again backoff
	for b.node == nil {
		n, err := b.bootstrap(ctx)
		if err == nil {
			b.mu.Lock()
			b.node = n
			b.mu.Unlock()
			b.say("kubelet: got a client certificate")
			break
		}
		b.say("kubelet: %s", plain(err))
		if !again.wait(ctx) {
			return false
		}
	}
	if !b.kubelet.registers {
		return ctx.Err() == nil
	}
	for again = (backoff{}); ; {
		err := b.register(ctx)
		if err == nil {
			b.say("kubelet: registered node %s", b.kubelet.node)
			return true
		}
		b.say("kubelet: registering node %s: %s", b.kubelet.node, plain(err))
		if !again.wait(ctx) {
			return false
		}
	}
}

// plain returns an error's text without details that vary, such as ports.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return "no connection to the API server: " + op.Err.Error()
	}
	return err.Error()
}

// bootstrap gets the client certificate with the bootstrap token.
func (b *Body) bootstrap(ctx context.Context) (*node, error) {
	c, err := b.fleet.clusterOf(b.kubelet)
	if err != nil {
		return nil, err
	}
	signer, err := c.signer(bearer{b.kubelet.token, c.anonymous})
	if err != nil {
		return nil, fmt.Errorf("the bootstrap kubeconfig: %w", err)
	}
	cert, err := b.certify(ctx, c, signer, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth,
		x509.CertificateRequest{})
	if err != nil {
		return nil, fmt.Errorf("TLS bootstrap: %w", err)
	}
	return newNode(c, cert)
}

func newNode(c *cluster, cert *tls.Certificate) (*node, error) {
	n := &node{cert: cert, transport: c.transport(cert)}
	client := &http.Client{Transport: n.transport}
	var err error
	if n.core, err = coreclient.NewForConfigAndClient(c.config(), client); err != nil {
		return nil, err
	}
	coordination, err := coordinationclient.NewForConfigAndClient(c.config(), client)
	if err != nil {
		return nil, err
	}
	n.leases = coordination.Leases("kube-node-lease")
	n.signer, err = c.signer(n.transport)
	return n, err
}

// certify creates a key, requests a certificate as a kubelet does, and waits for it.
func (b *Body) certify(ctx context.Context, c *cluster, client signer, signerName string, usage certificatesv1.KeyUsage,
	template x509.CertificateRequest) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "system:node:" + b.kubelet.node, Organization: []string{"system:nodes"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(der)
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: namePrefix(usage) + lowerBase(digest[:])},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signerName,
			// Without key encipherment: the key is not RSA.
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}
	w := c.signing.expect(csr.Name, client)
	defer c.signing.forget(csr.Name)
	err = b.fleet.request(ctx, func(ctx context.Context) error {
		_, err := client.Create(ctx, csr, metav1.CreateOptions{})
		return err
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	signed, err := await(ctx, w, csr.Name)
	if err != nil {
		return nil, err
	}
	return pair(signed, key)
}

// namePrefix returns a kubelet's prefix for the names of its requests.
func namePrefix(usage certificatesv1.KeyUsage) string {
	if usage == certificatesv1.UsageClientAuth {
		return "node-csr-"
	}
	return "csr-"
}

// lowerBase converts a digest to an object's name.
func lowerBase(digest []byte) string {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyz"
	out := make([]byte, 20)
	for i := range out {
		out[i] = letters[int(digest[i])%len(letters)]
	}
	return string(out)
}

func await(ctx context.Context, w *waiter, name string) ([]byte, error) {
	t := time.NewTimer(certificateWait)
	defer t.Stop()
	select {
	case csr := <-w.done:
		if why := refusal(csr); why != "" {
			return nil, fmt.Errorf("certificate signing request %s: %s", name, why)
		}
		return csr.Status.Certificate, nil
	case <-t.C:
		return nil, fmt.Errorf("certificate signing request %s was not answered in %s", name, certificateWait)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func pair(chain []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	cert := &tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			cert.Certificate = append(cert.Certificate, block.Bytes)
		}
	}
	if len(cert.Certificate) == 0 {
		return nil, errors.New("the signed object is not a certificate")
	}
	return cert, nil
}

// requestServing requests the serving certificate until it gets one. Nothing is served: only the
// request matters.
func (b *Body) requestServing(ctx context.Context) {
	template := x509.CertificateRequest{DNSNames: []string{b.kubelet.node}}
	if ip := net.ParseIP(b.kubelet.nodeIP); ip != nil {
		template.IPAddresses = []net.IP{ip}
	}
	c, err := b.fleet.clusterOf(b.kubelet)
	for again := (backoff{}); err == nil; {
		_, failed := b.certify(ctx, c, b.node.signer, certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth, template)
		if failed == nil {
			b.say("kubelet: got a serving certificate")
			return
		}
		b.say("kubelet: serving certificate: %s", plain(failed))
		if !again.wait(ctx) {
			return
		}
	}
}
