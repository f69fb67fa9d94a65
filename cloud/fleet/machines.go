// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
)

// phase is the state of a machine in its account.
type phase int

const (
	// untracked: a listing shows it, and no controller has asked for it.
	untracked phase = iota
	// tracked: a controller is notified of its changes.
	tracked
	// confirming: live reads are to confirm that a create without an answer made nothing.
	confirming
	// nothingCreated: they have confirmed it.
	nothingCreated
	// missing: the listing lacks the recorded instance, or shows it terminated. Live reads decide
	// what became of it.
	missing
	// neverSeen: live reads found nothing, and nothing of the machine was ever seen.
	neverSeen
	// gone: the cloud has recorded the instance's end, or live reads find nothing of it.
	gone
	// deleting: the machine and all that belongs to it are being deleted.
	deleting
	// deleted: live reads have confirmed that nothing is left.
	deleted
)

// machine is the record of one machine.
type machine struct {
	ref      cloud.Reference
	phase    phase
	creation creation

	listed        []cloud.Resource // by the last complete listing, or by a later Update
	sightings     []sighting       // newer than listed
	last          *cloud.Resource  // the instance as last seen
	wasSeen       bool             // this process or an earlier one saw something of it
	knownSince    time.Time        // when this process learned that the instance exists; zero: it has not
	startingSince time.Time        // since when it has been about to change by itself; zero: it is not
	joined        bool             // its Node appeared after the last listing
	madeIn        *shortage        // where it was made, for when it fails there; nil: unknown, or done

	reported      Observation
	untagged      error        // Conflict: the recorded instance exists without the machine's tags
	event         *cloud.Event // what the cloud announced of the instance
	eventRecorded bool         // the controller has recorded the event

	requested  time.Time // when this process was asked to confirm a create or to delete the machine
	due        time.Time // when the next live read or deletion step is due
	emptySince time.Time // the first of the latest live reads in a row that found nothing; zero: none

	absence absence
	deletion
}

// sighting is a resource seen outside a listing: by its create or by a live read.
type sighting struct {
	cloud.Resource
	at time.Time
}

// isObserved reports whether a controller needs the machine's state. A deletion does its own reads.
func (m *machine) isObserved() bool { return m.phase != untracked && m.phase < deleting }

func (m *machine) isMissing() bool { return m.phase == missing || m.phase == neverSeen }

// isInQuestion reports whether live reads are to decide what became of the machine.
func (m *machine) isInQuestion() bool { return m.phase == confirming || m.isMissing() }

// isStarting reports whether the machine is about to change by itself.
func (m *machine) isStarting(now time.Time) bool {
	return !m.startingSince.IsZero() && m.isObserved() && now.Sub(m.startingSince) < maxStartTime
}

// isUnrecorded reports whether the instance was seen before its provider ID was recorded. It is not
// deleted until then, because after a crash its Node could not be identified.
func (m *machine) isUnrecorded() bool { return m.ref.ProviderID == "" && m.last != nil }

// resources returns everything with the machine's token, listed or seen since, by kind and ID.
func (m *machine) resources() []cloud.Resource {
	all := slices.Clone(m.listed)
	for _, s := range m.sightings {
		if i := find(all, s.Resource); i >= 0 {
			all[i] = s.Resource
		} else {
			all = append(all, s.Resource)
		}
	}
	slices.SortFunc(all, func(a, b cloud.Resource) int {
		if a.Kind != b.Kind {
			return strings.Compare(string(a.Kind), string(b.Kind))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// own returns the resources that belong to the machine's cluster.
func (m *machine) own() []cloud.Resource { return ownedBy(m.resources(), m.ref.OwnershipID) }

// isPresent reports whether the instance is known to exist: the recorded one, if one is recorded.
func (m *machine) isPresent(own []cloud.Resource) bool {
	return len(liveInstances(recordedOf(m.ref, own))) > 0
}

// state derives what is known of the machine from its resources.
func (m *machine) state() Observation {
	isGone := m.phase == gone || m.creation == ended
	o := Observation{Gone: isGone, NeverSeen: m.phase == neverSeen, nothingCreated: m.phase == nothingCreated}
	if m.isMissing() {
		o.Err = m.untagged
	}
	own := m.own()
	if i := slices.IndexFunc(own, func(r cloud.Resource) bool { return r.Balancer != nil }); i >= 0 {
		balancer := own[i]
		o.Balancer = &balancer
	}
	alive := liveInstances(own)
	candidates := slices.DeleteFunc(recordedOf(m.ref, own), func(r cloud.Resource) bool {
		return r.Kind != cloud.KindInstance || isGone && r.State != cloud.StateTerminated
	})
	if len(candidates) == 0 {
		if !isGone {
			o.Instance = m.last // until a live read has confirmed that it is not there
		}
		o.Duplicates = idsOf(alive)
		return o
	}
	pick := candidates[0]
	if i := slices.IndexFunc(candidates, func(r cloud.Resource) bool { return r.State != cloud.StateTerminated }); i >= 0 {
		pick = candidates[i]
	}
	m.addEvent(&pick)
	if lacksCapacity(&pick) {
		pick.Reclaim = cloud.ReclaimCertain // its Machine is replaced
	}
	o.Instance = &pick
	if len(alive) > 1 || (len(alive) == 1 && alive[0].ID != pick.ID) {
		o.Duplicates = idsOf(alive)
	}
	return o
}

// addEvent adds the machine's event to the instance as a listing shows it.
func (m *machine) addEvent(r *cloud.Resource) {
	if m.event == nil || m.event.InstanceID != r.ID || (r.State != cloud.StateRunning && r.State != cloud.StatePending) {
		return
	}
	if r.Interruptible && isWorse(m.event.Reclaim, r.Reclaim) {
		r.Reclaim = m.event.Reclaim
	}
	if r.Notice == "" {
		r.Notice = m.event.Notice
	} else if m.event.Notice != "" {
		r.Notice = cloud.Clip(m.event.Notice+"; "+r.Notice, maxNotice)
	}
}

// lacksCapacity reports whether the cloud accepted the create and then had no capacity.
func lacksCapacity(r *cloud.Resource) bool {
	return r.Code == cloud.NoCapacity && (r.State == cloud.StateFailed || r.State == cloud.StateTerminated)
}

func idsOf(resources []cloud.Resource) (ids []string) {
	for _, r := range resources {
		ids = append(ids, r.ID)
	}
	return ids
}

// updateStart records since when the machine has been about to change by itself.
func (m *machine) updateStart(o Observation, now time.Time) {
	starting := !m.startingSince.IsZero()
	switch {
	case o.Balancer != nil:
		starting = !isStable(o.Balancer)
	case o.Instance != nil:
		starting = !o.Gone && (o.Instance.State == cloud.StatePending || o.Instance.State == cloud.StateStopping)
	}
	if !starting {
		m.startingSince = time.Time{}
	} else if m.startingSince.IsZero() {
		m.startingSince = now
	}
}
