// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/simulated"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

const secret = "marked-secret-token"

func ms(n int) simulator.Duration {
	return simulator.Duration{Duration: time.Duration(n) * time.Millisecond}
}

// newCloud runs a simulated cloud over real HTTP.
func newCloud(t *testing.T, o simulator.Options) simulator.Admin {
	t.Helper()
	o.Seed = 1
	if len(o.Accounts) == 0 {
		o.Accounts = []simulator.AccountOptions{{Name: "default", Tokens: []string{secret}}}
	}
	if o.Settings.BootMin.Duration == 0 {
		o.Settings.BootMin, o.Settings.Stop = ms(1), ms(1)
	}
	s, err := simulator.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	server := httptest.NewServer(s.Handler())
	t.Cleanup(func() { stop(); <-ended; server.Close() })
	return simulator.Admin{URL: server.URL}
}

func newDriver(t *testing.T, url, token string) cloud.Driver {
	t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	d, err := simulated.Cloud("").New(cloud.Config{
		Account: &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: url,
			Region: "sim-1"}}},
		Credentials: map[string][]byte{"token": []byte(token)},
		Connect:     conformance.Through(transport),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func machine() *infrav1.DroverMachineFields {
	return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{InstanceType: "small",
		Image: "node-image", DiskGiB: 20}}}
}

func request(token string) cloud.Request {
	return cloud.Request{Token: token, OwnershipID: "owner-1", Namespace: "default", Name: "m-" + token, Spec: machine(),
		UserData: []byte("hello")}
}

func reference(token string) cloud.Reference {
	return cloud.Reference{Token: token, OwnershipID: "owner-1"}
}

func TestEnsureIsIdempotent(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{})
	d := newDriver(t, admin.URL, secret)
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			r, err := d.Ensure(t.Context(), request("tok-1"))
			if err != nil {
				t.Error(err)
			}
			ids[i] = r.ID
		})
	}
	wg.Wait()
	g.Expect(slices.Compact(ids)).To(HaveLen(1))

	other := request("tok-1")
	other.UserData = []byte("something else")
	again, err := d.Ensure(t.Context(), other)
	g.Expect(err).NotTo(HaveOccurred(), "another request with the same token adopts")
	g.Expect(again.ID).To(Equal(ids[0]))
	g.Expect(again.ProviderID).To(Equal("simulated:///" + again.FailureDomain + "/" + again.ID))
	g.Expect(again.Token).To(Equal("tok-1"))
	g.Expect(again.OwnershipID).To(Equal("owner-1"))

	g.Expect(d.Delete(t.Context(), []cloud.Resource{again})).To(Equal([]error{nil}))
	g.Eventually(func(g Gomega) {
		r, err := d.Ensure(t.Context(), request("tok-1"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.ID).To(Equal(ids[0]))
		g.Expect(r.State).To(Equal(cloud.StateTerminated), "a terminated machine is never made again")
	}).Should(Succeed())
	snapshot, err := admin.Snapshot(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(snapshot.Live()).To(BeEmpty())
}

func TestLostAnswersMakeOneInstance(t *testing.T) {
	for _, f := range []simulator.Fault{
		{Kind: simulator.CutAfter}, {Kind: simulator.ErrorAfter}, {Kind: simulator.TruncatedJSON}, {Kind: simulator.HTML},
		{Kind: simulator.Redirect}, {Kind: simulator.CutBefore}, {Kind: simulator.ErrorBefore}, {Kind: simulator.Late, Delay: ms(20)},
		{Kind: simulator.ErrorBefore, Status: 502},
	} {
		t.Run(string(f.Kind), func(t *testing.T) {
			g := NewWithT(t)
			admin := newCloud(t, simulator.Options{})
			d := newDriver(t, admin.URL, secret)
			f.Operation, f.Count = wire.RunInstances, 1
			_, err := admin.AddFault(t.Context(), f)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = d.Ensure(t.Context(), request("tok-1"))
			g.Expect(cloud.CodeOf(err)).To(BeElementOf(cloud.Unavailable, cloud.Unknown))
			g.Expect(err.Error()).NotTo(ContainSubstring(secret))
			g.Expect(err.Error()).NotTo(ContainSubstring("hotel"), "a body is never repeated")
			made, err := d.Ensure(t.Context(), request("tok-1"))
			g.Expect(err).NotTo(HaveOccurred())
			if f.Kind == simulator.Late {
				g.Eventually(func() int {
					audit, err := admin.Audit(t.Context())
					g.Expect(err).NotTo(HaveOccurred())
					return audit.Calls(wire.RunInstances, simulator.OutcomeLate)
				}).Should(Equal(1))
			}
			found, err := d.Describe(t.Context(), []cloud.Reference{reference("tok-1")})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(instances(found)).To(Equal([]string{made.ID}))
		})
	}
}

func instances(list []cloud.Resource) []string {
	var ids []string
	for _, r := range list {
		if r.Kind == cloud.KindInstance {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func TestCodes(t *testing.T) {
	for code, want := range map[string]cloud.Code{
		wire.RequestLimitExceeded: cloud.Throttled, wire.InsufficientInstanceCapacity: cloud.NoCapacity,
		wire.InstanceLimitExceeded: cloud.QuotaExceeded, wire.AuthFailure: cloud.Unauthorized,
		wire.InvalidParameterValue: cloud.InvalidSpec, wire.InternalError: cloud.Unavailable,
		wire.ServiceUnavailable: cloud.Unavailable, "SomethingNew": cloud.Unknown,
	} {
		t.Run(code, func(t *testing.T) {
			g := NewWithT(t)
			admin := newCloud(t, simulator.Options{})
			d := newDriver(t, admin.URL, secret)
			_, err := admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Code: code, RetryAfter: 1.5})
			g.Expect(err).NotTo(HaveOccurred())
			_, err = d.Ensure(t.Context(), request("tok-1"))
			var e *cloud.Error
			g.Expect(errors.As(err, &e)).To(BeTrue())
			g.Expect(e.Code).To(Equal(want))
			if want == cloud.Throttled || want == cloud.Unavailable {
				g.Expect(e.RetryAfter).To(Equal(1500 * time.Millisecond))
			} else {
				g.Expect(e.RetryAfter).To(BeZero())
			}
			_, err = d.List(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(want))
			g.Expect(cloud.CodeOf(d.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: "i-1"}})[0])).To(Equal(want))
		})
	}
}

