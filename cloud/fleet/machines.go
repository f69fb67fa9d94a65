// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// phase is what the account does for a machine.
type phase int

const (
	// unwatched: nobody is interested in it. It was listed.
	unwatched phase = iota
	// watched: its state is reported.
	watched
	// settling: live reads are to prove that an open create has made nothing.
	settling
	// settled: they have.
	settled
	// missing: the listing lacks the recorded instance, or shows it terminated. Live reads decide.
	missing
	// neverSeen: the same, but they found nothing, and nothing of the machine was ever seen.
	neverSeen
	// ended: the cloud has recorded the instance's end.
	ended
	// vanished: live reads find nothing of it. A later sight of it undoes that.
	vanished
	// deleting: it is being deleted, with all that belongs to it.
	deleting
	// deleted: live reads have proved that nothing is left.
	deleted
)

// machine is all that is known of one machine. The inventory's lock guards it.
type machine struct {
	ref   cloud.Reference
	phase phase

	listed   []cloud.Resource // as the last complete listing had it, or as its cloud has told since
	sighted  []sighting       // what is newer
	last     *cloud.Resource  // the instance as last seen
	seen     bool             // something of the machine was seen, by this process or an earlier one
	known    time.Time        // since when this process knows that the instance was made; zero: it does not
	starting time.Time        // since when it is expected to change by itself; zero: it is not
	joined   bool             // it was seen at work elsewhere since the last listing

	reported    Observation
	toldSettled bool        // whether it was settled, as last told
	news        *cloud.News // what the cloud told of the instance
	recorded    bool        // the machine's controller has the news on record

	asked   time.Time // when this process was asked to settle the create, or to delete the machine
	due     time.Time // of the next live read, or the next step of the deletion
	nothing time.Time // the first of the live reads since which nothing is found; zero: the last one found something

	deletion
}

// deletion is what is known of a machine that is being deleted.
type deletion struct {
	before   bool // it was asked for before this process began: it may have been sent already
	lost     bool // the instance was known to be gone without it
	begun    bool // a step was made
	accepted map[string]acceptance
	first    time.Time // when the cloud first accepted something
	failures int       // in a row
	err      error
	left     []cloud.Resource
}

// acceptance is the last step of a resource's deletion that the cloud has accepted.
type acceptance struct {
	at   time.Time
	from cloud.State // as the resource was seen before
}

// sighting is a resource seen otherwise than in a listing: when it was made, or in a live read.
type sighting struct {
	cloud.Resource
	at time.Time
}

// inventory holds one record of each of an account's machines, behind one lock. One complete
// listing serves all of them; what it misses is not gone: that is concluded from live reads alone.
type inventory struct {
	account func() *Account
	changed func(tokens []string) // called without the lock, must not block
	flipped func()                // the same
	random  func() float64
	began   time.Time // when this process began to delete
	lists   wakeup
	works   wakeup

	mu       sync.Mutex
	machines map[string]*machine // by token
	recent   map[string]*machine // those with sightings, or that nothing complete was held against yet
	absences absences
	pace     pace
	rested   time.Time // until then the cloud is left alone with further reads of deletions
	lastEnd  time.Time // when an instance that is deleted was last seen to have ended
}

func newInventory(account func() *Account, changed func([]string), flipped func(), random func() float64) *inventory {
	return &inventory{
		account: account, changed: changed, flipped: flipped, random: random,
		began: time.Now(), lists: newWakeup(), works: newWakeup(),
		machines: map[string]*machine{},
		recent:   map[string]*machine{},
		absences: newAbsences(),
		pace:     pace{fresh: true, jitter: 1},
	}
}

// wakeup has a loop look again at what comes next.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// machine returns the record of a token, which it makes if there is none. Who calls what has no
// comment to the contrary below holds the lock.
func (v *inventory) machine(token string) *machine {
	m := v.machines[token]
	if m == nil {
		m = &machine{ref: cloud.Reference{Token: token}}
		v.machines[token] = m
	}
	return m
}

// watch begins the interest in a machine.
func (v *inventory) watch(m *machine) {
	if m.phase == unwatched {
		m.phase = watched
		v.lists.wake()
	}
}

