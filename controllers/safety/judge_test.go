// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/drover-io/drover/cloud"
)

const (
	grace = time.Hour
	self  = "00000001" // this management cluster's identity
)

func vm(id, owner, token string) cloud.Resource {
	return cloud.Resource{Kind: cloud.KindInstance, ID: id, ProviderID: "x:///" + id, OwnershipID: owner, Token: token,
		State: cloud.StateRunning}
}

func disk(id, owner, token string) cloud.Resource {
	return cloud.Resource{Kind: cloud.KindDisk, ID: id, OwnershipID: owner, Token: token}
}

// knows returns what Kubernetes has: the cluster "ours", and machines with the given tokens that
// have recorded x:///i-1.
func knows(tokens ...string) facts {
	f := facts{
		identity: self, clusters: map[string]cluster{"ours": {}}, elsewhere: map[string]bool{"neighbor": true},
		machines: map[string]string{},
	}
	for _, t := range tokens {
		f.machines[t] = "x:///i-1"
	}
	return f
}

// TestJudge checks each kind of resource. It failed when one of these rules was removed: a paused
// cluster is left alone. A DroverMachine owns the resources with its token. A token of another
// management cluster is not ours. A cluster of another namespace is no unknown owner. A second VM
// is deleted only while the recorded one lives, and the recorded one never. A terminated instance
// counts as gone. The grace period applies. One listing counts as one sighting.
func TestJudge(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const token, lost = self + "a", self + "lost"
	young := vm("i-young", "ours", lost)
	young.CreatedAt = begin.Add(grace)
	aged := vm("i-aged", "ours", lost) // by the cloud's clock, which may be a day off
	aged.CreatedAt = begin.Add(-24 * time.Hour)
	ended := vm("i-ended", "ours", lost)
	ended.State = cloud.StateTerminated
	paused := knows()
	paused.clusters["ours"] = cluster{skipReason: "it is paused"}
	former := knows()
	former.clusters["ours"] = cluster{former: true}
	pending := knows()
	pending.machines[token] = "" // claimed, and its create call is slow
	first, second := vm("i-1", "ours", token), vm("i-2", "ours", token)
	type row struct {
		what       string
		resources  []cloud.Resource
		known      facts
		orphans    int // in the second listing
		due        int // of those, how many may be deleted then
		unknown    int
		other      int
		duplicates int
	}
	for _, c := range []row{
		{what: "a machine's", resources: []cloud.Resource{first}, known: knows(token)},
		{what: "one whose create takes long", resources: []cloud.Resource{first}, known: pending},
		{what: "nobody's", resources: []cloud.Resource{vm("i-9", "ours", lost)}, known: knows(token), orphans: 1, due: 1},
		{what: "a machine's whose token was changed", resources: []cloud.Resource{vm("i-1", "ours", lost)}, known: knows(token)},
		{what: "nobody's disk", resources: []cloud.Resource{disk("d-1", "ours", lost)}, known: knows(token), orphans: 1, due: 1},
		{what: "a machine's disk", resources: []cloud.Resource{disk("d-1", "ours", token)}, known: knows(token)},
		{what: "another cluster's", resources: []cloud.Resource{vm("i-1", "theirs", lost)}, known: knows(token), unknown: 1},
		{what: "without an owner", resources: []cloud.Resource{vm("i-1", "", lost)}, known: knows(token), unknown: 1},
		{what: "another namespace's", resources: []cloud.Resource{vm("i-1", "neighbor", lost)}, known: knows(token)},
		{what: "a paused cluster's", resources: []cloud.Resource{vm("i-1", "ours", lost)}, known: paused},
		{what: "a deleted cluster's", resources: []cloud.Resource{vm("i-1", "ours", lost)}, known: former, orphans: 1, due: 1},
		{what: "one that has ended", resources: []cloud.Resource{ended}, known: knows()},
		{what: "one that is younger than the grace", resources: []cloud.Resource{young}, known: knows(), orphans: 1},
		{what: "one that is old, and was seen for the grace", resources: []cloud.Resource{aged}, known: knows(), orphans: 1, due: 1},
		{what: "another management cluster's", resources: []cloud.Resource{vm("i-1", "ours", "00000002lost")}, known: knows(), other: 1},
		{what: "one without a token", resources: []cloud.Resource{vm("i-1", "ours", "")}, known: knows(), other: 1},
		{what: "a second VM beside the recorded one", resources: []cloud.Resource{first, second}, known: knows(token), orphans: 1, due: 1},
		{what: "a second VM, while the recorded one is not there", resources: []cloud.Resource{second}, known: knows(token)},
		{what: "two VMs, none recorded", resources: []cloud.Resource{first, second}, known: pending, duplicates: 1},
	} {
		m := &memory{begun: map[string]map[string]time.Time{}}
		look := func(at time.Time) (report, bool) {
			f := c.known
			f.listed, f.read, f.resources = at, at, c.resources
			return m.judge(f, grace)
		}
		if one, ok := look(begin); !ok || len(one.orphans) != c.orphans || one.confirmed() != 0 || len(m.due(one, 10, grace)) != 0 {
			t.Errorf("%s, at first: %+v", c.what, one)
		}
		if _, ok := look(begin); ok {
			t.Errorf("%s: the same listing was judged twice", c.what)
		}
		if early, _ := look(begin.Add(grace - time.Second)); early.confirmed() != 0 {
			t.Errorf("%s was confirmed within the grace: %+v", c.what, early)
		}
		two, _ := look(begin.Add(grace))
		if len(two.orphans) != c.orphans || len(m.due(two, 10, grace)) != c.due || two.unknownOwner != c.unknown ||
			len(two.otherManager) != c.other || len(two.duplicates) != c.duplicates {
			t.Errorf("%s, later: %+v; due %v", c.what, two, m.due(two, 10, grace))
		}
	}
}

