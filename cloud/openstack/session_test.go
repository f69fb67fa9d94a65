// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// replaced returns the recorded answer with one text replaced.
func replaced(t *testing.T, name, from, to string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		resp, err := recorded(t, name)()
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(from), []byte(to)))), -1
		return resp, err
	}
}

// TestPlace: the place comes from Keystone's token and catalog, whether or not the account names
// a region.
func TestPlace(t *testing.T) {
	g := NewWithT(t)
	for _, region := range []string{"", "RegionOne"} {
		d := connected(t, ordinary(t))
		d.account.Region = region
		info, err := d.Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Place).To(Equal("openstack:" + projectOf(t) + ":RegionOne"))
	}
}

// TestProjectChanges: credentials for another project than before are not used.
func TestProjectChanges(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("CreateToken", recorded(t, "token"), replaced(t, "token", projectOf(t), "another-project"))
	p.play("ListAvailabilityZones", recorded(t, "zones"), recorded(t, "token-refused"))
	d := connected(t, p)
	_, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	g.Expect(err).To(MatchError(And(ContainSubstring(projectOf(t)), ContainSubstring("another-project"))))
}

// TestRefusedLogin: after Keystone refuses credentials, they are tried once a minute, not once per
// machine, because Keystone may lock the user out.
func TestRefusedLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		p.play("CreateToken", recorded(t, "login-refused"), recorded(t, "token"))
		d := connected(t, p)
		for i := range 20 {
			req := requested(nil)
			req.Token = fmt.Sprintf("recorded-token-%04d", i)
			_, err := d.Ensure(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
			time.Sleep(maxCooldown / 10)
		}
		g.Expect(p.count("CreateToken")).To(Equal(1))
		other := connected(t, p)
		_, err := other.Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred(), "new credentials, which make a new driver, are tried at once")
		time.Sleep(time.Minute)
		_, err = d.Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
	})
}

// TestCatalogAddresses: a catalog's address is refused if the account's own address would be:
// without encryption, or with a query.
func TestCatalogAddresses(t *testing.T) {
	for _, test := range []struct {
		auth, url string
		want      cloud.Code
	}{
		{"https://keystone.example.com/v3", "https://nova.example.com/v2.1", ""},
		{"http://keystone.example.com/v3", "http://nova.example.com/v2.1", ""},
		{"https://keystone.example.com/v3", "http://nova.example.com/v2.1", cloud.InvalidSpec},
		{"HTTPS://keystone.example.com/v3", "http://nova.example.com/v2.1", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "ftp://nova.example.com/v2.1", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://victim.example.com/x?a=", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://victim.example.com/x?", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://victim.example.com/x#a", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://victim.example.com/x#", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://user:word@victim.example.com/x", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://", cloud.InvalidSpec},
		{"http://keystone.example.com/v3", "http://[::1", cloud.InvalidSpec},
	} {
		g := NewWithT(t)
		s := sessions{account: &infrav1.OpenStackAccount{AuthURL: test.auth}}
		_, _, err := s.endpoint(&tokens.ServiceCatalog{Entries: []tokens.CatalogEntry{
			{Type: compute, Endpoints: []tokens.Endpoint{{Interface: "public", URL: test.url}}},
		}}, compute)
		g.Expect(cloud.CodeOf(err)).To(Equal(test.want), "%+v: %v", test, err)
		if err != nil {
			g.Expect(err.Error()).NotTo(ContainSubstring("word"))
		}
	}
}

// TestRedirect: a redirect is not followed.
func TestRedirect(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("ListAvailabilityZones", madeUp(http.StatusTemporaryRedirect, http.Header{"Location": {"http://victim.example.com/"}}, ""))
	_, err := connected(t, p).Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
	g.Expect(p.ops()).To(Equal([]string{"CreateToken", "ListAvailabilityZones"}))
}

// TestClassifiedBeforeRedacted: a secret that is part of an answer's message does not change how
// the answer is classified.
func TestClassifiedBeforeRedacted(t *testing.T) {
	g := NewWithT(t)
	body := `{"forbidden": {"code": 403, "message": "Quota exceeded for cores: Requested 4, but already used 8 of 10 cores"}}`
	err := typed(driverkit.NewRedactor("Quota"), "Op", cloud.ClassCreate,
		gophercloud.ErrUnexpectedResponseCode{Actual: 403, Body: []byte(body)})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded))
	g.Expect(err.Error()).To(ContainSubstring("403: [credential] exceeded"))
}

