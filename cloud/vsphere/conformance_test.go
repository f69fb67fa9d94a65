// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"testing"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
)

// TestConformance runs the suite over SOAP and TLS against vcsim.
func TestConformance(t *testing.T) {
	v := start(t, 2)
	const page = 25
	row := Cloud()
	row.Traits.ReadLag = 0 // vcsim reads its own writes, and the tests wait for its tasks
	row.New = func(cfg cloud.Config) (cloud.Driver, error) {
		d, err := v.unpinned(cfg) // the transport verifies the certificate
		if err == nil {
			d.(*driver).page = page
		}
		return d, err
	}
	rights, folder := v.guard(), v.Context.Map.Any("Datacenter").(*simulator.Datacenter).VmFolder
	conformance.Run(t, conformance.Target{
		Cloud:          row,
		Account:        v.account,
		Transport:      v,
		Credentials:    credentials(),
		BadCredentials: map[string][]byte{usernameKey: []byte(username), passwordKey: []byte("marked-but-wrong")},
		Machine:        machine(),
		Refused: map[string]conformance.Refused{
			"unknown template": {Machine: machine(func(m *infrav1.VSphereMachine) { m.Template = "nothing" }), Code: cloud.NotFound,
				OfferingToo: true},
			"no pool there":     {Machine: machine(func(m *infrav1.VSphereMachine) { m.ResourcePool = "DC0_C0" }), Code: cloud.InvalidSpec},
			"unknown pool":      {Machine: machine(func(m *infrav1.VSphereMachine) { m.ResourcePool = "nothing" }), Code: cloud.NotFound},
			"unknown folder":    {Machine: machine(func(m *infrav1.VSphereMachine) { m.Folder = "nothing" }), Code: cloud.NotFound},
			"unknown datastore": {Machine: machine(func(m *infrav1.VSphereMachine) { m.Datastore = "nothing" }), Code: cloud.NotFound},
			"unknown network": {Machine: machine(func(m *infrav1.VSphereMachine) {
				m.Networks = []infrav1.VSphereNetwork{{Name: "nothing"}}
			}), Code: cloud.NotFound},
			"unknown datastore cluster": {Machine: machine(func(m *infrav1.VSphereMachine) { m.Datastore, m.DatastoreCluster = "", "nothing" }),
				Code: cloud.NotFound},
			"unknown policy":          {Machine: machine(func(m *infrav1.VSphereMachine) { m.StoragePolicy = "nothing" }), Code: cloud.NotFound},
			"a pod for a datastore":   {Machine: machine(func(m *infrav1.VSphereMachine) { m.Datastore = "DC0_POD0" }), Code: cloud.InvalidSpec},
			"a folder for a template": {Machine: machine(func(m *infrav1.VSphereMachine) { m.Template = "" }), Code: cloud.InvalidSpec},
			"no pool":                 {Machine: machine(func(m *infrav1.VSphereMachine) { m.ResourcePool = "" }), Code: cloud.InvalidSpec},
			"a smaller disk":          {Machine: machine(func(m *infrav1.VSphereMachine) { m.DiskGiB = 1 }), Code: cloud.InvalidSpec},
			"no snapshot": {Machine: machine(func(m *infrav1.VSphereMachine) { m.CloneMode = infrav1.VSphereCloneLinked }),
				Code: cloud.InvalidSpec, OfferingToo: true},
			"unknown host":         {Machine: machine(func(m *infrav1.VSphereMachine) { m.Host = "DC0_C0/nothing" }), Code: cloud.NotFound},
			"a cluster for a host": {Machine: machine(func(m *infrav1.VSphereMachine) { m.Host = "DC0_C0" }), Code: cloud.InvalidSpec},
			"unknown domain":       {Machine: machine(), FailureDomain: "rack-z", Code: cloud.InvalidSpec},
			"an option of ours": {Machine: machine(func(m *infrav1.VSphereMachine) { m.ExtraConfig[0].Key = "GuestInfo.userdata" }),
				Code: cloud.InvalidSpec},
		},
		Machines: 60,
		Calls: conformance.Calls{
			// A new driver logs in (content, login, datacenter, view) and resolves names before its
			// first clone.
			Probe: 5, Create: 16, Again: 3, Offering: 6,
			// Each listing reads the running clones, then all VMs, and then Drover's VMs.
			List: 3, Describe: 4, Page: page,
			Delete: 9,
		},
		Inject: map[cloud.Code]func(testing.TB) func(){
			cloud.NoCapacity:  v.inject(&types.InsufficientResourcesFault{}),
			cloud.Conflict:    v.inject(&types.DuplicateName{}),
			cloud.Unavailable: v.inject(&types.HostNotConnected{}),
			cloud.InvalidSpec: v.inject(&types.InvalidArgument{InvalidProperty: "spec"}),
			cloud.Unknown:     v.inject(&types.SystemErrorFault{}),
		},
		LosePermissions: func(testing.TB) func() {
			rights.set(folder, true)
			return func() { rights.set(folder, false) }
		},
		Foreign: func(testing.TB) func() bool {
			theirs := v.named("DC0_C0_RP1_VM1")
			return func() bool { return v.Context.Map.Get(theirs.Self) == theirs }
		},
		Remaining: func(_ testing.TB, owner string) []string {
			var left []string
			for _, m := range v.with(cloud.TagOwnership, owner) {
				left = append(left, m.Self.Value)
			}
			return left
		},
	})
}

func (v *vcsim) inject(fault types.BaseMethodFault) func(testing.TB) func() {
	return func(testing.TB) func() { return v.refuse("CloneVM_Task", fault) }
}
