// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

func ms(n int) simulator.Duration {
	return simulator.Duration{Duration: time.Duration(n) * time.Millisecond}
}

func quick() simulator.Settings {
	return simulator.Settings{BootMin: ms(1), Stop: ms(1), Throttle: simulator.ThrottleNone}
}

// client calls the wire API without the driver.
type client struct {
	t          *testing.T
	url, token string
	simulator.Admin
}

func start(t *testing.T, o simulator.Options) *client {
	t.Helper()
	if o.Seed == 0 {
		o.Seed = 7
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
	return &client{t, server.URL, simulator.DefaultToken, simulator.Admin{URL: server.URL, Token: o.AdminToken}}
}

// call returns the error's code, or "" for success.
func (c *client) call(op string, in, out any) string {
	c.t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url+wire.Prefix+op, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "cut"
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		if out != nil {
			if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
				return "broken"
			}
		}
		return ""
	}
	var e wire.ErrorResponse
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		c.t.Fatal(err)
	}
	return e.Code
}

func runRequest(token string) wire.RunInstancesRequest {
	return wire.RunInstancesRequest{
		Region: "sim-1", ClientToken: token, InstanceType: "small", Image: "node-image",
		Tags: map[string]string{cloud.TagToken: token, cloud.TagOwnership: "owner"},
	}
}

func (c *client) run(change func(*wire.RunInstancesRequest)) (wire.Resource, string) {
	c.t.Helper()
	req := runRequest("")
	if change != nil {
		change(&req)
	}
	var out wire.RunInstancesResponse
	code := c.call(wire.RunInstances, req, &out)
	return out.Instance, code
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) state(id string) wire.State {
	c.t.Helper()
	s, err := c.Snapshot(c.t.Context())
	c.must(err)
	for _, r := range s.Resources {
		if r.ID == id {
			return r.State
		}
	}
	return "none"
}

func TestStates(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: simulator.Settings{BootMin: ms(150), Stop: ms(150), TerminatedVisible: ms(1200)}})
	r, code := c.run(nil)
	g.Expect(code).To(BeEmpty())
	g.Expect(r.State).To(Equal(wire.Pending))
	g.Expect(r.PrivateIP).To(Equal("10.64.0.10"))
	g.Eventually(func() wire.State { return c.state(r.ID) }).Should(Equal(wire.Running))
	g.Expect(c.call(wire.TerminateInstances, wire.BatchRequest{Region: "sim-1", IDs: []string{r.ID}}, nil)).To(BeEmpty())
	g.Expect(c.state(r.ID)).To(Equal(wire.Stopping))
	g.Eventually(func() wire.State { return c.state(r.ID) }).Should(Equal(wire.Terminated))
	var page wire.DescribeResponse
	g.Expect(c.call(wire.DescribeInstances, wire.DescribeRequest{Region: "sim-1", IDs: []string{r.ID}}, &page)).To(BeEmpty())
	g.Expect(page.Resources[0].State).To(Equal(wire.Terminated), "still shown")
	g.Eventually(func() string {
		return c.call(wire.DescribeInstances, wire.DescribeRequest{Region: "sim-1", IDs: []string{r.ID}}, nil)
	}, 3*time.Second).Should(Equal(wire.InstanceNotFound), "and then forgotten")
}

