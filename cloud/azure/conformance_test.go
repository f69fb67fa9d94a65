// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"net/http"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

const (
	testTenant = "77777777-1111-2222-3333-444444444444"
	testClient = "88888888-1111-2222-3333-444444444444"
	testSecret = "marked~secret.of-the_account"
)

func testCredentials() map[string][]byte {
	return map[string][]byte{keyTenantID: []byte(testTenant), keyClientID: []byte(testClient), keyClientSecret: []byte(testSecret)}
}

func testAccount() *infrav1.DroverAccountSpec {
	return &infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "c"},
		Cloud: infrav1.AccountCloud{Azure: &infrav1.AzureAccount{
			SubscriptionID: armstub.Subscription, Location: armstub.Location, ResourceGroup: armstub.Group,
			Custom: infrav1.AzureCustomCloud{Endpoint: armstub.Endpoint, AuthorityHost: armstub.Authority},
		}},
	}
}

// testMachine returns a machine that the stub can create.
func testMachine(edit func(*infrav1.AzureMachine)) *infrav1.DroverMachineFields {
	m := &infrav1.AzureMachine{
		VMSize:            "Standard_D2s_v5",
		Image:             infrav1.AzureImage{ID: armstub.Image},
		NetworkInterfaces: []infrav1.AzureNetworkInterface{{SubnetID: armstub.Subnet}},
	}
	if edit != nil {
		edit(m)
	}
	return &infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "a"}, Cloud: infrav1.MachineCloud{Azure: m}}
}

// testBalancer returns settings with which the stub makes a load balancer.
func testBalancer(internal bool) *infrav1.LoadBalancerCloud {
	scheme := map[bool]infrav1.LoadBalancerScheme{true: infrav1.LoadBalancerInternal, false: infrav1.LoadBalancerInternetFacing}[internal]
	return &infrav1.LoadBalancerCloud{Azure: &infrav1.AzureLoadBalancer{SubnetID: armstub.Subnet, Scheme: scheme}}
}

func start(t testing.TB, options armstub.Options) *armstub.Cloud {
	t.Helper()
	options.Tenant, options.Client, options.Secret = testTenant, testClient, testSecret
	stub := armstub.New(t, options)
	t.Cleanup(func() {
		for _, objection := range stub.Objections() {
			t.Errorf("Microsoft's models: %s", objection)
		}
	})
	return stub
}

// TestConformance runs the suite over HTTPS: against a consistent Azure whose machines leave their
// network interface and disk behind, and against one that lags. Load balancers are public in the
// first, and internal in the second.
func TestConformance(t *testing.T) {
	t.Run("consistent", func(t *testing.T) { conform(t, armstub.Options{Keep: true}, 120) })
	t.Run("lagging", func(t *testing.T) { conform(t, armstub.Options{Lag: 300 * time.Millisecond}, 50) })
}

func conform(t *testing.T, options armstub.Options, machines int) {
	t.Parallel()
	options.PageSize, options.Boot, options.Stop, options.Parts = 50, 50*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
	stub := start(t, options)
	row := Cloud()
	row.Traits.ReadLag, row.Traits.TerminationTime = options.Lag, options.Stop // the row's own values are for Azure's slow days
	refused := func(code cloud.Code, offeringToo bool, edit func(*infrav1.AzureMachine)) conformance.Refused {
		return conformance.Refused{Machine: testMachine(edit), Code: code, OfferingToo: offeringToo}
	}
	bad := testCredentials()
	bad[keyClientSecret] = []byte("marked~but.wrong_secret")
	elsewhere := testAccount()
	elsewhere.Cloud.Azure.SubscriptionID = armstub.Other
	conformance.Run(t, conformance.Target{
		Cloud:          row,
		Account:        testAccount(),
		Credentials:    testCredentials(),
		BadCredentials: bad,
		Transport:      stub.Transport(),
		Machine:        testMachine(nil),
		Balancer:       testBalancer(options.Lag > 0),
		Refused: map[string]conformance.Refused{
			"unknown size":   refused(cloud.InvalidSpec, true, func(m *infrav1.AzureMachine) { m.VMSize = "Standard_Enormous" }),
			"scarce size":    refused(cloud.NoCapacity, false, func(m *infrav1.AzureMachine) { m.VMSize = "Standard_Scarce" }),
			"unknown image":  refused(cloud.NotFound, false, func(m *infrav1.AzureMachine) { m.Image.ID += "0" }),
			"unknown subnet": refused(cloud.NotFound, false, func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].SubnetID += "0" }),
			"other domain":   {Machine: testMachine(nil), FailureDomain: "7", Code: cloud.InvalidSpec},
		},
		Machines: machines,
		Timeout:  20 * time.Second,
		// A new driver makes two calls for its token. An existing machine is read after the create
		// that was refused. A listing also reads network interfaces, disks, addresses, the power of
		// all machines and load balancers; parts may take a page more than machines. The console's
		// second call reads a blob. A public load balancer waits for its address; the suite asks
		// often.
		Calls: conformance.Calls{Probe: 3, Create: 3, Again: 2, Offering: 3, List: 9, Describe: 6, Page: 50, Delete: 5, Console: 2,
			Balancer: 40, Targets: 1},
		Inject:     injections(stub),
		Foreign:    func(testing.TB) func() bool { return stub.Launch("other", map[string]any{"team": "others"}) },
		OtherPlace: &conformance.Place{Account: elsewhere, Credentials: testCredentials()},
		LateCreates: func(testing.TB) func() {
			return stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Late: true, Delay: 100 * time.Millisecond})
		},
		FailsLater: func(testing.TB) func() {
			return stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Birth: "AllocationFailed"})
		},
		LosePermissions: func(testing.TB) func() {
			return stub.Inject(armstub.Fault{Operation: "GET virtualMachines", Code: "AuthorizationFailed", Status: http.StatusForbidden})
		},
		Remaining: func(_ testing.TB, owner string) []string { return stub.Left(cloud.TagOwnership, owner) },
	})
}

// injections are the errors that the stub can produce.
func injections(stub *armstub.Cloud) map[cloud.Code]func(testing.TB) func() {
	inject := map[cloud.Code]func(testing.TB) func(){
		cloud.QuotaExceeded: func(testing.TB) func() {
			stub.Launch("quota", nil)
			stub.SetQuota("virtualMachines", 1)
			return func() { stub.SetQuota("virtualMachines", 0) }
		},
	}
	for code, fault := range map[cloud.Code]armstub.Fault{
		cloud.Throttled:   {Code: "OperationNotAllowed", Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "1"}},
		cloud.NoCapacity:  {Code: "SkuNotAvailable", Status: http.StatusConflict},
		cloud.NotFound:    {Code: "ResourceGroupNotFound", Status: http.StatusNotFound},
		cloud.Conflict:    {Code: "ScopeLocked", Status: http.StatusConflict},
		cloud.Unavailable: {Code: "InternalExecutionError", Status: http.StatusInternalServerError, After: true},
		cloud.Unknown:     {Code: "SomethingNew", Status: http.StatusBadRequest},
	} {
		inject[code] = func(testing.TB) func() {
			fault.Operation = "PUT virtualMachines"
			return stub.Inject(fault)
		}
	}
	return inject
}
