// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
)

// recordings are the answers of a real OpenStack in testdata, by operation.
var recordings = map[string][]string{
	"CreateToken": {"token"}, "ListAvailabilityZones": {"zones"}, "ListFlavors": {"flavors"}, "ListImages": {"images"},
	"ListNetworks": {"networks"}, "ListSecurityGroups": {"groups"},
	"ListServers":      {"servers-none", "servers", "server-failed", "servers-none"},
	"ListServerStates": {"servers-none", "servers", "server-fault"},
	"ListPorts":        {"ports-none", "ports", "ports-trunk", "ports-floating"},
	"CreateServer":     {"server-made", "server-over-quota", "server-refused"}, "CreatePorts": {"ports-made", "ports-over-quota"},
	"DeleteServer": {"server-gone"}, "DeletePort": {"port-gone"}, "GetImage": {"image-unknown", "images"},
	"CreateFloatingIP": {"floating-ip-made"}, "ListFloatingIPs": {"floating-ips"}, "DeleteFloatingIP": {"floating-ip-gone"},
	"CreateTrunk": {"trunk-made"}, "DeleteTrunk": {"trunk-gone"}, "CreateVolume": {"volume-made", "volume-over-quota"},
	"DeleteVolume": {"volume-gone"}, "ListVolumes": {"volumes"}, "GetConsoleOutput": {"console"}, "GetServer": {"server-fault"},
}

// recordedTape returns a tape with the recorded answers, and with those of a load balancer.
func recordedTape(t *testing.T) *damage.Tape {
	t.Helper()
	var tape damage.Tape
	for operation, names := range recordings {
		for _, name := range names {
			resp, err := recorded(t, name)()
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if name == "token" {
				body = withBalancers(body)
			}
			tape.Add(operation, resp.StatusCode, resp.Header, body)
		}
	}
	const one = `{"id":"7c1b8a4e-1111-4c4c-9d3e-000000000001","name":"lb","provisioning_status":"ACTIVE","operating_status":"ONLINE",` +
		`"vip_address":"10.0.0.9","vip_port_id":"p","vip_subnet_id":"s","created_at":"2026-01-01T00:00:00",` +
		`"tags":["` + cloud.TagToken + `=balancer-1","` + cloud.TagOwnership + `=owner-1"],"listeners":[{"id":"l1"}],"pools":[{"id":"p1"}]}`
	add := func(operation string, status int, body string) {
		tape.Add(operation, status, http.Header{"Content-Type": {"application/json"}}, []byte(body))
	}
	add("ListLoadBalancers", 200, `{"loadbalancers":[]}`)
	for range 4 {
		add("ListLoadBalancers", 200, `{"loadbalancers":[`+one+`]}`)
	}
	add("ListSubnets", 200, `{"subnets":[{"id":"7c1b8a4e-1111-4c4c-9d3e-000000000002","name":"nodes"}]}`)
	add("CreateLoadBalancer", 201, `{"loadbalancer":`+one+`}`)
	add("DeleteLoadBalancer", 204, "")
	add("UpdateMembers", 202, "")
	add("ListMembers", 200, `{"members":[{"address":"10.0.0.1","protocol_port":6443,"operating_status":"ONLINE","provisioning_status":"ACTIVE"},`+
		`{"address":"10.0.0.2","protocol_port":6443,"operating_status":"ERROR","provisioning_status":"ACTIVE"}]}`)
	return &tape
}

// withBalancers adds Octavia to a token's catalog.
func withBalancers(token []byte) []byte {
	region := regexp.MustCompile(`"region_id": "([^"]*)"`).FindSubmatch(token)[1]
	return bytes.Replace(token, []byte(`"catalog": [`), slices.Concat(
		[]byte(`"catalog": [{"type":"load-balancer","name":"octavia","id":"y","endpoints":[{"interface":"public","url":"http://127.0.0.1:25001/load-balancer","id":"x","region_id":"`),
		region, []byte(`"}]},`)), 1)
}

func TestDamagedAnswers(t *testing.T) {
	account := &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: accountOf(t)}}
	damage.Run(t, recordedTape(t), damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			d, err := newDriver(cloud.Config{Account: account, Credentials: map[string][]byte{cloudsKey: []byte(clouds)},
				Connect: conformance.Through(transport)})
			if err == nil {
				d.(*driver).inheritedUntil = time.Time{}
			}
			return d, err
		},
		Machine: requested(nil),
		Balancer: cloud.BalancerRequest{Token: "balancer-1", OwnershipID: "owner-1", Namespace: "ns", Name: "lb", Port: 6443,
			Targets: []string{"10.0.0.1"},
			Spec:    &infrav1.LoadBalancerCloud{OpenStack: &infrav1.OpenStackLoadBalancer{Subnet: "nodes"}}},
		Secrets: []string{"very-secret"},
		Drivers: 1000,
	})
}
