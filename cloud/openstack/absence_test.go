// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// waits returns how long a create may still take effect, according to an error.
func waits(g Gomega, err error) time.Duration {
	var open *cloud.Error
	g.ExpectWithOffset(1, errors.As(err, &open)).To(BeTrue(), "%v", err)
	g.ExpectWithOffset(1, open.Code).To(Equal(cloud.Unavailable), "%v", err)
	return open.RetryAfter
}

// TestOpenCreateIsNotAbsent: a live read never calls a create absent that may still take effect.
func TestOpenCreateIsNotAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		d := connected(t, p)
		time.Sleep(inheritedPending) // no create of an earlier process is open
		p.play("CreateServer", func() (*http.Response, error) { time.Sleep(30 * time.Second); return lost() })
		req := requested(nil)
		_, err := d.Ensure(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))

		refs := []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID}}
		_, err = d.Describe(t.Context(), refs)
		g.Expect(waits(g, err)).To(Equal(150 * time.Second))
		g.Expect(30*time.Second + waits(g, err)).To(BeNumerically("<=", Cloud().Traits.CreateHorizon))
		g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: "another"}})).To(BeEmpty(), "others do not wait")

		time.Sleep(150*time.Second - time.Nanosecond)
		_, err = d.Describe(t.Context(), refs)
		g.Expect(waits(g, err)).To(Equal(time.Nanosecond))
		there := server{ID: "one", Metadata: map[string]string{cloud.TagOwnership: req.OwnershipID, cloud.TagToken: req.Token}}
		p.play("ListServers", listing(g, "servers", []server{there}, false), recorded(t, "servers-none"))
		g.Expect(d.Describe(t.Context(), refs)).To(ConsistOf(HaveField("ID", "one")), "what is there is told at once")
		time.Sleep(time.Nanosecond)
		g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty())
	})
}

// TestCreateUnderWayIsNotAbsent: nor a create that has not been answered yet.
func TestCreateUnderWayIsNotAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		d := connected(t, slowly{p, "CreateServer", 10 * time.Second})
		time.Sleep(inheritedPending)
		req := requested(nil)
		go func() { _, _ = d.Ensure(t.Context(), req) }()
		time.Sleep(5 * time.Second)
		_, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(waits(g, err)).To(BeNumerically(">", 0))
		time.Sleep(time.Minute)
		g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})).To(BeEmpty())
	})
}

// TestInheritedCreateIsNotAbsent: nor one that an earlier process may have sent. A recorded machine
// does not wait.
func TestInheritedCreateIsNotAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		p.play("GetServer", madeUp(http.StatusNotFound, nil,
			`{"itemNotFound": {"code": 404, "message": "Instance server-b could not be found."}}`))
		d := connected(t, p)
		recordless, known := []cloud.Reference{{Token: "a"}}, []cloud.Reference{{Token: "b", ProviderID: "openstack:///server-b"}}
		g.Expect(d.Describe(t.Context(), known)).To(BeEmpty())
		_, err := d.Describe(t.Context(), recordless)
		g.Expect(waits(g, err)).To(Equal(inheritedPending))
		time.Sleep(inheritedPending)
		g.Expect(d.Describe(t.Context(), recordless)).To(BeEmpty())
	})
}

// foreignPorts returns n pages of 1,000 ports of others.
func foreignPorts(g Gomega, n int) (pages []func() (*http.Response, error)) {
	for page := range n {
		ports := make([]port, pageSize)
		for i := range ports {
			ports[i] = port{ID: fmt.Sprintf("p-%02d-%04d", page, i), Name: "theirs"}
		}
		pages = append(pages, listing(g, "ports", ports, page < n-1))
	}
	return pages
}

// many returns references to n machines.
func many(n int) []cloud.Reference {
	refs := make([]cloud.Reference, n)
	for i := range refs {
		refs[i].Token = fmt.Sprintf("token-%03d", i)
	}
	return refs
}

