// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// maxError is the largest body of a refusal, in bytes.
const maxError = 1 << 20

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

// client makes the account's calls by client-go's REST client. It sends each call once.
type client struct {
	endpoint
	http *http.Client
}

func newClient(to endpoint, transport http.RoundTripper) *client {
	return &client{endpoint: to, http: driverkit.Client(shortErrors{transport})}
}

// shortErrors cuts the answers that client-go reads whole.
type shortErrors struct{ http.RoundTripper }

func (s shortErrors) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		resp.Body = part{io.LimitReader(resp.Body, maxError), resp.Body}
	}
	return resp, err
}

// part is the beginning of a body.
type part struct {
	io.Reader
	io.Closer
}

// call makes one call. It sends body as JSON, or unchanged if body is a patch. answer may be nil.
func (c *client) call(ctx context.Context, op operation, path string, query url.Values, body, answer any) error {
	reply, err := c.send(cloud.WithOperation(ctx, op.name, op.class), op, path, query, body)
	if err != nil {
		return err
	}
	defer reply.Close()
	text, err := reply.redactor.ReadBody(op.name, reply, driverkit.MaxAnswer)
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
	content := rest.ClientContentConfig{Negotiator: runtime.NewClientNegotiator(scheme.Codecs.WithoutConversion(), schema.GroupVersion{})}
	req := rest.NewRequestWithClient(c.server, "", content, c.http).Verb(op.method).AbsPath(path).MaxRetries(0).
		WarningHandlerWithContext(rest.NoWarnings{}).SetHeader("Accept", op.accept).SetHeader("User-Agent", "drover")
	if token != "" {
		req.SetHeader("Authorization", "Bearer "+token)
	}
	for name, values := range query {
		req.Param(name, values[0])
	}
	switch b := body.(type) {
	case nil:
	case patch:
		req.SetHeader("Content-Type", "application/json-patch+json").Body([]byte(b))
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: op.name + ": the machine's fields can't be encoded", Err: err}
		}
		format := "application/json"
		if _, is := body.(mergePatch); is {
			format = "application/merge-patch+json"
		}
		req.SetHeader("Content-Type", format).Body(text)
	}
	redactor := driverkit.NewRedactor(token)
	answer, err := req.Stream(klog.NewContext(ctx, logr.Discard())) // it would log bodies
	if failed, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return nil, refused(op, &failed.ErrStatus, redactor)
	}
	return &reply{answer, redactor}, redactor.NoResponse(op.name, err)
}

// patch is a JSON patch, which is sent unchanged.
type patch []byte

// patchStep is one operation of a JSON patch (RFC 6902).
type patchStep struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patchOf returns a patch that the API server refuses as invalid unless the object has the token
// and the ownership ID.
func patchOf(token, owner string, steps ...patchStep) (patch, error) {
	text, err := json.Marshal(append([]patchStep{
		{"test", "/metadata/labels/" + cloud.TagToken, token},
		{"test", "/metadata/labels/" + cloud.TagOwnership, owner},
	}, steps...))
	if err != nil {
		return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: "the patch can't be encoded", Err: err}
	}
	return text, nil
}

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
