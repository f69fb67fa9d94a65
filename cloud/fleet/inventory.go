// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// inventory guards the records of an account's machines with one lock, and tells others what has
// changed. Its loops are reads and deletes.
type inventory struct {
	account          func() *Account
	onMachinesChange func(tokens []string) // called without the lock; must not block
	onHealthChange   func()                // the same
	onNoCapacity     func(shortage)        // must not need the lock
	random           func() float64
	keep             func(size int64) bool // reports whether the account may keep so many bytes
	listWakeup       wakeup
	readWakeup       wakeup
	deleteWakeup     wakeup

	mu        sync.Mutex
	records   *records
	schedule  *schedule
	presence  *presence
	deletions *deletions
}

func newInventory(account func() *Account, random func() float64) *inventory {
	r := newRecords(random, time.Now())
	s := newSchedule(r)
	return &inventory{
		account: account, random: random, listWakeup: newWakeup(), readWakeup: newWakeup(), deleteWakeup: newWakeup(),
		records: r, schedule: s, presence: &presence{r, s}, deletions: &deletions{records: r},
	}
}

// wakeup makes a loop compute its next action again.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// learn is locked for what a look at the cloud has shown. It notifies the controllers of machines
// that have changed.
func (v *inventory) learn(do func(now time.Time)) { v.onMachinesChange(v.locked(do)) }

// locked holds the lock while do runs, and tells others what has changed. It returns the machines
// that have; a controller that causes the change itself knows it. It releases the lock even if do
// panics: the account's callers need it, as does a loop that starts again.
func (v *inventory) locked(do func(now time.Time)) (changed []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.records.facts = v.account().facts()
	do(time.Now())
	c := v.records.changes
	v.records.changes = changes{}
	if c.listings {
		v.listWakeup.wake()
	}
	if c.reads {
		v.readWakeup.wake()
	}
	if c.deletions {
		v.deleteWakeup.wake()
	}
	for _, s := range c.shortages {
		v.onNoCapacity(s)
	}
	return c.notify
}

// under returns what do returns under the lock.
func under[T any](v *inventory, do func(now time.Time) T) (out T) {
	v.locked(func(now time.Time) { out = do(now) })
	return out
}

// findExisting returns the request's instance if it is known.
func (v *inventory) findExisting(req cloud.Request) (found *cloud.Resource, err error) {
	v.locked(func(now time.Time) { found, err = v.records.findExisting(req, now) })
	return found, err
}

// resources returns the known resources with the token.
func (v *inventory) resources(token string) []cloud.Resource {
	return under(v, func(time.Time) []cloud.Resource {
		if m := v.records.machines[token]; m != nil {
			return m.resources()
		}
		return nil
	})
}

// retry makes all attempts due at once, after a change of credentials.
func (v *inventory) retry() {
	v.locked(func(now time.Time) {
		v.records.retry(now)
		v.schedule.retry()
		v.deletions.noReadBefore = time.Time{}
	})
}

// confirm accepts that the machines with this digest are gone.
func (v *inventory) confirm(digest string) bool {
	confirmed := under(v, func(time.Time) bool { return absences{v.records}.confirm(digest) })
	if confirmed {
		v.retry()
	}
	return confirmed
}

// listing returns the last complete listing and when it began; zero before the first. From then on,
// the account is listed at least this often, even while no machine is observed.
func (v *inventory) listing(maxInterval time.Duration) (began time.Time, all []cloud.Resource) {
	v.locked(func(time.Time) {
		if v.schedule.maxInterval != maxInterval {
			v.schedule.maxInterval = maxInterval
			v.records.changes.listings = true
		}
		for _, m := range v.records.machines {
			all = append(all, m.listed...)
		}
		began = v.schedule.complete
	})
	return began, all
}

// isObserved reports whether a controller needs the state of any machine.
func (v *inventory) isObserved() bool {
	return under(v, func(time.Time) bool { return v.records.isObserved() })
}

// isWanted reports whether anyone needs the account's resources.
func (v *inventory) isWanted() bool {
	return under(v, func(time.Time) bool { return v.schedule.maxInterval != 0 || v.records.isObserved() })
}

// reportHealth reports a change between fresh and stale, refused and accepted credentials, doubt
// and none.
func (v *inventory) reportHealth() {
	if under(v, func(now time.Time) (changed bool) {
		h, _ := v.schedule.health(now)
		changed = h != v.schedule.reported
		v.schedule.reported = h
		return changed
	}) {
		v.onHealthChange()
	}
}

// hasRoom returns an error if the namespace's accounts have no memory left for what the cloud
// reports.
func (v *inventory) hasRoom(u cloud.Update) error {
	return under(v, func(time.Time) error {
		size := v.records.sizeWith(u)
		if v.keep(size + u.Stored) {
			v.records.size = size
			return nil
		}
		return cloud.Errorf(cloud.Unknown, "the account's resources take %d MiB, for which the namespace's accounts have no memory left: check the account's endpoint", (size+u.Stored)>>20)
	})
}

// applyUpdate applies what a Watcher reports.
func (v *inventory) applyUpdate(u cloud.Update) {
	v.learn(func(now time.Time) { v.presence.recordUpdate(u, now) })
	if u.All {
		v.applyListing(u.At, u.Resources)
	}
	v.listWakeup.wake()
}
