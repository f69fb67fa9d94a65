// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestLife is TestRealAccount on the stand-in, so that it is known to work.
func TestLife(t *testing.T) {
	t.Parallel()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Boot: 20 * time.Millisecond, Stop: 20 * time.Millisecond})
	live(t, connect(t, stub, nil), testMachine(nil).AWS, 10*time.Millisecond)
	NewWithT(t).Expect(stub.Calls()["RunInstances"]).To(Equal(3))
}

// TestRealAccount lets one machine live and die in a real account. It is left out unless DROVER_AWS_REAL describes where; the
// credentials are those of the SDK's variables. docs/clouds/aws.md says how, and what it costs.
func TestRealAccount(t *testing.T) {
	where := os.Getenv("DROVER_AWS_REAL")
	if where == "" {
		t.Skip("DROVER_AWS_REAL is not set: no real account was asked")
	}
	var in struct{ Region, Type, Image, Subnet string }
	if err := json.Unmarshal([]byte(where), &in); err != nil {
		t.Fatalf("DROVER_AWS_REAL: %v", err)
	}
	credentials := map[string][]byte{}
	for _, key := range []string{keyAccessKeyID, keySecretKey, keySessionToken} {
		if value := os.Getenv(strings.ToUpper(key)); value != "" {
			credentials[key] = []byte(value)
		}
	}
	d, err := newDriver(cloud.Config{
		Account:     &infrav1.CloudAccountSpec{AWS: &infrav1.AWSAccount{Region: in.Region}},
		Credentials: credentials, Transport: http.DefaultTransport,
	})
	if err != nil {
		t.Fatal(err)
	}
	live(t, d, &infrav1.AWSMachine{
		InstanceType: in.Type, Image: infrav1.AWSImage{ID: in.Image}, Subnets: infrav1.AWSSelector{IDs: []string{in.Subnet}},
	}, 5*time.Second)
}

// live makes one machine, three times over, sees it run, and deletes it. Whatever happens, it leaves nothing.
func live(t *testing.T, d cloud.Driver, machine *infrav1.AWSMachine, often time.Duration) {
	g, ctx := NewWithT(t), t.Context()
	token := strings.ToLower(rand.Text())
	refs := []cloud.Reference{{Token: token}}
	left := func(ctx context.Context) (found []cloud.Resource) {
		all, err := d.Describe(ctx, refs)
		if err != nil {
			t.Log(err)
			return []cloud.Resource{{}} // not known
		}
		for _, r := range all {
			if r.State != cloud.StateTerminated {
				found = append(found, r)
			}
		}
		return found
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), consistency)
		defer cancel()
		if all, err := d.Describe(ctx, refs); err == nil {
			d.Delete(ctx, all)
		}
		if found := left(ctx); len(found) > 0 && found[0].State != cloud.StateStopping {
			t.Errorf("delete by hand what has the tag %s=%s: %+v", cloud.TagToken, token, found)
		}
	})

	info, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.FailureDomains).NotTo(BeEmpty())
	req := cloud.Request{Token: token, OwnershipID: "drover-real-account-test", Namespace: "test", Name: "real-account",
		UserData: []byte("#cloud-config\n"), Spec: &infrav1.CloudMachineFields{AWS: machine}}
	offering, err := d.Offering(ctx, req.Spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("zones %v, capacity %v", info.FailureDomains, offering.Capacity)

	made, err := d.Ensure(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Ensure(ctx, req)).To(HaveField("ID", made.ID), "the same request")
	req.UserData = []byte("#cloud-config\nhostname: other\n")
	g.Eventually(func() (cloud.Resource, error) { return d.Ensure(ctx, req) }).WithTimeout(consistency).WithPolling(often).
		Should(HaveField("ID", made.ID), "another request with the token")
	g.Eventually(func() []cloud.Resource { return left(ctx) }).WithTimeout(5 * time.Minute).WithPolling(often).
		Should(ConsistOf(And(HaveField("ID", made.ID), HaveField("State", cloud.StateRunning), HaveField("Addresses", Not(BeEmpty())))))
	g.Expect(d.List(ctx)).To(ContainElement(HaveField("ID", made.ID)))

	g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))
	g.Eventually(func() []cloud.Resource { return left(ctx) }).WithTimeout(5 * time.Minute).WithPolling(often).Should(BeEmpty())
}