func TestRealRefusals(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{
		Accounts: []simulator.AccountOptions{{Name: "default", Tokens: []string{secret}, Quota: simulator.Quota{Instances: 1}}},
		Regions:  []simulator.Region{{Name: "sim-1", Zones: []string{"a", "b"}, Capacity: map[string]map[string]int{"a": {"*": 0}}}},
	})
	d := newDriver(t, admin.URL, secret)
	code := func(change func(*cloud.Request)) cloud.Code {
		r := request("tok-1")
		change(&r)
		_, err := d.Ensure(t.Context(), r)
		return cloud.CodeOf(err)
	}
	g.Expect(code(func(r *cloud.Request) { r.Spec.Cloud.Simulated.InstanceType = "huge" })).To(Equal(cloud.InvalidSpec))
	g.Expect(code(func(r *cloud.Request) { r.Spec.Cloud.Simulated.Image = "none" })).To(Equal(cloud.InvalidSpec))
	g.Expect(code(func(r *cloud.Request) { r.FailureDomain = "c" })).To(Equal(cloud.InvalidSpec))
	g.Expect(code(func(r *cloud.Request) { r.UserData = make([]byte, 16<<10+1) })).To(Equal(cloud.InvalidSpec))
	g.Expect(code(func(r *cloud.Request) { r.FailureDomain = "a" })).To(Equal(cloud.NoCapacity))
	g.Expect(code(func(*cloud.Request) {})).To(Equal(cloud.Code("")), "the cloud chooses the zone that has capacity")
	g.Expect(code(func(r *cloud.Request) { r.Token = "tok-2" })).To(Equal(cloud.QuotaExceeded))
	_, err := newDriver(t, admin.URL, "wrong").Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(admin.SetTokens(t.Context(), "default")).To(Succeed())
	_, err = d.Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "revoked")
	for _, mode := range []simulator.DownMode{simulator.DownCut, simulator.DownUnavailable, simulator.DownHang} {
		g.Expect(admin.SetDown(t.Context(), mode)).To(Succeed())
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err = d.Probe(ctx)
		cancel()
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	}
}

func TestListIsComplete(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{Settings: simulator.Settings{PageSize: 7, Throttle: simulator.ThrottleNone}})
	d := newDriver(t, admin.URL, secret)
	for i := range 40 {
		r := request(fmt.Sprintf("tok-%d", i))
		r.Spec.Cloud.Simulated.DataDisks = []infrav1.SimulatedDataDisk{{SizeGiB: 5}}
		_, err := d.Ensure(t.Context(), r)
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := admin.Run(t.Context(), "default", wire.RunInstancesRequest{Region: "sim-1", InstanceType: "small", Image: "node-image",
		Tags: map[string]string{"theirs": "yes"}})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.PartialPage, Probability: 0.5})
	g.Expect(err).NotTo(HaveOccurred())
	all, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(instances(all)).To(HaveLen(40), "not the foreign one")
	g.Expect(all).To(HaveLen(40*4), "instance, NIC, root disk and data disk")
	g.Expect(admin.RemoveFault(t.Context(), "")).To(Succeed())

	_, err = admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Skip: 3, Count: 1})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "a listing that breaks off is an error, not a short listing")
}

