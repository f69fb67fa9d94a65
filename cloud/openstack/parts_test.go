// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// TestRefusals: answers that the real services do not produce in tests, and answers that are not
// from a service.
func TestRefusals(t *testing.T) {
	const page = "<html><body>Welcome to the hotel</body></html>"
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 1; i < len(pairs); i += 2 {
			h.Set(pairs[i-1], pairs[i])
		}
		return h
	}
	for _, test := range []struct {
		status int
		header http.Header
		body   string
		class  cloud.Class
		want   cloud.Code
		after  time.Duration
	}{
		{413, header("Retry-After", "7"), `{"overLimit": {"code": 413, "message": "This request was rate-limited."}}`, cloud.ClassCreate,
			cloud.Throttled, 7 * time.Second},
		{413, header("Retry-After", "0"), `{"overLimit": {"code": 413, "message": "VolumeLimitExceeded: Maximum number of volumes allowed (0) exceeded for quota 'volumes'."}}`, cloud.ClassCreate, cloud.QuotaExceeded, 0},
		{400, nil, `{"badRequest": {"code": 400, "message": "Invalid volume: Volume status must be available."}}`, cloud.ClassDelete,
			cloud.Conflict, 0},
		{429, header("Retry-After", "3"), page, cloud.ClassRead, cloud.Throttled, 3 * time.Second},
		{503, header("Retry-After", "9999999999999"), page, cloud.ClassRead, cloud.Unavailable, 24 * time.Hour},
		{429, header("Retry-After", "-3"), page, cloud.ClassRead, cloud.Throttled, 0},
		{401, header("Www-Authenticate", `Keystone uri="http://127.0.0.1:25001/v3"`), page, cloud.ClassRead, cloud.Unauthorized, 0},
		{401, header("Www-Authenticate", "Basic"), page, cloud.ClassRead, cloud.Unauthorized, 0},
		{413, nil, page, cloud.ClassCreate, cloud.Unknown, 0},
		{403, nil, `{"forbidden": {"code": 403, "message": "Policy doesn't allow os_compute_api:servers:create to be performed."}}`,
			cloud.ClassCreate, cloud.Unauthorized, 0},
		{403, nil, `{"forbidden": {"code": 403, "message": "Quota exceeded for cores: Requested 4, but already used 8 of 10 cores"}}`,
			cloud.ClassCreate, cloud.QuotaExceeded, 0},
		{403, nil, `{"forbidden": {"code": 403, "message": "Maximum number of ports exceeded"}}`, cloud.ClassCreate, cloud.QuotaExceeded, 0},
		{403, nil, page, cloud.ClassCreate, cloud.Unauthorized, 0},
		{409, nil, `{"NeutronError": {"type": "IpAddressGenerationFailure", "message": "No more IP addresses available on network n.", "detail": ""}}`, cloud.ClassCreate, cloud.NoCapacity, 0},
		{409, nil, `{"NeutronError": {"type": "PortInUse", "message": "in use", "detail": ""}}`, cloud.ClassDelete, cloud.Conflict, 0},
		{404, nil, page, cloud.ClassDelete, cloud.Unknown, 0},
		{404, nil, `{"NeutronError": {"type": "NetworkNotFound", "message": "no network", "detail": ""}}`, cloud.ClassCreate, cloud.NotFound, 0},
		{400, nil, `{"badRequest": {"code": 400, "message": "marker [x] not found"}}`, cloud.ClassRead, cloud.Unknown, 0},
		{406, header("X-Openstack-Request-Id", "req-1"),
			`{"computeFault": {"code": 406, "message": "Version 2.61 is not supported by the API."}}`, cloud.ClassRead, cloud.InvalidSpec, 0},
		{500, nil, `{"computeFault": {"code": 500, "message": "Unexpected API Error."}}`, cloud.ClassCreate, cloud.Unknown, 0},
		{503, header("Retry-After", "5"), page, cloud.ClassCreate, cloud.Unavailable, 5 * time.Second},
		{504, nil, page, cloud.ClassCreate, cloud.Unavailable, 0},
		{200, nil, page, cloud.ClassCreate, cloud.Unknown, 0},
	} {
		g := NewWithT(t)
		err := typed(driverkit.Redactor{}, "Op", test.class,
			gophercloud.ErrUnexpectedResponseCode{Actual: test.status, ResponseHeader: test.header, Body: []byte(test.body)})
		var own *cloud.Error
		g.Expect(errors.As(err, &own)).To(BeTrue())
		g.Expect(own.Code).To(Equal(test.want), "%d %s", test.status, test.body)
		g.Expect(own.RetryAfter).To(Equal(test.after), "%d %s", test.status, test.body)
		g.Expect(own.Message).NotTo(ContainSubstring("hotel"))
	}
}

