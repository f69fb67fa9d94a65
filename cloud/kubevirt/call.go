// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxAnswer is the largest response body, in bytes. A page of 500 VMs has about 5 MiB.
const maxAnswer = 64 << 20

// The Accept headers ask for an object as it is, or for its metadata alone, so that no Secret's
// content comes back.
const (
	wholeObject    = "application/json"
	metadataOfOne  = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataOfMany = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// operation is one API call, as rate limits and messages name it.
type operation struct {
	name   string
	class  cloud.Class
	method string
	// accept is the Accept header. kind is the kind that the answer must have. An answer of another
	// kind does not come from the API server.
	accept, kind string
}

// client makes the account's calls. It sends each call once.
type client struct {
	endpoint
	http *http.Client
}

func newClient(to endpoint, transport http.RoundTripper) *client {
	return &client{endpoint: to, http: driverkit.Client(transport)}
}

// call makes one call. It sends body as JSON, or unchanged if body is a patch. answer may be nil.
func (c *client) call(ctx context.Context, op operation, path string, query url.Values, body, answer any) error {
	reply, err := c.send(cloud.WithOperation(ctx, op.name, op.class), op, path, query, body)
	if err != nil {
		return err
	}
	text, err := reply.redactor.ReadBody(op.name, reply, maxAnswer)
	if err != nil {
		return err
	}
	return decode(op, text, answer)
}

// reply is a successful response whose body is not read yet.
type reply struct {
	io.ReadCloser
	// redactor keeps the token that was sent with the call out of errors.
	redactor driverkit.Redactor
}

// send makes one call under the operation name in ctx. A refusal is an error.
func (c *client) send(ctx context.Context, op operation, path string, query url.Values, body any) (*reply, error) {
	token, err := c.bearer()
	if err != nil {
		return nil, err
	}
	redactor := driverkit.NewRedactor(token)
	if err := ctx.Err(); err != nil {
		return nil, redactor.NoResponse(op.name, err)
	}
	req, err := c.request(ctx, op, path, query, body)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, redactor.NoResponse(op.name, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return &reply{resp.Body, redactor}, nil
	}
	text, err := redactor.ReadBody(op.name, resp.Body, maxAnswer)
	if err != nil {
		return nil, err
	}
	return nil, refused(op, resp, text, redactor)
}

func (c *client) request(ctx context.Context, op operation, path string, query url.Values, body any) (*http.Request, error) {
	var content io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case patch:
		content, kind = bytes.NewReader(b), "application/json-patch+json"
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: op.name + ": the machine's fields can't be encoded", Err: err}
		}
		content = bytes.NewReader(text)
	}
	to := c.server.JoinPath(path)
	to.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, op.method, to.String(), content)
	if err != nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "%s: the kubeconfig's server is not a URL", op.name)
	}
	req.Header.Set("Accept", op.accept)
	req.Header.Set("User-Agent", "drover")
	if content != nil {
		req.Header.Set("Content-Type", kind)
	}
	return req, nil
}

// patch is a JSON patch, which is sent unchanged.
type patch []byte

// decode decodes a successful answer. The answer to a delete may be a Status or the deleted
// object.
func decode(op operation, text []byte, answer any) error {
	var is metav1.TypeMeta
	err := json.Unmarshal(text, &is)
	status := op.method == http.MethodDelete && is.Kind == "Status"
	if err != nil || is.Kind != op.kind && !status {
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response, not a %s: check the kubeconfig's server", op.name, op.kind)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return cloud.Errorf(cloud.Unknown, "%s: the response is a %s that can't be decoded", op.name, op.kind)
	}
	return nil
}