func TestClientTokens(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick(),
		Accounts: []simulator.AccountOptions{{Name: "default", Tokens: []string{simulator.DefaultToken}, Quota: simulator.Quota{Instances: 1}}}})
	withToken := func(token string) func(*wire.RunInstancesRequest) {
		return func(r *wire.RunInstancesRequest) { r.ClientToken = token }
	}
	_, code := c.run(func(r *wire.RunInstancesRequest) { r.ClientToken, r.DryRun = "a", true })
	g.Expect(code).To(Equal(wire.DryRunOperation))
	first, code := c.run(withToken("a"))
	g.Expect(code).To(BeEmpty(), "a dry run binds nothing")
	again, code := c.run(withToken("a"))
	g.Expect(code).To(BeEmpty(), "the quota is full, and nothing new is made")
	g.Expect(again.ID).To(Equal(first.ID))
	_, code = c.run(func(r *wire.RunInstancesRequest) { r.ClientToken, r.InstanceType = "a", "medium" })
	g.Expect(code).To(Equal(wire.IdempotentParameterMismatch))
	_, code = c.run(withToken("b"))
	g.Expect(code).To(Equal(wire.InstanceLimitExceeded))
	c.must(c.Act(t.Context(), first.ID, simulator.ActTerminate))
	g.Eventually(func() wire.State { return c.state(first.ID) }).Should(Equal(wire.Terminated))
	second, code := c.run(withToken("b"))
	g.Expect(code).To(BeEmpty(), "the failed create bound nothing")
	g.Expect(second.ID).NotTo(Equal(first.ID))
	again, code = c.run(withToken("a"))
	g.Expect(code).To(BeEmpty())
	g.Expect(again.ID).To(Equal(first.ID))
	g.Expect(again.State).To(Equal(wire.Terminated))
}

func TestThrottleEC2(t *testing.T) {
	g := NewWithT(t)
	settings := quick()
	settings.Throttle = simulator.ThrottleEC2
	c := start(t, simulator.Options{Settings: settings})
	began := time.Now()
	made := 0
	for range 20 {
		if _, code := c.run(nil); code == "" {
			made++
		} else {
			g.Expect(code).To(Equal(wire.RequestLimitExceeded))
		}
	}
	g.Expect(made).To(BeNumerically("~", 5+int(2*time.Since(began).Seconds()), 1), "burst 5, then 2/s")
	g.Expect(c.call(wire.DescribeCatalog, wire.CatalogRequest{Region: "sim-1"}, nil)).To(BeEmpty(), "reads have a bucket of their own")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+wire.Prefix+wire.RunInstances, strings.NewReader("{}"))
	c.must(err)
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	c.must(err)
	_ = resp.Body.Close()
	g.Expect(resp.Header.Get("Retry-After")).NotTo(BeEmpty())
	audit, err := c.Audit(t.Context())
	c.must(err)
	g.Expect(audit.Calls(wire.RunInstances)).To(Equal(21))
	g.Expect(audit.Calls(wire.RunInstances, simulator.OutcomeOK)).To(Equal(made))
}

func TestCapacityAndZones(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick()})
	zones := map[string]int{}
	for range 6 {
		r, code := c.run(nil)
		g.Expect(code).To(BeEmpty())
		zones[r.Zone]++
	}
	g.Expect(zones).To(Equal(map[string]int{"sim-1a": 2, "sim-1b": 2, "sim-1c": 2}), "spread")
	c.must(c.SetCapacity(t.Context(), simulator.CapacityChange{Region: "sim-1", Zone: "sim-1a", InstanceType: "small", Instances: 2}))
	inA := func(r *wire.RunInstancesRequest) { r.Zone = "sim-1a" }
	_, code := c.run(inA)
	g.Expect(code).To(Equal(wire.InsufficientInstanceCapacity))
	_, code = c.run(func(r *wire.RunInstancesRequest) { r.Zone, r.InstanceType = "sim-1a", "medium" })
	g.Expect(code).To(BeEmpty(), "another type")
	c.must(c.SetCapacity(t.Context(), simulator.CapacityChange{Region: "sim-1", Zone: "sim-1a", InstanceType: "small", Instances: -1}))
	_, code = c.run(inA)
	g.Expect(code).To(BeEmpty())
	g.Expect(c.SetCapacity(t.Context(), simulator.CapacityChange{Region: "sim-1", Zone: "none"})).NotTo(Succeed())
}

