// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/internal/test/engine"
)

// TestSecondStepGoesFirst: a machine that was sent is recorded while others still wait for the rate
// limit. Its second step, which only looks, waits behind none of them.
func TestSecondStepGoesFirst(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{Boot: time.Second})
	spec := testAccount()
	spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "3", Burst: 2}}
	a := engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall), Transport: stub.Transport()},
		fleet.AccountConfig{Spec: *spec, Credentials: testCredentials()})
	const machines = 24
	var mu sync.Mutex
	var sent []int // when each machine was recorded
	var all sync.WaitGroup
	for i := range machines {
		all.Go(func() {
			if _, err := engine.Create(t, a, testRequest(fmt.Sprintf("m-%02d", i), nil), []string{gcpstub.Zones()[0]}); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, len(stub.Guests()))
		})
	}
	all.Wait()
	g.Expect(sent[0]).To(BeNumerically("<", machines), "instances when the first machine is recorded")
	g.Expect(sent[machines-1]).To(Equal(machines))
}
