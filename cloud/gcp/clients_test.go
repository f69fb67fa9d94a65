// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

// clientReading is what hack/tools/google-clients prints of a client.
type clientReading struct {
	Instances                                []clientMachine
	Disks, Unreachables, Warnings, Preempted []string
	Region, MachineType, Image               string
	Quotas                                   int
	Permissions                              []string
	Console                                  int
	Begun, Done, Failed, Deleted             clientOperation
	Balancer                                 clientBalancer
	Unknown, Exists, Invalid                 clientRefusal
}

type clientMachine struct {
	ID, Name, Zone, Status, Created string
	Labels                          map[string]string
	Addresses                       []string
	Spot                            bool
	Maintenance                     string
}

type clientBalancer struct {
	Checks, Rules          []string
	Target, Service, Check string
	Groups, Endpoints      []string
}

type clientOperation struct{ Name, Type, Status, Request, Target, Code string }

type clientRefusal struct {
	Status          int
	Reason, Message string
}

// TestGoogleClients: Google's own clients can hold each answer of the stand-in, get a token of it,
// and read in it what the driver reads. They are other programs than the discovery document's
// judge, one of them made from protocol buffers.
func TestGoogleClients(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const far = "us-east1-b" // a zone of another region
	stub := start(t, gcpstub.Options{Boot: 100 * time.Millisecond})
	d := connect(t, stub)
	zones := gcpstub.Zones()
	for name, edit := range map[string]func(*infrav1.GCPMachine){
		"m-1": nil, "m-2": everything,
		"m-3": func(m *infrav1.GCPMachine) {
			m.NetworkInterfaces[0].PublicIP, m.ProvisioningModel = &infrav1.GCPPublicIP{}, "SPOT"
		},
	} {
		_, err := ensured(t, d, testRequest(name, edit))
		g.Expect(err).NotTo(HaveOccurred())
	}
	var listed []cloud.Resource
	list := func() (states []cloud.State) {
		var err error
		listed, err = d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		for _, r := range listed {
			states = append(states, r.State)
		}
		return states
	}
	g.Eventually(list).Should(HaveExactElements(cloud.StateRunning, cloud.StateRunning, cloud.StateRunning))
	target := listed[slices.IndexFunc(listed, func(r cloud.Resource) bool {
		return strings.HasSuffix(r.ProviderID,
			"/m-1")
	})].Addresses[1].Address
	balancer := balanced(t, d, balancerRequest(target))
	stub.Maintain(zones[0], "m-1", time.Now().Add(time.Hour))
	stub.Preempt(zones[0], "m-2")
	defer stub.Kill(far)()
	defer stub.Exhaust(zones[1])()
	g.Expect(list()).To(ConsistOf(cloud.StateRunning, cloud.StateRunning, cloud.StateStopped, cloud.StateRunning), "and the load balancer")
	listed = slices.DeleteFunc(listed, func(r cloud.Resource) bool { return r.Kind == cloud.KindBalancer })

	input, err := json.Marshal(map[string]string{
		"Address": stub.Address, "CA": stub.CA, "Credentials": string(testCredentials()[keyCredentials]),
		"Project": gcpstub.Project, "Region": gcpstub.Region, "Subnetwork": gcpstub.Subnet, "Filter": ownFilter, "Preemptions": preemptedFilter,
		"Zone": zones[0], "FullZone": zones[1], "MachineType": "e2-standard-2",
		"Balancer": balancer.ID, "BalancerFilter": ownParts,
		"Image": gcpstub.Image, "ImageProject": gcpstub.ImageProject, "Family": gcpstub.Image,
	})
	g.Expect(err).NotTo(HaveOccurred())
	program, err := exec.CommandContext(t.Context(), "../../hack/tool", "google-clients").Output()
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(program)))
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &said
	answer, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred(), said.String())
	var all map[string]clientReading
	g.Expect(json.Unmarshal(answer, &all)).To(Succeed())
	g.Expect(all).To(HaveLen(2))
	for client, read := range all {
		t.Run(client, func(t *testing.T) {
			agree(t, read, listed)
			want := clientBalancer{
				Checks: []string{"HTTPS /readyz"}, Rules: []string{balancer.Balancer.Address + " 6443-6443"},
				Target: tcpProxies.path, Service: backendServices.path, Check: healthChecks.path,
				Groups: []string{endpointGroups(zones[0]).path, endpointGroups(zones[1]).path, endpointGroups(zones[2]).path},
			}
			if client == "google.golang.org/api" {
				want.Endpoints = []string{target + " 6443 HEALTHY"}
			}
			NewWithT(t).Expect(read.Balancer).To(Equal(want))
		})
	}
}

