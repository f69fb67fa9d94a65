// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// request is one call of Azure Resource Manager.
type request struct {
	op     string
	class  cloud.Class
	method string
	// path starts with "/". It has an api-version, unless it is the nextLink of a listing.
	path, version string
	query         url.Values
	// create makes the call fail if the resource exists, instead of changing it.
	create bool
	// match makes the call fail if the resource's ETag is another one; "": whatever it is.
	match   string
	in, out any
	// result gets the link to an answer that Azure is still preparing; nil: Azure must answer.
	result *string
}

// call makes one attempt of one call.
func (d *driver) call(ctx context.Context, r request) (status int, err error) {
	token, err := d.token(ctx)
	if err != nil {
		return 0, err
	}
	req, err := d.newRequest(ctx, r)
	if err != nil {
		return 0, err
	}
	end, err := d.remaining.begin(r.class)
	if err != nil {
		return 0, err
	}
	var header http.Header
	defer func() { end(header) }()
	req.Header.Set("Authorization", "Bearer "+token)
	err = d.api.Do(req, func(a *driverkit.Answer) error {
		status, header = a.Status, a.Header
		if status == http.StatusUnauthorized && d.source.forget() { // it was revoked
			d.tokens.Forget("")
		}
		if status < 200 || status > 299 {
			return d.refusal(a)
		}
		return d.decode(r, a)
	})
	return status, err
}

// read reads one resource.
func (d *driver) read(ctx context.Context, op, path, version string, query url.Values, out any) error {
	_, err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: path, version: version, query: query,
		out: out})
	return err
}

func (d *driver) newRequest(ctx context.Context, r request) (*http.Request, error) {
	address := d.endpoint + r.path
	if r.version != "" {
		query := url.Values{"api-version": {r.version}}
		for key, values := range r.query {
			query[key] = values
		}
		address += "?" + query.Encode()
	}
	req, err := d.api.NewRequest(ctx, r.op, r.class, r.method, address, r.in)
	if err != nil {
		return nil, err
	}
	if r.create {
		req.Header.Set("If-None-Match", "*")
	}
	if r.match != "" {
		req.Header.Set("If-Match", r.match)
	}
	return req, nil
}

// decode reads a successful answer. An answer without a body is one only to a call that expects
// none: Azure's says where the operation's progress can be seen, or that there was nothing to do.
func (d *driver) decode(r request, a *driverkit.Answer) error {
	location := a.Header.Get("Location")
	switch {
	case r.result != nil && a.Status == http.StatusAccepted && (r.method == http.MethodGet || location != ""):
		*r.result = location
		return nil
	case r.out == nil && len(a.Body) == 0:
		if a.Status == http.StatusAccepted && a.Header.Get("Azure-AsyncOperation") == "" && location == "" {
			return d.api.Unexpected(r.op, "with status 202 that names no operation")
		}
		return nil
	}
	return a.Decode(r.out)
}

// pages reads a listing to its end. The link to the next page must lead to the account's endpoint,
// because the token is sent with it.
func pages[T any](ctx context.Context, d *driver, op, path, version string, query url.Values) ([]T, error) {
	return driverkit.Pages(ctx, op, func(ctx context.Context, next string) ([]T, string, error) {
		r := request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: path, version: version, query: query}
		if next != "" {
			r.path, r.version = next, ""
		}
		var p page[T]
		r.out = &p
		if _, err := d.call(ctx, r); err != nil {
			return nil, "", err
		}
		if p.Value == nil {
			return nil, "", d.api.Unexpected(op, "without a list")
		}
		if p.NextLink == "" {
			return *p.Value, "", nil
		}
		after, err := d.relative(p.NextLink)
		if err != nil {
			return nil, "", cloud.Errorf(cloud.Unknown, "%s: %s", op, err)
		}
		return *p.Value, after, nil
	})
}

// relative returns the path and query of a link to the same endpoint.
func (d *driver) relative(link string) (string, error) {
	base, err := url.Parse(d.endpoint)
	if err != nil {
		return "", fmt.Errorf("the endpoint is not a URL")
	}
	u, err := url.Parse(link)
	if err != nil || u.Scheme != base.Scheme || !strings.EqualFold(defaultPort(u), defaultPort(base)) || u.User != nil {
		return "", fmt.Errorf("the link to the next answer leads to another host, and the token is not sent there")
	}
	return u.RequestURI(), nil
}

// defaultPort returns a URL's host and port. Azure's own links name port 443.
func defaultPort(u *url.URL) string {
	if u.Port() == "" {
		return u.Hostname() + ":443"
	}
	return u.Host
}
