// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/test/engine"
)

const tenant = "77777777-1111-2222-3333-444444444444"

func accountConfig() fleet.AccountConfig {
	return fleet.AccountConfig{
		Spec: infrav1.DroverAccountSpec{CredentialsRef: infrav1.LocalReference{Name: "c"},
			Cloud: infrav1.AccountCloud{Azure: &infrav1.AzureAccount{
				SubscriptionID: armstub.Subscription, Location: armstub.Location, ResourceGroup: armstub.Group,
				Custom: infrav1.AzureCustomCloud{Endpoint: armstub.Endpoint, AuthorityHost: armstub.Authority},
			}}},
		Credentials: map[string][]byte{"tenantID": []byte(tenant), "clientID": []byte("client"), "clientSecret": []byte("secret")},
	}
}

// smallest returns a machine that the stand-in can make.
func smallest() *infrav1.DroverMachineFields {
	return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Azure: &infrav1.AzureMachine{
		VMSize: "Standard_D2s_v5", Image: infrav1.AzureImage{ID: armstub.Image},
		NetworkInterfaces: []infrav1.AzureNetworkInterface{{SubnetID: armstub.Subnet}},
	}}}
}

// account returns an account as the manager has it, with its limiter, and runs its loops until the
// test ends.
func account(t *testing.T, stub *armstub.Cloud) *fleet.Account {
	t.Helper()
	config := accountConfig()
	config.Spec.Inventory.IdleSeconds, config.Spec.Inventory.ActiveSeconds = 60, 5
	return engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{azure.Cloud()}, Times: fleet.TimesFor(30 * time.Second),
		Transport: stub.Transport()}, config)
}

// TestBusySubscription has 100 machines made and deleted in a subscription whose others have left
// 30 calls in each of Azure's buckets, which get 500 a minute: so no sooner than in 8 seconds each.
// The account's own limits would send 150 at once.
func TestBusySubscription(t *testing.T) {
	needs(t, *where == "azure")
	const n, left, perMinute = 100, 30, 500
	g := NewWithT(t)
	stub := armstub.New(t, armstub.Options{
		Tenant: tenant, Client: "client", Secret: "secret", PageSize: 1000, Boot: time.Second, Stop: time.Second,
	})
	a := account(t, stub)
	stub.SetBuckets(left, perMinute)
	began, sent := time.Now(), map[string]int{}
	phase := func(what, operation string) {
		calls, refused := stub.Calls()[operation]-sent[operation], stub.Throttled()
		t.Logf("%s: in %s, with %d calls, %d of them refused so far", what, time.Since(began).Round(time.Second), calls, refused)
		g.Expect(calls).To(BeNumerically("<=", n*105/100))
		g.Expect(time.Since(began)).To(BeNumerically(">", (n-left)*time.Minute/perMinute))
		began = time.Now()
	}
	engine.Live(t, a, n, smallest(), "owner", func(int) []string { return []string{"1", "2", "3"} }, func() {
		g.Expect(stub.Made()).To(Equal(n))
		phase("all run", "PUT virtualMachines")
		stub.SetBuckets(left, perMinute)
	})
	phase("all are gone", "DELETE virtualMachines")
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}
