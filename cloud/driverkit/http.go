// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/keybound"
)

// Client returns an HTTP client for the transport of Config.Connect. It follows no redirect,
// because a redirect would send the credentials elsewhere. An answer that exceeds MaxAnswer or the
// Bounds ends with an error, which is Unknown.
func Client(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     bounded{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ReadBody reads an answer's body of at most limit bytes. A longer body is Unknown. A body that
// breaks off is Unavailable. The caller closes the body after it has decoded it: until then, the
// engine counts its memory.
func (r Redactor) ReadBody(operation string, body io.Reader, limit int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, r.NoResponse(operation, err)
	case len(text) > limit:
		return nil, cloud.Errorf(cloud.Unknown, "%s: the response is larger than %s", operation, inBytes(limit))
	}
	return text, nil
}

// ReadWhole reads the body of an answer like ReadBody, and returns it. It replaces the body, so
// that an SDK that decodes while it reads gets nothing of an answer that exceeds a bound.
func (r Redactor) ReadWhole(operation string, resp *http.Response) ([]byte, error) {
	text, err := r.ReadBody(operation, resp.Body, MaxAnswer)
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	resp.Body = wholeBody{bytes.NewReader(text), resp.Body}
	return text, nil
}

// wholeBody is a body that was read.
type wholeBody struct {
	io.Reader
	io.Closer
}

// inBytes returns a number of bytes as a text for people.
func inBytes(n int) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// CertPool parses an account's CA bundle; nil for an empty one. It ignores what is no certificate.
// Errors are InvalidSpec.
func CertPool(bundle string) (*x509.CertPool, error) {
	if bundle == "" {
		return nil, nil
	}
	pool, found := x509.NewCertPool(), false
	for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if err := keybound.Certificate(certificate); err != nil {
			return nil, cloud.Invalid("caBundle: %v", err)
		}
		pool.AddCert(certificate)
		found = true
	}
	if !found {
		return nil, cloud.Invalid("caBundle contains no PEM certificate")
	}
	return pool, nil
}

// InParallel calls do for each item, at most limit at a time, and returns the error of each. A
// panic is the error of its item.
func InParallel[T any](limit int, items []T, do func(T) error) []error {
	errs := make([]error, len(items))
	var calls cloud.Group
	calls.SetLimit(limit)
	for i, item := range items {
		calls.Go(func() error {
			errs[i] = cloud.Recover(func() error { return do(item) })
			return nil
		})
	}
	_ = calls.Wait()
	return errs
}
