// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/vmware/govmomi/vapi/rest"

	"github.com/drover-io/drover/cloud"
)

// maxRefusal is how much of a refusal is read, in bytes.
const maxRefusal = 64 << 10

// errNoSession is the cause of an error if the Automation API does not know the session.
var errNoSession = errors.New("no session")

// automation is an account's session of the vSphere Automation API (REST), which has content
// libraries and tags and does not accept SOAP sessions. The first caller that needs it creates it,
// all callers share it, and it ends as the SOAP session does.
type automation struct {
	lock    chan struct{} // held while the session is created
	mu      sync.Mutex
	current *rest.Client
}

// automate runs f, which makes one call, in the session of the Automation API. If vCenter has ended
// the session, automate creates a new one, once.
func (v *vcenter) automate(ctx context.Context, operation string, class cloud.Class, f func(context.Context, *rest.Client) error) error {
	for again := false; ; again = true {
		if err := ctx.Err(); err != nil {
			return notSentError(operation, err)
		}
		c, err := v.automated(ctx)
		if err != nil {
			return err
		}
		if err = f(cloud.WithOperation(ctx, operation, class), c); err == nil {
			return nil
		}
		if again || !errors.Is(err, errNoSession) {
			return v.callError(operation, err)
		}
		v.automation.replace(c, nil)
	}
}

// automated returns the session, and creates it if there is none. Credentials that either API has
// refused are not retried at once.
func (v *vcenter) automated(ctx context.Context) (*rest.Client, error) {
	select {
	case v.automation.lock <- struct{}{}:
		defer func() { <-v.automation.lock }()
	case <-ctx.Done():
		return nil, notSentError("CreateSession", ctx.Err())
	}
	if c := v.automation.session(); c != nil {
		return c, nil
	}
	if err := v.guard.Allow(); err != nil {
		return nil, err
	}
	c := &rest.Client{Client: v.client(v.refusal)}
	err := c.Login(cloud.WithOperation(ctx, "CreateSession", cloud.ClassRead), url.UserPassword(v.username, v.password))
	if err != nil {
		err = v.callError("CreateSession", err)
	}
	v.guard.Done(err)
	if err != nil {
		return nil, err
	}
	v.automation.replace(nil, c)
	return c, nil
}

func (a *automation) session() *rest.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current
}

// replace replaces the session old with by, unless another session has replaced old already.
func (a *automation) replace(old, by *rest.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == old {
		a.current = by
	}
}

// refusal returns the error of an answer of the Automation API, or nil for a result.
func (v *vcenter) refusal(operation string, resp *http.Response) error {
	if resp.StatusCode/100 == 2 {
		return nil
	}
	var told struct {
		Type  string `json:"type"`
		Value struct {
			Messages []rest.LocalizableMessage `json:"messages"`
		} `json:"value"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err == nil {
		err = json.Unmarshal(body, &told)
	}
	name := told.Type[strings.LastIndex(told.Type, ".")+1:]
	code := codeOfRefusal(name)
	if err != nil || code == "" {
		code, name = codeOfStatus(resp.StatusCode), http.StatusText(resp.StatusCode)
	}
	if code == "" {
		return statusError(operation, resp)
	}
	e := &cloud.Error{Code: code, Message: operation + ": " + name}
	if resp.StatusCode == http.StatusUnauthorized {
		e.Err = errNoSession
	}
	if len(told.Value.Messages) > 0 { // the others are causes, in vCenter's internal terms
		e.Message += ": " + v.redactor.Clean(told.Value.Messages[0].DefaultMessage, maxWords)
	}
	return e
}

// codeOfRefusal returns the code of an error by its name in the Automation API
// (com.vmware.vapi.std.errors), or "" for another name.
func codeOfRefusal(name string) cloud.Code {
	switch name {
	case "unauthenticated", "unauthorized":
		return cloud.Unauthorized
	case "not_found":
		return cloud.NotFound
	case "already_exists":
		return cloud.Conflict
	case "invalid_argument", "invalid_element_type", "unsupported":
		return cloud.InvalidSpec
	case "unable_to_allocate_resource":
		return cloud.NoCapacity
	case "not_allowed_in_current_state", "concurrent_change", "resource_busy", "resource_inaccessible", "service_unavailable", "timed_out":
		return cloud.Unavailable
	}
	return ""
}

// codeOfStatus returns the code of a status without such a name, or "" if the code is the same as
// with SOAP.
func codeOfStatus(status int) cloud.Code {
	switch status {
	case http.StatusUnauthorized:
		return cloud.Unauthorized
	case http.StatusNotFound:
		return cloud.NotFound
	case http.StatusInternalServerError:
		return cloud.Unknown
	}
	return ""
}