// TestUndecodable: an error does not quote a response that can't be decoded, and names no type of
// this program.
func TestUndecodable(t *testing.T) {
	var into struct {
		Name string
		At   time.Time
		Port int16
	}
	for _, body := range []string{`{"name": ["marked"]}`, `"marked"`, `{"at": "marked"}`, `{"at": 7}`, `{"port": 70000}`} {
		g := NewWithT(t)
		err := typed(driverkit.Redactor{}, "Op", cloud.ClassRead, json.Unmarshal([]byte(body), &into))
		g.Expect(err).To(MatchError("Unavailable: Op: the response can't be decoded"), body)
	}
	g := NewWithT(t)
	g.Expect(typed(driverkit.Redactor{}, "Op", cloud.ClassRead, nil)).To(Succeed())
	cut := &url.Error{Op: "Get", URL: "http://marked/", Err: io.ErrUnexpectedEOF}
	g.Expect(typed(driverkit.Redactor{}, "Op", cloud.ClassRead, cut)).To(MatchError("Unavailable: Op: no response: unexpected EOF"))
}

// TestQueued: a Queued error stays in the chain, and does not count as a create that may be open.
func TestQueued(t *testing.T) {
	g := NewWithT(t)
	err := typed(driverkit.Redactor{}, "Op", cloud.ClassCreate, &cloud.Queued{After: time.Second})
	var queued *cloud.Queued
	g.Expect(errors.As(err, &queued)).To(BeTrue())
	var mine creation
	mine.recordError(err)
	g.Expect(mine.deadline().IsZero()).To(BeTrue())
	mine.recordError(cloud.Errorf(cloud.QuotaExceeded, "refused"))
	g.Expect(mine.deadline().IsZero()).To(BeTrue())
	mine.recordError(cloud.Errorf(cloud.Unknown, "lost"))
	g.Expect(mine.deadline().IsZero()).To(BeFalse())
}

// TestRedactor: a secret that an endpoint repeats is removed, even where the text is cut.
func TestRedactor(t *testing.T) {
	g := NewWithT(t)
	err := typed(driverkit.NewRedactor("very-secret"), "Op", cloud.ClassRead, gophercloud.ErrUnexpectedResponseCode{
		Actual: 401, Body: []byte(`{"error": {"code": 401, "message": "` + strings.Repeat("x", 505) + `very-secret", "title": "Unauthorized"}}`)})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(err.Error()).NotTo(ContainSubstring("very"))
}

