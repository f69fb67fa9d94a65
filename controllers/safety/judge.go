// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// facts are what one pass over an account knows, in the order in which the pass reads it: first the
// resources in the cloud, then their possible owners. Kubernetes then knows every machine that was
// created in between, so the VM of such a machine is no orphan.
type facts struct {
	// listed is when the complete listing began, and resources is its content. Within a process,
	// listing times are compared by the monotonic clock, so that a jump of the wall clock confirms
	// nothing.
	listed    time.Time
	resources []cloud.Resource
	// read is when the API server had answered all requests for the fields below. The listing may
	// be older by up to a period. A resource without a machine had none at this time, but may have
	// had one before.
	read time.Time
	// identity is the prefix of every creation token of this management cluster.
	identity string
	// clusters are the clusters of this namespace, and those that were here until they were
	// deleted, by ownership ID.
	clusters map[string]cluster
	// elsewhere are the ownership IDs of clusters in other namespaces. The accounts of those
	// namespaces take care of them.
	elsewhere map[string]bool
	// machines are the namespace's DroverMachines: their recorded provider IDs, or "", by token.
	// claimed are the tokens of DroverMachines in other namespaces. They are read only if something
	// looks like an orphan.
	machines map[string]string
	claimed  map[string]bool
	// confined: the manager may not read all namespaces, so it may not know the owner.
	confined bool
	// recorded: a DroverMachine of this account has recorded its VM.
	recorded bool
}

// cluster is a cluster whose resources may be orphans.
type cluster struct {
	// skipReason says why the cluster is not judged now: it is paused, it moves to or from another
	// management cluster, its API server does not answer, or another DroverCluster has its
	// ownership ID. If empty, the cluster is judged.
	skipReason string
	// former: the DroverCluster was deleted.
	former bool
}

// orphan is a resource of a cluster that is here, with a token that no DroverMachine here has, or
// an instance other than the one that its DroverMachine has recorded.
type orphan struct {
	cloud.Resource
	// since is when the API server answered in the first of the consecutive passes that found no
	// machine for the resource.
	since time.Time
	// confirmed: a listing that began at least the grace period after since still shows it.
	confirmed bool
}

// memory is what the controller keeps between two passes over an account. The zero value is that of
// a manager that has just started: it confirms nothing. Memory is lost with the process, which
// costs only time.
type memory struct {
	// passed is when the last full pass ended, listed when the last judged listing began.
	passed, listed time.Time
	since          map[string]time.Time // of orphans, by name
	empty          map[string]time.Time // since when a former cluster has had no resources, by ownership ID
	// machines is the number of DroverMachines at the last pass without doubt. doubted: the last
	// pass doubted its orphans. undoubtedSince is when the API server answered in the first pass
	// after a doubted one that had no doubt.
	machines       int
	doubted        bool
	undoubtedSince time.Time
	// begun contains the deletions requested for the remains of machines, by token and name, with
	// the time of the request.
	begun map[string]map[string]time.Time
	// unread: a live read failed, and must be retried soon.
	unread bool
	// allowed are the orphans that a person has confirmed, by name.
	allowed map[string]bool
}

// report is the result of a pass.
type report struct {
	// orphans are sorted by name. tokens is the number of machines, by token, that they are parts
	// of.
	orphans []orphan
	tokens  int
	// otherManager are resources of a cluster that is here, which belong to none of its machines
	// and were made by another management cluster. That cluster has a copy of the DroverCluster, or
	// had it before a move. Drover never touches them.
	otherManager []orphan
	// fleet is the number of machines, by token, that have any resource in the listing, including
	// orphans.
	fleet int
	// unknownOwner is the number of resources without an ownership ID, or with one that no cluster
	// here has. Drover never touches them.
	unknownOwner int
	// machines is the number of DroverMachines here.
	machines int
	// confined: a resource may have an owner that this manager may not read.
	confined bool
	// duplicates are the tokens with more than one living instance of which none is recorded. A
	// person must choose one.
	duplicates []string
	// read is when the API server answered.
	read time.Time
	// forgotten are former clusters that have had no resources for the grace period.
	forgotten []string
	// deleted are the tokens whose deletion was begun and that have nothing left.
	deleted []string
	// remains are the names of what was deleted of each, by token.
	remains map[string][]string
}

