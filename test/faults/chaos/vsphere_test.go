// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/rig"
)

// vsphereWorld is one of govmomi's vCenters for each tenant.
type vsphereWorld struct{}

func (vsphereWorld) start(ctx context.Context) (*rig.Rig, error) { return rig.StartOnVSphere(ctx) }

func (vsphereWorld) parts() int { return 1 }

func (vsphereWorld) launch(_ context.Context, x *tenant, tags map[string]string) (string, error) {
	return x.VCenter.Launch(fmt.Sprintf("foreign-%d", len(x.foreign)), tags)
}

// accept accepts only the last token, because there is only one password.
func (vsphereWorld) accept(_ context.Context, x *tenant, tokens ...string) error {
	password := "nobody knows it"
	if len(tokens) > 0 {
		password = tokens[len(tokens)-1]
	}
	x.VCenter.SetPassword(password)
	return nil
}

func (vsphereWorld) credentials(_ context.Context, _ *tenant, token string) (map[string]string, error) {
	return map[string]string{"username": rig.VSphereUser, "password": token}, nil
}

func (vsphereWorld) elsewhere(context.Context, *tenant) (map[string]string, error) { return nil, nil }

// harm destroys a VM in any case: vCenter does not show deleted VMs.
func (vsphereWorld) harm(_ context.Context, x *tenant, id string, _ simulator.InstanceAction) error {
	return x.VCenter.Destroy(id)
}

// These map the simulated cloud's operations and error codes to those of vCenter.
var (
	vsphereOperations = map[string]string{
		"": "", wire.RunInstances: "CloneVM_Task", wire.DescribeResources: "RetrievePropertiesEx", wire.TerminateInstances: "Destroy_Task",
		wire.DeleteResources: "PowerOffVM_Task", wire.DescribeCatalog: "FindByInventoryPath",
	}
	vsphereErrors = map[string]types.BaseMethodFault{
		wire.InternalError:                &types.SystemErrorFault{Reason: "it was told to"},
		wire.ServiceUnavailable:           &types.HostNotConnected{},
		wire.RequestLimitExceeded:         &types.TaskInProgress{},
		wire.IdempotentParameterMismatch:  &types.ConcurrentAccess{},
		wire.InsufficientInstanceCapacity: &types.InsufficientMemoryResourcesFault{},
		wire.AuthFailure:                  &types.NoPermission{},
	}
)

func (vsphereWorld) fault(_ context.Context, x *tenant, f simulator.Fault) (func(context.Context) error, error) {
	op, named := vsphereOperations[f.Operation]
	method, known := vsphereErrors[f.Code]
	if !named || f.Code != "" && !known {
		return nil, fmt.Errorf("vCenter knows no %s of %s", f.Code, f.Operation)
	}
	m, err := mannerOf(f.Kind) // vCenter's pages are complete, so none can be short
	if err != nil {
		return nil, err
	}
	return forget(x.VCenter.Inject(vcenter.Fault{
		Operation: op, Skip: f.Skip, Count: f.Count, Delay: f.Delay.Duration, Method: method,
		After: m.after, Late: m.late, Instead: vcenter.Instead(m.instead), Birth: vcenter.Birth(m.birth),
	})), nil
}

func (vsphereWorld) resize(m *infrav1.DroverMachineFields) { m.Cloud.VSphere.CPUs *= 2 }

// set does nothing: vCenter is consistent and returns complete answers.
func (vsphereWorld) set(context.Context, *wave, simulator.Settings) error { return nil }

func (vsphereWorld) fall(_ context.Context, w *wave, mode simulator.DownMode) (func(context.Context) error, error) {
	down, ok := map[simulator.DownMode]vcenter.Fault{
		simulator.DownCut:         {Instead: vcenter.Cut},
		simulator.DownUnavailable: {Instead: vcenter.Down},
		simulator.DownHang:        {Instead: vcenter.Cut, Delay: time.Hour},
	}[mode]
	if !ok {
		return nil, errors.New("nobody knows how vCenter is down: " + string(mode))
	}
	var all []func()
	for _, x := range w.tenants {
		all = append(all, x.VCenter.Inject(down))
	}
	return forget(all...), nil
}
