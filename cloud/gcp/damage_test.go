// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"net/http"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

func TestDamagedAnswers(t *testing.T) {
	stub := start(t, gcpstub.Options{Keep: true, PageSize: 2, Boot: time.Millisecond, Stop: time.Millisecond, Parts: time.Millisecond})
	target := damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return quick(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
		},
		Machine:  testRequest("blue-1", everything),
		Balancer: cloud.BalancerRequest{Token: "balancer-1", OwnershipID: "owner", Namespace: "ns", Name: "lb", Port: 6443, Spec: testBalancer()},
		Secrets:  []string{"PRIVATE KEY"},
		Drivers:  500,
	}
	var tape damage.Tape
	tape.Record(t, target, stub.Transport(), "blue-2", "blue-3")
	damage.Run(t, &tape, target)
}
