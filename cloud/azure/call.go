// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
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

// call makes one attempt of one call. Its errors never repeat a body that is not Azure's own
// answer, because such a body may contain anything.
func (d *driver) call(ctx context.Context, r request) (status int, err error) {
	token, err := d.token(ctx)
	if err != nil {
		return 0, err
	}
	ctx = cloud.WithOperation(ctx, r.op, r.class)
	if err := ctx.Err(); err != nil {
		return 0, &cloud.Error{Code: cloud.Unavailable, Message: r.op + ": not sent: " + err.Error(), Err: err}
	}
	req, err := d.newRequest(ctx, r)
	if err != nil {
		return 0, err
	}
	end, err := d.remaining.begin(r.class)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := d.client.Do(req)
	if err != nil {
		end(nil)
		return 0, d.secrets.NoResponse(r.op, err)
	}
	end(resp.Header)
	defer func() { _ = resp.Body.Close() }()
	body, err := d.secrets.ReadBody(r.op, resp.Body, driverkit.MaxAnswer)
	if err != nil {
		return resp.StatusCode, err
	}
	if resp.StatusCode == http.StatusUnauthorized && d.source.forget() { // it was revoked
		d.tokens.Forget("")
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return resp.StatusCode, d.refusal(r.op, resp, body)
	}
	return resp.StatusCode, decode(r, resp, body)
}

// read reads one resource.
func (d *driver) read(ctx context.Context, op, path, version string, query url.Values, out any) error {
	_, err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: path, version: version, query: query, out: out})
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
	var body []byte
	if r.in != nil {
		var err error
		if body, err = json.Marshal(r.in); err != nil {
			return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: r.op + ": the request can't be encoded", Err: err}
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(body))
	if err != nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "%s: the address is not a URL", r.op)
	}
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.create {
		req.Header.Set("If-None-Match", "*")
	}
	if r.match != "" {
		req.Header.Set("If-Match", r.match)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "drover")
	return req, nil
}

// decode reads a successful answer. An answer without a body is one only to a call that expects
// none: Azure's says where the operation's progress can be seen, or that there was nothing to do.
func decode(r request, resp *http.Response, body []byte) error {
	switch {
	case r.result != nil && resp.StatusCode == http.StatusAccepted && (r.method == http.MethodGet || resp.Header.Get("Location") != ""):
		*r.result = resp.Header.Get("Location")
		return nil
	case r.out == nil && len(body) == 0:
		if resp.StatusCode == http.StatusAccepted && resp.Header.Get("Azure-AsyncOperation") == "" && resp.Header.Get("Location") == "" {
			return cloud.Errorf(cloud.Unknown, "%s: unexpected response with status 202 that names no operation (not Azure): check spec.azure", r.op)
		}
		return nil
	case !isJSON(resp):
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response of type %s (not Azure): check spec.azure", r.op, contentType(resp))
	case r.out == nil:
		return nil
	}
	if err := json.Unmarshal(body, r.out); err != nil {
		return cloud.Errorf(cloud.Unavailable, "%s: the response is not complete JSON (%d bytes)", r.op, len(body))
	}
	return nil
}

func isJSON(resp *http.Response) bool { return contentType(resp) == "application/json" }

func contentType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || t == "" {
		return "an unknown type"
	}
	return cloud.Clip(t, 64)
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
			return nil, "", cloud.Errorf(cloud.Unknown, "%s: unexpected response without a list (not Azure): check spec.azure", op)
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
