// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/cloud"
)

// giveBackSlots gives back the slots for creates that were taken at this time, if any were.
func (a *admission) giveBackSlots(l *lane, since time.Time) {
	l.atOnce.end(since)
	a.atOnce.end(since)
}

// setRunning records whether the cloud works on the machine's create.
func (a *admission) setRunning(account types.NamespacedName, token string, running bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lanes[account]
	if l == nil {
		return
	}
	switch since, was := l.running[token]; {
	case running && !was:
		if since, was = l.made[token]; !was {
			since = time.Now()
			l.atOnce.begin(since)
			a.atOnce.begin(since)
		}
		delete(l.made, token)
		l.running[token] = since
	case !running && was:
		l.atOnce.record(since, time.Now(), true)
		a.atOnce.record(since, time.Now(), true)
		a.giveBackSlots(l, since)
		delete(l.running, token)
		a.wakeAll()
	}
}

// allRunning returns the account's machines on whose creates the cloud works.
func (a *admission) allRunning(account types.NamespacedName) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.lane(account).running))
}

// runs reports whether the cloud still works on the create of a resource, which therefore counts.
func (s *settings) runs(r cloud.Resource) bool {
	return s.limits.AtOnce > 0 && r.Kind == cloud.KindInstance && r.State == cloud.StatePending
}

// countCreate counts a create that runs and whose answer this process has not seen.
func (s *accountState) countCreate(token string, instance *cloud.Resource) {
	if a := s.current.Load(); instance != nil && a.settings.Load().runs(*instance) {
		a.limiter.Load().create.setRunning(a.key, token, true)
	}
}

// endCreates gives back the slots of the creates on which the cloud works no more, as the records
// of their machines show. So nothing has to report the end of a create, and no slot is lost.
func (s *accountState) endCreates() {
	a := s.current.Load()
	create := a.limiter.Load().create
	for _, token := range create.allRunning(a.key) {
		if !slices.ContainsFunc(s.inventory.resources(token), a.settings.Load().runs) {
			create.setRunning(a.key, token, false)
		}
	}
}
