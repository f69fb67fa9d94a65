// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"context"
	"slices"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/simulated"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

const otherSecret = "marked-token-of-another-customer"

// TestConformance runs the suite over real HTTP: against a consistent cloud, and against one that
// lags.
func TestConformance(t *testing.T) {
	t.Run("consistent", func(t *testing.T) { conform(t, 0, 250) })
	t.Run("lagging", func(t *testing.T) { conform(t, 300*time.Millisecond, 50) })
}

func conform(t *testing.T, lag time.Duration, machines int) {
	t.Parallel()
	admin := newCloud(t, simulator.Options{Settings: simulator.Settings{
		BootMin: ms(20), BootMax: ms(100), Stop: ms(50), PageSize: 100, Throttle: simulator.ThrottleNone,
		ConsistencyLag: simulator.Duration{Duration: lag},
	}, Accounts: []simulator.AccountOptions{{Name: "default", Tokens: []string{secret}}, {Name: "other", Tokens: []string{otherSecret}}}})
	row := simulated.Cloud("")
	row.Traits.ReadLag = lag // the row's own value is the simulator's worst
	machine := func(edit func(*infrav1.SimulatedMachine)) *infrav1.DroverMachineFields {
		fields := machine()
		fields.Cloud.Simulated.DataDisks = []infrav1.SimulatedDataDisk{{SizeGiB: 10}}
		edit(fields.Cloud.Simulated)
		return fields
	}
	conformance.Run(t, conformance.Target{
		Cloud: row,
		Account: &infrav1.DroverAccountSpec{CredentialsRef: infrav1.LocalReference{Name: "c"},
			Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: admin.URL, Region: "sim-1"}}},
		Credentials:    map[string][]byte{"token": []byte(secret)},
		BadCredentials: map[string][]byte{"token": []byte("marked-but-wrong-token")},
		Machine:        machine(func(*infrav1.SimulatedMachine) {}),
		Refused: map[string]conformance.Refused{
			"unknown type": {Machine: machine(func(m *infrav1.SimulatedMachine) { m.InstanceType = "enormous" }), Code: cloud.InvalidSpec,
				OfferingToo: true},
			"unknown image": {Machine: machine(func(m *infrav1.SimulatedMachine) { m.Image = "nothing" }), Code: cloud.InvalidSpec,
				OfferingToo: true},
			"unknown zone": {Machine: machine(func(m *infrav1.SimulatedMachine) { m.Zone = "sim-9z" }), Code: cloud.InvalidSpec},
			"other domain": {Machine: machine(func(*infrav1.SimulatedMachine) {}), FailureDomain: "sim-9z", Code: cloud.InvalidSpec},
			"wrong CPU":    {Machine: machine(func(m *infrav1.SimulatedMachine) { m.Image = "node-image-arm64" }), Code: cloud.InvalidSpec},
		},
		Machines:   machines,
		Timeout:    20 * time.Second,
		Calls:      conformance.Calls{Page: 100},
		Inject:     injections(admin),
		OtherPlace: &conformance.Place{Credentials: map[string][]byte{"token": []byte(otherSecret)}},
		LateCreates: func(t testing.TB) func() {
			id, err := admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.Late, Operation: wire.RunInstances, Delay: ms(100)})
			must(t, err)
			return func() { must(t, admin.RemoveFault(t.Context(), id)) }
		},
		LosePermissions: func(t testing.TB) func() {
			id, err := admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.DescribeResources,
				Code: wire.AuthFailure})
			must(t, err)
			return func() { must(t, admin.RemoveFault(t.Context(), id)) }
		},
		Foreign:   func(t testing.TB) func() bool { return foreign(t, admin) },
		Remaining: func(t testing.TB, owner string) []string { return left(t, admin, owner) },
	})
}

// injections are the errors that the simulated cloud can produce.
func injections(admin simulator.Admin) map[cloud.Code]func(testing.TB) func() {
	inject := map[cloud.Code]func(testing.TB) func(){
		cloud.QuotaExceeded: func(t testing.TB) func() { return quota(t, admin, 1) },
		cloud.NoCapacity:    func(t testing.TB) func() { return capacity(t, admin) },
	}
	for code, words := range map[cloud.Code]string{
		cloud.Throttled:   wire.RequestLimitExceeded,
		cloud.NotFound:    wire.ResourceNotFound,
		cloud.Conflict:    wire.ResourceInUse,
		cloud.Unavailable: wire.ServiceUnavailable,
		cloud.Unknown:     "SomethingNew",
	} {
		inject[code] = func(t testing.TB) func() {
			id, err := admin.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.RunInstances, Code: words,
				RetryAfter: 0.5})
			if err != nil {
				t.Fatal(err)
			}
			return func() { must(t, admin.RemoveFault(t.Context(), id)) }
		}
	}
	return inject
}

// quota sets the account's quota of vCPUs, and returns a function that removes it.
func quota(t testing.TB, admin simulator.Admin, vcpus int) func() {
	account := simulator.AccountOptions{Name: "default", Tokens: []string{secret}, Quota: simulator.Quota{VCPUs: vcpus}}
	must(t, admin.SetAccount(t.Context(), account))
	account.Quota = simulator.Quota{}
	return func() { must(t, admin.SetAccount(t.Context(), account)) }
}

// capacity removes all capacity in every zone, and returns a function that restores it.
func capacity(t testing.TB, admin simulator.Admin) func() {
	set := func(n int) {
		for _, zone := range []string{"sim-1a", "sim-1b", "sim-1c"} {
			must(t, admin.SetCapacity(t.Context(), simulator.CapacityChange{Region: "sim-1", Zone: zone, InstanceType: "*", Instances: n}))
		}
	}
	set(0)
	return func() { set(-1) }
}

func foreign(t testing.TB, admin simulator.Admin) func() bool {
	made, err := admin.Run(t.Context(), "default", wire.RunInstancesRequest{
		Region: "sim-1", InstanceType: "small", Image: "node-image", Tags: map[string]string{"team": "others"},
	})
	must(t, err)
	return func() bool {
		snapshot, err := admin.Snapshot(t.Context())
		must(t, err)
		return slices.ContainsFunc(snapshot.Instances(), func(r simulator.SnapshotResource) bool { return r.ID == made.ID })
	}
}

func left(t testing.TB, admin simulator.Admin, owner string) []string {
	snapshot, err := admin.Snapshot(context.WithoutCancel(t.Context())) // also called after the end of the test
	must(t, err)
	var ids []string
	for _, r := range snapshot.Live() {
		if r.Tags[cloud.TagOwnership] == owner {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
