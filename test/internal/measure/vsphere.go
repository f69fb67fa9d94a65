// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// vspherePassword is the password of the vCenter. It is not a real secret.
const vspherePassword = "measured-password"

// vsphere is govmomi's vCenter simulator, in this process. It does not throttle.
type vsphere struct {
	vcenter *vcenter.VCenter
	fleet   *body.Fleet
	cancel  context.CancelFunc
}

func (v *vsphere) start(_ context.Context, o Options) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	v.fleet = body.NewFleet(ctx, quietBodies())
	v.vcenter, err = vcenter.Start(vcenter.Options{
		Username: rig.VSphereUser, Password: vspherePassword, Power: rig.VMPower(v.fleet, o.Joins), Latency: o.Latency,
	})
	return err
}

func (v *vsphere) adopt(c *scenario.Adopted) {
	c.Dress = func(o client.Object) {
		rig.DressVSphere(o, v.vcenter.URL, v.vcenter.CA, vspherePassword)
		switch o := o.(type) {
		case *infrav1.DroverAccount:
			o.Spec.RateLimits = nil // use the driver's defaults, as users do
		case *infrav1.DroverMachineTemplate:
			o.Spec.Template.Spec.Cloud.VSphere.AntiAffinityGroup = "" // a DRS rule has its own cost
		}
	}
}

func (v *vsphere) calls(context.Context) (map[string]int, int, error) {
	return v.vcenter.Calls(), 0, nil
}

func (v *vsphere) books(context.Context) (b books, err error) {
	for _, vm := range v.vcenter.VMs() {
		b.vms++
		if !vm.Gone {
			b.live++
		}
		if vm.Made.After(b.last) {
			b.last = vm.Made
		}
	}
	return b, nil
}

func (v *vsphere) terminate(_ context.Context, id string) error { return v.vcenter.Destroy(id) }

func (v *vsphere) processes() map[string]*playground.Process { return nil }

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
