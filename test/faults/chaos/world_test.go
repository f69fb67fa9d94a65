// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance/faults"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
)

// world is the cloud in which the machines are created, with its controls. Schedules use the terms
// of the simulated cloud.
type world interface {
	// start starts the rig.
	start(ctx context.Context) (*rig.Rig, error)
	// parts returns the number of billable resources of a foreign VM.
	parts() int
	// launch creates a foreign VM with these tags in a tenant's account.
	launch(ctx context.Context, x *tenant, tags map[string]string) (id string, err error)
	// accept sets the tokens that a tenant's account accepts. credentials returns the content of
	// its Secret for one of them.
	accept(ctx context.Context, x *tenant, tokens ...string) error
	credentials(ctx context.Context, x *tenant, token string) (map[string]string, error)
	// elsewhere returns credentials that the cloud accepts for another place, or nil if it has only
	// one.
	elsewhere(ctx context.Context, x *tenant) (map[string]string, error)
	// harm terminates a VM, or makes it vanish.
	harm(ctx context.Context, x *tenant, id string, act simulator.InstanceAction) error
	// fault injects a fault into a tenant's account until undo is called.
	fault(ctx context.Context, x *tenant, f simulator.Fault) (undo func(context.Context) error, err error)
	// resize changes the size of a machine.
	resize(m *infrav1.DroverMachineFields)
	// set changes the settings of the cloud for all tenants.
	set(ctx context.Context, w *wave, s simulator.Settings) error
	// fall takes the cloud down for all tenants until rise is called.
	fall(ctx context.Context, w *wave, mode simulator.DownMode) (rise func(context.Context) error, err error)
}

var worlds = map[string]world{"simulated": &simulatedWorld{}, "aws": amazonWorld{}, "azure": azureWorld{}, "gcp": gcpWorld{},
	"vsphere": vsphereWorld{}, "kubevirt": &kubevirtWorld{}}

// simulatedWorld is the simulated cloud.
type simulatedWorld struct{ admin simulator.Admin }

func (s *simulatedWorld) start(ctx context.Context) (*rig.Rig, error) {
	r, err := rig.Start(ctx)
	if err == nil {
		s.admin = r.Admin
	}
	return r, err
}

func (s *simulatedWorld) parts() int { return 4 } // VM, NIC, disk, data disk

func (s *simulatedWorld) launch(ctx context.Context, x *tenant, tags map[string]string) (string, error) {
	r, err := s.admin.Run(ctx, x.Name, wire.RunInstancesRequest{
		Region: "sim-1", InstanceType: "small", Image: "node-image", Tags: tags, DataDisksGiB: []int32{1},
	})
	return r.ID, err
}

func (s *simulatedWorld) accept(ctx context.Context, x *tenant, tokens ...string) error {
	return s.admin.SetAccount(ctx, simulator.AccountOptions{Name: x.Name, Tokens: tokens})
}

func (s *simulatedWorld) credentials(_ context.Context, _ *tenant, token string) (map[string]string, error) {
	return map[string]string{"token": token}, nil
}

func (s *simulatedWorld) elsewhere(ctx context.Context, x *tenant) (map[string]string, error) {
	other := simulator.AccountOptions{Name: "other-than-" + x.Name, Tokens: []string{"token-of-other-than-" + x.Name}}
	return map[string]string{"token": other.Tokens[0]}, s.admin.SetAccount(ctx, other)
}

func (s *simulatedWorld) harm(ctx context.Context, _ *tenant, id string, act simulator.InstanceAction) error {
	return s.admin.Act(ctx, id, act)
}

func (s *simulatedWorld) fault(ctx context.Context, x *tenant, f simulator.Fault) (func(context.Context) error, error) {
	f.Account = x.Name
	id, err := s.admin.AddFault(ctx, f)
	return func(ctx context.Context) error { return s.admin.RemoveFault(ctx, id) }, err
}

func (s *simulatedWorld) resize(m *infrav1.DroverMachineFields) {
	m.Cloud.Simulated.InstanceType = "large"
}

func (s *simulatedWorld) set(ctx context.Context, _ *wave, settings simulator.Settings) error {
	return s.admin.SetSettings(ctx, settings)
}

func (s *simulatedWorld) fall(ctx context.Context, _ *wave, mode simulator.DownMode) (func(context.Context) error, error) {
	return func(ctx context.Context) error { return s.admin.SetDown(ctx, "") }, s.admin.SetDown(ctx, mode)
}

// amazonWorld is a stand-in for EC2 for each tenant.
type amazonWorld struct{}

func (amazonWorld) start(ctx context.Context) (*rig.Rig, error) { return rig.StartOnAWS(ctx) }

func (amazonWorld) parts() int { return 1 }

func (amazonWorld) launch(_ context.Context, x *tenant, tags map[string]string) (string, error) {
	id, _ := x.AWS.Launch(tags)
	return id, nil
}

func (amazonWorld) accept(_ context.Context, x *tenant, tokens ...string) error {
	keys := map[string]string{}
	for _, token := range tokens {
		keys[rig.AWSKey] = token
	}
	x.AWS.SetKeys(keys)
	return nil
}

func (amazonWorld) credentials(_ context.Context, _ *tenant, token string) (map[string]string, error) {
	return map[string]string{"aws_access_key_id": rig.AWSKey, "aws_secret_access_key": token}, nil
}

