// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/test/engine"
)

// testFleet returns an account with the engine, as the manager has it.
func testFleet(t *testing.T, spec infrav1.DroverAccountSpec) *fleet.Account {
	t.Helper()
	return engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall)},
		fleet.AccountConfig{Spec: spec, Credentials: testCredentials()})
}

// TestAccountFindsTheZone: an account skips zones without capacity, and zones in which the machine
// has no subnet, for which it makes no call to EC2.
func TestAccountFindsTheZone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		subnets infrav1.AWSSelector
		full    string
		runs    int
	}{
		"no capacity": {subnets: infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}}, full: "us-east-1a", runs: 2},
		"no subnet":   {subnets: infrav1.AWSSelector{IDs: []string{"subnet-0b1"}}, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			if test.full != "" {
				stub.SetCapacity(test.full, 0)
			}
			account := testFleet(t, *testAccount(stub.URL))
			var made cloud.Resource
			for range 2 { // as the controller does: one zone, then the next if there was no capacity
				req := request("token", func(m *infrav1.AWSMachine) { m.Subnets = test.subnets })
				zone, err := account.Domain(req.Spec, []string{"us-east-1a", "us-east-1b"})
				g.Expect(err).NotTo(HaveOccurred())
				if made, err = account.Ensure(t.Context(), req, []string{zone}); err == nil {
					break
				}
				g.Expect(code(err)).To(Equal(cloud.NoCapacity), "%v", err)
			}
			g.Expect(made.FailureDomain).To(Equal("us-east-1b"))
			g.Expect(stub.Calls()["RunInstances"]).To(Equal(test.runs))
		})
	}
}