// TestClouds: valid and refused contents of a clouds.yaml.
func TestClouds(t *testing.T) {
	account := &infrav1.OpenStackAccount{AuthURL: "https://keystone.example.com/v3", ProjectID: "p1", Region: "r1"}
	two := "clouds: {a: {auth: {auth_url: 'https://keystone.example.com/v3', username: u, password: p}}, b: {auth: {auth_url: 'https://keystone.example.com/v3', token: t}}}"
	for name, test := range map[string]struct {
		file, cloud string
		want        cloud.Code
		says        string
	}{
		"password":               {file: "clouds: {a: {auth: {auth_url: 'https://keystone.example.com/', username: u, password: p, user_domain_name: Default}}}"},
		"application credential": {file: "clouds: {a: {auth_type: v3applicationcredential, auth: {auth_url: 'https://keystone.example.com/v3', application_credential_id: i, application_credential_secret: s}}}"},
		"credential and user":    {file: "clouds: {a: {auth: {auth_url: 'https://keystone.example.com/v3', application_credential_id: i, application_credential_secret: s, username: u, user_domain_id: d}}}"},
		"named credential":       {file: "clouds: {a: {auth: {auth_url: 'https://keystone.example.com/v3', application_credential_name: n, application_credential_secret: s, username: u, user_domain_id: d}}}"},
		"token":                  {file: "clouds: {a: {auth_type: token, auth: {auth_url: 'https://keystone.example.com/v3', token: t}}}"},
		"the right one of two":   {file: two, cloud: "b"},
		"which of two":           {file: two, want: cloud.InvalidSpec, says: "spec.cloud.openstack.cloud"},
		"none of that name":      {file: two, cloud: "c", want: cloud.InvalidSpec},
		"no file":                {want: cloud.Unauthorized, says: "is missing"},
		"no YAML":                {file: "a: [", want: cloud.InvalidSpec},
		"no password": {file: "clouds: {a: {auth: {auth_url: 'https://keystone.example.com/v3', username: u}}}",
			want: cloud.Unauthorized},
		"no secret": {file: "clouds: {a: {auth_type: v3applicationcredential, auth: {auth_url: 'https://keystone.example.com/v3', application_credential_id: i}}}", want: cloud.Unauthorized},
		"no token": {file: "clouds: {a: {auth_type: v3token, auth: {auth_url: 'https://keystone.example.com/v3', }}}",
			want: cloud.Unauthorized},
		"another way": {file: "clouds: {a: {auth_type: v3oidcpassword, auth: {auth_url: 'https://keystone.example.com/v3', password: p}}}",
			want: cloud.InvalidSpec, says: "v3oidcpassword"},
		"not verified": {file: "clouds: {a: {verify: false, auth: {auth_url: 'https://keystone.example.com/v3', username: u, password: p}}}",
			want: cloud.InvalidSpec, says: "caBundle"},
		"a file": {file: "clouds: {a: {cacert: /etc/passwd, auth: {auth_url: 'https://keystone.example.com/v3', username: u, password: p}}}",
			want: cloud.InvalidSpec, says: "caBundle"},
		"a key's file": {file: "clouds: {a: {key: /etc/passwd, auth: {auth_url: 'https://keystone.example.com/v3', username: u, password: p}}}",
			want: cloud.InvalidSpec},
		"another Keystone": {file: "clouds: {a: {auth: {auth_url: 'https://elsewhere.example.com', username: u, password: p}}}",
			want: cloud.InvalidSpec, says: "auth_url"},
		"no Keystone": {file: "clouds: {a: {auth: {username: u, password: p}}}", want: cloud.InvalidSpec, says: "auth_url"},
		"another region": {file: "clouds: {a: {region_name: r2, auth: {auth_url: 'https://keystone.example.com/v3', username: u, password: p}}}",
			want: cloud.InvalidSpec, says: "region_name"},
		"another project": {file: "clouds: {a: {auth: {auth_url: 'https://keystone.example.com/v3', project_id: p2, username: u, password: p}}}",
			want: cloud.InvalidSpec, says: "project_id"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			account := account.DeepCopy()
			account.Cloud = test.cloud
			made, err := newLogin(account, map[string][]byte{cloudsKey: []byte(test.file)})
			g.Expect(cloud.CodeOf(err)).To(Equal(test.want), "%v", err)
			if err != nil {
				g.Expect(err.Error()).To(And(ContainSubstring(test.says), Not(ContainSubstring("/etc/passwd"))))
				return
			}
			body, err := made.options.ToTokenV3CreateMap(nil)
			g.Expect(err).NotTo(HaveOccurred(), "Keystone's client takes it")
			g.Expect(body).To(HaveKey("auth"))
			if made.options.ApplicationCredentialID != "" {
				g.Expect(made.options.Username+made.options.DomainID).To(BeEmpty(), "its ID says whose it is")
			}
			g.Expect(strings.Join(made.secrets, "")).NotTo(BeEmpty())
		})
	}
}

