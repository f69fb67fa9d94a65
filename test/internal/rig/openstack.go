// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/stack"
)

// openstack is the real OpenStack that hack/openstack/start has started. Its servers are bodies of
// the simulated cloud. All tenants share one project and one door.
type openstack struct {
	fleet  *body.Fleet
	cancel context.CancelFunc
	cloud  *stack.Cloud
}

func (o *openstack) start(ctx context.Context, _ *Rig) (err error) {
	if o.cloud, err = stack.Enter(ctx); err != nil {
		return err
	}
	alive, cancel := context.WithCancel(context.Background())
	o.cancel, o.fleet = cancel, body.NewFleet(alive, body.Options{})
	o.cloud.Power(alive, OpenStackPower(o.fleet))
	return nil
}

// OpenStackPower returns a function that runs servers of an OpenStack as bodies of the fleet.
func OpenStackPower(fleet *body.Fleet) func(stack.Guest) (off func()) {
	return func(g stack.Guest) (off func()) {
		b := fleet.New(body.Machine{
			InstanceID: g.ID, Region: stack.Region, Zone: g.Zone, Hostname: g.Hostname, IP: g.IP, CPU: 1, MemoryMiB: 512, DiskGiB: 1,
			Arch: "amd64", OS: "linux", UserData: g.UserData,
		})
		b.Start()
		return b.Stop
	}
}

func (o *openstack) open(_ context.Context, t *Tenant) (faultproxy.Options, error) {
	t.OpenStack = o.cloud
	t.Dress = func(object client.Object) { DressOpenStack(object, t.Cloud.URL(), o.cloud.Project) }
	return faultproxy.Options{Upstream: o.cloud.Door(), Parse: openStackCall}, nil
}

// openStackCall names a call by its method, service, and resource and its part, without any ID:
// "POST compute/servers", "POST compute/servers/metadata".
func openStackCall(c *faultproxy.Call, req *http.Request, raw []byte) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // service, version, resource, ID, part, …
	if parts[0] == "volume" && len(parts) > 2 {
		parts = slices.Delete(parts, 2, 3) // the project
	}
	c.Verb = req.Method + " " + parts[0]
	if len(parts) > 2 {
		c.Verb += "/" + parts[2]
	}
	if len(parts) > 4 && parts[2] != "lbaas" { // which is part of the version
		c.Verb += "/" + parts[4]
	}
	var made struct {
		Server struct {
			Name string `json:"name"`
		} `json:"server"`
	}
	if json.Unmarshal(raw, &made) == nil {
		c.Name = made.Server.Name
	}
}

// DressOpenStack turns an object for the simulated cloud into one for OpenStack behind that door.
// In a namespace with "regional" in its name, provider IDs include the region. In one with "plain"
// in its name, Nova creates the ports, and listings come as often as by default.
func DressOpenStack(object client.Object, door, project string) {
	plain := strings.Contains(object.GetNamespace(), "plain")
	switch o := object.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			scenario.FillCredentials(o, "openstack", map[string][]byte{"clouds.yaml": fmt.Appendf(nil,
				"clouds: {demo: {auth: {auth_url: %s/identity/v3, username: %s, password: %s, user_domain_id: default}}}", door, stack.User,
				stack.Password)})
		}
	case *infrav1.DroverAccount:
		o.Spec.Cloud.Simulated, o.Spec.Inventory = nil, infrav1.InventorySpec{}
		if !plain {
			o.Spec.Inventory = infrav1.InventorySpec{IdleSeconds: 5, ActiveSeconds: 3} // a listing takes this cloud about a second
		}
		o.Spec.Cloud.OpenStack = &infrav1.OpenStackAccount{AuthURL: door + "/identity/v3", ProjectID: project, Region: stack.Region,
			RegionalProviderIDs: map[bool]infrav1.FeatureState{true: infrav1.FeatureEnabled}[strings.Contains(o.Namespace, "regional")]}
		hurry(o)
	case *infrav1.DroverMachineTemplate:
		machine := &infrav1.OpenStackMachine{Flavor: "small", Image: infrav1.OpenStackImage{Name: "node-image"},
			Ports: []infrav1.OpenStackPort{{Network: "nodes"}}}
		if !plain {
			machine.Ports[0].AllowedAddressPairs = []infrav1.OpenStackAddressPair{{IPAddress: "10.244.0.0/16"}}
		}
		o.Spec.Template.Spec.Cloud.Simulated, o.Spec.Template.Spec.Cloud.OpenStack = nil, machine
	}
}

// books returns the records of Nova and Neutron, in the format of the simulated cloud.
func (o *openstack) books(ctx context.Context) (s simulator.Snapshot, err error) {
	entries, err := o.cloud.Books(ctx)
	for _, e := range entries {
		s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: e.Resource, Account: e.Namespace})
	}
	return s, err
}

// remember does nothing: Nova forgets deleted servers at once.
func (o *openstack) remember(context.Context, time.Duration) error { return nil }

func (o *openstack) stop() error {
	if o.cancel == nil {
		return nil
	}
	o.cancel()
	o.cloud.Leave()
	o.fleet.Wait()
	return nil
}