func TestDeleteWithDependants(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{})
	d := newDriver(t, admin.URL, secret)
	r := request("tok-1")
	r.Spec.Cloud.Simulated.DataDisks = []infrav1.SimulatedDataDisk{{SizeGiB: 5}, {SizeGiB: 6}}
	_, err := d.Ensure(t.Context(), r)
	g.Expect(err).NotTo(HaveOccurred())
	all, err := d.Describe(t.Context(), []cloud.Reference{reference("tok-1"), reference("tok-2")})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveLen(5))
	errs := d.Delete(t.Context(), slices.DeleteFunc(slices.Clone(all), func(r cloud.Resource) bool { return r.Kind == cloud.KindInstance }))
	for _, err := range errs {
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "attached")
	}
	g.Expect(d.Delete(t.Context(), append(all[:0:0],
		slices.DeleteFunc(slices.Clone(all), func(r cloud.Resource) bool { return r.Kind != cloud.KindInstance })...))).To(Equal([]error{nil}))
	g.Eventually(func(g Gomega) {
		left, err := d.Describe(t.Context(), []cloud.Reference{reference("tok-1")})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(left).To(HaveLen(3), "the terminated instance, and the data disks")
	}).Should(Succeed())
	for _, err := range d.Delete(t.Context(), all) {
		g.Expect(err).NotTo(HaveOccurred(), "what is gone already is no error")
	}
	left, err := d.Describe(t.Context(), []cloud.Reference{reference("tok-1")})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(HaveLen(1))
	g.Expect(left[0].State).To(Equal(cloud.StateTerminated))
}

func TestEndedContextMakesNoCall(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{})
	d := newDriver(t, admin.URL, secret)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Ensure(ctx, request("tok-1"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	g.Expect(errors.Is(err, context.Canceled)).To(BeTrue())
	for _, err := range d.Delete(ctx, []cloud.Resource{{Kind: cloud.KindInstance, ID: "i"}, {Kind: cloud.KindDisk, ID: "d"}}) {
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	}
	audit, err := admin.Audit(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(audit.Calls("")).To(BeZero())
}

func TestOffering(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{})
	d := newDriver(t, admin.URL, secret)
	o, err := d.Offering(t.Context(), machine())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Capacity.Cpu().String()).To(Equal("2"))
	g.Expect(o.Capacity.Memory().String()).To(Equal("4Gi"))
	g.Expect(o.Architecture).To(Equal("amd64"))
	unknown := machine()
	unknown.Cloud.Simulated.Image = "none"
	_, err = d.Offering(t.Context(), unknown)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	info, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.FailureDomains).To(Equal([]string{"sim-1a", "sim-1b", "sim-1c"}))
}

// TestUnexpectedServers: endpoints that are not a simulated cloud.
func TestUnexpectedServers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  cloud.Code
	}{
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			block := []byte(strings.Repeat(" ", 1<<20))
			for range 20 {
				_, _ = w.Write(block)
			}
		}, cloud.Unknown},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, cloud.Unknown},
		"html 403": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>"+secret, http.StatusForbidden) }, cloud.Unauthorized},
		"html 429": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "slow down", http.StatusTooManyRequests) }, cloud.Throttled},
		"html 502": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }, cloud.Unavailable},
		"echo of the token": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"code":"InvalidParameterValue","message":"bad %s"}`, r.Header.Get("Authorization"))
		}, cloud.InvalidSpec},
		"echo of the token where it is cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"code":%q,"message":%q}`, strings.Repeat("c", 64-len(secret)/2)+secret,
				strings.Repeat("m", 512-len(secret)/2)+secret)
		}, cloud.Unknown},
		"never ending listing": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"nextToken":"again"}`))
		}, cloud.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := httptest.NewServer(c.serve)
			defer server.Close()
			_, err := newDriver(t, server.URL, secret).List(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(c.want), "%v", err)
			g.Expect(err.Error()).NotTo(ContainSubstring(secret[:len(secret)/2]))
		})
	}
}

// TestDeleteRepeatsNoToken: the error of each resource in a batch is redacted, too.
func TestDeleteRepeatsNoToken(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"results":[{"id":"i-1","error":{"code":"AuthFailure","message":"no right for %s"}}]}`, secret)
	}))
	defer server.Close()
	errs := newDriver(t, server.URL, secret).Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: "i-1"}})
	g.Expect(errs).To(HaveLen(1))
	g.Expect(errs[0]).To(MatchError(ContainSubstring("no right for [credential]")))
	g.Expect(cloud.CodeOf(errs[0])).To(Equal(cloud.Unauthorized))
}

