// SPDX-License-Identifier: Apache-2.0

package vcenter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/vsphere"
	"github.com/drover-io/drover/internal/test/vcenter"
)

const (
	username = "user@vsphere.local"
	password = "marked-password"
	// asProcess in the environment makes this test program a vCenter, until its standard input
	// ends.
	asProcess = "DROVER_TEST_VCENTER"
)

// TestMain runs the tests, or the vCenter that a test has started as a process.
func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		os.Exit(m.Run())
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// place is the address of a vCenter.
type place struct {
	URL string
	CA  []byte
}

func serve() error {
	v, err := vcenter.Start(vcenter.Options{Username: username, Password: password, Power: func(vcenter.VM) func() { return func() {} }})
	if err != nil {
		return err
	}
	defer v.Close()
	if err := json.NewEncoder(os.Stdout).Encode(place{v.URL, v.CA}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startProcess starts a vCenter that stops with the test.
func startProcess(t *testing.T) (p place) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(self)
	server.Env, server.Stderr = append(os.Environ(), asProcess+"=1"), os.Stderr
	hold, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	told, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = hold.Close()
		if err := server.Wait(); err != nil {
			t.Errorf("the vCenter's process: %v", err)
		}
	})
	if err := json.NewDecoder(told).Decode(&p); err != nil {
		t.Fatalf("the vCenter does not say where it is: %v", err)
	}
	return p
}

// TestConformanceOfAProcess runs the suite against a vCenter in another process, over TLS. The
// account's own CA verifies its certificate, as in a manager.
func TestConformanceOfAProcess(t *testing.T) {
	at := startProcess(t)
	u, err := url.Parse(at.URL)
	if err != nil {
		t.Fatal(err)
	}
	row := vsphere.Cloud()
	row.Traits.ReadLag = 0 // vcsim reads its own writes, and the proxy waits for it
	machine := func(edit ...func(*infrav1.VSphereMachine)) *infrav1.DroverMachineFields {
		m := &infrav1.VSphereMachine{Template: vcenter.Template, ResourcePool: vcenter.ResourcePool, Datastore: vcenter.Datastore}
		for _, e := range edit {
			e(m)
		}
		return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{VSphere: m}}
	}
	conformance.Run(t, conformance.Target{
		Cloud: row,
		Account: &infrav1.DroverAccountSpec{
			CredentialsRef: infrav1.LocalReference{Name: "vcenter"},
			RateLimits:     &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "1000", Burst: 1000}},
			// no limit for the suite's parallel clones
			Cloud: infrav1.AccountCloud{VSphere: &infrav1.VSphereAccount{Server: u.Host, Datacenter: vcenter.Datacenter,
				CABundle: string(at.CA)}},
		},
		Credentials:    map[string][]byte{"username": []byte(username), "password": []byte(password)},
		BadCredentials: map[string][]byte{"username": []byte(username), "password": []byte("marked-but-wrong")},
		Machine:        machine(),
		Refused: map[string]conformance.Refused{
			"unknown template": {Machine: machine(func(m *infrav1.VSphereMachine) { m.Template = "nothing" }), Code: cloud.NotFound,
				OfferingToo: true},
			"no snapshot": {Machine: machine(func(m *infrav1.VSphereMachine) { m.CloneMode = infrav1.VSphereCloneLinked }),
				Code: cloud.InvalidSpec, OfferingToo: true},
		},
		Machines:  60,
		Calls:     conformance.Calls{Probe: 5, Create: 16, Again: 3, Offering: 6, List: 3, Describe: 4, Page: 500, Delete: 9},
		Remaining: func(t testing.TB, owner string) []string { return owned(t, at, owner) },
	})
}

// owned returns the VMs with the ownership ID, as an administrator sees them.
func owned(t testing.TB, at place, owner string) (left []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	c, _, err := vcenter.Administrate(ctx, at.URL, at.CA, url.UserPassword(username, password))
	if err != nil {
		t.Fatal(err)
	}
	all, err := view.NewManager(c).CreateContainerView(ctx, c.ServiceContent.RootFolder, []string{"VirtualMachine"}, true)
	if err != nil {
		t.Fatal(err)
	}
	var vms []mo.VirtualMachine
	if err := all.Retrieve(ctx, []string{"VirtualMachine"}, []string{"config.extraConfig"}, &vms); err != nil {
		t.Fatal(err)
	}
	for _, vm := range vms {
		if slices.ContainsFunc(vm.Config.ExtraConfig, func(o types.BaseOptionValue) bool {
			return o.GetOptionValue().Key == cloud.TagOwnership && o.GetOptionValue().Value == owner
		}) {
			left = append(left, vm.Self.Value)
		}
	}
	return left
}
