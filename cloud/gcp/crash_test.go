// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

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
	died := 0
	for at, survived := 1, false; !survived; at++ {
		for _, after := range []bool{false, true} {
			where := fmt.Sprintf("call %d, after its effect: %t", at, after)
			g, ctx := NewWithT(t), t.Context()
			stub := start(t, gcpstub.Options{Parts: time.Millisecond})
			ips := targets(t, connect(t, stub), 2)
			req, deleting := balancerRequest(ips[0]), false
			wire := stub.Transport()
			live := func(at int) (ended bool) {
				calls, dead := 0, false
				made, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
					Connect: conformance.Through(roundTrip(func(r *http.Request) (*http.Response, error) {
						calls++
						if dead = dead || calls == at; dead && (calls != at || !after) {
							return nil, io.ErrUnexpectedEOF
						}
						resp, err := wire.RoundTrip(r)
						if dead && err == nil {
							_ = resp.Body.Close()
							return nil, io.ErrUnexpectedEOF
						}
						return resp, err
					}))})
				g.Expect(err).NotTo(HaveOccurred())
				d := made.(*driver)
				d.settle = 0
				for began := time.Now(); time.Since(began) < time.Minute && !dead; {
					found, err := d.Describe(ctx, balancerRef)
					switch {
					case err == nil && deleting && len(found) == 0:
						return true
					case deleting:
						d.Delete(ctx, found)
						continue
					}
					if _, err := d.List(ctx); err != nil {
						continue
					}
					is, err := d.EnsureBalancer(ctx, req)
					if err != nil {
						continue
					}
					deleting = req.Recorded && is.State == cloud.StateRunning
					req.Recorded, req.Targets = true, ips[1:]
				}
				if !dead {
					t.Errorf("%s: it does not end", where)
				}
				return !dead
			}
			if survived = live(at); !survived {
				died++
				live(0)
			}
			g.Expect(stub.BalancersMade()).To(Equal(1), where)
			g.Expect(stub.Left(cloud.TagToken, "balancer")).To(BeEmpty(), where)
		}
	}
	if died < 2*40 {
		t.Errorf("the process died at %d points, want %d", died, 2*40)
	}
}