// TestConfirmation: one listing without a resource, or with its machine, restarts the resource's
// grace period.
func TestConfirmation(t *testing.T) {
	begin, lost := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), vm("i-1", "ours", self+"lost")
	for what, between := range map[string]facts{
		"its machine came back": {resources: []cloud.Resource{lost}, machines: map[string]string{lost.Token: ""}},
		"a page was missing":    {},
	} {
		m := &memory{}
		for i, f := range []facts{{resources: []cloud.Resource{lost}}, between, {resources: []cloud.Resource{lost}}} {
			f.identity, f.clusters, f.listed = self, map[string]cluster{"ours": {}}, begin.Add(time.Duration(i)*grace)
			f.read = f.listed
			if r, _ := m.judge(f, grace); r.confirmed() != 0 {
				t.Errorf("%s: confirmed in listing %d: %+v", what, i, r)
			}
		}
	}
}

// TestOldListing: a shared listing may be as old as a period, and older than the loss of the
// machine. The test failed when the grace period was counted from the listing.
func TestOldListing(t *testing.T) {
	lost, lostAt := vm("i-1", "ours", self+"lost"), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m, f := &memory{}, knows()
	f.resources, f.listed, f.read = []cloud.Resource{lost}, lostAt.Add(-grace), lostAt.Add(time.Second)
	m.judge(f, grace)
	for after, want := range map[time.Duration]int{time.Minute: 0, grace: 0, grace + time.Second: 1} {
		later := &memory{listed: m.listed, since: m.since}
		f.listed, f.read = lostAt.Add(after), lostAt.Add(after)
		if r, _ := later.judge(f, grace); r.confirmed() != want {
			t.Errorf("%s after the loss, %d are confirmed, want %d", after, r.confirmed(), want)
		}
	}
}

