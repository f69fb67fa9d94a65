// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"net/http"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
)

func TestDamagedAnswers(t *testing.T) {
	stub := start(t, armstub.Options{})
	target := damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
		},
		Machine: testRequest("blue-1", nil),
		Balancer: cloud.BalancerRequest{Token: "balancer-1", OwnershipID: "owner", Namespace: "ns", Name: "lb", Port: 6443,
			Spec: testBalancer(true)},
		Secrets: []string{testSecret},
		Drivers: 1000,
		Failed:  []uint64{4747}, // a long error of DryRun
	}
	var tape damage.Tape
	tape.Record(t, target, stub.Transport(), "blue-2", "blue-3")
	damage.Run(t, &tape, target)
}
