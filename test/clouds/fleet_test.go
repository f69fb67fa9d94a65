// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/test/engine"
)

// counted is an account of the engine's, whose calls a stand-in counts.
type counted struct {
	account *fleet.Account
	cloud   interface {
		standIn
		Made() int
		Left(tag, value string) []string
	}
	machine *infrav1.DroverMachineFields
	zones   func(i int) []string
	// most is how many calls it may take until all machines run, listings left out.
	most int
}

// TestFleet counts the calls of 300 machines, as the engine makes them with the cloud's published
// limits: listings included, 1.1 for each machine on Azure and 1.15 on Google Cloud until it runs,
// and 1.05 until it is gone. TestCallsOfAFleet does so on AWS.
func TestFleet(t *testing.T) {
	const n = 300
	needs(t, here.fleet != nil)
	g := NewWithT(t)
	f := here.fleet(t, n)
	calls := func() (all int) {
		for _, n := range f.cloud.Calls() {
			all += n
		}
		return all
	}
	before, began := calls(), time.Now()
	engine.Live(t, f.account, n, f.machine, "owner", f.zones, func() {
		g.Expect(f.cloud.Made()).To(Equal(n))
		created := calls() - before
		t.Logf("%d calls until all run: %v", created, f.cloud.Calls())
		g.Expect(created).To(BeNumerically("<=", f.most+engine.LateListings(began)))
		before, began = calls(), time.Now()
	})
	deleted := calls() - before
	t.Logf("%d calls until all are gone: %v", deleted, f.cloud.Calls())
	g.Expect(deleted).To(BeNumerically("<=", n*105/100+engine.LateListings(began)))
	g.Expect(f.cloud.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
	unobjected(t, f.cloud)
}