// byClock returns the time as a process reads it after its clock was changed by the given amount:
// the wall clock differs, the monotonic clock does not. This relies on the layout of time.Time, so
// byClock checks the result.
func byClock(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	is := at
	*(*uint64)(unsafe.Pointer(&is)) += uint64(by/time.Second) << 30
	if is.Sub(at) != 0 || is.Round(0).Sub(at.Round(0)) != by {
		t.Fatalf("%s is no clock that was set by %s", is, by)
	}
	return is
}

// TestClockIsSet: a clock change by a day neither confirms an orphan nor hides it. The test failed
// when times were compared without the monotonic clock reading.
func TestClockIsSet(t *testing.T) {
	begin := time.Now()
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		m, f := &memory{}, knows()
		f.resources, f.listed, f.read = []cloud.Resource{vm("i-1", "ours", self+"lost")}, begin, begin
		m.judge(f, grace)
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{time.Minute, 0}, {grace, 1}} {
			at := byClock(t, begin.Add(c.after), by)
			f.listed, f.read = at, at
			if r, ok := m.judge(f, grace); !ok || r.confirmed() != c.want {
				t.Errorf("%s later, by a clock set by %s: %d are confirmed, want %d", c.after, by, r.confirmed(), c.want)
			}
		}
	}
}

// TestDoubt: the controller doubts orphans that look like a lost object store.
func TestDoubt(t *testing.T) {
	limit := limits{share: 20, least: 3}
	for _, c := range []struct {
		what   string
		before int // DroverMachines at the last pass
		report report
		doubt  bool
	}{
		{"none", 10, report{tokens: 0, fleet: 10, machines: 10}, false},
		{"one of one", 0, report{tokens: 1, fleet: 1, machines: 0}, false},
		{"two of two", 0, report{tokens: 2, fleet: 2, machines: 0}, false},
		{"three of three", 0, report{tokens: 3, fleet: 3, machines: 0}, true},
		{"a fifth", 12, report{tokens: 3, fleet: 15, machines: 12}, false},
		{"more than a fifth", 11, report{tokens: 3, fleet: 14, machines: 11}, true},
		{"everything", 100, report{tokens: 100, fleet: 100, machines: 0}, true},
		{"one, but half of the machines went", 100, report{tokens: 1, fleet: 100, machines: 50}, true},
	} {
		m := &memory{machines: c.before}
		if got := m.doubt(c.report, limit); (got != "") != c.doubt {
			t.Errorf("%s: %q", c.what, got)
		}
		if c.doubt && m.doubt(c.report, limit) == "" {
			t.Errorf("%s is believed when it is looked at again", c.what)
		}
	}
}

// TestAllow: a person's confirmation covers the set that was shown and any rest of it, but no
// additional orphan.
func TestAllow(t *testing.T) {
	a, b, c := orphan{Resource: vm("1", "o", "a")}, orphan{Resource: vm("2", "o", "b")}, orphan{Resource: vm("3", "o", "c")}
	ofSet := func(orphans ...orphan) string { return report{orphans: orphans}.digest() }
	if ofSet(a, b) != ofSet(b, a) || ofSet(a, b) == ofSet(a, b, c) {
		t.Error("a digest does not name its set")
	}
	m, word := &memory{}, ofSet(a, b)
	for _, step := range []struct {
		set  []orphan
		word string
		want bool
	}{
		{[]orphan{a, b}, "", false},
		{[]orphan{a, b, c}, word, false},
		{[]orphan{a, b}, word, true},
		{[]orphan{b}, word, true},
		{[]orphan{b, c}, word, false},
		{[]orphan{b, c}, ofSet(b, c), true},
	} {
		if got := m.allow(report{orphans: step.set}, step.word); got != step.want {
			t.Errorf("%v with the word %q: %v, want %v", ofSet(step.set...), step.word, got, step.want)
		}
	}
}