// TestForeignPorts: in a project with thousands of other ports, a live read of many machines
// requests only their own.
func TestForeignPorts(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	p.play("ListPorts", append(foreignPorts(g, 20), recorded(t, "ports-none"))...)
	p.play("ListServers", listing(g, "servers", []server{{ID: "one",
		Metadata: map[string]string{cloud.TagOwnership: "owner-1", cloud.TagToken: "token-000"}}}, false))
	d := connected(t, p)
	d.inheritedUntil = time.Time{}
	_, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.count("ListPorts")).To(Equal(20))
	_, err = d.Describe(t.Context(), many(maxTokens+1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.count("ListPorts") - 20).To(Equal(2))
}

// slowly makes one operation take that long, or until its context ends.
type slowly struct {
	http.RoundTripper
	op    string
	takes time.Duration
}

func (s slowly) RoundTrip(req *http.Request) (*http.Response, error) {
	if cloud.OperationOf(req.Context()).Name == s.op {
		select {
		case <-time.After(s.takes):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	return s.RoundTripper.RoundTrip(req)
}

// slowWhole makes the full listing take too long, but no listing by tokens.
type slowWhole struct{ http.RoundTripper }

func (s slowWhole) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("tags") == markerTag {
		return slowly{s.RoundTripper, "ListServers", time.Minute}.RoundTrip(req)
	}
	return s.RoundTripper.RoundTrip(req)
}

// TestSlowListing: if a full listing does not end within a call's time, the driver reads the
// machines by their tokens.
func TestSlowListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		there := server{ID: "one", Metadata: map[string]string{cloud.TagOwnership: "owner-1", cloud.TagToken: "token-000"}}
		p.play("ListServers", listing(g, "servers", []server{there}, false))
		d := connected(t, slowWhole{p})
		d.inheritedUntil = time.Time{}
		_, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		for _, most := range []time.Duration{15 * time.Second, 0} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			began := time.Now()
			found, err := d.Describe(ctx, many(maxTokens+1))
			cancel()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(ContainElement(HaveField("ID", "one")))
			g.Expect(time.Since(began)).To(BeNumerically("<=", most), "and not tried again before the next listing of everything")
		}
	})
}

// downCell is Nova's answer in microversion 2.69 for a server whose cell is down: "Handling Down
// Cells" in its API guide.
const downCell = `{"id": "one", "status": "UNKNOWN", "tenant_id": "t", "created": "2018-06-29T15:07:29Z", "OS-EXT-AZ:availability_zone": "UNKNOWN", "links": []}`

// TestDownCell: Nova's listings omit servers of a cell that is down. None of these servers is
// reported as absent.
func TestDownCell(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	d.inheritedUntil = time.Time{}
	ref := cloud.Reference{Token: "recorded-token-0001", OwnershipID: "owner-1", ProviderID: "openstack:///one"}
	p.play("GetServer", madeUp(http.StatusOK, nil, `{"server": `+downCell+`}`))
	found, err := d.Describe(t.Context(), []cloud.Reference{ref})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(And(
		HaveField("ID", "one"), HaveField("Token", ref.Token), HaveField("OwnershipID", ref.OwnershipID), HaveField("ProviderID", ref.ProviderID),
		HaveField("State", cloud.StateRunning), HaveField("FailureDomain", ""), HaveField("Notice", ContainSubstring("cell")),
	)))
	g.Expect(p.calls[len(p.calls)-1].req.Header.Get("X-Openstack-Nova-Api-Version")).To(Equal("2.69"))

	// A Nova that does not support the microversion fails instead.
	p.play("GetServer", madeUp(http.StatusNotAcceptable, nil,
		`{"computeFault": {"code": 406, "message": "Version 2.69 is not supported by the API."}}`),
		madeUp(http.StatusInternalServerError, nil, `{"computeFault": {"code": 500, "message": "Unexpected API Error."}}`))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(ConsistOf(HaveField("Notice", ContainSubstring("cell"))),
		"and holds up no other")
	g.Expect(p.calls[len(p.calls)-1].req.Header.Get("X-Openstack-Nova-Api-Version")).To(Equal(microversion))

	// An existing server is returned. A server with other tags is not the machine's. A server that
	// is gone is requested once.
	full := `{"server": {"id": "one", "status": "ACTIVE", "metadata": {"drover-creation-token": "recorded-token-0001", "drover-ownership-id": %q}}}`
	p.play("GetServer", madeUp(http.StatusOK, nil, fmt.Sprintf(full, "owner-1")))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(ConsistOf(HaveField("ID", "one")))
	p.play("GetServer", madeUp(http.StatusOK, nil, fmt.Sprintf(full, "owner-2")))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(BeEmpty())
	p.play("GetServer", madeUp(http.StatusNotFound, nil, `{"itemNotFound": {"code": 404, "message": "Instance one could not be found."}}`))
	asked := p.count("GetServer")
	for range 2 {
		g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(BeEmpty())
	}
	g.Expect(p.count("GetServer") - asked).To(Equal(1))
}

