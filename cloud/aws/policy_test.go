// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"flag"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
)

var update = flag.Bool("update", false, "write the policy into docs/clouds/aws.md")

// TestPolicy makes the driver call each of its operations, and compares them with the policy in the
// documentation.
func TestPolicy(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	var mu sync.Mutex
	seen := map[string]bool{}
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Stop: time.Millisecond, Keep: true})
	account := testAccount(stub.URL)
	account.Cloud.AWS.InterruptionQueue = infrav1.AWSInterruptionQueue{URL: stub.QueueURL()}
	made, err := newDriver(cloud.Config{Account: account, Credentials: testCredentials(),
		Connect: through(func(r *http.Request) (*http.Response, error) {
			op := cloud.OperationOf(r.Context()).Name
			if strings.Contains(r.Header.Get("Authorization"), "/us-east-1/elasticloadbalancing/") {
				op = balancing + op
			}
			mu.Lock()
			defer mu.Unlock()
			seen[op] = true
			return http.DefaultTransport.RoundTrip(r)
		}),
	})
	g.Expect(err).NotTo(HaveOccurred())
	d := made.(*queueDriver)
	_, err = d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	stub.Warn("i-01")
	news, err := d.Receive(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Ack(ctx, news)).To(Succeed())
	for token, image := range map[string]infrav1.AWSImage{"a": {SSMParameter: "/aws/service/node/image"}, "b": {ID: "ami-0a"}} {
		req := request(token, func(m *infrav1.AWSMachine) { m.Image = image })
		_, err = d.Offering(ctx, req.Spec)
		g.Expect(err).NotTo(HaveOccurred())
		instance, err := d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = d.Console(ctx, instance)
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err = d.Describe(ctx, []cloud.Reference{{Token: "none"}})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.EnsureBalancer(ctx, balancerRequest("10.0.0.1"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.EnsureBalancer(ctx, balancerRequest())
	g.Expect(err).NotTo(HaveOccurred())
	d.balancers.changed(balancer{token: "balancer"}) // as in another process, which reads all
	// The driver creates no network interface that stays behind, and no elastic IP address.
	g.Expect(d.Delete(ctx, []cloud.Resource{{Kind: cloud.KindNIC, ID: "eni-0"},
		{Kind: cloud.KindAddress, ID: "eipalloc-0"}})).To(Equal([]error{nil, nil}))
	g.Eventually(func() []string {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		d.Delete(ctx, all)
		return stub.Left(cloud.TagOwnership, "owner")
	}).Should(BeEmpty())

	conformance.Document(t, "../../docs/clouds/aws.md", "policy", policy(slices.Sorted(maps.Keys(seen))), *update)
}

// balancing begins the operations of Elastic Load Balancing.
const balancing = "elasticloadbalancing:"

type statement struct {
	Sid       string
	Effect    string
	Action    []string
	Resource  string
	Condition map[string]map[string]any `json:",omitempty"`
}

// policy returns a policy that allows the operations. It limits tagging to what the same call
// creates, and deletion to what has Drover's tags.
func policy(operations []string) any {
	read := statement{Sid: "Read", Effect: "Allow", Resource: "*"}
	create := statement{Sid: "Create", Effect: "Allow", Resource: "*"}
	tag := statement{Sid: "TagCreatedResources", Effect: "Allow", Resource: "*", Action: []string{"ec2:CreateTags"},
		Condition: map[string]map[string]any{"StringEquals": {"ec2:CreateAction": "RunInstances"}}}
	remove := statement{Sid: "DeleteTaggedResources", Effect: "Allow", Resource: "*",
		Condition: map[string]map[string]any{"Null": {"aws:ResourceTag/" + cloud.TagOwnership: "false"}}}
	console := statement{Sid: "ReadConsoleOutput", Effect: "Allow", Resource: "*", Condition: remove.Condition}
	tagGroups := statement{Sid: "TagCreatedSecurityGroups", Effect: "Allow", Resource: "*", Action: []string{"ec2:CreateTags"},
		Condition: map[string]map[string]any{"StringEquals": {"ec2:CreateAction": "CreateSecurityGroup"}}}
	tagBalancers := statement{Sid: "TagCreatedLoadBalancers", Effect: "Allow", Resource: "*", Action: []string{balancing + "AddTags"},
		Condition: map[string]map[string]any{"StringEquals": {balancing +
			"CreateAction": []string{"CreateListener", "CreateLoadBalancer", "CreateTargetGroup"}}}}
	readBalancers := statement{Sid: "ReadLoadBalancers", Effect: "Allow", Resource: "*"}
	createBalancers := statement{Sid: "CreateLoadBalancers", Effect: "Allow", Resource: "*"}
	changeBalancers := statement{Sid: "ChangeTaggedLoadBalancers", Effect: "Allow", Resource: "*", Condition: remove.Condition}
	events := statement{Sid: "ReceiveEvents", Effect: "Allow", Resource: "arn:aws:sqs:*:*:drover"}
	for _, op := range operations {
		if name, ok := map[string]string{receiveMessage: "sqs:ReceiveMessage", deleteMessages: "sqs:DeleteMessage"}[op]; ok {
			events.Action = append(events.Action, name)
			continue
		}
		if op == "GetCallerIdentity" { // needs no permission
			continue
		}
		if op == "GetConsoleOutput" {
			console.Action = []string{"ec2:" + op}
			continue
		}
		name, isBalancing := strings.CutPrefix(op, balancing)
		switch {
		case strings.HasPrefix(name, "Describe") && isBalancing:
			readBalancers.Action = append(readBalancers.Action, op)
			continue
		case name == "CreateTargetGroup", name == "CreateLoadBalancer":
			createBalancers.Action = append(createBalancers.Action, op)
			continue
		case isBalancing:
			changeBalancers.Action = append(changeBalancers.Action, op)
			continue
		case op == "CreateSecurityGroup":
			createBalancers.Action = append(createBalancers.Action, "ec2:"+op)
			continue
		case op == "AuthorizeSecurityGroupIngress", op == "DeleteSecurityGroup":
			changeBalancers.Action = append(changeBalancers.Action, "ec2:"+op)
			continue
		}
		of, service := &read, "ec2:"
		switch classOf(op) {
		case cloud.ClassCreate:
			of = &create
		case cloud.ClassDelete:
			of = &remove
		}
		if strings.HasPrefix(op, "GetParameter") {
			service = "ssm:"
		}
		of.Action = append(of.Action, service+op)
	}
	return struct {
		Version   string
		Statement []statement
	}{"2012-10-17", []statement{read, create, tag, console, remove, readBalancers, createBalancers, tagGroups, tagBalancers, changeBalancers,
		events}}
}
