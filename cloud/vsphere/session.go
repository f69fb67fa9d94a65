// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// vcenter is an account's connection. All callers share one session. The first caller creates it
// while the others wait. Listings or the stream keep it alive. If vCenter has ended it, it is
// created again. The driver never logs out: an unused session ends by vCenter's idle timeout (30
// minutes by default).
type vcenter struct {
	url                            *url.URL
	username, password, datacenter string
	redactor                       driverkit.Redactor
	transport                      http.RoundTripper
	automation                     automation
	guard                          driverkit.LoginGuard
	sizes                          driverkit.PageSizes

	lock         chan struct{} // held while the session is created
	mu           sync.Mutex
	current      *session
	firstLoginAt time.Time // time of the first login, by vCenter's clock
	// instance and place are the vCenter's UUID and the datacenter of the first session.
	instance string
	place    types.ManagedObjectReference
}

// session is one login and the state that depends on it.
type session struct {
	*vcenter
	soap       *soap.Client
	content    types.ServiceContent
	user       types.UserSession
	datacenter types.ManagedObjectReference
	// view contains all VMs of the datacenter.
	view types.ManagedObjectReference
	// collector is the property collector that serves Watch, or served it last.
	collector types.ManagedObjectReference
}

func newVCenter(a *infrav1.VSphereAccount, username, password string, transport http.RoundTripper) (*vcenter, error) {
	u, err := url.Parse("https://" + a.Server + vim25.Path)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Path != vim25.Path {
		return nil, cloud.Invalid("server is not a host name or address")
	}
	return &vcenter{
		url: u, username: username, password: password, datacenter: a.Datacenter,
		redactor:  driverkit.NewRedactor(password, username),
		transport: transport, lock: make(chan struct{}, 1), automation: automation{lock: make(chan struct{}, 1)},
	}, nil
}

// withSession runs f in the session. If vCenter has ended the session, with creates a new one,
// once, and runs f again, because the refused call had no effect. f must be safe to run twice.
func (v *vcenter) withSession(ctx context.Context, f func(*session) error) error {
	for again := false; ; again = true {
		s, err := v.connect(ctx)
		if err == nil {
			err = f(s)
		}
		if again || !isFault[*types.NotAuthenticated](err) {
			return err
		}
		v.drop(s)
	}
}