func TestNew(t *testing.T) {
	own := func(endpoint string) *infrav1.DroverAccountSpec {
		return &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: endpoint}}}
	}
	token := map[string][]byte{"token": []byte("t")}
	for name, c := range map[string]struct {
		cfg      cloud.Config
		want     cloud.Code
		operator string
	}{
		"own endpoint, own credentials":     {cloud.Config{Account: own("http://a:1"), Credentials: token}, "", ""},
		"own endpoint, ambient credentials": {cloud.Config{Account: own("http://a:1")}, cloud.InvalidSpec, "http://b:1"},
		"no endpoint":                       {cloud.Config{Account: own(""), Credentials: token}, cloud.InvalidSpec, ""},
		"operator's endpoint":               {cloud.Config{Account: own(""), Credentials: token}, "", "http://b:1"},
		"endpoint with a user":              {cloud.Config{Account: own("http://u:p@a:1"), Credentials: token}, cloud.InvalidSpec, ""},
		"endpoint that is none":             {cloud.Config{Account: own("::"), Credentials: token}, cloud.InvalidSpec, ""},
		"Secret without the key": {cloud.Config{Account: own("http://a:1"), Credentials: map[string][]byte{}},
			cloud.Unauthorized, ""},
		"token with a line break": {cloud.Config{Account: own("http://a:1"), Credentials: map[string][]byte{"token": []byte("a\nb")}},
			cloud.Unauthorized, ""},
		"no simulated member":                 {cloud.Config{Account: &infrav1.DroverAccountSpec{}, Credentials: token}, cloud.InvalidSpec, ""},
		"ambient without the manager's token": {cloud.Config{Account: own("")}, cloud.Unauthorized, "http://b:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DROVER_SIMULATED_TOKEN", "")
			c.cfg.Connect = conformance.Through(http.DefaultTransport)
			_, err := simulated.Cloud(c.operator).New(c.cfg)
			if got := cloud.CodeOf(err); got != c.want {
				t.Fatalf("got %q (%v), want %q", got, err, c.want)
			}
		})
	}
	t.Setenv("DROVER_SIMULATED_TOKEN", "the-operators")
	if _, err := simulated.Cloud("http://b:1").New(cloud.Config{Account: own(""),
		Connect: conformance.Through(http.DefaultTransport)}); err != nil {
		t.Fatalf("ambient credentials: %v", err)
	}
}

func TestEventualConsistency(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{Settings: simulator.Settings{BootMin: ms(1), ConsistencyLag: ms(400)}})
	d := newDriver(t, admin.URL, secret)
	missed := 0
	for i := range 10 {
		made, err := d.Ensure(t.Context(), request(fmt.Sprintf("tok-%d", i)))
		g.Expect(err).NotTo(HaveOccurred())
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: made.Token, OwnershipID: "owner-1", ProviderID: made.ProviderID}})
		g.Expect(err).NotTo(HaveOccurred())
		if len(instances(found)) == 0 {
			missed++
		}
	}
	g.Expect(missed).To(BeNumerically(">", 0), "reads miss what was just made")
	g.Eventually(func(g Gomega) {
		all, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(instances(all)).To(HaveLen(10))
	}).Should(Succeed())
}

func TestLongNames(t *testing.T) {
	g := NewWithT(t)
	admin := newCloud(t, simulator.Options{})
	d := newDriver(t, admin.URL, secret)
	names := []string{strings.Repeat("a", 10_000), strings.Repeat("a", 9_999), "UPPER", "upper", "with.dots", "ünï-\xff-code", "-", "ok"}
	hosts := map[string]bool{}
	for i, name := range names {
		r := request(fmt.Sprintf("tok-%d", i))
		r.Name, r.Namespace = name, strings.Repeat("n", 250)
		made, err := d.Ensure(t.Context(), r)
		g.Expect(err).NotTo(HaveOccurred(), name)
		hosts[made.Addresses[1].Address] = true
	}
	g.Expect(hosts).To(HaveLen(len(names)), "two names never become one")
	g.Expect(hosts).To(HaveKey("ok"))
}
