// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/vapi/library"
	"github.com/vmware/govmomi/vapi/rest"
	_ "github.com/vmware/govmomi/vapi/simulator" // the Automation API
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// automation returns another user's session of the Automation API.
func (v *vcsim) automation(t testing.TB) *rest.Client {
	t.Helper()
	other := v.driver(t).vcenter
	other.transport = bystander{v}
	c, err := other.automated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// endAutomation ends the driver's session of the Automation API.
func (v *vcsim) endAutomation(t testing.TB, d *driver) {
	t.Helper()
	c := v.automation(t)
	c.SessionID(d.vcenter.automation.session().SessionID())
	if err := c.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// keep creates a content library with this name, and puts an item into it.
func (v *vcsim) keep(t testing.TB, name, item, kind string) {
	t.Helper()
	m := library.NewManager(v.automation(t))
	id, err := m.CreateLibrary(t.Context(), library.Library{Name: name, Type: "LOCAL", Storage: []library.StorageBacking{
		{DatastoreID: v.Context.Map.Any("Datastore").Reference().Value, Type: "DATASTORE"},
	}})
	if err == nil && item != "" {
		_, err = m.CreateLibraryItem(t.Context(), library.Item{LibraryID: id, Name: item, Type: kind})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// holds sets the template that vcsim reports for library items. vcsim itself reports none.
func (v *vcsim) holds(ref types.ManagedObjectReference) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.template = ref
}

// amend adds the template to vcsim's answer about an item.
func (v *vcsim) amend(operation string, resp *http.Response, err error) (*http.Response, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if operation == "GetLibraryTemplate" && v.template.Value != "" && err == nil && resp.StatusCode == http.StatusOK {
		err = resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewBufferString(`{"value": {"vm_template": "` + v.template.Value + `"}}`))
	}
	return resp, err
}

func fromLibrary(library, item string) func(*infrav1.VSphereMachine) {
	return func(m *infrav1.VSphereMachine) {
		m.Template, m.ContentLibrary = "", infrav1.VSphereLibraryItem{Library: library, Item: item}
	}
}

// TestContentLibrary: a machine from a library item is cloned by the same request as one from the
// same template, so it behaves the same in a crash between clone and inventory. The item is
// resolved once for all machines.
func TestContentLibrary(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	v.keep(t, "Images", "ubuntu", library.ItemTypeVMTX)
	template := v.replace(func(*heldVM) {})
	v.holds(template.Self)
	d := v.driver(t)
	var made cloud.Resource
	var err error
	calls := v.counted(func() { made, err = d.Ensure(t.Context(), request("first", fromLibrary("images", "ubuntu"))) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.ProviderID).To(Equal(providerID(identityOf("first"))))
	g.Expect(calls).To(And(HaveKeyWithValue("CreateSession", 1), HaveKeyWithValue("FindLibrary", 1), HaveKeyWithValue("FindLibraryItem", 1),
		HaveKeyWithValue("GetLibraryTemplate", 1), HaveKeyWithValue("CloneVM_Task", 1)))
	calls = v.counted(func() { _, err = d.Ensure(t.Context(), request("second", fromLibrary("images", "ubuntu"))) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls).To(Equal(map[string]int{"FindAllByUuid": 2, "CloneVM_Task": 1}), "what a machine costs to make")

	_, err = d.Ensure(t.Context(), request("other", fromLibrary("images", "debian")))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), "another item is not taken for this one")

	_, err = v.driver(t).Ensure(t.Context(), request("third"))
	g.Expect(err).NotTo(HaveOccurred())
	own, byPath := template.sent[1], template.sent[2]
	g.Expect(own.Config.InstanceUuid).To(Equal(identityOf("second")))
	g.Expect(v.with(cloud.TagToken, "second")).To(HaveLen(1))
	own.Config.InstanceUuid, own.Config.Uuid, own.Config.ExtraConfig = byPath.Config.InstanceUuid, byPath.Config.Uuid,
		byPath.Config.ExtraConfig
	g.Expect(own).To(Equal(byPath))

	offering, err := d.Offering(t.Context(), machine(fromLibrary("images", "ubuntu")))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offering.Capacity.Cpu().Value()).To(BeEquivalentTo(4))
}

// TestContentLibraryRefused: a name that does not lead to one template creates no VM, and the error
// names the field.
func TestContentLibraryRefused(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	for _, name := range []string{"twins", "Twins"} {
		v.keep(t, name, "", "")
	}
	v.keep(t, "images", "appliance", library.ItemTypeOVF)
	v.keep(t, "empty", "ubuntu", library.ItemTypeVMTX) // vcsim does not report its template
	d := v.driver(t)
	for _, test := range []struct {
		library, item string
		code          cloud.Code
		words         string
	}{
		{"nothing", "ubuntu", cloud.NotFound, `contentLibrary.library: "nothing" does not exist`},
		{"images", "ubuntu", cloud.NotFound, `contentLibrary.item: "ubuntu" does not exist`},
		{"twins", "ubuntu", cloud.Conflict, `contentLibrary.library: 2 have the name "twins"`},
		{"images", "appliance", cloud.InvalidSpec, `contentLibrary.item: "appliance" is not a VM template`},
		{"empty", "ubuntu", cloud.InvalidSpec, `contentLibrary.item: "ubuntu" is not a VM template`},
	} {
		_, err := d.Ensure(t.Context(), request("m", fromLibrary(test.library, test.item)))
		g.Expect(cloud.CodeOf(err)).To(Equal(test.code), test.words)
		g.Expect(err).To(MatchError(ContainSubstring(test.words)))
	}
	g.Expect(d.List(t.Context())).To(BeEmpty())
}

// TestAutomationSession: many callers share one session of the Automation API. If vCenter has ended
// it, one new session is created. Refused credentials are not retried.
func TestAutomationSession(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	v.keep(t, "images", "ubuntu", library.ItemTypeVMTX)
	v.holds(v.named("DC0_C0_RP1_VM0").Self)
	d := v.driver(t)
	ask := func() {
		d.plans.Reset()
		errs := make(chan error)
		for range 10 {
			go func() {
				_, err := d.Offering(t.Context(), machine(fromLibrary("images", "ubuntu")))
				errs <- err
			}()
		}
		for range 10 {
			g.Expect(<-errs).To(Succeed())
		}
	}
	g.Expect(v.counted(ask)["CreateSession"]).To(Equal(1))
	g.Expect(v.counted(ask)["CreateSession"]).To(BeZero())
	v.endAutomation(t, d)
	g.Expect(v.counted(ask)["CreateSession"]).To(Equal(1))

	// From here on, every login is refused. The SOAP session exists already.
	_, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	v.endAutomation(t, d)
	v.Context.Map.SessionManager().ValidLogin = func(*types.Login) bool { return false }
	calls := v.counted(func() {
		for range 3 {
			_, err := d.Offering(t.Context(), machine(fromLibrary("images", "ubuntu")))
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
			g.Expect(err.Error()).NotTo(ContainSubstring("marked"))
		}
	})
	g.Expect(calls["CreateSession"]).To(Equal(1), "a user who fails often is locked out")
}

// TestRefusals: an error of the Automation API has the same code as SOAP's, and is shown in
// vCenter's words, without secrets. Nothing is shown of an answer that is not the API's.
func TestRefusals(t *testing.T) {
	g := NewWithT(t)
	v := &vcenter{redactor: driverkit.NewRedactor(password, username)}
	refuse := func(status int, body string) error {
		return v.refusal("GetTag", &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"7"}},
			Body: io.NopCloser(strings.NewReader(body))})
	}
	for code, names := range map[cloud.Code][]string{
		cloud.Unauthorized: {"unauthenticated", "unauthorized"},
		cloud.NotFound:     {"not_found"},
		cloud.Conflict:     {"already_exists"},
		cloud.InvalidSpec:  {"invalid_argument", "invalid_element_type", "unsupported"},
		cloud.NoCapacity:   {"unable_to_allocate_resource"},
		cloud.Unavailable: {"not_allowed_in_current_state", "concurrent_change", "resource_busy", "resource_inaccessible", "service_unavailable",
			"timed_out"},
	} {
		for _, name := range names {
			err := refuse(http.StatusBadRequest, `{"type": "com.vmware.vapi.std.errors.`+name+`", "value": {"messages": [{"default_message": "not with `+password+`"}, {"default_message": "inside"}]}}`)
			g.Expect(cloud.CodeOf(err)).To(Equal(code), name)
			g.Expect(err).To(MatchError(HaveSuffix("GetTag: " + name + ": not with [credential]")))
		}
	}
	for status, code := range map[int]cloud.Code{
		http.StatusFound: cloud.Unknown, http.StatusBadRequest: cloud.Unknown, http.StatusUnauthorized: cloud.Unauthorized,
		http.StatusForbidden: cloud.Unauthorized,
		http.StatusNotFound:  cloud.NotFound, http.StatusTooManyRequests: cloud.Throttled, http.StatusInternalServerError: cloud.Unknown,
		http.StatusBadGateway: cloud.Unavailable,
	} {
		err := refuse(status, "<html>marked</html>")
		g.Expect(cloud.CodeOf(err)).To(Equal(code), "%d", status)
		g.Expect(err.Error()).NotTo(ContainSubstring("marked"))
		g.Expect(errors.Is(err, errNoSession)).To(Equal(status == http.StatusUnauthorized))
	}
	g.Expect(cloud.CodeOf(refuse(http.StatusNotFound, `{"type": "com.vmware.vapi.std.errors.another"}`))).To(Equal(cloud.NotFound))
	g.Expect(refuse(http.StatusNoContent, "")).To(Succeed())
	g.Expect(refuse(http.StatusTooManyRequests, "")).To(HaveField("RetryAfter", 7*time.Second))
}
