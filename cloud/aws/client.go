// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"net/http"
	"strings"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// client is the SDK's HTTP client. It names each call for the rate limit and checks that an answer
// is complete.
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
	body, err := driverkit.NewRedactor().ReadWhole(op, resp)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusOK && isXML(awsmiddleware.GetServiceID(ctx)) && !isComplete(body, op):
		// The SDK would accept a foreign or empty document as an answer without content.
		_ = resp.Body.Close()
		return nil, cloud.Errorf(cloud.Unknown, "%s: unexpected response, not a complete %sResponse (%d bytes): check spec.cloud.aws.endpoint",
			op, op, len(body))
	}
	return resp, nil
}

func isXML(service string) bool {
	return service == "EC2" || service == "STS" || service == elb.ServiceID
}

// isComplete reports whether an XML document is the operation's complete answer, first to last tag.
func isComplete(body []byte, op string) bool {
	body = bytes.TrimSpace(body)
	if declaration, rest, ok := bytes.Cut(body, []byte("?>")); ok && bytes.HasPrefix(declaration, []byte("<?xml")) {
		body = bytes.TrimSpace(rest)
	}
	root := op + "Response"
	return bytes.HasPrefix(body, []byte("<"+root)) && bytes.HasSuffix(body, []byte("</"+root+">"))
}

// classOf returns an operation's class for the rate limit, by the verb at the start of its name.
func classOf(op string) cloud.Class {
	switch op {
	case "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "CreateTargetGroup", "CreateLoadBalancer":
		return cloud.ClassCreate
	case "CreateListener", "RegisterTargets", "DeregisterTargets": // they change an existing load balancer
		return cloud.ClassDelete
	}
	switch {
	case strings.HasPrefix(op, "Run"):
		return cloud.ClassCreate
	case op == "CreateTags": // it counts against the same limit of EC2 as the deletes, and not as reads
		return cloud.ClassDelete
	case op == deleteMessages: // SQS's: it does not count against EC2's limit for deletes
		return cloud.ClassRead
	case strings.HasPrefix(op, "Terminate"), strings.HasPrefix(op, "Delete"), strings.HasPrefix(op, "Release"):
		return cloud.ClassDelete
	}
	return cloud.ClassRead
}