// adopt returns the request's instance if one is known. It takes the lock.
func (v *inventory) adopt(req cloud.Request) (*cloud.Resource, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machines[req.Token]
	if m == nil {
		return nil, nil
	}
	switch m.phase {
	case deleting, deleted:
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: it is being deleted", req.Namespace, req.Name)
	case ended, vanished:
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: its instance is gone, and is not made again", req.Namespace, req.Name)
	case settling, settled: // a create settles more than a look
		m.phase, m.toldSettled = watched, false
	}
	all := m.resources()
	own := ownedBy(all, req.OwnershipID)
	if len(own) < len(all) {
		return nil, foreign(req.Token, slices.DeleteFunc(all, func(r cloud.Resource) bool { return r.OwnershipID == req.OwnershipID }))
	}
	alive := living(own)
	if len(alive) > 1 {
		ids := make([]string, 0, len(alive))
		for _, r := range alive {
			ids = append(ids, r.ID)
		}
		return nil, cloud.Errorf(cloud.Conflict, "create machine %s/%s: instances %s all carry its token", req.Namespace, req.Name, strings.Join(ids, ", "))
	}
	i := slices.IndexFunc(own, func(r cloud.Resource) bool {
		return r.Kind == cloud.KindInstance && (len(alive) == 0 || r.ID == alive[0].ID)
	})
	if i < 0 {
		return nil, nil
	}
	v.exists(m, req)
	return &own[i], nil
}

// made notes that the instance exists. It takes the lock.
func (v *inventory) made(req cloud.Request, r cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(req.Token)
	v.sight(m, []cloud.Resource{r}, time.Now())
	v.exists(m, req)
	v.lists.wake()
}

// exists watches a machine whose creator has seen its instance.
func (v *inventory) exists(m *machine, req cloud.Request) {
	if m.phase == unwatched {
		m.ref = cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID}
	}
	v.watch(m)
	if m.known.IsZero() {
		m.known = time.Now()
	}
	v.update(m)
}

// observe reports a machine and watches it. seen says that its instance was seen before, by
// whatever process. It takes the lock.
func (v *inventory) observe(ref cloud.Reference, seen bool) Observation {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(ref.Token)
	v.watch(m)
	m.ref, m.seen = ref, m.seen || seen
	if ref.ProviderID != "" {
		v.absences.record(ref.Token)
		if m.phase == settling || m.phase == settled {
			m.phase = watched
		}
		if m.known.IsZero() {
			m.known = time.Now()
			v.recent[ref.Token] = m
		}
	}
	wasStarting := !m.starting.IsZero()
	v.update(m)
	m.reported = m.look()
	if !wasStarting && !m.starting.IsZero() {
		v.lists.wake()
	}
	return m.reported
}

// settle tells whether live reads have proved that an open create has made nothing, and has them
// made. It takes the lock.
func (v *inventory) settle(ref cloud.Reference) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(ref.Token)
	if m.phase == unwatched {
		m.ref = ref
	}
	v.watch(m)
	if m.phase == watched && len(m.resources()) == 0 {
		m.phase, m.asked, m.nothing = settling, time.Now(), time.Time{}
		m.due = m.asked.Add(v.account().createHorizon())
		v.works.wake()
	}
	return m.phase == settled
}

// joins notes that the machine was seen at work elsewhere than in the cloud. It takes the lock.
func (v *inventory) joins(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m := v.machines[token]; m != nil && !m.starting.IsZero() && !m.joined {
		m.joined = true
		v.lists.wake()
	}
}

// delete begins the deletion of a machine, or tells how far it is. asked is when its deletion was
// asked for, by whatever process. It takes the lock.
func (v *inventory) delete(ref cloud.Reference, asked time.Time) Deletion {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(ref.Token)
	if m.phase < deleting {
		m.deletion = deletion{before: asked.Before(v.began), lost: m.isGone(), accepted: map[string]acceptance{}}
		m.phase, m.asked, m.nothing = deleting, time.Now(), time.Time{}
		v.works.wake()
	}
	if m.begun && m.ref.ProviderID == "" && ref.ProviderID != "" {
		m.due = time.Now() // it waited for this
		v.works.wake()
	}
	m.ref = ref
	if ref.ProviderID != "" {
		v.absences.record(ref.Token)
		if m.known.IsZero() {
			m.known = time.Now()
		}
	}
	return Deletion{Gone: m.phase == deleted, Left: slices.Clone(m.left), Instance: m.last, Err: m.err}
}

// forget ends all interest in a machine. It takes the lock.
func (v *inventory) forget(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.absences.forget(token)
	delete(v.recent, token)
	m := v.machines[token]
	if m == nil {
		return
	}
	delete(v.machines, token)
	if len(m.listed) > 0 { // a record of its own: a step under way must not write into this one
		v.machine(token).listed = m.listed
	}
	v.lists.wake()
	v.works.wake()
}

