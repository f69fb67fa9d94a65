// SPDX-License-Identifier: Apache-2.0

// Package openstack_test tests the OpenStack driver against a real OpenStack: Keystone, Nova,
// Neutron, Glance, Cinder, Placement and Octavia, with a hypervisor that boots nothing, and load
// balancers that carry nothing. "make test-openstack" installs and starts it. The package must not
// import controllers.
package openstack_test

import (
	"net/http"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	driver "github.com/drover-io/drover/cloud/openstack"
)

// TestConformance has parallel subtests, and runs before the tests that are parallel themselves.
func TestConformance(t *testing.T) {
	who, admin := logIn(t, "test-1"), logIn(t, "admin")
	conformance.Run(t, conformance.Target{
		Cloud:          driver.Cloud(),
		Account:        account(who.project),
		Credentials:    password(who.name, who.name),
		BadCredentials: password(who.name, "wrong-password"),
		Machine:        machine(nil),
		Balancer:       &infrav1.LoadBalancerCloud{OpenStack: &infrav1.OpenStackLoadBalancer{Subnet: "nodes"}},
		Refused: map[string]conformance.Refused{
			"unknown flavor": {Machine: machine(func(m *infrav1.OpenStackMachine) { m.Flavor = "enormous" }), Code: cloud.InvalidSpec,
				OfferingToo: true},
			"unknown image": {Machine: machine(func(m *infrav1.OpenStackMachine) { m.Image = infrav1.OpenStackImage{ID: unknownID} }),
				Code: cloud.InvalidSpec, OfferingToo: true},
			"no such image":   {Machine: machine(func(m *infrav1.OpenStackMachine) { m.Image.Name = "nothing" }), Code: cloud.NotFound},
			"unknown network": {Machine: machine(func(m *infrav1.OpenStackMachine) { m.Ports[0].Network = unknownID }), Code: cloud.NotFound},
			"no such network": {Machine: machine(func(m *infrav1.OpenStackMachine) { m.Ports[0].Network = "nothing" }), Code: cloud.NotFound},
			"unknown zone":    {Machine: machine(nil), FailureDomain: "az-9", Code: cloud.NoCapacity},
			"unknown key":     {Machine: machine(func(m *infrav1.OpenStackMachine) { m.KeyName = "nothing" }), Code: cloud.NotFound},
			"unknown volume type": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 1, Type: "nothing"}
			}), Code: cloud.NotFound},
			"address elsewhere": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", FixedIPs: []infrav1.OpenStackFixedIP{{IPAddress: "192.0.2.1"}}}}
			}), Code: cloud.InvalidSpec},
			"no such pool": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", FloatingNetwork: "nothing"}}
			}), Code: cloud.NotFound},
			"pool not routed": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "storage", FloatingNetwork: "public"}}
			}), Code: cloud.NotFound},
			"no such zone for a volume": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				withPorts(m)
				m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 1, AvailabilityZone: "az-9"}
			}), Code: cloud.NoCapacity},
			"no such type of a volume of its own": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				withPorts(m)
				m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 1, AvailabilityZone: "nova", Type: "nothing"}
			}), Code: cloud.NotFound},
			"unknown server group": {Machine: machine(func(m *infrav1.OpenStackMachine) { m.ServerGroupID = unknownID }), Code: cloud.NotFound},
			"unknown subnet": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", FixedIPs: []infrav1.OpenStackFixedIP{{SubnetID: unknownID}}}}
			}), Code: cloud.NotFound},
			"unknown QoS policy": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", QoSPolicy: unknownID}}
			}), Code: cloud.InvalidSpec},
			"no such QoS policy": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", QoSPolicy: "nothing"}}
			}), Code: cloud.NotFound},
			"unknown kind of port": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", VNICType: "imaginary"}}
			}), Code: cloud.InvalidSpec},
			"no such group of a port": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", VNICType: "normal", SecurityGroups: []string{"nothing"}}}
			}), Code: cloud.NotFound},
			"unknown group of a port": {Machine: machine(func(m *infrav1.OpenStackMachine) {
				m.Ports = []infrav1.OpenStackPort{{Network: "nodes", VNICType: "normal", SecurityGroups: []string{unknownID}}}
			}), Code: cloud.NotFound},
			"no such group": {Machine: machine(func(m *infrav1.OpenStackMachine) { m.Ports[0].SecurityGroups = []string{"nothing"} }),
				Code: cloud.NotFound},
		},
		Machines:  12, // and as many ports; a server takes seconds of CPU time
		Transport: &counted{before: pagesOf(5)},
		Timeout:   patience,
		Calls: conformance.Calls{
			Page:     5,
			Probe:    2, // with the token
			Create:   6, // the token, the live read, flavor, image, network, the server
			Offering: 3, // with the token
			List:     2, // servers and ports
			Describe: 2,
			Delete:   5, // Nova has no batch
			Balancer: 4, // the live reads by tags and by description, the subnet, the load balancer
			Targets:  1,
		},
		Inject: map[cloud.Code]func(testing.TB) func(){
			cloud.QuotaExceeded: func(t testing.TB) func() { return setQuota(t, admin, who.project, "instances", 0) },
		},
		Foreign: func(t testing.TB) func() bool {
			var made struct{ Server struct{ ID string } }
			who.do(who.compute, http.MethodPost, "servers", map[string]any{"server": foreignServer(who, "foreign")}, &made)
			t.Cleanup(func() { who.do(who.compute, http.MethodDelete, "servers/"+made.Server.ID, nil, nil) })
			return func() bool {
				var now struct{ Server struct{ Status string } }
				who.do(who.compute, http.MethodGet, "servers/"+made.Server.ID, nil, &now)
				return now.Server.Status == "ACTIVE" || now.Server.Status == "BUILD"
			}
		},
		Remaining: func(_ testing.TB, ownership string) []string { return who.left(ownership) },
	})
}

const unknownID = "00000000-0000-4000-8000-000000000000"

// foreignServer returns somebody else's server in the same project.
func foreignServer(who *tenant, name string) map[string]any {
	var flavors struct{ Flavors []struct{ ID, Name string } }
	who.do(who.compute, http.MethodGet, "flavors", nil, &flavors)
	server := map[string]any{"name": name, "networks": "none", "imageRef": who.image()}
	for _, flavor := range flavors.Flavors {
		if flavor.Name == "small" {
			server["flavorRef"] = flavor.ID
		}
	}
	return server
}