func TestAccountsAreIsolated(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick(),
		Accounts: []simulator.AccountOptions{{Name: "a", Tokens: []string{"ta"}}, {Name: "b", Tokens: []string{"tb", "tb2"}}}})
	c.token = "ta"
	r, code := c.run(nil)
	g.Expect(code).To(BeEmpty())
	c.token = "tb"
	var page wire.DescribeResponse
	g.Expect(c.call(wire.DescribeResources, wire.DescribeRequest{Region: "sim-1"}, &page)).To(BeEmpty())
	g.Expect(page.Resources).To(BeEmpty())
	var batch wire.BatchResponse
	g.Expect(c.call(wire.TerminateInstances, wire.BatchRequest{Region: "sim-1", IDs: []string{r.ID}}, &batch)).To(BeEmpty())
	g.Expect(batch.Results[0].Error.Code).To(Equal(wire.InstanceNotFound))
	c.must(c.SetQuota(t.Context(), "b", simulator.Quota{VCPUs: 1}))
	c.must(c.SetTokens(t.Context(), "b", "tb2"))
	g.Expect(c.call(wire.DescribeResources, wire.DescribeRequest{Region: "sim-1"}, nil)).To(Equal(wire.AuthFailure))
	c.token = "tb2"
	g.Expect(c.call(wire.DescribeResources, wire.DescribeRequest{Region: "sim-1"}, nil)).To(BeEmpty())
	_, code = c.run(nil)
	g.Expect(code).To(Equal(wire.InstanceLimitExceeded), "the quota outlives the token")
	c.must(c.SetTokens(t.Context(), "b"))
	g.Expect(c.call(wire.DescribeResources, wire.DescribeRequest{Region: "sim-1"}, nil)).To(Equal(wire.AuthFailure))
	g.Expect(c.SetTokens(t.Context(), "none")).NotTo(Succeed())
}

func TestPages(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick()})
	for range 10 {
		_, code := c.run(nil)
		g.Expect(code).To(BeEmpty())
	}
	read := func(size int) (ids []string, pages int) {
		req := wire.DescribeRequest{Region: "sim-1", MaxResults: size}
		for {
			var page wire.DescribeResponse
			g.Expect(c.call(wire.DescribeResources, req, &page)).To(BeEmpty())
			pages++
			for _, r := range page.Resources {
				ids = append(ids, r.ID)
			}
			if req.NextToken = page.NextToken; req.NextToken == "" {
				return ids, pages
			}
		}
	}
	whole, pages := read(0)
	g.Expect(whole).To(HaveLen(30))
	g.Expect(pages).To(Equal(1))
	for _, size := range []int{1, 7, 10, 30, 31} {
		ids, pages := read(size)
		g.Expect(ids).To(Equal(whole))
		g.Expect(pages).To(Equal((30 + size - 1) / size))
	}
	_, err := c.AddFault(t.Context(), simulator.Fault{Kind: simulator.PartialPage, Count: 40})
	c.must(err)
	ids, pages := read(0)
	g.Expect(ids).To(Equal(whole))
	g.Expect(pages).To(BeNumerically(">", 1))
	for _, bad := range []wire.DescribeRequest{{Region: "none"}, {Region: "sim-1", NextToken: "*"}, {Region: "sim-1", MaxResults: 1001},
		{Region: "sim-1", TagValues: []string{"a"}}} {
		g.Expect(c.call(wire.DescribeResources, bad, nil)).To(Equal(wire.InvalidParameterValue))
	}
}