func name(r cloud.Resource) string { return string(r.Kind) + "/" + r.ID }

func alive(r cloud.Resource) bool {
	return r.Kind == cloud.KindInstance && r.State != cloud.StateTerminated
}

// judge evaluates the facts, and keeps what the next pass needs. It returns false in two cases.
// First, it ignores facts that are not newer than the last, because two looks at one listing
// confirm nothing. Second, it ignores a listing without resources of any cluster here if machines
// have recorded their VMs, because credentials that have lost their rights get such a listing. It
// does not prove that anything is gone, and it resets all sightings.
func (m *memory) judge(f facts, grace time.Duration) (r report, ok bool) {
	if !f.listed.After(m.listed) {
		return report{}, false
	}
	known := func(x cloud.Resource) bool { _, here := f.clusters[x.OwnershipID]; return here }
	if f.recorded && !slices.ContainsFunc(f.resources, known) {
		m.listed, m.since, m.empty = f.listed, nil, nil
		return report{}, false
	}
	r.machines, r.read, r.confined = len(f.machines), f.read, f.confined
	since := map[string]time.Time{}
	fleet, lost, owners := map[string]bool{}, map[string]bool{}, map[string]bool{}
	seen := f.index()
	for _, x := range f.resources {
		if x.Kind == cloud.KindInstance && !alive(x) {
			continue
		}
		c, here := f.clusters[x.OwnershipID]
		if !here {
			if !f.elsewhere[x.OwnershipID] {
				r.unknownOwner++
			}
			continue
		}
		fleet[x.Token], owners[x.OwnershipID] = true, true
		if c.skipReason != "" || !f.unowned(x, seen) {
			continue
		}
		first := m.since[name(x)]
		if first.IsZero() {
			first = f.read
		}
		since[name(x)] = first
		// The cloud's clock may differ from ours. That can only make the wait longer.
		old := x.CreatedAt.IsZero() || f.listed.Sub(x.CreatedAt) >= grace
		o := orphan{Resource: x, since: first, confirmed: old && f.listed.Sub(first) >= grace}
		if !strings.HasPrefix(x.Token, f.identity) {
			r.otherManager = append(r.otherManager, o)
			continue
		}
		lost[x.Token] = true
		r.orphans = append(r.orphans, o)
	}
	byName := func(a, b orphan) int { return strings.Compare(name(a.Resource), name(b.Resource)) }
	slices.SortFunc(r.orphans, byName)
	slices.SortFunc(r.otherManager, byName)
	r.fleet, r.tokens = len(fleet), len(lost)
	r.duplicates = duplicates(f, seen)
	r.forgotten = m.forgettable(f, owners, grace)
	r.remains = map[string][]string{}
	for token, names := range m.begun {
		if !lost[token] {
			r.remains[token] = slices.Sorted(maps.Keys(names))
			r.deleted = append(r.deleted, token)
			delete(m.begun, token)
		}
	}
	slices.Sort(r.deleted)
	m.listed, m.since = f.listed, since
	return r, true
}

// index is what a pass looks up for each resource.
type index struct {
	living   map[string][]cloud.Resource // instances of the clusters here, by token
	recorded map[string]bool             // the provider IDs that the DroverMachines have recorded
}

func (f *facts) index() index {
	i := index{living: map[string][]cloud.Resource{}, recorded: make(map[string]bool, len(f.machines))}
	for _, x := range f.resources {
		if _, here := f.clusters[x.OwnershipID]; here && alive(x) {
			i.living[x.Token] = append(i.living[x.Token], x)
		}
	}
	for _, providerID := range f.machines {
		i.recorded[providerID] = true
	}
	return i
}

// suspects reports whether something looks like an orphan of this management cluster.
func (f *facts) suspects() bool {
	seen := f.index()
	return slices.ContainsFunc(f.resources, func(x cloud.Resource) bool {
		c, here := f.clusters[x.OwnershipID]
		return here && c.skipReason == "" && strings.HasPrefix(x.Token, f.identity) && f.unowned(x, seen)
	})
}