// TestNotFoundOfAnother: a 404 that does not name the server, such as that of a proxy or of another
// resource, does not prove that the server is gone.
func TestNotFoundOfAnother(t *testing.T) {
	for name, body := range map[string]string{
		"a proxy":          `<html><body>404 Not Found</body></html>`,
		"the project":      `{"itemNotFound": {"code": 404, "message": "Project t could not be found."}}`,
		"another instance": `{"itemNotFound": {"code": 404, "message": "Instance other could not be found."}}`,
		"no kind":          `{"error": {"code": 404, "message": "Instance server-1 could not be found."}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			d := connected(t, p)
			d.inheritedUntil = time.Time{}
			ref := cloud.Reference{Token: "a", ProviderID: "openstack:///server-1"}
			p.play("GetServer", madeUp(http.StatusNotFound, nil, body))
			_, err := d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(err).To(HaveOccurred())
			p.play("GetServer", madeUp(http.StatusNotFound, nil,
				`{"itemNotFound": {"code": 404, "message": "Instance server-1 could not be found."}}`))
			g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(BeEmpty())
			g.Expect(p.count("GetServer")).To(Equal(2), "the first answer is not remembered")
		})
	}
}

// TestDeletedIsNotAskedFor: once Nova has accepted a server's deletion, the driver knows without
// another call that it is gone.
func TestDeletedIsNotAskedFor(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	p.play("DeleteServer", madeUp(http.StatusNoContent, http.Header{"X-Openstack-Request-Id": {"req-1"}}, ""))
	g.Expect(d.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: "one"}})).To(HaveEach(BeNil()))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: "a", ProviderID: "openstack:///one"}})).To(BeEmpty())
	g.Expect(p.count("GetServer")).To(BeZero())
}

// TestDeletedIsSettled: a create that an earlier process may have sent has taken effect once its
// server is deleted.
func TestDeletedIsSettled(t *testing.T) {
	g := NewWithT(t)
	p := ordinary(t)
	d := connected(t, p)
	p.play("DeleteServer", madeUp(http.StatusNoContent, http.Header{"X-Openstack-Request-Id": {"req-1"}}, ""))
	g.Expect(d.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: "one", Token: "a"},
		{Kind: cloud.KindInstance, ID: "other"}})).To(HaveEach(BeNil()))
	g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: "a"}})).To(BeEmpty())
	_, err := d.Describe(t.Context(), []cloud.Reference{{Token: "b"}})
	g.Expect(waits(g, err)).To(BeNumerically(">", 0))
}

// TestDownCellHidesCreate: while a cell is down, a server that no listing shows may be in it. No
// second server is created, and none that may exist is reported as absent.
func TestDownCellHidesCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := ordinary(t)
		p.play("CreateServer", lost)
		d := connected(t, p)
		_, err := d.Ensure(t.Context(), requested(nil))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
		time.Sleep(inheritedPending)
		p.play("ListServerStates", madeUp(http.StatusOK, nil, `{"servers": [{"id": "x"}, `+downCell+`]}`))
		_, err = d.Ensure(t.Context(), requested(nil))
		g.Expect(err).To(MatchError(ContainSubstring("cell")))
		g.Expect(p.count("CreateServer")).To(Equal(1))
		_, err = d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0001"}})
		g.Expect(err).To(MatchError(ContainSubstring("cell")))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))

		p.play("ListServerStates", madeUp(http.StatusOK, nil, `{"servers": [{"id": "x"}]}`))
		p.play("CreateServer", recorded(t, "server-made"))
		time.Sleep(minPending)
		g.Expect(d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0001"}})).To(BeEmpty())
		_, err = d.Ensure(t.Context(), requested(nil))
		g.Expect(err).NotTo(HaveOccurred())
	})
}
