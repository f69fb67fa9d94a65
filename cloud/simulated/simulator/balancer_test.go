// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// server starts an instance whose server answers with a name.
func (c *client) server(name string) wire.Resource {
	c.t.Helper()
	r, code := c.run(nil)
	if code != "" {
		c.t.Fatal(code)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	c.t.Cleanup(s.Close)
	c.must(c.Serve(c.t.Context(), r.ID, s.Listener.Addr().String()))
	return r
}

func (c *client) put(token string, mustExist bool, ips ...string) (wire.Resource, string) {
	c.t.Helper()
	var out wire.PutLoadBalancerResponse
	code := c.call(wire.PutLoadBalancer, wire.PutLoadBalancerRequest{
		Region: "sim-1", ClientToken: token, MustExist: mustExist, Port: 6443, TargetIPs: ips,
		Tags: map[string]string{cloud.TagToken: token, cloud.TagOwnership: "owner"},
	}, &out)
	return out.LoadBalancer, code
}

// get returns the answer through a load balancer, by a new connection; "" if there is none.
func get(t *testing.T, lb wire.Resource) string {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+net.JoinHostPort(lb.PrivateIP, strconv.Itoa(int(lb.Port))), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// TestLoadBalancer tests that connections through a load balancer reach its healthy targets, and no
// others.
func TestLoadBalancer(t *testing.T) {
	g := NewWithT(t)
	c := start(t, simulator.Options{Settings: quick()})
	one, two, dead := c.server("one"), c.server("two"), c.server("dead")
	c.must(c.Serve(t.Context(), dead.ID, "127.0.0.1:1"))
	lb, code := c.put("t", false, one.PrivateIP, dead.PrivateIP)
	g.Expect(code).To(BeEmpty())
	again, _ := c.put("t", false, one.PrivateIP, dead.PrivateIP)
	g.Expect(again.ID).To(Equal(lb.ID))

	answers := func() map[string]bool {
		all := map[string]bool{}
		for range 10 {
			all[get(t, lb)] = true
		}
		return all
	}
	g.Eventually(answers, 10*time.Second).Should(Equal(map[string]bool{"one": true}), "the dead target gets no connections")
	var page wire.DescribeResponse
	g.Expect(c.call(wire.DescribeResources, wire.DescribeRequest{Region: "sim-1", Kinds: []wire.Kind{wire.Balancer}, TagKey: cloud.TagToken},
		&page)).To(BeEmpty())
	g.Expect(page.Resources).To(HaveLen(1))
	g.Expect(page.Resources[0].Targets).To(ConsistOf(wire.Target{IP: one.PrivateIP, Healthy: true}, wire.Target{IP: dead.PrivateIP}))

	_, code = c.put("t", true, one.PrivateIP, two.PrivateIP)
	g.Expect(code).To(BeEmpty())
	g.Eventually(answers, 10*time.Second).Should(Equal(map[string]bool{"one": true, "two": true}))
	_, _ = c.put("t", true, two.PrivateIP)
	g.Expect(answers()).To(Equal(map[string]bool{"two": true}), "a removed target gets no connection from now on")
	_, _ = c.put("t", true)
	g.Expect(answers()).To(Equal(map[string]bool{"": true}))
	_, _ = c.put("t", true, dead.PrivateIP, one.PrivateIP)

	lag := quick()
	lag.TargetLag = ms(3000)
	c.must(c.SetSettings(t.Context(), lag))
	g.Eventually(func() string { return get(t, lb) }, 20*time.Second).Should(Equal("one"))
	_, _ = c.put("t", true, two.PrivateIP)
	g.Expect(get(t, lb)).To(Equal("one"), "the change takes its time")
	g.Eventually(func() string {
		_, _ = c.put("t", true, two.PrivateIP) // which does not make the change later
		return get(t, lb)
	}, 20*time.Second).Should(Equal("two"))

	g.Expect(c.call(wire.DeleteResources, wire.BatchRequest{Region: "sim-1", IDs: []string{lb.ID}}, nil)).To(BeEmpty())
	g.Expect(get(t, lb)).To(BeEmpty())
	_, code = c.put("t", false, two.PrivateIP)
	g.Expect(code).To(Equal(wire.ResourceNotFound), "a token makes one load balancer only")
	_, code = c.put("other", true, two.PrivateIP)
	g.Expect(code).To(Equal(wire.ResourceNotFound))
}
