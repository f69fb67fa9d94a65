// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"time"

	"github.com/drover-io/drover/cloud"
)

// presence decides from listings and live reads which machines exist. Like records, it is plain
// state.
//
// A VM vanishes:
//  1. A complete listing lacks it (list, applyListing, compare), or a Watcher or an event says so.
//     reassess, or applyEvent for an event, makes its machine missing. Nothing else follows from a
//     listing.
//  2. The reads loop reads the machine (look, read): by its token, and by its recorded ID (find) if
//     the token shows nothing and the cloud is a Finder. A read that fails decides nothing.
//  3. resolve decides. The machine is gone when the cloud shows its end, or when reads have found
//     nothing for longer than the cloud's read lag (proofAt), and a Finder has said twice that no
//     instance has the ID. Where there is no Finder, absences must accept it.
//  4. The machine's controller is notified, and Observe returns Gone.
type presence struct {
	*records
	schedule *schedule
}

// creation is what is known of a machine's create without a look at the cloud. proofAt says what it
// takes to explain that a read finds nothing.
//
// A create gets no answer:
//  1. Account.create returns Unfinished if the cloud may have done a part of it. The machine is
//     maybeCreated: another create with its token makes no second one, and proves the most.
//  2. Before anything else is made for it, such as in another failure domain, its controller calls
//     ConfirmNothingCreated. The machine is confirming.
//  3. The reads loop reads it (look, read) as soon as the create can't take effect any more
//     (proofAt). If resolve finds something, the machine is tracked, and Ensure returns that; if
//     nothing, nothingCreated. The controller is notified.
type creation int

const (
	// maybeCreated: a create may have been sent, and may still take effect.
	maybeCreated creation = iota
	// refused: the cloud has refused each create. An earlier step of one may have left something.
	refused
	// recorded: the machine is known to have been made.
	recorded
	// ended: it was gone before its deletion began.
	ended
)

// replaceListing replaces what was listed, and returns the machines to compare with it.
func (p *presence) replaceListing(began time.Time, listed map[string][]cloud.Resource) (tokens []string) {
	p.schedule.complete = began
	for token := range listed {
		p.machine(token)
	}
	for token, m := range p.machines {
		m.listed, m.joined = listed[token], false
		tokens = append(tokens, token)
	}
	return tokens
}

// compare compares machines with a listing that began at the given time. It keeps what was seen
// later, or so shortly before that the listing may miss it.
func (p *presence) compare(began time.Time, tokens []string, now time.Time) {
	for _, token := range tokens {
		m := p.machines[token]
		if m == nil {
			continue // forgotten meanwhile
		}
		for n, s := range m.sightings {
			if i := find(m.listed, s.Resource); i >= 0 && !s.at.After(began) {
				m.sightings[n].Resource = m.listed[i]
			}
		}
		p.reassess(m, began, now)
	}
}

// reassess drops sightings from before a time as of which everything is known, and decides whether
// live reads must search for a recorded instance.
func (p *presence) reassess(m *machine, at, now time.Time) {
	m.sightings = slices.DeleteFunc(m.sightings, func(s sighting) bool { return !s.at.Add(p.traits.ReadLag).After(at) })
	if len(m.sightings) == 0 {
		delete(p.uncompared, m.ref.Token)
	}
	own := m.own()
	present := m.isPresent(own)
	switch {
	case m.phase == untracked:
		if len(m.listed)+len(m.sightings) == 0 {
			delete(p.machines, m.ref.Token)
		}
		return
	case !m.isObserved() || m.ref.ProviderID == "":
	case m.phase == gone && (!present || m.last != nil && m.last.State == cloud.StateTerminated):
		// A listing does not undo an end that the cloud has recorded.
	case present:
		p.markPresent(m)
	default:
		if m.wasSeen = m.wasSeen || len(own) > 0; !m.isMissing() {
			p.markMissing(m, now)
		}
		if m.wasSeen && !hasInstance(own, m.ref) && !p.findsByID {
			m.absence.unseen = true
		}
	}
	p.update(m, now)
}

// recordUpdate records what a Watcher reported. A complete listing is only noted, for
// replaceListing and compare.
func (p *presence) recordUpdate(u cloud.Update, now time.Time) {
	p.schedule.recordUpdate(u, now)
	switch {
	case u.All:
	case u.Token != "": // all that the machine has now; if a sighting is newer, another Update follows
		m := p.machine(u.Token)
		m.listed = u.Resources
		m.sightings = slices.DeleteFunc(m.sightings, func(s sighting) bool { return find(u.Resources, s.Resource) >= 0 })
		p.reassess(m, time.Time{}, now)
	case !p.schedule.complete.IsZero(): // before the first complete one, there is nothing to confirm
		at := u.At.Add(-streamLag)
		p.schedule.complete = later(p.schedule.complete, at)
		for _, m := range p.uncompared { // other machines have nothing new
			p.reassess(m, at, now)
		}
	}
}