// TestDue: a pass begins to delete the remains of at most n machines, and continues deletions in
// progress.
func TestDue(t *testing.T) {
	r, begin := report{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 5 {
		r.orphans = append(r.orphans, orphan{Resource: vm(fmt.Sprint(i), "ours", fmt.Sprint("t", i)), confirmed: true})
	}
	r.orphans = append(r.orphans, orphan{Resource: disk("0", "ours", "t0")}) // not confirmed yet, so t0 waits for it
	m := &memory{begun: map[string]map[string]time.Time{"t4": {}}}
	if got := slices.Sorted(maps.Keys(m.due(r, 2, grace))); !slices.Equal(got, []string{"t1", "t2", "t4"}) {
		t.Errorf("due are %v", got)
	}
	// Many orphans were doubted, and these remain while the other objects are restored. No listing
	// came for a long time, in which all of that may have happened. The test failed without this
	// rule, and when the time was counted from the last doubt.
	m.doubted = true
	for i, want := range []int{0, 0, 3} {
		m.listed = begin.Add(time.Duration(i) * grace)
		if r.read = m.listed.Add(time.Second); len(m.due(r, 2, grace)) != want {
			t.Errorf("%d times the grace after the first look without doubts, %d are due, want %d", i, len(m.due(r, 2, grace)), want)
		}
	}
	m.doubted, m.allowed = true, map[string]bool{"Instance/1": true}
	if got := slices.Sorted(maps.Keys(m.due(r, 2, grace))); !slices.Equal(got, []string{"t1"}) {
		t.Errorf("a person confirmed t1, and due are %v", got)
	}
}

// TestStep: what belongs to an instance is deleted after the instance, and what is no orphan is
// never deleted.
func TestStep(t *testing.T) {
	v, d := vm("i", "ours", "t"), disk("d", "ours", "t")
	gone, mine, theirs := v, disk("mine", "ours", "t"), d
	gone.State, theirs.OwnershipID = cloud.StateTerminated, "theirs"
	orphans := []orphan{{Resource: v}, {Resource: d}}
	for what, c := range map[string]struct{ read, want []cloud.Resource }{
		"it lives":              {[]cloud.Resource{d, v, mine}, []cloud.Resource{v}},
		"it has ended":          {[]cloud.Resource{d, gone, mine}, []cloud.Resource{d}},
		"it is not there":       {[]cloud.Resource{d, mine}, []cloud.Resource{d}},
		"it is another's now":   {[]cloud.Resource{theirs}, nil},
		"nothing is left of it": {nil, nil},
	} {
		if got := step(orphans, c.read); !slices.EqualFunc(got, c.want, func(a, b cloud.Resource) bool { return name(a) == name(b) }) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// TestShorten: the status accepts any resource ID of a cloud.
func TestShorten(t *testing.T) {
	for id, want := range map[string]string{
		"i-1": "i-1", "": "?", "a\xffb": "a?b",
		strings.Repeat("é", 300):       strings.Repeat("é", 256),
		"a" + strings.Repeat("é", 300): "a" + strings.Repeat("é", 255),
	} {
		if got := shorten(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}

// TestSettle: a deleted cluster is forgotten when it has had no resources for the grace period
// after the API server was read, because the listing may be much older than the deletion.
func TestSettle(t *testing.T) {
	begin, left := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), []cloud.Resource{disk("d", "ours", self)}
	m := &memory{}
	for i, c := range []struct {
		resources []cloud.Resource
		settled   bool
	}{{nil, false}, {left, false}, {nil, false}, {nil, false}, {nil, true}} {
		listed := begin.Add(time.Duration(i) * grace)
		f := facts{listed: listed, read: listed.Add(grace / 2), resources: c.resources, clusters: map[string]cluster{"ours": {former: true}}}
		if r, _ := m.judge(f, grace); (len(r.forgotten) > 0) != c.settled {
			t.Errorf("listing %d: settled %v", i, r.forgotten)
		}
	}
}

// TestBlind: an empty listing, while machines have VMs, is not judged. It resets all sightings,
// settles no former cluster, and does not confirm a requested deletion. The test failed in all
// three points when the listing was judged.
func TestBlind(t *testing.T) {
	begin, lost := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), vm("i-2", "ours", self+"lost")
	m := &memory{begun: map[string]map[string]time.Time{lost.Token: {name(lost): begin}}}
	f := knows(self + "a")
	f.recorded, f.clusters["theirs"] = true, cluster{former: true}
	for i, resources := range [][]cloud.Resource{{vm("i-1", "ours", self+"a"), lost}, nil, nil, {vm("i-1", "ours", self+"a"), lost}} {
		f.resources, f.listed = resources, begin.Add(time.Duration(i)*grace)
		f.read = f.listed
		r, ok := m.judge(f, grace)
		if ok != (resources != nil) || r.confirmed() != 0 || len(r.forgotten) > 0 || len(r.deleted) > 0 {
			t.Errorf("listing %d: %+v, judged: %v", i, r, ok)
		}
	}
	f.recorded, f.resources = false, nil // no machine has a VM, so an empty listing is true
	for i := range 2 {
		f.listed = begin.Add(time.Duration(4+i) * grace)
		f.read = f.listed
		if r, ok := m.judge(f, grace); !ok || len(r.deleted) != 1-i || len(r.forgotten) != 1 {
			t.Errorf("without machines, listing %d: %+v, judged: %v", i, r, ok)
		}
	}
}

// world is the simulated state: a cloud and an API server that drift apart.
type world struct {
	*rand.Rand
	at        time.Time
	resources map[string]cloud.Resource // by name
	machines  map[string]string         // provider ID by token
	paused    bool
	made      int
	// lostSince is the listing since which each resource had no machine in all judged listings.
	lostSince map[string]time.Time
}

// happen performs one random action of people, controllers or faults.
func (w *world) happen() {
	tokens, names := slices.Sorted(maps.Keys(w.machines)), slices.Sorted(maps.Keys(w.resources))
	switch w.IntN(10) {
	case 0, 1: // a machine is claimed
		w.made++
		w.machines[fmt.Sprintf("%sm%d", self, w.made)] = ""
	case 2, 3: // its VM is created, and recorded or not
		if len(tokens) > 0 {
			token := tokens[w.IntN(len(tokens))]
			w.made++
			x := vm(fmt.Sprint("i-", w.made), "ours", token)
			w.resources[name(x)] = x
			d := disk(fmt.Sprint("d-", w.made), "ours", token)
			w.resources[name(d)] = d
			if w.IntN(3) > 0 && w.machines[token] == "" {
				w.machines[token] = x.ProviderID
			}
		}
	case 4: // a machine is deleted with its VM
		if len(tokens) > 0 {
			token := tokens[w.IntN(len(tokens))]
			delete(w.machines, token)
			maps.DeleteFunc(w.resources, func(_ string, x cloud.Resource) bool { return x.Token == token })
		}
	case 5: // a machine's object is removed without its finalizer
		if len(tokens) > 0 {
			delete(w.machines, tokens[w.IntN(len(tokens))])
		}
	case 6: // an object is restored from a backup
		if len(names) > 0 {
			if x := w.resources[names[w.IntN(len(names))]]; strings.HasPrefix(x.Token, self) {
				w.machines[x.Token] = ""
			}
		}
	case 7: // another management cluster with a copy of the DroverCluster, or someone unknown, creates a VM
		w.made++
		x := vm(fmt.Sprint("i-", w.made), []string{"ours", "theirs", "neighbor"}[w.IntN(3)], fmt.Sprintf("00000002m%d", w.made))
		w.resources[name(x)] = x
	case 8:
		w.paused = !w.paused
	case 9: // a VM disappears
		if len(names) > 0 {
			delete(w.resources, names[w.IntN(len(names))])
		}
	}
}

// facts returns what a pass reads: first a listing, which may lack a page or everything, and then
// the objects in the API server.
func (w *world) facts(lies bool) facts {
	f := knows()
	f.listed, f.read, f.machines = w.at, w.at, maps.Clone(w.machines)
	if w.paused {
		f.clusters["ours"] = cluster{skipReason: "it is paused"}
	}
	missing := -1
	if lies {
		missing = w.IntN(6)
	}
	for i, n := range slices.Sorted(maps.Keys(w.resources)) {
		if missing != 0 && (missing < 0 || i%(missing+1) != 0) {
			f.resources = append(f.resources, w.resources[n])
		}
	}
	return f
}

// owned reports whether a resource must never be deleted.
func (w *world) owned(x cloud.Resource) bool {
	recorded, known := w.machines[x.Token]
	duplicate := known && x.Kind == cloud.KindInstance && recorded != "" && recorded != x.ProviderID
	return x.OwnershipID != "ours" || !strings.HasPrefix(x.Token, self) || (known && !duplicate)
}

// note tracks since when each resource was an orphan in all listings.
func (w *world) note(f facts) {
	lost := map[string]time.Time{}
	for _, x := range f.resources {
		if !w.owned(x) && f.clusters["ours"].skipReason == "" {
			lost[name(x)] = f.listed
			if since, ok := w.lostSince[name(x)]; ok {
				lost[name(x)] = since
			}
		}
	}
	w.lostSince = lost
}

// TestNeverOwned runs 1,000 random schedules. In none, whatever a listing leaves out, does the
// collector delete a resource that belongs to a machine, to no cluster here or to another manager,
// or one that was not an orphan in each listing during the grace period. When the world is stable
// again, no orphan is left. The test failed without the grace period, with sightings that outlive a
// listing without the resource, and without the limit for a pass.
func TestNeverOwned(t *testing.T) {
	for seed := range uint64(1000) {
		w := &world{
			Rand: rand.New(rand.NewPCG(seed, 1)), at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
			resources: map[string]cloud.Resource{}, machines: map[string]string{}, lostSince: map[string]time.Time{},
		}
		m := &memory{begun: map[string]map[string]time.Time{}}
		for range 60 {
			for range w.IntN(4) {
				w.happen()
			}
			w.at = w.at.Add(time.Duration(1+w.IntN(40)) * time.Minute)
			if w.IntN(12) == 0 { // the manager restarts
				m, w.lostSince = &memory{begun: map[string]map[string]time.Time{}}, map[string]time.Time{}
			}
			w.pass(t, seed, m, w.IntN(8) == 0)
		}
		w.paused = false
		for range 60 {
			w.at = w.at.Add(grace)
			w.pass(t, seed, m, false)
		}
		for n, x := range w.resources {
			_, alive := w.resources[string(cloud.KindInstance)+"/"+strings.TrimPrefix(w.machines[x.Token], "x:///")]
			if _, known := w.machines[x.Token]; !known && !w.owned(x) || known && alive && !w.owned(x) {
				t.Errorf("seed %d: %s is left, and belongs to no machine", seed, n)
			}
		}
	}
}

// pass judges the world and deletes what is due.
func (w *world) pass(t *testing.T, seed uint64, m *memory, lies bool) {
	t.Helper()
	f := w.facts(lies)
	found, ok := m.judge(f, grace)
	if !ok {
		return
	}
	w.note(f)
	due := m.due(found, 2, grace)
	begun := 0
	for token, orphans := range due {
		if m.begun[token] == nil {
			begun++
		}
		for _, o := range orphans {
			since, lost := w.lostSince[name(o.Resource)]
			if w.owned(o.Resource) || w.paused || !lost || w.at.Sub(since) < grace {
				t.Fatalf("seed %d: %+v was to be deleted; an orphan since %s, now %s", seed, o, since, w.at)
			}
		}
		var read []cloud.Resource
		for _, x := range w.resources {
			if x.Token == token {
				read = append(read, x)
			}
		}
		for _, x := range step(orphans, read) {
			m.recordRequest(x)
			delete(w.resources, name(x))
		}
	}
	if begun > 2 {
		t.Fatalf("seed %d: %d machines' remains were begun in one pass", seed, begun)
	}
}
