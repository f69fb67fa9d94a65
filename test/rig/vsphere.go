// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/faultproxy"
	"github.com/drover-io/drover/test/vcenter"
)

const (
	vsphereUser     = "drover@vsphere.local"
	vspherePassword = "marked-password"
)

// vsphere is one vCenter for all tenants, in this process, whose VMs are the simulated cloud's bodies.
type vsphere struct {
	vcenter *vcenter.VCenter
	fleet   *body.Fleet
	cancel  context.CancelFunc
}

func (v *vsphere) start(context.Context, *Rig) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	v.fleet = body.NewFleet(ctx, body.Options{})
	v.vcenter, err = vcenter.Start(vcenter.Options{Username: vsphereUser, Password: vspherePassword, Power: v.power})
	return err
}

func (v *vsphere) open(_ context.Context, t *Tenant) (faultproxy.Options, error) {
	t.VCenter = v.vcenter
	t.Dress = func(o client.Object) { dressVSphere(o, t.Cloud) }
	return faultproxy.Options{Upstream: v.vcenter.URL, CA: v.vcenter.CA, Parse: soapCall}, nil
}

var operation = regexp.MustCompile(`<(?:\w+:)?Body[^>]*>\s*<(?:\w+:)?(\w+)`)

// soapCall names a call to vCenter by its operation.
func soapCall(c *faultproxy.Call, _ *http.Request, body []byte) {
	if m := operation.FindSubmatch(body); m != nil {
		c.Verb = string(m[1])
	}
}

func (v *vsphere) power(vm vcenter.VM) (off func()) {
	b := v.fleet.New(body.Machine{
		InstanceID: vm.UUID, Hostname: vm.Options["drover-host-name"], IP: vm.IP, CPU: vm.CPUs, MemoryMiB: vm.MemoryMiB, DiskGiB: 10,
		Arch: "amd64", OS: "linux", UserData: unpack(vm.Options["guestinfo.userdata"]),
	})
	b.Start()
	return b.Stop
}

// unpack is what cloud-init does to a variable; a body without user data does nothing, and that is seen.
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

// dressVSphere makes vSphere's of what is described for the simulated cloud.
func dressVSphere(o client.Object, door *faultproxy.Proxy) {
	switch o := o.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			o.Data = map[string][]byte{"username": []byte(vsphereUser), "password": []byte(vspherePassword)}
		}
	case *infrav1.CloudAccount:
		server := strings.TrimPrefix(door.URL(), "https://")
		o.Spec.Simulated = nil
		o.Spec.VSphere = &infrav1.VSphereAccount{Server: server, Datacenter: vcenter.Datacenter, CABundle: string(door.CA())}
		if o.Spec.RateLimits == nil { // the prudent ones would make a test of many machines last
			fast := &infrav1.RateLimit{PerSecond: "100", Burst: 100}
			o.Spec.RateLimits = &infrav1.RateLimits{Create: fast, Delete: fast, Read: fast}
		}
	case *infrav1.CloudMachineTemplate:
		o.Spec.Template.Spec.Simulated = nil
		o.Spec.Template.Spec.VSphere = &infrav1.VSphereMachine{
			Template: vcenter.Template, ResourcePool: vcenter.ResourcePool, Datastore: vcenter.Datastore, CPUs: 2, MemoryMiB: 4096,
			AntiAffinityGroup: "workers",
		}
	}
}

// books are vCenter's, in the words of the simulated cloud's. A tenant's machines lie in the namespace of its name.
func (v *vsphere) books(context.Context) (s simulator.Snapshot, err error) {
	for _, vm := range v.vcenter.VMs() {
		r := wire.Resource{Kind: wire.Instance, ID: vm.UUID, Name: vm.Name, State: wire.Stopped, Tags: vm.Options, PrivateIP: vm.IP}
		switch {
		case vm.Gone:
			r.State = wire.Terminated
		case vm.On:
			r.State = wire.Running
		}
		namespace, _, _ := strings.Cut(vm.Options[cloud.TagMachine], "/")
		s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: r, Account: namespace})
	}
	return s, nil
}

// remember does nothing: vCenter forgets at once.
func (v *vsphere) remember(context.Context, time.Duration) error { return nil }

func (v *vsphere) stop() error {
	if v.cancel == nil {
		return nil
	}
	if v.vcenter != nil {
		v.vcenter.Close()
	}
	v.cancel()
	v.fleet.Wait()
	return nil
}
