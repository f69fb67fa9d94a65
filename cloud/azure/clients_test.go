// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
)

// clientBalancer is what hack/tools/azure-client prints of a load balancer.
type clientBalancer struct {
	Name, State, SKU, Address, Network, Probe, ETag string
	Tags                                            map[string]string
	Zones, Targets                                  []string
	Port, Idle                                      int32
	NoSNAT                                          bool
}

// TestMicrosoftClient: Microsoft's own client reads in the stand-in's load balancers what the
// driver reads, follows its operations to their end, and knows its refusals.
func TestMicrosoftClient(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, armstub.Options{Parts: 100 * time.Millisecond, PageSize: 1})
	d := connect(t, stub)
	ips := targets(t, d, 2)
	internal, public := balancerRequest(true, ips[0]), balancerRequest(false, ips...)
	public.Token = "public"
	made := map[string]cloud.Resource{}
	for _, req := range []cloud.BalancerRequest{internal, public} {
		made[balancerName(req.Token)] = balanced(t, d, req)
	}
	g.Eventually(func() cloud.State { return listed(t, d).State }).Should(Equal(cloud.StateRunning))

	input, err := json.Marshal(map[string]string{
		"Address": stub.Address, "CA": stub.CA, "Endpoint": armstub.Endpoint, "Authority": armstub.Authority, "Version": networkVersion,
		"Tenant": testTenant, "Client": testClient, "Secret": testSecret,
		"Subscription": armstub.Subscription, "Group": armstub.Group, "Name": balancerName(internal.Token), "Target": ips[1],
	})
	g.Expect(err).NotTo(HaveOccurred())
	program, err := exec.CommandContext(t.Context(), "../../hack/tool", "azure-client").Output()
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(program)))
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &said
	answer, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred(), said.String())
	var read struct {
		Listed              []clientBalancer
		Read, Made, Changed clientBalancer
		Healthy             []string
		Refused, Gone       int
	}
	g.Expect(json.Unmarshal(answer, &read)).To(Succeed())

	g.Expect(read.Listed).To(HaveLen(2))
	for _, lb := range read.Listed {
		is := made[lb.Name]
		g.Expect(lb.Address).To(Equal(is.Balancer.Address))
		g.Expect(lb.Targets).To(Equal(addressesOf(is)))
		g.Expect(lb.Tags).To(And(HaveKeyWithValue(cloud.TagToken, is.Token), HaveKeyWithValue(cloud.TagOwnership, is.OwnershipID)))
		g.Expect(lb.NoSNAT).To(Equal(is.Token == public.Token))
	}
	g.Expect(read.Read).To(And(
		HaveField("State", stateSucceeded), HaveField("SKU", "Standard"), HaveField("Network", armstub.VirtualNetwork),
		HaveField("Probe", "Https /readyz"),
		HaveField("Port", int32(6443)), HaveField("Idle", int32(30)), HaveField("Zones", []string{"1", "2", "3"}),
		HaveField("ETag", HavePrefix("W/"))))
	g.Expect(read.Healthy).To(Equal(ips[:1]))
	g.Expect(read.Made).To(And(HaveField("State", stateSucceeded), HaveField("Targets", ips[:1])))
	g.Expect(read.Refused).To(Equal(http.StatusPreconditionFailed))
	g.Expect(read.Changed).To(And(HaveField("State", stateSucceeded), HaveField("Targets", ips)))
	g.Expect(read.Changed.ETag).NotTo(Equal(read.Made.ETag))
	g.Expect(read.Gone).To(Equal(http.StatusNotFound))
	g.Expect(stub.BalancersMade()).To(Equal(3))
}
