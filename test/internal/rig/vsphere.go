// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// VSphereUser is the user that the tenants' accounts log in as. The password is the tenant's token.
const VSphereUser = "drover@vsphere.local"

// vsphere runs one vCenter for each tenant in this process. Their VMs are bodies of the simulated
// cloud.
type vsphere struct {
	fleet  *body.Fleet
	cancel context.CancelFunc

	mu       sync.Mutex
	vcenters map[string]*vcenter.VCenter // by tenant name
}

func (v *vsphere) start(context.Context, *Rig) error {
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel, v.vcenters = cancel, map[string]*vcenter.VCenter{}
	v.fleet = body.NewFleet(ctx, body.Options{})
	return nil
}

func (v *vsphere) open(_ context.Context, t *Tenant) (o faultproxy.Options, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	// An address identifies one Node, and the tenants share a workload cluster, so each has its own
	// subnet.
	t.VCenter, err = vcenter.Start(vcenter.Options{Username: VSphereUser, Password: t.Token, Power: VMPower(v.fleet, 0),
		Subnet: len(v.vcenters)%200 + 1})
	if err != nil {
		return o, err
	}
	v.vcenters[t.Name] = t.VCenter
	t.Dress = func(o client.Object) { DressVSphere(o, t.Cloud.URL(), t.Cloud.CA(), t.Token) }
	return faultproxy.Options{Upstream: t.VCenter.URL, CA: t.VCenter.CA, Parse: soapCall}, nil
}

// soapCall names a call to vCenter by its operation.
func soapCall(c *faultproxy.Call, _ *http.Request, body []byte) {
	if op := vcenter.Operation(body); op != "" {
		c.Verb = op
	}
}

// VMPower returns a function that runs VMs of a vCenter as bodies of the fleet. A body starts boot
// after its VM was powered on.
func VMPower(fleet *body.Fleet, boot time.Duration) func(vcenter.VM) (off func()) {
	return func(vm vcenter.VM) (off func()) {
		b := fleet.New(body.Machine{
			InstanceID: vm.UUID, Hostname: vm.Options["drover-host-name"], IP: vm.IP, CPU: vm.CPUs, MemoryMiB: vm.MemoryMiB, DiskGiB: 10,
			Arch: "amd64", OS: "linux", UserData: unpack(cmp.Or(vm.Options["guestinfo.userdata"], vm.Options["guestinfo.ignition.config.data"])),
		})
		var mu sync.Mutex
		gone := false
		time.AfterFunc(boot, func() {
			mu.Lock()
			defer mu.Unlock()
			if !gone {
				b.Start()
			}
		})
		return func() {
			mu.Lock()
			defer mu.Unlock()
			gone = true
			b.Stop()
		}
	}
}

// unpack decodes a variable as cloud-init and Ignition do. On an error it returns nil: a body
// without user data does nothing, which the test will notice.
func unpack(text string) []byte {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil
	}
	return data
}

// DressVSphere turns an object for the simulated cloud into one for the vCenter at endpoint.
func DressVSphere(o client.Object, endpoint string, ca []byte, password string) {
	switch o := o.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			scenario.FillCredentials(o, "vsphere", map[string][]byte{"username": []byte(VSphereUser), "password": []byte(password)})
		}
	case *infrav1.DroverAccount:
		server := strings.TrimPrefix(endpoint, "https://")
		o.Spec.Cloud.Simulated = nil
		o.Spec.Cloud.VSphere = &infrav1.VSphereAccount{Server: server, Datacenter: vcenter.Datacenter, CABundle: string(ca)}
		hurry(o)
	case *infrav1.DroverMachineTemplate:
		o.Spec.Template.Spec.Cloud.Simulated = nil
		o.Spec.Template.Spec.Cloud.VSphere = &infrav1.VSphereMachine{
			Template: vcenter.Template, ResourcePool: vcenter.ResourcePool, Datastore: vcenter.Datastore, CPUs: 2, MemoryMiB: 4096,
			AntiAffinityGroup: "workers",
		}
	}
}

// books returns the records of the vCenters, in the format of the simulated cloud.
func (v *vsphere) books(context.Context) (s simulator.Snapshot, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for tenant, one := range v.vcenters {
		for _, vm := range one.VMs() {
			r := wire.Resource{Kind: wire.Instance, ID: vm.UUID, Name: vm.Name, State: wire.Stopped, Tags: vm.Options, PrivateIP: vm.IP}
			switch {
			case vm.Gone:
				r.State = wire.Terminated
			case vm.On:
				r.State = wire.Running
			}
			s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: r, Account: tenant})
		}
	}
	return s, nil
}

// remember does nothing: vCenter forgets deleted VMs at once.
func (v *vsphere) remember(context.Context, time.Duration) error { return nil }

func (v *vsphere) stop() error {
	if v.cancel == nil {
		return nil
	}
	for _, one := range v.vcenters {
		one.Close()
	}
	v.cancel()
	v.fleet.Wait()
	return nil
}