// retry makes the next attempts come at once: there are new credentials. It takes the lock.
func (v *inventory) retry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pace.retry()
	v.rested = time.Time{}
	for _, m := range v.machines {
		m.failures = 0
		if m.begun || m.phase < deleting {
			m.due = time.Now()
		}
	}
	v.lists.wake()
	v.works.wake()
}

// confirm believes that the machines with this digest are gone. It takes the lock.
func (v *inventory) confirm(digest string) bool {
	v.mu.Lock()
	confirmed := v.absences.confirm(digest)
	v.mu.Unlock()
	if confirmed {
		v.retry()
	}
	return confirmed
}

// known are the resources with the token, as far as they are known. It takes the lock.
func (v *inventory) known(token string) []cloud.Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m := v.machines[token]; m != nil {
		return m.resources()
	}
	return nil
}

// state says how much the inventory is worth. It takes the lock.
func (v *inventory) state() InventoryState {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	s := InventoryState{LastComplete: v.pace.complete, Err: v.pace.err, Fresh: v.isFresh(now), Doubt: v.absences.doubt(now)}
	for _, m := range v.machines {
		s.Instances += len(living(m.listed))
	}
	return s
}

// listing is the last complete listing, and when it began; zero before the first. From then on the
// account is listed at least so often, also while no machine is observed. It takes the lock.
func (v *inventory) listing(atLeast time.Duration) (began time.Time, all []cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pace.atLeast != atLeast {
		v.pace.atLeast = atLeast
		v.lists.wake()
	}
	for _, m := range v.machines {
		all = append(all, m.listed...)
	}
	return v.pace.complete, all
}

// isObserved tells whether someone is interested in the machine and it is not being deleted: a
// deletion looks for itself.
func (m *machine) isObserved() bool { return m.phase != unwatched && m.phase < deleting }

func (m *machine) isGone() bool { return m.phase == ended || m.phase == vanished }

func (m *machine) isMissing() bool { return m.phase == missing || m.phase == neverSeen }

// resources are all with the machine's token, by kind and ID: as listed, and as seen since.
func (m *machine) resources() []cloud.Resource {
	all := slices.Clone(m.listed)
	for _, s := range m.sighted {
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

// own are those with its cluster's ownership.
func (m *machine) own() []cloud.Resource { return ownedBy(m.resources(), m.ref.OwnershipID) }

// sight notes what was seen otherwise than in a listing.
func (v *inventory) sight(m *machine, resources []cloud.Resource, at time.Time) {
	for _, r := range resources {
		s := sighting{r, at}
		if i := slices.IndexFunc(m.sighted, func(o sighting) bool { return o.Kind == r.Kind && o.ID == r.ID }); i >= 0 {
			m.sighted[i] = s
		} else {
			m.sighted = append(m.sighted, s)
		}
	}
	v.recent[m.ref.Token] = m
}

// look is the machine as its resources tell it.
func (m *machine) look() Observation {
	gone := m.isGone() || m.lost
	o := Observation{Gone: gone, NeverSeen: m.phase == neverSeen}
	instances := slices.DeleteFunc(m.own(), func(r cloud.Resource) bool {
		return r.Kind != cloud.KindInstance || gone && r.State != cloud.StateTerminated
	})
	if len(instances) == 0 {
		if !gone {
			o.Instance = m.last // until a live read has confirmed that it is not there
		}
		return o
	}
	alive := living(instances)
	pick := instances[0]
	if len(alive) > 0 {
		pick = alive[0]
	}
	if i := slices.IndexFunc(instances, func(r cloud.Resource) bool { return m.ref.ProviderID != "" && r.ProviderID == m.ref.ProviderID }); i >= 0 {
		pick = instances[i]
	}
	m.announce(&pick)
	o.Instance, m.last = &pick, &pick
	if len(alive) > 1 || (len(alive) == 1 && alive[0].ID != pick.ID) {
		for _, r := range alive {
			o.Duplicates = append(o.Duplicates, r.ID)
		}
	}
	return o
}

// update looks at a machine again and tells whether it changed since it was last reported.
func (v *inventory) update(m *machine) bool {
	now := m.look()
	switch {
	case now.Instance == nil:
	case now.Gone || (now.Instance.State != cloud.StatePending && now.Instance.State != cloud.StateStopping):
		m.starting = time.Time{}
	case m.starting.IsZero():
		m.starting = time.Now()
	}
	isSettled := m.phase == settled
	if !m.isObserved() || (now.Gone && m.reported.Gone) || (reflect.DeepEqual(now, m.reported) && isSettled == m.toldSettled) {
		return false
	}
	m.reported, m.toldSettled = now, isSettled
	return true
}