func TestRefusedRequests(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick()})
	for name, change := range map[string]func(*wire.RunInstancesRequest){
		"region":        func(r *wire.RunInstancesRequest) { r.Region = "none" },
		"type":          func(r *wire.RunInstancesRequest) { r.InstanceType = "none" },
		"image":         func(r *wire.RunInstancesRequest) { r.Image = "none" },
		"architecture":  func(r *wire.RunInstancesRequest) { r.Image = "node-image-arm64" },
		"zone":          func(r *wire.RunInstancesRequest) { r.Zone = "none" },
		"network":       func(r *wire.RunInstancesRequest) { r.Network = "none" },
		"name":          func(r *wire.RunInstancesRequest) { r.Name = "a.b" },
		"long name":     func(r *wire.RunInstancesRequest) { r.Name = strings.Repeat("a", 64) },
		"disk":          func(r *wire.RunInstancesRequest) { r.DiskGiB = -1 },
		"data disk":     func(r *wire.RunInstancesRequest) { r.DataDisksGiB = []int32{0} },
		"user data":     func(r *wire.RunInstancesRequest) { r.UserData = make([]byte, wire.MaxUserData+1) },
		"tag":           func(r *wire.RunInstancesRequest) { r.Tags = map[string]string{"a": strings.Repeat("a", 257)} },
		"client token":  func(r *wire.RunInstancesRequest) { r.ClientToken = strings.Repeat("a", 65) },
		"17 data disks": func(r *wire.RunInstancesRequest) { r.DataDisksGiB = slices.Repeat([]int32{1}, 17) },
	} {
		_, code := c.run(change)
		g.Expect(code).To(Equal(wire.InvalidParameterValue), name)
	}
	g.Expect(c.call("Nothing", nil, nil)).To(Equal(wire.InvalidAction))
	g.Expect(c.call(wire.RunInstances, []int{1}, nil)).To(Equal(wire.InvalidParameterValue))
	s, err := c.Snapshot(t.Context())
	c.must(err)
	g.Expect(s.Resources).To(BeEmpty())
}

func TestFaultsAndAudit(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick()})
	add := func(f simulator.Fault) {
		f.Operation, f.Count = wire.RunInstances, 1
		_, err := c.AddFault(t.Context(), f)
		c.must(err)
	}
	byToken := func(token string) func(*wire.RunInstancesRequest) {
		return func(r *wire.RunInstancesRequest) { *r = runRequest(token) }
	}
	live := func() int {
		s, err := c.Snapshot(t.Context())
		c.must(err)
		return len(s.Instances())
	}
	add(simulator.Fault{Kind: simulator.CutAfter, Skip: 1})
	_, code := c.run(byToken("a"))
	g.Expect(code).To(BeEmpty(), "skipped")
	_, code = c.run(byToken("b"))
	g.Expect(code).To(Equal("cut"))
	g.Expect(live()).To(Equal(2), "it was made")
	add(simulator.Fault{Kind: simulator.ErrorBefore, Code: wire.InsufficientInstanceCapacity})
	_, code = c.run(byToken("c"))
	g.Expect(code).To(Equal(wire.InsufficientInstanceCapacity))
	g.Expect(live()).To(Equal(2))
	add(simulator.Fault{Kind: simulator.Late, Delay: ms(200)})
	_, code = c.run(byToken("d"))
	g.Expect(code).To(Equal("cut"))
	g.Expect(live()).To(Equal(2))
	g.Eventually(live).Should(Equal(3), "the effect comes late")
	add(simulator.Fault{Kind: simulator.FailBoot})
	failed, code := c.run(byToken("e"))
	g.Expect(code).To(BeEmpty())
	g.Eventually(func() wire.State { return c.state(failed.ID) }).Should(Equal(wire.Terminated))
	add(simulator.Fault{Kind: simulator.StuckPending})
	stuck, _ := c.run(byToken("f"))
	g.Consistently(func() wire.State { return c.state(stuck.ID) }, 100*time.Millisecond).Should(Equal(wire.Pending))

	faults, err := c.Faults(t.Context())
	c.must(err)
	g.Expect(faults).To(HaveLen(5))
	g.Expect(faults).To(HaveEach(HaveField("Happened", 1)))
	audit, err := c.Audit(t.Context())
	c.must(err)
	g.Expect(audit.Calls(wire.RunInstances)).To(Equal(6))
	g.Expect(audit.Calls(wire.RunInstances, simulator.OutcomeOK)).To(Equal(1))
	g.Expect(audit.Calls(wire.RunInstances, "OK/CutAfter")).To(Equal(1))
	g.Expect(audit.Calls(wire.RunInstances, simulator.OutcomeLate)).To(Equal(1))
	g.Expect(audit.Calls(wire.RunInstances, wire.InsufficientInstanceCapacity)).To(Equal(1))
	g.Expect(audit.Machine("b", wire.RunInstances)).To(Equal(1))
	g.Expect(c.call(wire.TerminateInstances, wire.BatchRequest{Region: "sim-1", IDs: []string{failed.ID, stuck.ID}}, nil)).To(BeEmpty())
	g.Expect(c.call(wire.DescribeResources, wire.DescribeRequest{Region: "sim-1", TagKey: cloud.TagToken, TagValues: []string{"e"}},
		nil)).To(BeEmpty())
	audit, err = c.Audit(t.Context())
	c.must(err)
	g.Expect(audit.Calls(wire.TerminateInstances)).To(Equal(1), "a batch is one call")
	g.Expect(audit.Machine("e", "")).To(Equal(3))
	g.Expect(audit.Machine("f", "")).To(Equal(2))
	c.must(c.ResetAudit(t.Context()))
	audit, err = c.Audit(t.Context())
	c.must(err)
	g.Expect(audit.Calls("")).To(BeZero())
	_, err = c.AddFault(t.Context(), simulator.Fault{Kind: "Nonsense"})
	g.Expect(err).To(HaveOccurred())
}

