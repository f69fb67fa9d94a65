// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"net/http"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

// TestCrash: whichever call the process dies at, there is no second machine, and nothing is left.
func TestCrash(t *testing.T) {
	t.Parallel()
	conformance.Crash(t, conformance.Crashing{
		Start: func(t testing.TB) conformance.Standin {
			return start(t, gcpstub.Options{Keep: true, Boot: 2 * time.Millisecond, Stop: time.Millisecond})
		},
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			made, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
			if err != nil {
				return nil, err
			}
			d := made.(*driver)
			d.poll, d.replay = 0, 0
			return d, nil
		},
		Request: testRequest("m-1", everything),
		Calls:   7,
	})
}

// TestBalancerCrash: whichever call the process dies at while it makes, changes and deletes a load
// balancer, the next process goes on with it, makes no second one, and leaves nothing.
func TestBalancerCrash(t *testing.T) {
	t.Parallel()
	conformance.CrashBalancer(t, 40, func(t *testing.T) *conformance.CrashingBalancer {
		stub := start(t, gcpstub.Options{Parts: time.Millisecond})
		ips := targets(t, connect(t, stub), 2)
		return &conformance.CrashingBalancer{
			Stub: stub, Wire: stub.Transport(), Request: balancerRequest(ips[0]), Next: ips[1:],
			Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
				made, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
				if err != nil {
					return nil, err
				}
				made.(*driver).readLag = 0
				return made, nil
			},
		}
	})
}
