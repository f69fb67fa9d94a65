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
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance/faults"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
)

// azureWorld is a stand-in for Azure for each tenant.
type azureWorld struct{}

func (azureWorld) start(ctx context.Context) (*rig.Rig, error) { return rig.StartOnAzure(ctx) }

func (azureWorld) parts() int { return 1 }

func (azureWorld) launch(_ context.Context, x *tenant, tags map[string]string) (string, error) {
	name, all := fmt.Sprintf("foreign-%d", len(x.foreign)), map[string]any{}
	for key, value := range tags {
		all[key] = value
	}
	x.Azure.Launch(name, all)
	return name, nil
}

// accept accepts only the last token as the application's secret.
func (azureWorld) accept(_ context.Context, x *tenant, tokens ...string) error {
	secret := "nobody knows it"
	if len(tokens) > 0 {
		secret = tokens[len(tokens)-1]
	}
	x.Azure.SetSecret(secret)
	return nil
}

func (azureWorld) credentials(_ context.Context, _ *tenant, token string) (map[string]string, error) {
	return rig.AzureCredentials(token), nil
}

func (azureWorld) elsewhere(context.Context, *tenant) (map[string]string, error) { return nil, nil }

// harm deletes a VM in any case: Azure does not show deleted VMs.
func (azureWorld) harm(_ context.Context, x *tenant, id string, _ simulator.InstanceAction) error {
	x.Azure.Remove(id)
	return nil
}

// These map the simulated cloud's operations, error codes and births to those of Azure.
var (
	azureOperations = map[string]string{
		"": "", wire.RunInstances: "PUT virtualMachines", wire.DescribeResources: "GET virtualMachines",
		wire.TerminateInstances: "DELETE virtualMachines", wire.DeleteResources: "DELETE networkInterfaces", wire.DescribeCatalog: "GET skus",
	}
	azureErrors = map[string]armstub.Fault{
		wire.InternalError:                {Code: "InternalExecutionError", Status: http.StatusInternalServerError},
		wire.ServiceUnavailable:           {Code: "ServerTimeout", Status: http.StatusServiceUnavailable},
		wire.RequestLimitExceeded:         {Code: "OperationNotAllowed", Status: http.StatusTooManyRequests},
		wire.IdempotentParameterMismatch:  {Code: "AnotherOperationInProgress", Status: http.StatusConflict},
		wire.InsufficientInstanceCapacity: {Code: "SkuNotAvailable", Status: http.StatusConflict},
		wire.AuthFailure:                  {Code: "AuthorizationFailed", Status: http.StatusForbidden},
	}
	azureBirths = map[string]string{"": "", "Stillborn": "VMStartTimedOut", "Lifeless": armstub.Lifeless}
)

func (azureWorld) fault(_ context.Context, x *tenant, f simulator.Fault) (func(context.Context) error, error) {
	out, known := azureErrors[f.Code]
	op, named := azureOperations[f.Operation]
	if !named || f.Code != "" && !known {
		return nil, fmt.Errorf("Azure knows no %s of %s", f.Code, f.Operation)
	}
	m, err := mannerOf(f.Kind)
	if err != nil {
		return nil, err
	}
	out.Operation, out.Skip, out.Count, out.Delay = op, f.Skip, f.Count, f.Delay.Duration
	out.After, out.Late, out.Short, out.Instead, out.Birth = m.after, m.late, m.short, m.instead, azureBirths[m.birth]
	if f.RetryAfter > 0 {
		out.Header = map[string]string{"Retry-After": strconv.Itoa(int(f.RetryAfter + 1))}
	}
	return forget(x.Azure.Inject(out)), nil
}

func (azureWorld) resize(m *infrav1.DroverMachineFields) { m.Cloud.Azure.VMSize = "Standard_D2s_v6" }

func (azureWorld) set(_ context.Context, w *wave, s simulator.Settings) error {
	for _, x := range w.tenants {
		x.Azure.SetLag(s.ConsistencyLag.Duration)
		x.Azure.SetPageSize(s.PageSize)
	}
	return nil
}

func (azureWorld) fall(_ context.Context, w *wave, mode simulator.DownMode) (func(context.Context) error, error) {
	down, ok := map[simulator.DownMode]armstub.Fault{
		simulator.DownCut:         {Instead: faults.Cut},
		simulator.DownUnavailable: azureErrors[wire.ServiceUnavailable],
		simulator.DownHang:        {Instead: faults.Cut, Delay: time.Hour},
	}[mode]
	if !ok {
		return nil, errors.New("nobody knows how Azure is down: " + string(mode))
	}
	var all []func()
	for _, x := range w.tenants {
		all = append(all, x.Azure.Inject(down))
	}
	return forget(all...), nil
}