func TestSeedDecides(t *testing.T) {
	g := NewWithT(t)
	outcomes := func(seed uint64) (out []string) {
		c := start(t, simulator.Options{Seed: seed, Settings: quick()})
		_, err := c.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Probability: 0.5})
		c.must(err)
		for n := range 20 {
			r, code := c.run(func(r *wire.RunInstancesRequest) { *r = runRequest(fmt.Sprint(n)) })
			out = append(out, r.ID+code)
		}
		return out
	}
	first := outcomes(3)
	g.Expect(outcomes(3)).To(Equal(first))
	g.Expect(outcomes(4)).NotTo(Equal(first))
	g.Expect(first).To(ContainElement(wire.InternalError))
	g.Expect(first).To(ContainElement(HavePrefix("i-")))
}

func TestSlowAnswers(t *testing.T) {
	g := NewWithT(t)
	settings := quick()
	settings.Latency = simulator.Latency{Min: ms(50), Mean: ms(60), Max: ms(100)}
	c := start(t, simulator.Options{Settings: settings})
	began := time.Now()
	_, code := c.run(nil)
	g.Expect(code).To(BeEmpty())
	g.Expect(time.Since(began)).To(BeNumerically(">=", 50*time.Millisecond))
	// The call takes effect even if the client is gone.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+wire.Prefix+wire.RunInstances,
		strings.NewReader(`{"region":"sim-1","instanceType":"small","image":"node-image"}`))
	c.must(err)
	req.Header.Set("Authorization", "Bearer "+c.token)
	_, err = http.DefaultClient.Do(req) //nolint:bodyclose // there is none
	g.Expect(err).To(HaveOccurred())
	g.Eventually(func() int {
		s, err := c.Snapshot(t.Context())
		c.must(err)
		return len(s.Instances())
	}).Should(Equal(2))
}

func TestActions(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick()})
	spot, code := c.run(func(r *wire.RunInstancesRequest) { r.Spot = true })
	g.Expect(code).To(BeEmpty())
	other, _ := c.run(func(r *wire.RunInstancesRequest) { r.DataDisksGiB = []int32{7} })
	g.Expect(c.Act(t.Context(), other.ID, simulator.ActReclaim)).NotTo(Succeed(), "not a spot instance")
	c.must(c.Act(t.Context(), spot.ID, simulator.ActReclaim))
	g.Eventually(func() wire.State { return c.state(spot.ID) }).Should(Equal(wire.Terminated))
	g.Eventually(func() wire.State { return c.state(other.ID) }).Should(Equal(wire.Running))
	c.must(c.Act(t.Context(), other.ID, simulator.ActStop))
	g.Eventually(func() wire.State { return c.state(other.ID) }).Should(Equal(wire.Stopped))
	c.must(c.Act(t.Context(), other.ID, simulator.ActStart))
	g.Eventually(func() wire.State { return c.state(other.ID) }).Should(Equal(wire.Running))
	c.must(c.Act(t.Context(), other.ID, simulator.ActVanish))
	g.Expect(c.state(other.ID)).To(BeEquivalentTo("none"))
	s, err := c.Snapshot(t.Context())
	c.must(err)
	left := s.Live()
	g.Expect(left).To(HaveLen(1), "the data disk stays behind")
	g.Expect(left[0].SizeGiB).To(BeEquivalentTo(7))
	g.Expect(left[0].AttachedTo).To(BeEmpty())
	g.Expect(c.call(wire.DeleteResources, wire.BatchRequest{Region: "sim-1", IDs: []string{left[0].ID}}, nil)).To(BeEmpty())
	g.Expect(c.Act(t.Context(), "i-none", simulator.ActStop)).NotTo(Succeed())
}

