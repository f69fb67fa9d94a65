// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"net/http"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
)

const (
	testKey    = "AKIAMARKED0KEY000001"
	testSecret = "marked/secret+key/of/the/account/0000001"
)

func testKeys() map[string]string { return map[string]string{testKey: testSecret} }

func testCredentials() map[string][]byte {
	return map[string][]byte{keyAccessKeyID: []byte(testKey), keySecretKey: []byte(testSecret)}
}

func testAccount(endpoint string) *infrav1.DroverAccountSpec {
	return &infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "c"},
		Cloud:          infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "us-east-1", Endpoint: endpoint}},
	}
}

// testMachine returns a machine that the stub can create in any of its zones.
func testMachine(edit func(*infrav1.AWSMachine)) *infrav1.DroverMachineFields {
	m := &infrav1.AWSMachine{
		InstanceType:   "t3.small",
		Image:          infrav1.AWSImage{ID: "ami-0a"},
		Subnets:        infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}},
		SecurityGroups: &infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}},
	}
	if edit != nil {
		edit(m)
	}
	return &infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "a"}, Cloud: infrav1.MachineCloud{AWS: m}}
}

// testBalancer returns settings with which the stub makes a load balancer in all its zones.
func testBalancer() *infrav1.LoadBalancerCloud {
	nodes := &infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}}
	return &infrav1.LoadBalancerCloud{AWS: &infrav1.AWSLoadBalancer{Subnets: nodes, SecurityGroups: nodes,
		Scheme: infrav1.LoadBalancerInternal}}
}

// TestConformance runs the suite over HTTP: against a consistent EC2 whose machines leave a volume
// behind, and against one that lags.
func TestConformance(t *testing.T) {
	t.Run("consistent", func(t *testing.T) {
		conform(t, ec2stub.Options{Keep: true}, 120)
	})
	t.Run("lagging", func(t *testing.T) { conform(t, ec2stub.Options{Lag: 300 * time.Millisecond}, 50) })
}

func conform(t *testing.T, options ec2stub.Options, machines int) {
	t.Parallel()
	options.Keys, options.PageSize, options.Boot, options.Stop = testKeys(), 50, 50*time.Millisecond, 50*time.Millisecond
	stub := ec2stub.New(t, options)
	stub.Beside(ec2stub.New(t, ec2stub.Options{Keys: map[string]string{otherKey: otherSecret}}))
	row := Cloud()
	row.Traits.ReadLag, row.Traits.TerminationTime = options.Lag, options.Stop // the row's own values are for EC2's bad days and slow guests
	refused := func(code cloud.Code, offeringToo bool, edit func(*infrav1.AWSMachine)) conformance.Refused {
		return conformance.Refused{Machine: testMachine(edit), Code: code, OfferingToo: offeringToo}
	}
	bad := testCredentials()
	bad[keySecretKey] = []byte("marked/but/wrong/key/of/the/account/00001")
	conformance.Run(t, conformance.Target{
		Cloud:          row,
		Account:        testAccount(stub.URL),
		Credentials:    testCredentials(),
		BadCredentials: bad,
		Machine:        testMachine(nil),
		Balancer:       testBalancer(),
		Refused: map[string]conformance.Refused{
			"unknown type":  refused(cloud.InvalidSpec, true, func(m *infrav1.AWSMachine) { m.InstanceType = "t3.enormous" }),
			"unknown image": refused(cloud.InvalidSpec, true, func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0dead" }),
			"other CPU":     refused(cloud.InvalidSpec, true, func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0c" }),
			"unknown subnet": refused(cloud.NotFound, false,
				func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{"subnet-0dead"}} }),
			"group of another VPC": refused(cloud.InvalidSpec, false, func(m *infrav1.AWSMachine) {
				m.SecurityGroups = &infrav1.AWSSelector{IDs: []string{"sg-02"}}
			}),
			"other domain": {Machine: testMachine(nil), FailureDomain: "us-east-1z", Code: cloud.NoCapacity},
		},
		Machines: machines,
		Timeout:  20 * time.Second,
		// A new driver reads its account once, and image, subnets and security groups once for all
		// its machines. A listing also reads volumes, network interfaces and addresses, and three
		// kinds of notices; a driver's first one looks for the security groups of load balancers. A
		// load balancer takes the looks at subnets and security groups, a group with a rule, target
		// group, load balancer, listener, and the registration of its targets.
		Calls:  conformance.Calls{Probe: 2, Create: 4, Offering: 2, List: 8, Describe: 4, Page: 50, Balancer: 8, Targets: 1},
		Inject: injections(stub),
		Foreign: func(testing.TB) func() bool {
			_, alive := stub.Launch(map[string]string{"team": "others"})
			return alive
		},
		OtherPlace: &conformance.Place{Credentials: otherCredentials()},
		LosePermissions: func(testing.TB) func() {
			return stub.Inject(ec2stub.Fault{Operation: "DescribeInstances", Code: "UnauthorizedOperation", Status: http.StatusForbidden})
		},
		FailsLater: func(testing.TB) func() {
			return stub.Inject(ec2stub.Fault{Operation: "RunInstances", Birth: ec2stub.Roomless})
		},
		LateCreates: func(testing.TB) func() {
			return stub.Inject(ec2stub.Fault{Operation: "RunInstances", Late: true, Delay: 100 * time.Millisecond})
		},
		Remaining: func(_ testing.TB, owner string) []string { return stub.Left(cloud.TagOwnership, owner) },
	})
}

// injections are the errors that the stub can produce.
func injections(stub *ec2stub.Cloud) map[cloud.Code]func(testing.TB) func() {
	inject := map[cloud.Code]func(testing.TB) func(){
		cloud.QuotaExceeded: func(testing.TB) func() {
			stub.SetQuota(1)
			_, _ = stub.Launch(nil)
			return func() { stub.SetQuota(0) }
		},
		cloud.NoCapacity: func(testing.TB) func() {
			set := func(n int) {
				for _, zone := range []string{"us-east-1a", "us-east-1b", "us-east-1c"} {
					stub.SetCapacity(zone, n)
				}
			}
			set(0)
			return func() { set(-1) }
		},
	}
	for code, answer := range map[cloud.Code]ec2stub.Fault{
		cloud.Throttled:   {Code: "RequestLimitExceeded", Status: http.StatusServiceUnavailable},
		cloud.NotFound:    {Code: "InvalidKeyPair.NotFound", Status: http.StatusBadRequest},
		cloud.Conflict:    {Code: "IncorrectState", Status: http.StatusBadRequest},
		cloud.Unavailable: {Code: "InternalError", Status: http.StatusInternalServerError, After: true},
		cloud.Unknown:     {Code: "SomethingNew", Status: http.StatusBadRequest},
	} {
		inject[code] = func(testing.TB) func() {
			answer.Operation = "RunInstances"
			return stub.Inject(answer)
		}
	}
	return inject
}
