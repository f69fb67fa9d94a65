// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/conformance/faults"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
)

// gcpWorld is a stand-in for Compute Engine for each tenant.
type gcpWorld struct{}

func (gcpWorld) start(ctx context.Context) (*rig.Rig, error) { return rig.StartOnGCP(ctx) }

func (gcpWorld) parts() int { return 1 }

func (gcpWorld) launch(_ context.Context, x *tenant, tags map[string]string) (string, error) {
	name, all := fmt.Sprintf("foreign-%d", len(x.foreign)), map[string]any{}
	for key, value := range tags {
		all[key] = value
	}
	x.GCP.Launch(gcpstub.Zones()[0], name, all)
	return name, nil
}

// accept accepts only the last token as the ID of the service account's key.
func (gcpWorld) accept(_ context.Context, x *tenant, tokens ...string) error {
	id := "nobody knows it"
	if len(tokens) > 0 {
		id = tokens[len(tokens)-1]
	}
	x.GCP.SetKeyID(id)
	return nil
}

func (gcpWorld) credentials(_ context.Context, _ *tenant, token string) (map[string]string, error) {
	return rig.GCPCredentials(token)
}

func (gcpWorld) elsewhere(context.Context, *tenant) (map[string]string, error) { return nil, nil }

// harm deletes a VM in any case: Google does not show deleted VMs.
func (gcpWorld) harm(_ context.Context, x *tenant, id string, _ simulator.InstanceAction) error {
	x.GCP.Remove(id)
	return nil
}

// These map the simulated cloud's operations, error codes and births to those of Compute Engine.
var (
	gcpOperations = map[string]string{
		"": "", wire.RunInstances: "POST instances", wire.DescribeResources: "GET aggregated/instances",
		wire.TerminateInstances: "DELETE instances", wire.DeleteResources: "DELETE disks", wire.DescribeCatalog: "GET machineTypes",
	}
	gcpErrors = map[string]gcpstub.Fault{
		wire.InternalError:                {Reason: "internalError", Status: http.StatusInternalServerError},
		wire.ServiceUnavailable:           {Reason: "backendError", Status: http.StatusServiceUnavailable},
		wire.RequestLimitExceeded:         {Reason: "rateLimitExceeded", Status: http.StatusForbidden},
		wire.IdempotentParameterMismatch:  {Reason: "resourceInUseByAnotherResource", Status: http.StatusBadRequest},
		wire.InsufficientInstanceCapacity: {Reason: "ZONE_RESOURCE_POOL_EXHAUSTED", Status: http.StatusServiceUnavailable},
		wire.AuthFailure:                  {Reason: "forbidden", Status: http.StatusForbidden},
	}
	gcpBirths = map[string]string{"": "", "Stillborn": "INTERNAL_ERROR", "Lifeless": gcpstub.Lifeless}
)

func (gcpWorld) fault(_ context.Context, x *tenant, f simulator.Fault) (func(context.Context) error, error) {
	out, known := gcpErrors[f.Code]
	op, named := gcpOperations[f.Operation]
	if !named || f.Code != "" && !known {
		return nil, fmt.Errorf("Compute Engine knows no %s of %s", f.Code, f.Operation)
	}
	m, err := mannerOf(f.Kind)
	if err != nil {
		return nil, err
	}
	out.Operation, out.Skip, out.Count, out.Delay = op, f.Skip, f.Count, f.Delay.Duration
	out.After, out.Late, out.Short, out.Instead, out.Birth = m.after, m.late, m.short, m.instead, gcpBirths[m.birth]
	if f.RetryAfter > 0 {
		out.Header = map[string]string{"Retry-After": strconv.Itoa(int(f.RetryAfter + 1))}
	}
	return forget(x.GCP.Inject(out)), nil
}

func (gcpWorld) resize(m *infrav1.DroverMachineFields) { m.Cloud.GCP.MachineType = "t2a-standard-1" }

func (gcpWorld) set(_ context.Context, w *wave, s simulator.Settings) error {
	for _, x := range w.tenants {
		x.GCP.SetLag(s.ConsistencyLag.Duration)
		x.GCP.SetPageSize(s.PageSize)
	}
	return nil
}

func (gcpWorld) fall(_ context.Context, w *wave, mode simulator.DownMode) (func(context.Context) error, error) {
	down, ok := map[simulator.DownMode]gcpstub.Fault{
		simulator.DownCut:         {Instead: faults.Cut},
		simulator.DownUnavailable: gcpErrors[wire.ServiceUnavailable],
		simulator.DownHang:        {Instead: faults.Cut, Delay: time.Hour},
	}[mode]
	if !ok {
		return nil, errors.New("nobody knows how Compute Engine is down: " + string(mode))
	}
	var all []func()
	for _, x := range w.tenants {
		all = append(all, x.GCP.Inject(down))
	}
	return forget(all...), nil
}