func TestSpotLifetime(t *testing.T) {
	settings := quick()
	settings.SpotLifetime = ms(5)
	c := start(t, simulator.Options{Settings: settings})
	r, _ := c.run(func(r *wire.RunInstancesRequest) { r.Spot = true })
	NewWithT(t).Eventually(func() wire.State { return c.state(r.ID) }).Should(Equal(wire.Terminated))
}

func TestAdminIsGuarded(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{AdminToken: "admin"})
	_, err := c.Snapshot(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	for _, token := range []string{"", "wrong", simulator.DefaultToken} {
		_, err = simulator.Admin{URL: c.url, Token: token}.Snapshot(t.Context())
		g.Expect(err).To(HaveOccurred())
	}
	open := start(t, simulator.Options{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, open.url+"/admin/snapshot", strings.NewReader("{}"))
	c.must(err)
	req.Header.Set("Origin", "https://evil.example")
	resp, err := http.DefaultClient.Do(req)
	c.must(err)
	_ = resp.Body.Close()
	g.Expect(resp.StatusCode).To(Equal(http.StatusForbidden), "a web page in a browser on this machine")
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]simulator.Options{
		"throttle": {Settings: simulator.Settings{Throttle: "some"}},
		"zones":    {Regions: []simulator.Region{{Name: "a"}}},
		"capacity": {Regions: []simulator.Region{{Name: "a", Zones: []string{"b"}, Capacity: map[string]map[string]int{"c": {}}}}},
		"network":  {Networks: []wire.Network{{Name: "a", CIDR: "b"}}},
		"negative": {Settings: simulator.Settings{Stop: ms(-1)}},
	} {
		if _, err := simulator.New(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestMachine: the API returns enough to give an instance another body than the simulated one, with
// the software of its image.
func TestMachine(t *testing.T) {
	g := NewWithT(t)
	old := body.Software{KubeletVersion: "v1.35.4"}
	c := start(t, simulator.Options{Images: []simulator.Image{{Image: wire.Image{Name: "node-image", Arch: "amd64", OS: "linux"},
		Software: old}}})
	_, err := c.AddFault(t.Context(), simulator.Fault{Kind: simulator.DeadBody, Operation: wire.RunInstances})
	g.Expect(err).NotTo(HaveOccurred())
	r, code := c.run(func(r *wire.RunInstancesRequest) { r.Name, r.UserData = "named", []byte("#cloud-config\n") })
	g.Expect(code).To(BeEmpty())
	m, err := c.Machine(t.Context(), r.ID)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(m).To(Equal(body.Machine{
		InstanceID: r.ID, Region: "sim-1", Zone: r.Zone, Hostname: "named", IP: r.PrivateIP,
		CPU: 2, MemoryMiB: 4 << 10, DiskGiB: m.DiskGiB, Arch: "amd64", OS: "linux", UserData: []byte("#cloud-config\n"), Software: old,
	}))
	_, err = c.Machine(t.Context(), "i-0")
	g.Expect(err).To(MatchError(ContainSubstring(wire.InstanceNotFound)))
}
