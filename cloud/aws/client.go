// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxAnswer bounds what is read of an answer, in bytes. A page of 1,000 instances has some 10 MiB;
// each private IP address takes some 365 bytes more, so that a page of nodes with full network
// interfaces may be larger: see driver.instances.
const maxAnswer = 64 << 20

// errTooLarge is the cause where an answer is larger than that.
var errTooLarge = errors.New("the answer is too large")

// client is the SDK's HTTP client: it names each call for the rate limit, and looks whether an
// answer is whole.
type client struct{ http *http.Client }

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
	if resp.ContentLength > maxAnswer {
		_ = resp.Body.Close()
		return nil, tooLarge(op)
	}
	body, err := driverkit.NewRedactor().ReadBody(op, resp.Body, maxAnswer)
	switch {
	case cloud.CodeOf(err) == cloud.Unknown:
		return nil, tooLarge(op)
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusOK && speaksXML(awsmiddleware.GetServiceID(ctx)) && !whole(body, op):
		// The SDK would take a foreign or empty document for an answer without content.
		return nil, cloud.Errorf(cloud.Unknown, "%s: the answer is not a whole %sResponse (%d bytes): does the endpoint belong to AWS?", op, op, len(body))
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

func tooLarge(op string) error {
	return &cloud.Error{Code: cloud.Unknown, Message: fmt.Sprintf("%s: the answer is larger than %d MiB", op, maxAnswer>>20), Err: errTooLarge}
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