// agree checks what a client read: of the instances, it is what the driver read.
func agree(t *testing.T, read clientReading, listed []cloud.Resource) {
	g := NewWithT(t)
	byID := map[string]clientMachine{}
	for _, m := range read.Instances {
		byID[m.Zone+"/"+m.ID] = m
	}
	g.Expect(read.Instances).To(HaveLen(len(listed)), "over two pages")
	for _, r := range listed {
		m := byID[r.ID]
		g.Expect(providerID(gcpstub.Project, m.Zone, m.Name)).To(Equal(r.ProviderID))
		g.Expect(states[m.Status]).To(Equal(r.State))
		created, err := time.Parse(time.RFC3339, m.Created)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.CreatedAt).To(BeTemporally("==", created))
		g.Expect(m.Labels).To(And(HaveKeyWithValue(cloud.TagToken, r.Token), HaveKeyWithValue(cloud.TagOwnership, r.OwnershipID)))
		g.Expect(m.Spot).To(Equal(r.Interruptible))
		if r.Reason == preempted {
			g.Expect(read.Preempted).To(ConsistOf(m.ID))
		}
		g.Expect(m.Maintenance != "").To(Equal(r.Notice != ""))
		var addresses []string
		for _, a := range r.Addresses {
			if a.Type != clusterv1.MachineHostName {
				addresses = append(addresses, a.Address)
			}
		}
		g.Expect(m.Addresses).To(ConsistOf(addresses))
	}
	g.Expect(read.Disks).To(ConsistOf("europe-west4-a/m-1", "europe-west4-a/m-2", "europe-west4-a/m-2-1", "europe-west4-a/m-2-2",
		"europe-west4-a/m-3"))
	g.Expect(read.Unreachables).To(ConsistOf("zones/us-east1-b"))
	g.Expect(read.Warnings).To(ConsistOf("UNREACHABLE"))
	g.Expect([]string{read.Region, read.MachineType, read.Image}).To(Equal([]string{gcpstub.Region, "e2-standard-2", gcpstub.Image}))
	g.Expect(read.Quotas).To(BeNumerically(">", 1))
	g.Expect(read.Console).To(Equal(100))
	g.Expect(read.Permissions).To(ContainElement("compute.subnetworks.use"))

	g.Expect(read.Begun.Status).To(Equal("RUNNING"))
	g.Expect(read.Done.Status).To(Equal("DONE"))
	for _, op := range []clientOperation{read.Begun, read.Done} {
		g.Expect(op.Name).To(Equal(read.Begun.Name))
		g.Expect(op.Type + op.Code).To(Equal("insert"))
		g.Expect(op.Target).To(Equal(read.Begun.Target))
		g.Expect(op.Request).To(Equal(read.Begun.Request))
	}
	g.Expect(read.Failed.Status + " " + read.Failed.Code).To(Equal("DONE ZONE_RESOURCE_POOL_EXHAUSTED"))
	g.Expect(read.Deleted.Type + " " + read.Deleted.Target).To(Equal("delete " + read.Done.Target))
	for _, test := range []struct {
		got    clientRefusal
		status int
		reason string
	}{{read.Unknown, 404, notFound}, {read.Exists, 409, alreadyExists}, {read.Invalid, 400, "invalid"}} {
		g.Expect(test.got).To(And(HaveField("Status", test.status), HaveField("Reason", test.reason), HaveField("Message", Not(BeEmpty()))))
	}
}