func (amazonWorld) elsewhere(context.Context, *tenant) (map[string]string, error) { return nil, nil }

func (amazonWorld) harm(_ context.Context, x *tenant, id string, act simulator.InstanceAction) error {
	switch act {
	case simulator.ActTerminate:
		x.AWS.Interrupt(id)
	case simulator.ActVanish:
		x.AWS.Vanish(id)
	default:
		return fmt.Errorf("nobody knows how to %s an instance of EC2", act)
	}
	return nil
}

// These map the simulated cloud's operations and error codes to those of EC2.
var (
	ec2Operations = map[string]string{
		"": "", wire.RunInstances: "RunInstances", wire.DescribeResources: "DescribeInstances", wire.TerminateInstances: "TerminateInstances",
		wire.DeleteResources: "DeleteVolume", wire.DescribeCatalog: "DescribeSubnets",
	}
	ec2Errors = map[string]ec2stub.Fault{
		wire.InternalError:                {Code: "InternalError", Status: http.StatusInternalServerError},
		wire.ServiceUnavailable:           {Code: "Unavailable", Status: http.StatusServiceUnavailable},
		wire.RequestLimitExceeded:         {Code: "RequestLimitExceeded", Status: http.StatusServiceUnavailable},
		wire.IdempotentParameterMismatch:  {Code: "IdempotentParameterMismatch", Status: http.StatusBadRequest},
		wire.InsufficientInstanceCapacity: {Code: "InsufficientInstanceCapacity", Status: http.StatusInternalServerError},
		wire.AuthFailure:                  {Code: "UnauthorizedOperation", Status: http.StatusForbidden},
	}
)

func (amazonWorld) fault(_ context.Context, x *tenant, f simulator.Fault) (func(context.Context) error, error) {
	out, known := ec2Errors[f.Code]
	op, named := ec2Operations[f.Operation]
	if !named || f.Code != "" && !known {
		return nil, fmt.Errorf("EC2 knows no %s of %s", f.Code, f.Operation)
	}
	m, err := mannerOf(f.Kind)
	if err != nil {
		return nil, err
	}
	out.Operation, out.Skip, out.Count, out.Delay = op, f.Skip, f.Count, f.Delay.Duration
	out.After, out.Late, out.Short, out.Instead, out.Birth = m.after, m.late, m.short, m.instead, ec2stub.Birth(m.birth)
	return forget(x.AWS.Inject(out)), nil
}

// manner is how a call or its result goes wrong, in the terms that the stand-ins share.
type manner struct {
	after, late, short bool
	instead            faults.Instead
	birth              string
}

// mannerOf returns the manner of a fault kind of the simulated cloud.
func mannerOf(kind simulator.FaultKind) (manner, error) {
	m, ok := map[simulator.FaultKind]manner{
		simulator.ErrorBefore:   {},
		simulator.Slow:          {},
		simulator.CutBefore:     {instead: faults.Cut},
		simulator.ErrorAfter:    {after: true},
		simulator.SlowAfter:     {after: true},
		simulator.CutAfter:      {after: true, instead: faults.Cut},
		simulator.Late:          {late: true},
		simulator.PartialPage:   {short: true},
		simulator.TruncatedJSON: {after: true, instead: faults.Half},
		simulator.HTML:          {after: true, instead: faults.Page},
		simulator.Redirect:      {after: true, instead: faults.Elsewhere},
		simulator.FailBoot:      {birth: "Stillborn"},
		simulator.DeadBody:      {birth: "Lifeless"},
	}[kind]
	if !ok {
		return m, fmt.Errorf("nobody knows how %s is played", kind)
	}
	return m, nil
}

// forget returns an undo function that cannot fail.
func forget(all ...func()) func(context.Context) error {
	return func(context.Context) error {
		for _, undo := range all {
			undo()
		}
		return nil
	}
}

func (amazonWorld) resize(m *infrav1.DroverMachineFields) { m.Cloud.AWS.InstanceType = "m7g.large" }

// set applies the settings that EC2 has. Volumes that outlive their instance exist only without
// lag: in reality a user turns an old volume into one, and the driver creates none, so a lagging
// read does not miss one.
func (amazonWorld) set(_ context.Context, w *wave, s simulator.Settings) error {
	for _, x := range w.tenants {
		x.AWS.SetLag(s.ConsistencyLag.Duration)
		x.AWS.SetPageSize(s.PageSize)
		x.AWS.SetKeep(s.ConsistencyLag.Duration == 0)
	}
	return nil
}

func (amazonWorld) fall(_ context.Context, w *wave, mode simulator.DownMode) (func(context.Context) error, error) {
	down, ok := map[simulator.DownMode]ec2stub.Fault{
		simulator.DownCut:         {Instead: faults.Cut},
		simulator.DownUnavailable: ec2Errors[wire.ServiceUnavailable],
		simulator.DownHang:        {Instead: faults.Cut, Delay: time.Hour},
	}[mode]
	if !ok {
		return nil, errors.New("nobody knows how EC2 is down: " + string(mode))
	}
	var all []func()
	for _, x := range w.tenants {
		all = append(all, x.AWS.Inject(down))
	}
	return forget(all...), nil
}
