// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"

	"github.com/drover-io/drover/cloud"
)

// maxAnswer bounds what is read of an answer, in bytes: a full page of 1,000 instances has some 10 MiB.
const maxAnswer = 64 << 20

// client is the SDK's HTTP client: it names each call for the rate limit, and looks whether an answer is whole.
type client struct{ http *http.Client }

func newClient(transport http.RoundTripper) client {
	return client{&http.Client{
		Transport: transport,
		// A redirect would carry the credentials to elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Do implements the SDK's HTTPClient.
func (c client) Do(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	op := awsmiddleware.GetOperationName(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req.WithContext(cloud.WithOperation(ctx, op, classOf(op))))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		if ended := ctx.Err(); ended != nil {
			return nil, ended
		}
		return nil, cloud.Errorf(cloud.Unavailable, "%s: the answer broke off", op)
	case len(body) > maxAnswer:
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer is larger than %d MiB", op, maxAnswer>>20)
	case resp.StatusCode == http.StatusOK && speaksXML(awsmiddleware.GetServiceID(ctx)) && !whole(body, op):
		// The SDK would take a foreign or empty document for an answer without content.
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer is not a whole %sResponse (%d bytes): does the endpoint belong to AWS?", op, op, len(body))
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

func speaksXML(service string) bool { return service == "EC2" || service == "STS" }

// whole tells whether an XML document is the operation's answer from its first to its last tag.
func whole(body []byte, op string) bool {
	body = bytes.TrimSpace(body)
	if declaration, rest, ok := bytes.Cut(body, []byte("?>")); ok && bytes.HasPrefix(declaration, []byte("<?xml")) {
		body = bytes.TrimSpace(rest)
	}
	root := op + "Response"
	return bytes.HasPrefix(body, []byte("<"+root)) && bytes.HasSuffix(body, []byte("</"+root+">"))
}

// classOf is an operation's class for the rate limit, by the verb that its name begins with.
func classOf(op string) cloud.Class {
	switch {
	case strings.HasPrefix(op, "Run"):
		return cloud.ClassCreate
	case op == deleteMessages: // SQS's, which has nothing to do with how often EC2 deletes
		return cloud.ClassRead
	case strings.HasPrefix(op, "Terminate"), strings.HasPrefix(op, "Delete"), strings.HasPrefix(op, "Release"):
		return cloud.ClassDelete
	}
	return cloud.ClassRead
}