// TestToken: a refused token is replaced once. After that, the credentials are at fault.
func TestToken(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("ListAvailabilityZones", recorded(t, "zones"), recorded(t, "token-refused"), recorded(t, "zones"), recorded(t, "token-refused"))
	d := connected(t, p)
	for range 2 {
		info, err := d.Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.FailureDomains).To(Equal([]string{"az-1", "az-2"}))
	}
	g.Expect(p.count("CreateToken")).To(Equal(2))
	_, err := d.Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(p.count("CreateToken")).To(Equal(3))

	p.play("CreateToken", recorded(t, "login-refused"))
	_, err = connected(t, p).Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(err).NotTo(MatchError(ContainSubstring("very-secret")))

	// A token is renewed before it expires.
	p = ordinary(t)
	d = connected(t, p)
	for range 2 {
		_, err = d.Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		now := *d.sessions.current
		now.until = time.Now().Add(tokenEarly / 2)
		d.sessions.current = &now
	}
	g.Expect(p.count("CreateToken")).To(Equal(2))
}

// TestProject: credentials for another project are not used.
func TestProject(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	d.account.ProjectID = "another"
	_, err := d.Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(p.ops()).To(Equal([]string{"CreateToken"}))
}

// TestCatalog: if the catalog has no matching endpoint or several, the driver does not guess.
func TestCatalog(t *testing.T) {
	endpoint := func(kind, region, url string) tokens.Endpoint {
		return tokens.Endpoint{Interface: kind, Region: region, URL: url}
	}
	catalog := &tokens.ServiceCatalog{Entries: []tokens.CatalogEntry{
		{Type: compute, Endpoints: []tokens.Endpoint{endpoint("public", "r1", "https://one"), endpoint("internal", "r1", "https://inner"),
			endpoint("public", "r2", "https://two")}},
		{Type: network, Endpoints: []tokens.Endpoint{endpoint("public", "r2", "https://net")}},
	}}
	for _, test := range []struct {
		service, region string
		kind            infrav1.OpenStackInterface
		want            string
	}{
		{compute, "r1", "", "https://one/"}, {compute, "r2", "public", "https://two/"}, {compute, "", "internal", "https://inner/"},
		{compute, "", "public", ""}, {compute, "r2", "internal", ""}, {network, "r1", "public", ""}, {image, "r1", "public", ""},
	} {
		g := NewWithT(t)
		s := sessions{account: &infrav1.OpenStackAccount{Region: test.region, Interface: test.kind}}
		url, _, err := s.endpoint(catalog, test.service)
		g.Expect(url).To(Equal(test.want), "%+v", test)
		g.Expect(cloud.CodeOf(err)).To(Equal(map[bool]cloud.Code{true: cloud.InvalidSpec}[test.want == ""]))
	}
}

// TestAnswerThatCannotBeDecoded: an answer of other types is not OpenStack's. The error repeats
// nothing of it, and names nothing of the program.
func TestAnswerThatCannotBeDecoded(t *testing.T) {
	for name, body := range map[string]string{
		"another type": `{"servers":[{"id":{"marked":"text"}}]}`,
		"a number":     `{"servers":[{"id":4711}]}`,
		"a time":       `{"servers":[{"id":"1","created":"marked time"}]}`,
		"an array":     `["marked"]`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			p.play("ListServers", func() (*http.Response, error) {
				resp, err := recorded(t, "servers-none")()
				if err == nil {
					resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader([]byte(body))), -1
				}
				return resp, err
			})
			_, err := connected(t, p).List(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "%v", err)
			g.Expect(err).To(MatchError(And(ContainSubstring("ListServers: "), ContainSubstring("can't be decoded"))))
			for _, inner := range []string{"marked", "4711", "json", "Go ", "struct", "parsing"} {
				g.Expect(err.Error()).NotTo(ContainSubstring(inner))
			}
		})
	}
}
