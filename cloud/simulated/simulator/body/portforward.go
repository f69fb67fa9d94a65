// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

const (
	// kubeletPort is where API servers reach the kubelet.
	kubeletPort = 10250
	// The kubelet's defaults for streams (streamingConnectionIdleTimeout, and
	// DefaultStreamCreationTimeout in k8s.io/cri-streaming).
	streamIdle, streamCreation = 4 * time.Hour, 30 * time.Second
)

// servePortForward serves the part of the kubelet's API by which Cluster API's control plane
// provider reaches etcd: "kubectl port-forward". Clients need a certificate of the cluster.
func (c *controlPlane) servePortForward(ctx context.Context) {
	authority, err := c.host.ReadFile(authorityFile)
	if err != nil {
		c.say("kubelet: %v", err)
		return
	}
	chain, key, err := certutil.GenerateSelfSignedCertKey(c.kubelet.node, []net.IP{net.ParseIP(c.machine.IP)}, nil)
	if err != nil {
		c.say("kubelet: %v", err)
		return
	}
	own, err := tls.X509KeyPair(chain, key)
	if err != nil {
		c.say("kubelet: %v", err)
		return
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authority)
	config := &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12}
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, c, r.PathValue("pod"), "", options, streamIdle, streamCreation, portforward.SupportedProtocols)
	})
	c.serve(ctx, net.JoinHostPort(c.machine.IP, strconv.Itoa(kubeletPort)), config, mux)
}

// PortForward connects a stream with a port of a static pod, which has the machine's network.
func (c *controlPlane) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := c.host.Dial(ctx, port)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.Close()
	}()
	_, _ = io.Copy(stream, conn)
	return stream.Close()
}