// connect returns the session, and creates it if there is none. An error may come with a session.
func (v *vcenter) connect(ctx context.Context) (*session, error) {
	select {
	case v.lock <- struct{}{}:
		defer func() { <-v.lock }()
	case <-ctx.Done():
		return nil, notSentError("Login", ctx.Err())
	}
	s := v.session()
	if s == nil {
		if err := v.guard.Allow(); err != nil {
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

// firstLogin returns when this process first had a session, by vCenter's clock.
func (v *vcenter) firstLogin() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.firstLoginAt
}

// drop forgets a session unless another one has replaced it.
func (v *vcenter) drop(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.current == s {
		v.current = nil
	}
}

// client returns a client with its own cookie jar, because vCenter refuses a login with another
// session's cookie. check returns an error for a refusal or an answer that is not vCenter's.
func (v *vcenter) client(judge func(operation string, resp *http.Response) error) *soap.Client {
	client := soap.NewClient(v.url, false)
	plain := driverkit.Client(answers{v.transport, judge})
	client.Transport, client.CheckRedirect, client.UserAgent = whole{plain.Transport}, plain.CheckRedirect, "drover"
	return client
}

// login creates a session.
func (v *vcenter) login(ctx context.Context) (*session, error) {
	client := v.client(statusError)
	client.Namespace, client.Version = "urn:"+vim25.Namespace, vim25.Version
	s := &session{vcenter: v, soap: client}
	content, err := methods.RetrieveServiceContent(ctx, s, &types.RetrieveServiceContent{This: vim25.ServiceInstance})
	if err != nil {
		return nil, err
	}
	s.content = content.Returnval
	if c := s.content; c.SessionManager == nil || c.SearchIndex == nil || c.ViewManager == nil || c.TaskManager == nil ||
		c.AuthorizationManager == nil || c.About.InstanceUuid == "" {
		return nil, cloud.Errorf(cloud.InvalidSpec, "the server is not a vCenter")
	}
	if err := v.sameInstance(s.content.About.InstanceUuid); err != nil {
		return nil, err
	}
	answer, err := methods.Login(ctx, s, &types.Login{This: *s.content.SessionManager, UserName: v.username, Password: v.password,
		Locale: "en_US"})
	v.guard.Done(err)
	if err != nil {
		return nil, err
	}
	s.user = answer.Returnval
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.firstLoginAt.IsZero() {
		v.firstLoginAt, v.instance = s.user.LoginTime, s.content.About.InstanceUuid
	}
	v.current = s
	return s, nil
}

// sameInstance returns Conflict if the server is not the vCenter that the account had its first
// session with. Another vCenter gets no credentials, and its machines are not the account's.
func (v *vcenter) sameInstance(id string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.instance == "" || v.instance == id {
		return nil
	}
	return cloud.Errorf(cloud.Conflict, "the server is now the vCenter instance %s, and was %s: neither shows the other's machines; create a DroverAccount for the new one",
		v.redactor.Clean(id, 64), v.redactor.Clean(v.instance, 64))
}

// sameDatacenter is sameInstance for the datacenter, which may be replaced by one of the same name.
func (v *vcenter) sameDatacenter(ref types.ManagedObjectReference) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.place.Value == "" {
		v.place = ref
	}
	if v.place == ref {
		return nil
	}
	return cloud.Errorf(cloud.Conflict, "datacenter %q is now %s, and was %s: neither shows the other's machines; create a DroverAccount for the new one",
		cloud.Clip(v.datacenter, 512), v.redactor.Clean(ref.Value, 64), v.place.Value)
}

// open finds the datacenter and creates the view of its VMs, which lives as long as the session.
func (s *session) open(ctx context.Context) error {
	datacenter, err := s.find(ctx, "datacenter", s.vcenter.datacenter)
	if err != nil {
		return err
	}
	if err := s.sameDatacenter(withoutServer(datacenter)); err != nil {
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

// find looks up an inventory path. It returns NotFound if the path does not exist or the account's
// user may not see it.
func (s *session) find(ctx context.Context, what, path string) (types.ManagedObjectReference, error) {
	answer, err := methods.FindByInventoryPath(ctx, s, &types.FindByInventoryPath{This: *s.content.SearchIndex, InventoryPath: path})
	if err != nil {
		return types.ManagedObjectReference{}, err
	}
	if answer.Returnval == nil {
		return types.ManagedObjectReference{}, cloud.Errorf(cloud.NotFound, "%s %q does not exist, or the account's user may not see it", what,
			cloud.Clip(path, 512))
	}
	return *answer.Returnval, nil
}

// RoundTrip implements govmomi's soap.RoundTripper. It makes one attempt of one call, names the
// operation, and returns a typed error, also if govmomi can't decode the answer.
func (s *session) RoundTrip(ctx context.Context, req, res soap.HasFault) error {
	operation := strings.TrimSuffix(reflect.TypeOf(req).Elem().Name(), "Body")
	if err := ctx.Err(); err != nil {
		return notSentError(operation, err)
	}
	ctx = driverkit.WithBounds(ctx, driverkit.Bounds{Tags: maxTags, Repeated: maxRepeated})
	named := cloud.WithOperation(ctx, operation, classOf(operation))
	if operation == "WaitForUpdatesEx" {
		named = cloud.WithPoll(ctx, operation, classOf(operation))
	}
	err := cloud.Recover(func() error { return s.soap.RoundTrip(named, req, res) }) // govmomi's decoder may panic
	if err != nil {
		return s.callError(operation, err)
	}
	if reflect.ValueOf(res).Elem().FieldByName("Res").IsNil() {
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response (not vCenter): check spec.cloud.vsphere.server", operation)
	}
	return nil
}

// These bound the XML elements of one answer. govmomi makes any type that an element names, in an
// array of up to 1 KiB. A page has about 100 elements for each VM, and 20 of arrays.
const (
	maxTags     = 96 << 10
	maxRepeated = 12 << 10
)

func classOf(operation string) cloud.Class {
	switch operation {
	case "CloneVM_Task":
		return cloud.ClassCreate
	case "PowerOffVM_Task", "ShutdownGuest", "ReconfigVM_Task", "Destroy_Task", "CancelTask", "ReconfigureComputeResource_Task", "SetField":
		return cloud.ClassDelete
	}
	return cloud.ClassRead
}

// whole is a transport that reads answers before govmomi decodes them.
type whole struct{ http.RoundTripper }

func (w whole) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.RoundTripper.RoundTrip(req)
	if err == nil {
		_, err = driverkit.NewRedactor().ReadWhole(cloud.OperationOf(req.Context()).Name, resp)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// answers is a transport that passes on only vCenter's answers. A redirect is no such answer,
// because it would send the session elsewhere.
type answers struct {
	http.RoundTripper
	check func(operation string, resp *http.Response) error
}

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	operation := cloud.OperationOf(req.Context()).Name
	if err := a.check(operation, resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}