// confirmNothingCreated reports whether live reads have confirmed that a create without an answer
// made nothing. It makes them due if need be.
func (p *presence) confirmNothingCreated(ref cloud.Reference, now time.Time) bool {
	m := p.machine(ref.Token)
	p.track(m, ref)
	if m.phase == tracked && len(m.resources()) == 0 {
		m.phase, m.requested, m.emptySince = confirming, now, time.Time{}
		m.due = now.Add(p.createHorizon)
		p.changes.reads = true
	}
	return m.phase == nothingCreated
}

// needsFind reports whether a recorded instance must be looked for by its ID after a live read: its
// tags do not show it, and nothing explains that.
func (p *presence) needsFind(t *task, found []cloud.Resource) bool {
	return p.findsByID && p.isCurrent(t) && t.ref.ProviderID != "" && !hasInstance(ownedBy(found, t.ref.OwnershipID), t.ref) &&
		(t.phase != deleting || t.isUnexplained())
}

// resolve applies the answer of a live read to a machine that is missing, or whose create had no
// answer.
func (p *presence) resolve(m *machine, a answer, now time.Time) {
	began, found, err := a.began, a.found[m.ref.Token], a.failed[m.ref.Token]
	idle, active := p.schedule.intervals()
	untagged := cloud.CodeOf(err) == cloud.Conflict // the instance exists without the machine's tags
	if err != nil && !untagged {
		m.due = now.Add(max(retryAfter(err), min(idle, 2*active)))
		return
	}
	defer p.update(m, now)
	if m.untagged = err; untagged {
		m.due, m.emptySince = now.Add(idle), time.Time{}
		return
	}
	own := ownedBy(found, m.ref.OwnershipID)
	if hasInstance(own, m.ref) || m.phase == confirming && len(own) > 0 {
		p.addSightings(m, own, began)
		switch {
		case m.isPresent(own):
			p.markPresent(m)
		case m.phase == confirming:
			m.phase = tracked // it was made and has ended, as the next create will report
		default:
			m.phase, m.absence = gone, absence{}
		}
		return
	}
	m.emptySince = earlier(m.emptySince, began)
	switch proofAt := p.proofAt(m, own); {
	case began.Before(proofAt):
		m.due = proofAt
	case m.phase == confirming:
		m.phase = nothingCreated
	case p.findsByID && began.Equal(m.emptySince): // the cloud must say it twice
		m.due = began.Add(minRepeat)
	case !p.findsByID && !m.wasSeen:
		m.phase, m.due = neverSeen, now.Add(idle)
	case p.findsByID || absences{p.records}.accept(m, now):
		m.phase, m.listed, m.sightings = gone, nil, nil
	default:
		m.due = now.Add(idle)
	}
}

// nextReads returns the machines whose live read is due, ordered by token, or else when the next
// one will be; zero: when the loop is woken.
func (p *presence) nextReads(now time.Time) (tasks []*task, next time.Time) {
	if !p.probed {
		return nil, time.Time{}
	}
	for _, m := range p.machines {
		switch {
		case !m.isInQuestion():
		case now.Before(m.due):
			next = earlier(next, m.due)
		default:
			tasks = append(tasks, &task{machine: m, ref: m.ref, read: true})
		}
	}
	return sorted(tasks), next
}

// applyReads applies a live read to the machines in question.
func (p *presence) applyReads(tasks []*task, a answer, now time.Time) {
	for _, t := range tasks {
		if p.isCurrent(t) && t.isInQuestion() {
			p.resolve(t.machine, a, now)
		}
	}
}

// proofAt returns the earliest start of a live read that, by finding nothing, proves that nothing
// is there.
func (f *facts) proofAt(m *machine, own []cloud.Resource) time.Time {
	lag, made := f.traits.ReadLag, m.knownSince
	if made.IsZero() {
		made = m.requested
	}
	switch isEnd := hasInstance(own, m.ref); {
	case isEnd && f.traits.CascadesDelete:
		return m.emptySince // the cloud shows its end, and has deleted all that belonged to it
	case isEnd:
		return made.Add(lag) // a dependant may still be hidden
	case m.creation == maybeCreated: // it may take effect until its horizon has passed
		made = m.requested.Add(f.createHorizon)
	case m.creation == refused: // but an earlier step of the create may have left something
		made = m.emptySince
	}
	return later(made, m.emptySince).Add(lag)
}
