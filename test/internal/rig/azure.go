// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// The directory and the application of every tenant on Azure. The application's secret is the
// tenant's token.
const (
	azureDirectory   = "77777777-1111-2222-3333-444444444444"
	azureApplication = "88888888-1111-2222-3333-444444444444"
)

// azure runs one stand-in for Azure for each tenant in this process. Its machines are bodies of the
// simulated cloud.
type azure struct {
	fleet  *body.Fleet
	cancel context.CancelFunc

	mu     sync.Mutex
	groups map[string]*armstub.Cloud // by tenant name
}

func (a *azure) start(context.Context, *Rig) error {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel, a.groups = cancel, map[string]*armstub.Cloud{}
	a.fleet = body.NewFleet(ctx, body.Options{})
	return nil
}

func (a *azure) open(_ context.Context, t *Tenant) (faultproxy.Options, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	group := "Nodes-" + t.Name
	// All tenants' machines are in one workload cluster.
	if t.Azure, err = StartAzureStub(t.Token, group, len(a.groups)%200+1, AzurePower(a.fleet)); err != nil {
		return faultproxy.Options{}, err
	}
	a.groups[t.Name] = t.Azure
	t.Dress = func(o client.Object) { DressAzure(o, t.Cloud.URL(), string(t.Cloud.CA()), group, t.Token) }
	return faultproxy.Options{Upstream: "https://" + t.Azure.Address, CA: []byte(t.Azure.CA), Parse: armCall}, nil
}

// StartAzureStub starts a stand-in for Azure with one resource group. network is the second number
// of its addresses.
func StartAzureStub(secret, group string, network int, power func(armstub.Guest) (off func())) (*armstub.Cloud, error) {
	return armstub.Start(armstub.Options{
		Tenant: azureDirectory, Client: azureApplication, Secret: secret, Group: group, Network: network,
		Boot: 150 * time.Millisecond, Stop: 200 * time.Millisecond, Parts: 100 * time.Millisecond, Keep: true, Power: power,
	})
}

// armCall names a call of Azure by its method and the kind of resource.
func armCall(c *faultproxy.Call, r *http.Request, _ []byte) { c.Verb = armstub.Operation(r) }

// AzurePower returns a function that runs guests of a stand-in for Azure as bodies of the fleet.
func AzurePower(fleet *body.Fleet) func(armstub.Guest) (off func()) {
	return func(g armstub.Guest) (off func()) {
		b := fleet.New(body.Machine{
			InstanceID: g.Name, Region: armstub.Location, Zone: g.Zone, Hostname: g.Name, IP: g.IP, CPU: g.CPUs, MemoryMiB: g.MemoryMiB, DiskGiB: 30,
			Arch: g.Architecture, OS: "linux", UserData: g.UserData,
		})
		b.Start()
		return b.Stop
	}
}

// AzureCredentials returns the content of an account's Secret.
func AzureCredentials(secret string) map[string]string {
	return map[string]string{"tenantID": azureDirectory, "clientID": azureApplication, "clientSecret": secret}
}

// DressAzure turns an object for the simulated cloud into one for a stand-in for Azure behind that
// URL, whose certificate is the CA's.
func DressAzure(o client.Object, url, ca, group, secret string) {
	switch o := o.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			data := map[string][]byte{}
			for key, value := range AzureCredentials(secret) {
				data[key] = []byte(value)
			}
			scenario.FillCredentials(o, "azure", data)
		}
	case *infrav1.DroverAccount:
		o.Spec.Cloud.Simulated = nil
		o.Spec.Cloud.Azure = &infrav1.AzureAccount{
			SubscriptionID: armstub.Subscription, Location: armstub.Location, ResourceGroup: group,
			Custom: infrav1.AzureCustomCloud{Endpoint: url, AuthorityHost: url, CABundle: ca},
		}
		hurry(o)
	case *infrav1.DroverMachineTemplate:
		o.Spec.Template.Spec.Cloud.Simulated = nil
		o.Spec.Template.Spec.Cloud.Azure = &infrav1.AzureMachine{
			VMSize: "Standard_D2s_v5", Image: infrav1.AzureImage{ID: armstub.Image},
			NetworkInterfaces: []infrav1.AzureNetworkInterface{{SubnetID: armstub.Subnet}},
		}
	}
}

// books returns the records of the stand-ins, in the format of the simulated cloud.
func (a *azure) books(context.Context) (s simulator.Snapshot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	states := map[string]wire.State{
		"Creating": wire.Pending, "Succeeded": wire.Running, "Failed": wire.Stopped, "Deleting": wire.Stopping, "Gone": wire.Terminated,
	}
	for tenant, group := range a.groups {
		for _, e := range group.Books() {
			r := wire.Resource{Kind: wire.Instance, ID: e.Name, Name: e.Name, State: states[e.State], Tags: e.Tags, AttachedTo: e.Attached}
			if e.State == "" {
				r.Kind = wire.Disk
			}
			s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: r, Account: tenant})
		}
	}
	return s, nil
}

// remember does nothing: Azure forgets deleted machines at once.
func (a *azure) remember(context.Context, time.Duration) error { return nil }

func (a *azure) stop() error {
	if a.cancel == nil {
		return nil
	}
	for _, group := range a.groups {
		group.Close()
	}
	a.cancel()
	a.fleet.Wait()
	return nil
}