// TestShared: callers that arrive during a read share the next one. A caller that gives up does not
// affect the others.
func TestShared(t *testing.T) {
	g := NewWithT(t)
	began, goOn := make(chan []string), make(chan error)
	s := newShared(func(ctx context.Context, keys []string) ([]string, error) {
		began <- keys
		select {
		case err := <-goOn:
			return keys, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	var wg sync.WaitGroup
	ask := func(ctx context.Context, key string, found *[]string, err *error) {
		wg.Go(func() { *found, *err = s.get(ctx, key) })
	}
	var first, second, third []string
	var firstErr, secondErr, thirdErr error
	leaves, leave := context.WithCancel(t.Context())
	ask(leaves, "a", &first, &firstErr)
	g.Expect(<-began).To(Equal([]string{"a"}))
	ask(t.Context(), "b", &second, &secondErr)
	ask(t.Context(), "c", &third, &thirdErr)
	g.Eventually(func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.next == nil {
			return 0
		}
		return len(s.next.keys)
	}).Should(Equal(2))
	leave()
	g.Expect(<-began).To(Equal([]string{"b", "c"}))
	goOn <- nil
	wg.Wait()
	g.Expect(firstErr).To(MatchError(context.Canceled))
	g.Expect(secondErr).NotTo(HaveOccurred())
	g.Expect(thirdErr).NotTo(HaveOccurred())
	g.Expect(second).To(Equal([]string{"b", "c"}))
	g.Expect(third).To(Equal(second))
}

// TestSharedAfterPanic: a read that panics is an error for all who wait for it, and the next one
// works.
func TestSharedAfterPanic(t *testing.T) {
	g := NewWithT(t)
	bad := true
	s := newShared(func(_ context.Context, keys []string) ([]string, error) {
		if bad {
			panic("bad answer")
		}
		return keys, nil
	})
	other := s.join("a")
	_, err := s.get(t.Context(), "a")
	_, panicked := errors.AsType[*cloud.PanicError](err)
	g.Expect(panicked).To(BeTrue())
	g.Expect(other.done).To(BeClosed())
	g.Expect(other.err).To(MatchError(err))
	bad = false
	found, err := s.get(t.Context(), "b")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(Equal([]string{"b"}))
}

// TestSharedRests: a hundred callers that come one by one share few reads, each of which began
// after the call. A single caller does not wait.
func TestSharedRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, takes = 100 * time.Millisecond, 200 * time.Millisecond
		asked := 0
		s := newShared(func(context.Context, []string) ([]time.Time, error) {
			asked++
			now := time.Now()
			time.Sleep(takes)
			return []time.Time{now}, nil
		})
		var wg sync.WaitGroup
		for n := range 100 {
			wg.Go(func() {
				came := time.Now()
				began, err := s.get(t.Context(), strconv.Itoa(n))
				if err != nil || began[0].Before(came) || time.Since(came) > (cloud.CooldownFactor+2)*takes {
					t.Errorf("number %d came at %s, and got after %s: %s, %v", n, came, time.Since(came), began, err)
				}
			})
			time.Sleep(every)
		}
		wg.Wait()
		if most := int(100*every/(cloud.CooldownFactor*takes)) + 2; asked > most {
			t.Errorf("%d questions, want at most %d", asked, most)
		}
		time.Sleep(maxCooldown)
		came := time.Now()
		if began, err := s.get(t.Context(), "alone"); err != nil || !began[0].Equal(came) {
			t.Errorf("one alone got %s, %v", began, err)
		}
	})
}

