// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"

	"github.com/drover-io/drover/cloud"
)

// Client returns an HTTP client for the transport of Config.Connect. It follows no redirect,
// because a redirect would send the credentials elsewhere.
func Client(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ReadBody reads and closes an answer's body of at most limit bytes. A longer body is Unknown. A
// body that breaks off is Unavailable.
func (r Redactor) ReadBody(operation string, body io.ReadCloser, limit int) ([]byte, error) {
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, r.NoResponse(operation, err)
	case len(text) > limit:
		return nil, cloud.Errorf(cloud.Unknown, "%s: the response is larger than %s", operation, sizeOf(limit))
	}
	return text, nil
}

// sizeOf returns a number of bytes as a text for people.
func sizeOf(n int) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// maxPages and maxItems bound a listing that does not end.
const (
	maxPages = 10_000
	maxItems = 100_000
)

// Pages reads a listing to its end. page returns the items after a mark, and the next mark; "" ends
// the listing. The first mark is "". A listing that does not end, or has more than maxItems, is
// Unknown.
func Pages[T any](ctx context.Context, operation string, page func(ctx context.Context, cursor string) (items []T, next string, err error)) ([]T, error) {
	var all []T
	cursor := ""
	seen := map[[sha256.Size]byte]bool{} // digests, because a cloud chooses how long a mark is
	for range maxPages {
		items, next, err := page(ctx, cursor)
		if err != nil {
			return nil, err
		}
		if len(all)+len(items) > maxItems {
			return nil, cloud.Errorf(cloud.Unknown, "%s: the listing has more than %d items: check the endpoint, or use several accounts", operation, maxItems)
		}
		if all = append(all, items...); next == "" {
			return all, nil
		}
		digest := sha256.Sum256([]byte(next))
		if seen[digest] {
			break
		}
		seen[digest] = true
		cursor = next
	}
	return nil, cloud.Errorf(cloud.Unknown, "%s: the listing does not end", operation)
}

// CertPool parses an account's CA bundle; nil for an empty one. Errors are InvalidSpec.
func CertPool(bundle string) (*x509.CertPool, error) {
	if bundle == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(bundle)) {
		return nil, cloud.Errorf(cloud.InvalidSpec, "caBundle contains no PEM certificate")
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
