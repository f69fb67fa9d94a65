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

// maxRefusal bounds what is read of a refusal, in bytes.
const maxRefusal = 64 << 10

// errNoSession is the cause of a refusal by the Automation API, which knows the session no more.
var errNoSession = errors.New("no session")

// automation is an account's session of vCenter's other API, the vSphere Automation API (REST),
// which has content libraries and tags. It takes no session of SOAP's. It is made when something
// first needs it, shared by all callers, and ends as the other one does.
type automation struct {
	turn    chan struct{} // held while the session is made
	mu      sync.Mutex
	current *rest.Client
}

// automate runs f, which is one call, in the session of the Automation API. A session that vCenter
// knows no more is made anew, once.
func (v *vcenter) automate(ctx context.Context, operation string, class cloud.Class, f func(context.Context, *rest.Client) error) error {
	for again := false; ; again = true {
		if err := ctx.Err(); err != nil {
			return notSent(operation, err)
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

// automated returns the session, made if there is none. Credentials that either API has refused are
// not tried again at once.
func (v *vcenter) automated(ctx context.Context) (*rest.Client, error) {
	select {
	case v.automation.turn <- struct{}{}:
		defer func() { <-v.automation.turn }()
	case <-ctx.Done():
		return nil, notSent("CreateSession", ctx.Err())
	}
	if c := v.automation.session(); c != nil {
		return c, nil
	}
	if err := v.logins.Allow(); err != nil {
		return nil, err
	}
	c := &rest.Client{Client: v.client(v.refusal)}
	err := c.Login(cloud.WithOperation(ctx, "CreateSession", cloud.ClassRead), url.UserPassword(v.username, v.password))
	if err != nil {
		err = v.callError("CreateSession", err)
	}
	v.logins.Done(err)
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

// replace puts another session in the place of this one, unless another one has taken it already.
func (a *automation) replace(old, by *rest.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == old {
		a.current = by
	}
}

// refusal is what the Automation API answers instead of a result; nil for a result.
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
	if len(told.Value.Messages) > 0 { // the others are the causes, in the words of vCenter's insides
		e.Message += ": " + v.redactor.Clean(told.Value.Messages[0].DefaultMessage, maxWords)
	}
	return e
}

// codeOfRefusal says what an error means, by the name that the Automation API has for it
// (com.vmware.vapi.std.errors); "" for another name.
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

// codeOfStatus says what a status means that comes without such a name; "" where it is the same as
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
