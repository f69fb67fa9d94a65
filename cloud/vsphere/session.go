// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

const (
	// maxAnswer bounds what is read of an answer, in bytes. A page of VMs is far below it.
	maxAnswer = 64 << 20
	// loginPause is how long refused credentials are not tried again: vCenter locks a user out who fails 5 times within
	// 3 minutes (the default of its lockout policy), and then also where the password is right.
	loginPause = time.Minute
)

// vcenter is an account's connection. It has one session, which all callers share: made by the first of them while the
// others wait, kept alive by its listings or its stream, and made anew when vCenter knows it no more. It is never logged out:
// an account that is left alone ends by vCenter's own idle time-out (30 minutes by default).
type vcenter struct {
	url                            *url.URL
	username, password, datacenter string
	transport                      http.RoundTripper
	automation                     automation

	turn     chan struct{} // held while the session is made
	mu       sync.Mutex
	current  *session
	first    time.Time // of the first login, by vCenter's clock
	refused  error     // of the last login
	refusedA time.Time
}

// session is one login, and what belongs to it alone.
type session struct {
	*vcenter
	soap       *soap.Client
	content    types.ServiceContent
	datacenter types.ManagedObjectReference
	// view holds all VMs of the datacenter.
	view types.ManagedObjectReference
	// collector is the one that serves Follow, or served it last.
	collector types.ManagedObjectReference
}

func newVCenter(a *infrav1.VSphereAccount, username, password string, transport http.RoundTripper) (*vcenter, error) {
	u, err := url.Parse("https://" + a.Server + vim25.Path)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Path != vim25.Path {
		return nil, cloud.Errorf(cloud.InvalidSpec, "server is no host name or address")
	}
	return &vcenter{
		url: u, username: username, password: password, datacenter: a.Datacenter,
		transport: transport, turn: make(chan struct{}, 1), automation: automation{turn: make(chan struct{}, 1)},
	}, nil
}

// with runs f in the session. A session that vCenter knows no more is made anew, once, and f is run again: nothing of the
// call that was refused was done. f must be fit to be run twice.
func (v *vcenter) with(ctx context.Context, f func(*session) error) error {
	for again := false; ; again = true {
		s, err := v.connect(ctx)
		if err == nil {
			err = f(s)
		}
		if again || !faulted[*types.NotAuthenticated](err) {
			return err
		}
		v.drop(s)
	}
}

// connect returns the session, made if there is none. With an error it returns what there is of it.
func (v *vcenter) connect(ctx context.Context) (*session, error) {
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return nil, notSent("Login", ctx.Err())
	}
	s := v.session()
	if s == nil {
		if err := v.mayLogin(); err != nil {
			return nil, err
		}
		var err error
		if s, err = v.login(ctx); err != nil {
			return nil, err
		}
	}
	if s.view.Value != "" {
		return s, nil
	}
	return s, s.open(ctx)
}

func (v *vcenter) session() *session {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

// firstLogin is when this process first had a session, by vCenter's clock.
func (v *vcenter) firstLogin() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.first
}

// drop forgets a session, unless another one has taken its place already.
func (v *vcenter) drop(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.current == s {
		v.current = nil
	}
}

// mayLogin returns the last refusal as long as it is fresh.
func (v *vcenter) mayLogin() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refused != nil && time.Since(v.refusedA) < loginPause {
		return v.refused
	}
	return nil
}

// noteRefusal remembers that the credentials were refused.
func (v *vcenter) noteRefusal(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if cloud.CodeOf(err) == cloud.Unauthorized {
		v.refused, v.refusedA = err, time.Now()
	}
}

// client makes one with a cookie jar of its own: vCenter refuses a login under the cookie of another session. judge returns an error for
// what is no answer of vCenter's, or a refusal.
func (v *vcenter) client(judge func(operation string, resp *http.Response) error) *soap.Client {
	client := soap.NewClient(v.url, false)
	client.Transport, client.UserAgent = answers{v.transport, judge}, "drover"
	return client
}

