// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// AWSKey is the access key of every tenant on AWS. Its secret is the tenant's token.
const AWSKey = "AKIADROVERTEST000001"

// amazon runs one stand-in for EC2 for each tenant in this process. Its instances are bodies of the
// simulated cloud: they read their user data, and join the cluster that it names.
type amazon struct {
	fleet  *body.Fleet
	cancel context.CancelFunc

	mu       sync.Mutex
	accounts map[string]*ec2stub.Cloud
	closers  []func()
}

func (a *amazon) start(context.Context, *Rig) error {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel, a.accounts = cancel, map[string]*ec2stub.Cloud{}
	a.fleet = body.NewFleet(ctx, body.Options{})
	return nil
}

// Cleanup registers a function to be called at the end. ec2stub.New needs it.
func (a *amazon) Cleanup(do func()) { a.closers = append(a.closers, do) }

func (a *amazon) open(_ context.Context, t *Tenant) (faultproxy.Options, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t.AWS = ec2stub.New(a, ec2stub.Options{
		Keys: map[string]string{AWSKey: t.Token}, Boot: 150 * time.Millisecond, Stop: 200 * time.Millisecond, Keep: true, Power: Power(a.fleet),
		Subnet: len(a.accounts)%200 + 1, // all tenants' machines are in one workload cluster
	})
	a.accounts[t.Name] = t.AWS
	t.Dress = func(o client.Object) { DressAWS(o, t.Cloud.URL(), t.Token) }
	return faultproxy.Options{Upstream: t.AWS.URL, Parse: faultproxy.AWS}, nil
}

// Power returns a function that runs guests of a stand-in for EC2 as bodies of the fleet.
func Power(fleet *body.Fleet) func(ec2stub.Guest) (off func()) {
	return func(g ec2stub.Guest) (off func()) {
		b := fleet.New(body.Machine{
			InstanceID: g.ID, Region: "us-east-1", Zone: g.Zone, Hostname: g.Name, IP: g.IP, CPU: g.CPUs, MemoryMiB: g.MemoryMiB, DiskGiB: g.DiskGiB,
			Arch: g.Architecture, OS: "linux", UserData: g.UserData,
		})
		b.Start()
		return b.Stop
	}
}

// DressAWS turns an object for the simulated cloud into one for AWS.
func DressAWS(o client.Object, endpoint, secret string) {
	switch o := o.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			scenario.FillCredentials(o, "aws", map[string][]byte{"aws_access_key_id": []byte(AWSKey), "aws_secret_access_key": []byte(secret)})
		}
	case *infrav1.DroverAccount:
		o.Spec.Cloud.Simulated, o.Spec.Cloud.AWS = nil, &infrav1.AWSAccount{Region: "us-east-1", Endpoint: endpoint}
		hurry(o)
	case *infrav1.DroverMachineTemplate:
		nodes := infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}}
		o.Spec.Template.Spec.Cloud.Simulated = nil
		o.Spec.Template.Spec.Cloud.AWS = &infrav1.AWSMachine{
			InstanceType: "t3.small", Image: infrav1.AWSImage{ID: ec2stub.KeepingImage}, Subnets: nodes, SecurityGroups: &nodes,
		}
	}
}

// books returns the records of the stand-ins, in the format of the simulated cloud.
func (a *amazon) books(context.Context) (s simulator.Snapshot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, account := range a.accounts {
		for _, e := range account.Books() {
			r := wire.Resource{Kind: wire.Instance, ID: e.ID, State: wire.State(e.State), StateReason: e.Reason, Tags: e.Tags,
				AttachedTo: e.Attached}
			if e.State == "" {
				r.Kind = wire.Disk
			}
			s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: r, Account: name})
		}
	}
	return s, nil
}

func (a *amazon) remember(_ context.Context, d time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, account := range a.accounts {
		account.SetRemember(d)
	}
	return nil
}

func (a *amazon) stop() error {
	if a.cancel == nil {
		return nil
	}
	for _, do := range a.closers {
		do()
	}
	a.cancel()
	a.fleet.Wait()
	return nil
}