// unowned reports whether no DroverMachine has the resource's token, or the DroverMachine that has
// it has recorded another instance that lives. An instance that a DroverMachine has recorded is
// never unowned: somebody has changed its token.
func (f *facts) unowned(x cloud.Resource, seen index) bool {
	recorded, known := f.machines[x.Token]
	if f.claimed[x.Token] {
		return false
	}
	if !known {
		return x.Kind != cloud.KindInstance || !seen.recorded[x.ProviderID]
	}
	return recorded != "" && x.Kind == cloud.KindInstance && x.ProviderID != recorded &&
		slices.ContainsFunc(seen.living[x.Token], func(o cloud.Resource) bool { return o.ProviderID == recorded })
}

// duplicates returns the tokens of DroverMachines with several living instances, none of them
// recorded.
func duplicates(f facts, seen index) (tokens []string) {
	for token, all := range seen.living {
		recorded, known := f.machines[token]
		if known && len(all) > 1 && !slices.ContainsFunc(all, func(o cloud.Resource) bool { return o.ProviderID == recorded }) {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	return tokens
}

// forgettable returns the former clusters that have had no resources in any listing for the grace
// period. The period starts when they are known to be former. Until it ends, a create call of their
// last machine may still show a result.
func (m *memory) forgettable(f facts, owners map[string]bool, grace time.Duration) (ids []string) {
	empty := map[string]time.Time{}
	for id, c := range f.clusters {
		if !c.former || owners[id] {
			continue
		}
		first := m.empty[id]
		if first.IsZero() {
			first = f.read
		}
		if empty[id] = first; f.listed.Sub(first) >= grace {
			ids = append(ids, id)
		}
	}
	m.empty = empty
	slices.Sort(ids)
	return ids
}

// limits define when there are too many orphans to be believed.
type limits struct {
	// share is a percentage of the fleet, and least is the minimum number of machines.
	share, least int
}

// doubt returns why the orphans of a report are not believed, or "" if they are. A lost or outdated
// Kubernetes object store looks like many orphans.
func (m *memory) doubt(r report, l limits) string {
	switch {
	case r.tokens == 0:
	case tooMany(r.tokens, r.fleet, l.least, l.share):
		return fmt.Sprintf("that is more than %d %% of the fleet", l.share)
	case m.machines > 0 && r.machines*2 <= m.machines:
		return fmt.Sprintf("there were %d DroverMachines, and now there are %d", m.machines, r.machines)
	}
	m.machines = r.machines
	return ""
}

// allow records a person's confirmation, given as the digest of the current set. It reports whether
// this or an earlier confirmation covers all orphans.
func (m *memory) allow(r report, confirmation string) bool {
	if confirmation != "" && confirmation == r.digest() {
		m.allowed = map[string]bool{}
		for _, o := range r.orphans {
			m.allowed[name(o.Resource)] = true
		}
	}
	return !slices.ContainsFunc(r.orphans, func(o orphan) bool { return !m.allowed[name(o.Resource)] })
}

// digest returns a digest of the set of orphans.
func (r report) digest() string {
	names := make([]string, 0, len(r.orphans))
	for _, o := range r.orphans {
		names = append(names, name(o.Resource)+" "+cmp.Or(o.Token, "-"))
	}
	return fleet.Digest(names)
}

// due returns the machines whose remains may be deleted, by token. Every orphan of such a machine
// is confirmed. They are the machines whose deletion has begun, and up to n more in the order of
// their tokens. Doubts that end without a confirmation may end because lost objects are restored
// one by one. The remaining orphans then wait for the grace period once more. It counts from the
// first pass without doubts, because the last pass with doubts may be long ago.
func (m *memory) due(r report, n int, grace time.Duration) map[string][]orphan {
	blocked, of := map[string]bool{}, map[string][]orphan{}
	if m.doubted {
		m.doubted, m.undoubtedSince = false, r.read
	}
	recovering := !m.undoubtedSince.IsZero() && m.listed.Sub(m.undoubtedSince) < grace
	for _, o := range r.orphans {
		blocked[o.Token] = blocked[o.Token] || !o.confirmed || recovering && !m.allowed[name(o.Resource)]
		of[o.Token] = append(of[o.Token], o)
	}
	for _, token := range slices.Sorted(maps.Keys(of)) {
		switch {
		case blocked[token]:
			delete(of, token)
		case m.begun[token] != nil:
		case n > 0:
			n--
		default:
			delete(of, token)
		}
	}
	return of
}