// login begins a session.
func (v *vcenter) login(ctx context.Context) (*session, error) {
	client := v.client(statusError)
	client.Namespace, client.Version = "urn:"+vim25.Namespace, vim25.Version
	s := &session{vcenter: v, soap: client}
	content, err := methods.RetrieveServiceContent(ctx, s, &types.RetrieveServiceContent{This: vim25.ServiceInstance})
	if err != nil {
		return nil, err
	}
	s.content = content.Returnval
	if s.content.SessionManager == nil || s.content.SearchIndex == nil || s.content.ViewManager == nil || s.content.TaskManager == nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "the server is no vCenter")
	}
	answer, err := methods.Login(ctx, s, &types.Login{This: *s.content.SessionManager, UserName: v.username, Password: v.password, Locale: "en_US"})
	if err != nil {
		v.noteRefusal(err)
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.first.IsZero() {
		v.first = answer.Returnval.LoginTime
	}
	v.current, v.refused = s, nil
	return s, nil
}

// open finds the datacenter and makes the view of its VMs, which lives as long as the session.
func (s *session) open(ctx context.Context) error {
	datacenter, err := s.find(ctx, "datacenter", s.vcenter.datacenter)
	if err != nil {
		return err
	}
	view, err := methods.CreateContainerView(ctx, s, &types.CreateContainerView{
		This: *s.content.ViewManager, Container: datacenter, Type: []string{"VirtualMachine"}, Recursive: true,
	})
	if err != nil {
		return err
	}
	s.datacenter, s.view = datacenter, view.Returnval
	return nil
}

// find looks an inventory path up. What is not there, or hidden from the account's user, is NotFound.
func (s *session) find(ctx context.Context, what, path string) (types.ManagedObjectReference, error) {
	answer, err := methods.FindByInventoryPath(ctx, s, &types.FindByInventoryPath{This: *s.content.SearchIndex, InventoryPath: path})
	if err != nil {
		return types.ManagedObjectReference{}, err
	}
	if answer.Returnval == nil {
		return types.ManagedObjectReference{}, cloud.Errorf(cloud.NotFound, "there is no %s %q, or the account's user may not see it", what, cloud.Clip(path, 512))
	}
	return *answer.Returnval, nil
}

// RoundTrip implements govmomi's soap.RoundTripper: one attempt of one call, named, and its error typed.
func (s *session) RoundTrip(ctx context.Context, req, res soap.HasFault) error {
	operation := strings.TrimSuffix(reflect.TypeOf(req).Elem().Name(), "Body")
	if err := ctx.Err(); err != nil {
		return notSent(operation, err)
	}
	named := cloud.WithOperation(ctx, operation, classOf(operation))
	if operation == "WaitForUpdatesEx" {
		named = cloud.WithStream(ctx, operation, classOf(operation))
	}
	err := s.soap.RoundTrip(named, req, res)
	if err != nil {
		return s.callError(operation, err)
	}
	if reflect.ValueOf(res).Elem().FieldByName("Res").IsNil() {
		return cloud.Errorf(cloud.Unknown, "%s: the answer is none of vCenter's", operation)
	}
	return nil
}

func classOf(operation string) cloud.Class {
	switch operation {
	case "CloneVM_Task":
		return cloud.ClassCreate
	case "PowerOffVM_Task", "ShutdownGuest", "ReconfigVM_Task", "Destroy_Task", "CancelTask", "ReconfigureComputeResource_Task", "SetField":
		return cloud.ClassDelete
	}
	return cloud.ClassRead
}

// answers is a transport that lets only vCenter's answers through, and bounds them. A redirect is none: it would carry the
// session to elsewhere.
type answers struct {
	http.RoundTripper
	judge func(operation string, resp *http.Response) error
}

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	operation := cloud.OperationOf(req.Context()).Name
	if err := a.judge(operation, resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxAnswer}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

var errTooLarge = errors.New("the answer is too large")

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
