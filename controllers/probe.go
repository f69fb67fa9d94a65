// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	"github.com/drover-io/drover/internal/egress"
	"github.com/drover-io/drover/internal/kubeconfig"
)

const (
	// probeTimeout bounds one probe. Cluster API's probe of a workload cluster has the same one.
	probeTimeout = 10 * time.Second
	// maxProbeAnswer bounds the part of an answer that is read, in bytes. Real ones have some 500.
	maxProbeAnswer = 64 << 10
)

// kubernetesVersion matches the version that a real API server reports.
var kubernetesVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+[-+.~0-9A-Za-z]{0,200}$`)

// probeFailure is why an API server can't be used: a reason of the Available condition, and a
// message that does not change while the failure lasts, so that a lasting failure is written once.
type probeFailure struct{ reason, message string }

func unreachable(format string, args ...any) *probeFailure {
	return &probeFailure{controlplanev1.UnreachableReason, "The API server " + fmt.Sprintf(format, args...)}
}

// apiServerProbe is an API server, as a kubeconfig describes it.
type apiServerProbe struct {
	*kubeconfig.Config
	dial Dial
}

// Dial connects to endpoints that tenants specify.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// run asks the API server for its version, with the kubeconfig's credentials.
func (k apiServerProbe) run(ctx context.Context, timeout time.Duration) (string, *probeFailure) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version, failure := k.request(ctx)
	if failure != nil && failure.reason == controlplanev1.UnreachableReason && ctx.Err() != nil {
		// Any failure counts as a timeout here: giving up closes the connection, and then half an
		// answer may look like a whole one.
		return "", unreachable("does not answer within %s", timeout)
	}
	return version, failure
}

// request sends one request on a new connection and closes it. It does not follow redirects,
// because they would carry the credentials to another server.
func (k apiServerProbe) request(ctx context.Context) (string, *probeFailure) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.Server.JoinPath("version").String(), nil)
	if err != nil {
		return "", unreachable("can't be reached: the server in the kubeconfig is not a URL")
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "drover")
	if k.Token != "" {
		request.Header.Set("Authorization", "Bearer "+k.Token)
	}
	response, err := k.client(k.TLS()).Do(request)
	if err != nil {
		return "", k.connectionFailure(err)
	}
	defer response.Body.Close()
	if failure := k.statusFailure(response); failure != nil {
		return "", failure
	}
	return readVersion(response)
}

// hasHostsCertificate reports whether the API server's certificate is valid for the host of its
// address, whatever name the kubeconfig says. It sends no credentials. A server that does not
// answer counts as if it were.
func (k apiServerProbe) hasHostsCertificate(ctx context.Context, timeout time.Duration) bool {
	config := k.TLS()
	config.ServerName, config.Certificates = "", nil // then it is the host
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, k.Server.String(), nil)
	if err != nil {
		return true
	}
	response, err := k.client(config).Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	var host x509.HostnameError
	return !errors.As(err, &host)
}

// client returns an HTTP client for one probe.
func (k apiServerProbe) client(config *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  egress.Proxy, // the operator's, as in Cluster API
			DialContext:            k.dial,
			TLSClientConfig:        config,
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxProbeAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// readVersion returns the version in an HTTP 200 answer, or why it can't be Kubernetes' answer.
func readVersion(response *http.Response) (string, *probeFailure) {
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind {
	case "application/json":
	case "text/html":
		return "", unreachable("answers with a web page: another program listens at this address")
	default:
		return "", unreachable("does not answer like a Kubernetes API server")
	}
	var answer struct {
		GitVersion string `json:"gitVersion"`
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxProbeAnswer))
	if err != nil || json.Unmarshal(body, &answer) != nil || !kubernetesVersion.MatchString(answer.GitVersion) {
		return "", unreachable("does not answer like a Kubernetes API server")
	}
	return answer.GitVersion, nil
}

// statusFailure returns what an answer other than HTTP 200 means, or nil for HTTP 200.
func (k apiServerProbe) statusFailure(response *http.Response) *probeFailure {
	switch code := response.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return k.unauthorized(fmt.Sprintf("The API server refuses the kubeconfig's credentials (HTTP %d)", code))
	case code >= 300 && code < 400:
		return unreachable("answers with a redirect (HTTP %d), which is not followed", code)
	default:
		return unreachable("answers with HTTP %d", code)
	}
}

// unauthorized returns an Unauthorized failure. It adds to the message when the client certificate
// expired, if it has.
func (k apiServerProbe) unauthorized(message string) *probeFailure {
	if at := k.Expired(time.Now()); !at.IsZero() {
		message += "; its client certificate expired on " + at.UTC().Format(time.DateOnly)
	}
	return &probeFailure{controlplanev1.UnauthorizedReason, message}
}

// connectionFailure returns why there was no answer. It uses its own wording, because network
// errors contain port numbers that differ each time.
func (k apiServerProbe) connectionFailure(err error) *probeFailure {
	if message := certificateFailure(err); message != "" {
		return &probeFailure{controlplanev1.CertificateRefusedReason, message}
	}
	var (
		operation *net.OpError
		lookup    *net.DNSError
		record    tls.RecordHeaderError
		errno     syscall.Errno
	)
	switch {
	case errors.As(err, &operation) && operation.Op == "remote error":
		// A TLS alert: most often the server wants a client certificate that it can verify.
		return k.unauthorized("The API server refuses the connection: " + operation.Err.Error())
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return unreachable("answers without TLS")
	case errors.Is(err, fs.ErrPermission):
		return unreachable("is at an address that the operator does not allow")
	case errors.As(err, &lookup):
		return unreachable("can't be found: the name %q has no address", k.Server.Hostname())
	case isTimeout(err):
		return unreachable("does not answer")
	case errors.As(err, &errno):
		return unreachable("can't be reached: %s", errno.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return unreachable("closes the connection without an answer")
	default:
		return unreachable("gives an answer that can't be parsed")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// certificateFailure returns why the API server's certificate was refused, or "" if it was not.
func certificateFailure(err error) string {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		other     *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &authority):
		return "The API server's certificate is not signed by the kubeconfig's certificate authority"
	case errors.As(err, &host):
		return fmt.Sprintf("The API server's certificate is not valid for the host %q", host.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("The API server's certificate, or its authority's, is valid only from %s to %s: renew it, and check the clocks",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &other):
		return "The API server's certificate can't be verified: " + strings.TrimPrefix(other.Err.Error(), "x509: ")
	default:
		return ""
	}
}