// TestSharedLeader: if the caller that makes a shared read gives up, the other one repeats it.
// Which of them reads is random.
func TestSharedLeader(t *testing.T) {
	g := NewWithT(t)
	for range 20 {
		began, goOn := make(chan []string), make(chan struct{})
		s := newShared(func(ctx context.Context, keys []string) ([]string, error) {
			began <- keys
			select {
			case <-goOn:
				return keys, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		var wg sync.WaitGroup
		leaves, leave := context.WithCancel(t.Context())
		wg.Go(func() { _, _ = s.get(t.Context(), "first") })
		g.Expect(<-began).To(HaveLen(1))
		var found []string
		var err error
		wg.Go(func() { _, _ = s.get(leaves, "leaves") })
		wg.Go(func() { found, err = s.get(t.Context(), "stays") })
		g.Eventually(func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.next == nil {
				return 0
			}
			return len(s.next.keys)
		}).Should(Equal(2))
		goOn <- struct{}{}
		g.Expect(<-began).To(HaveLen(2))
		leave()
		ended := make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
		select {
		case keys := <-began: // the caller that left was the reader
			g.Expect(keys).To(Equal([]string{"stays"}))
			goOn <- struct{}{}
		case goOn <- struct{}{}:
		case <-ended:
		}
		<-ended
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(ContainElement("stays"))
	}
}

// TestCreations: only one create per token runs at a time.
func TestCreations(t *testing.T) {
	g := NewWithT(t)
	var c creations
	_, release, err := c.begin(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	_, other, err := c.begin(t.Context(), "b")
	g.Expect(err).NotTo(HaveOccurred())
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = c.begin(ctx, "a")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	release()
	g.Expect(c.byToken).To(BeEmpty())
}

func TestTokenTag(t *testing.T) {
	g := NewWithT(t)
	g.Expect(tokenTag("abc")).To(Equal("drover-creation-token=abc"))
	long := tokenTag(strings.Repeat("a", 63))
	g.Expect(len(long)).To(BeNumerically("<=", maxTag))
	g.Expect(long).NotTo(Equal(tokenTag(strings.Repeat("a", 62) + "b")))
}

func TestValidate(t *testing.T) {
	g := NewWithT(t)
	path := field.NewPath("spec")
	g.Expect(union.ValidateMachine(requested(ownPorts).Spec, path)).To(BeEmpty())
	g.Expect(union.ValidateMachine(requested(func(m *infrav1.OpenStackMachine) {
		m.Metadata = map[string]string{"drover-ownership-id": "x", "": "x", "long": strings.Repeat("x", 256)}
		m.Tags = []string{"drover-creation-token=x", "fine"}
		m.Ports = []infrav1.OpenStackPort{{Network: "n",
			AllowedAddressPairs: []infrav1.OpenStackAddressPair{{IPAddress: "10.0.0.1"}, {IPAddress: "fd00::/8"}, {IPAddress: "ten"}}}}
	}).Spec, path)).To(ConsistOf(
		HaveField("Field", `spec.cloud.openstack.metadata[drover-ownership-id]`), HaveField("Field", `spec.cloud.openstack.metadata[]`),
		HaveField("Field", `spec.cloud.openstack.metadata[long]`), HaveField("Field", "spec.cloud.openstack.tags[0]"),
		HaveField("Field", "spec.cloud.openstack.ports[0].allowedAddressPairs[2].ipAddress"),
	))
	account := &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{CABundle: "none"}}}
	g.Expect(validateAccount(account, path)).To(ConsistOf(
		HaveField("Field", "spec.credentialsRef"), HaveField("Field", "spec.cloud.openstack.caBundle")))
}

// FuzzRefusal: every answer becomes a typed error without secrets, and with a message of limited
// length.
func FuzzRefusal(f *testing.F) {
	f.Add(403, `{"forbidden": {"code": 403, "message": "Quota exceeded for cores"}}`)
	f.Add(409, `{"NeutronError": {"type": "OverQuota", "message": "m", "detail": ""}}`)
	f.Add(404, `{"NeutronError": "text"}`)
	f.Add(500, `<html>`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		err := typed(driverkit.NewRedactor("secret"), "Op", cloud.ClassCreate,
			gophercloud.ErrUnexpectedResponseCode{Actual: status, Body: []byte(body)})
		var own *cloud.Error
		if !errors.As(err, &own) || len(own.Message) > 600 || strings.Contains(own.Message, "secret") {
			t.Errorf("%d %q: %v", status, body, err)
		}
	})
}

// FuzzPort: a port's description returns what was written, whatever else it contains.
func FuzzPort(f *testing.F) {
	f.Add("owner-1", 3, "team-a", "blue-1")
	f.Fuzz(func(t *testing.T, owner string, index int, namespace, name string) {
		if strings.ContainsFunc(owner, func(r rune) bool { return r <= ' ' || r > '~' }) || len(owner) > 63 || owner == "" || index < 0 ||
			index > 15 {
			t.Skip("no ownership ID, or no index")
		}
		m := &infrav1.OpenStackMachine{Ports: make([]infrav1.OpenStackPort, index+1),
			RootVolume: infrav1.OpenStackVolume{InMachineZone: infrav1.FeatureEnabled}}
		if index%2 == 0 {
			m.Ports[index].FloatingNetwork = "public"
		}
		req := cloud.Request{OwnershipID: owner, Namespace: namespace, Name: name,
			Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{OpenStack: m}}}
		p := port{Description: portDescription(req, index)}
		if p.ownership() != owner || p.index() != index || index%2 == 0 && !p.floating() || index == 0 && !p.volumes() ||
			len(p.Description) > maxText {
			t.Errorf("%q: %q %d", p.Description, p.ownership(), p.index())
		}
	})
}

// FuzzClouds: any Secret is accepted or refused, and errors do not repeat its text.
func FuzzClouds(f *testing.F) {
	f.Add("clouds: {a: {auth: {username: u, password: hidden-word}}}")
	f.Add("hidden-word: [")
	f.Fuzz(func(t *testing.T, file string) {
		_, err := newLogin(&infrav1.OpenStackAccount{AuthURL: "https://k/v3", ProjectID: "p"}, map[string][]byte{cloudsKey: []byte(file)})
		if err != nil && strings.Contains(err.Error(), "hidden-word") && !strings.Contains(file, "auth_type") {
			t.Errorf("%q: %v", file, err)
		}
	})
}
