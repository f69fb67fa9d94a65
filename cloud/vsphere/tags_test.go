// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// tags creates a category with these tags, and returns the tags' IDs, in this order.
func (v *vcsim) tags(t testing.TB, category string, names ...string) (ids []string) {
	t.Helper()
	m := tags.NewManager(v.automation(t))
	owner, err := m.CreateCategory(t.Context(), &tags.Category{Name: category, Cardinality: "MULTIPLE"})
	for _, name := range names {
		if err != nil {
			break
		}
		var id string
		id, err = m.CreateTag(t.Context(), &tags.Tag{Name: name, CategoryID: owner})
		ids = append(ids, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// bearers returns the tokens of the machines that have the tag.
func (v *vcsim) bearers(t testing.TB, id string) (tokens []string) {
	t.Helper()
	all, err := tags.NewManager(v.automation(t)).ListAttachedObjects(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range all {
		if m, ok := v.Context.Map.Get(object.Reference()).(*simulator.VirtualMachine); ok { // vcsim keeps tags of VMs that are gone
			tokens = append(tokens, v.options(m)[cloud.TagToken])
		}
	}
	slices.Sort(tokens)
	return tokens
}

func withTags(pairs ...string) func(*infrav1.VSphereMachine) {
	return func(m *infrav1.VSphereMachine) {
		for i := 0; i < len(pairs); i += 2 {
			m.Tags = append(m.Tags, infrav1.VSphereTag{Category: pairs[i], Name: pairs[i+1]})
		}
	}
}

// TestTags: machines get their tags with one call for each tag, also from a manager that did not
// create them. Machines without tags cost nothing.
func TestTags(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	v.tags(t, "other", "blue")
	ids := v.tags(t, "team", "blue", "green")
	d := v.driver(t)
	add := func(token string, edit ...func(*infrav1.VSphereMachine)) map[string]int {
		return v.counted(func() {
			_, err := d.Ensure(t.Context(), request(token, edit...))
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
	list := func() map[string]int {
		return v.counted(func() { g.Expect(d.List(t.Context())).To(HaveEach(HaveField("Notice", ""))) })
	}
	idle := map[string]int{"RetrievePropertiesEx": 2}

	add("none")
	list()
	g.Expect(list()).To(Equal(idle))
	calls := add("a1", withTags("team", "blue", "team", "green"))
	g.Expect(calls["CreateSession"]).To(Equal(1))
	g.Expect(calls["GetTag"]).To(Equal(2))
	g.Expect(add("a2", withTags("team", "blue", "team", "green"))).To(Equal(map[string]int{"FindAllByUuid": 2, "CloneVM_Task": 1}),
		"what a machine costs to make")
	add("a3", withTags("team", "blue"))

	d = v.driver(t) // a new manager
	g.Expect(list()).To(And(HaveKeyWithValue("AttachTag", 2), HaveKeyWithValue("CreateSession", 1)), "one call for each tag")
	g.Expect(v.bearers(t, ids[0])).To(Equal([]string{"a1", "a2", "a3"}))
	g.Expect(v.bearers(t, ids[1])).To(Equal([]string{"a1", "a2"}))
	g.Expect(list()).To(Equal(idle))

	v.endAutomation(t, d)
	off := v.with(cloud.TagToken, "none")[0]
	power := func(state types.VirtualMachinePowerState) {
		v.Context.WithLock(off, func() {
			off.Runtime.PowerState = state
			off.Config.ExtraConfig = append(off.Config.ExtraConfig, &types.OptionValue{Key: optionTags, Value: ids[1]})
		})
	}
	power(types.VirtualMachinePowerStatePoweredOff)
	g.Expect(list()).To(Equal(idle), "one that is just being made is left alone")
	power(types.VirtualMachinePowerStatePoweredOn)
	g.Expect(list()).To(And(HaveKeyWithValue("AttachTag", 2), HaveKeyWithValue("CreateSession", 1)), "again in a new session")
	g.Expect(v.bearers(t, ids[1])).To(Equal([]string{"a1", "a2", "none"}))
}

// TestTagsThatFail: a failure is shown with the tag's machines alone. It does not fail the listing,
// does not delay other tags, and is retried.
func TestTagsThatFail(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	ids := v.tags(t, "team", "blue", "green")
	d := v.driver(t)
	_, err := d.Ensure(t.Context(), request("both", withTags("team", "blue", "team", "green")))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Ensure(t.Context(), request("none"))
	g.Expect(err).NotTo(HaveOccurred())
	for words, answer := range map[string]struct {
		status int
		body   string
	}{
		"AttachTag: unauthorized: no right": {403,
			`{"type": "com.vmware.vapi.std.errors.unauthorized", "value": {"messages": [{"default_message": "no right"}]}}`},
		"AttachTag: one of the category is all": {200,
			`{"value": {"success": false, "error_messages": [{"default_message": "one of the category is all"}]}}`},
		"AttachTag: Not Found": {404, `no JSON`},
	} {
		failures := 0
		v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
			if operation != "AttachTag" || failures > 0 {
				return send()
			}
			failures++
			return &http.Response{StatusCode: answer.status, Header: http.Header{}, Body: io.NopCloser(bytes.NewBufferString(answer.body))}, nil
		})
		d := v.driver(t)
		all, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(ConsistOf(
			And(HaveField("Token", "both"), HaveField("Notice", ContainSubstring(words))),
			And(HaveField("Token", "none"), HaveField("Notice", ""))))
		calls := v.counted(func() { g.Expect(d.List(t.Context())).To(HaveEach(HaveField("Notice", ""))) })
		g.Expect(calls).To(HaveKeyWithValue("AttachTag", 2), "both are tried again")
		calls = v.counted(func() { g.Expect(d.List(t.Context())).To(HaveEach(HaveField("Notice", ""))) })
		g.Expect(calls).NotTo(HaveKey("AttachTag"))
	}
	for _, id := range ids {
		g.Expect(v.bearers(t, id)).To(Equal([]string{"both"}))
	}
}

// TestUnknownTags: a machine with an unknown tag or category gets no VM.
func TestUnknownTags(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	v.tags(t, "team", "blue")
	d := v.driver(t)
	for words, edit := range map[string]func(*infrav1.VSphereMachine){
		`tags[1]: tag "red" of category "team" does not exist`: withTags("team", "blue", "team", "red"),
		`tag category "environment" does not exist`:            withTags("environment", "blue"),
	} {
		_, err := d.Ensure(t.Context(), request("m", edit))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		g.Expect(err).To(MatchError(ContainSubstring(words)))
	}
	g.Expect(d.List(t.Context())).To(BeEmpty())
}

// TestManyTags: categories and tags that one call has no time to read are read by several, each of
// which continues where the last one ended. A tag that is deleted meanwhile is left out.
func TestManyTags(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	for i := range 15 {
		v.tags(t, fmt.Sprintf("other-%d", i))
	}
	names := []string{"blue"}
	for i := range 29 {
		names = append(names, fmt.Sprintf("t-%d", i))
	}
	ids := v.tags(t, "team", names...)
	d, left := v.driver(t), 0
	var deleted sync.Once
	v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.HasPrefix(operation, "GetTag") {
			if left--; left < 0 {
				return nil, &cloud.Queued{After: time.Second}
			}
		}
		if operation == "GetTag" {
			deleted.Do(func() {
				g.Expect(tags.NewManager(v.automation(t)).DeleteTag(t.Context(), &tags.Tag{ID: ids[7]})).To(Succeed())
			})
		}
		return send()
	})
	ensure := func(token string) (ok bool) {
		left = 10 // before the rate limit holds up the next one for too long
		_, err := d.Ensure(t.Context(), request(token, withTags("team", "blue")))
		_, waits := errors.AsType[*cloud.Queued](err)
		g.Expect(waits || err == nil).To(BeTrue(), "%v", err)
		return err == nil
	}
	calls := v.counted(func() { g.Eventually(func() bool { return ensure("m") }).WithTimeout(time.Minute).Should(BeTrue()) })
	g.Expect(calls["GetTagCategory"]+calls["GetTag"]).To(BeNumerically("<=", 16+30+5), "each of them once, and once in vain for each attempt")
	g.Expect(v.with(optionTags, ids[0])).To(HaveLen(1))

	v.spoil(nil)
	d.tags.Reset()
	d.plans.Reset()
	calls = v.counted(func() { g.Expect(ensure("n")).To(BeTrue()) })
	g.Expect(calls["GetTag"]).To(Equal(29), "once read, they are read anew the next time")
	g.Expect(d.names.All()).To(BeEmpty())
}

// TestZonesByTag: the failure domains are the tags of the account's category on compute clusters of
// its datacenter. A machine goes to the cluster and datastore with the tag, whatever its own fields
// say.
func TestZonesByTag(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	v.account.Cloud.VSphere.FailureDomains, v.account.Cloud.VSphere.ZoneCategory = nil, "k8s-zone"
	ids := v.tags(t, "k8s-zone", "zone-a", "zone-b", "zone-c")
	d := v.driver(t)
	hosted := v.Context.Map.Any("ClusterComputeResource").(*simulator.ClusterComputeResource)
	store := v.Context.Map.Any("Datastore").Reference()
	empty, abroad := v.addClusters(t, d)
	m := tags.NewManager(v.automation(t))
	for id, refs := range map[string][]mo.Reference{ids[0]: {hosted, store}, ids[1]: {empty, store}, ids[2]: {abroad}} {
		g.Expect(m.AttachTagToMultipleObjects(t.Context(), id, refs)).To(Succeed())
	}

	var info cloud.Info
	var err error
	calls := v.counted(func() { info, err = d.Probe(t.Context()) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.FailureDomains).To(Equal([]string{"zone-a", "zone-b"}), "the third is in another datacenter")
	g.Expect(calls).To(Equal(map[string]int{"CurrentTime": 1, "CreateSession": 1, "ListTagCategories": 1, "GetTagCategory": 1, "ListTags": 1,
		"GetTag":            3,
		"ListTaggedObjects": 1, "RetrievePropertiesEx": 2}))
	calls = v.counted(func() { _, err = d.Probe(t.Context()) })
	g.Expect(calls).To(Equal(map[string]int{"CurrentTime": 1}), "asked for once")

	place := func(token, zone string) error {
		req := request(token, func(m *infrav1.VSphereMachine) {
			m.ResourcePool, m.Host, m.Datastore, m.DatastoreCluster = "DC0_C0/Resources/DC0_C0_RP1", "nowhere", "", "nothing"
		})
		req.FailureDomain = zone
		_, err := d.Ensure(t.Context(), req)
		return err
	}
	g.Expect(place("m", "zone-a")).To(Succeed())
	made := v.with(cloud.TagToken, "m")[0]
	g.Expect(*made.ResourcePool).To(Equal(*hosted.ResourcePool))
	g.Expect(made.Datastore).To(Equal([]types.ManagedObjectReference{store}))
	g.Expect(d.List(t.Context())).To(ConsistOf(HaveField("FailureDomain", "zone-a")))
	calls = v.counted(func() { g.Expect(place("n", "zone-a")).To(Succeed()) })
	g.Expect(calls).To(Equal(map[string]int{"FindAllByUuid": 2, "CloneVM_Task": 1}), "what a machine costs to make")

	g.Expect(d.vcenter.withSession(t.Context(), func(s *session) error {
		for zone, cluster := range map[string]*simulator.ClusterComputeResource{"zone-a": hosted,
			"zone-b": v.Context.Map.Get(empty).(*simulator.ClusterComputeResource)} {
			p, err := d.plan(t.Context(), s, machine(func(m *infrav1.VSphereMachine) { m.Datastore = "" }).Cloud.VSphere, zone)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.pool).To(Equal(*cluster.ResourcePool))
			g.Expect(*p.store).To(Equal(store), "where the machine names none")
		}
		return nil
	})).To(Succeed())

	err = place("o", "zone-c")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
	g.Expect(err).To(MatchError(ContainSubstring(
		`zoneCategory: no compute cluster of the datacenter has a tag "zone-c" of category "k8s-zone"`)))
	g.Expect(m.AttachTag(t.Context(), ids[0], empty)).To(Succeed())
	d = v.driver(t)
	err = place("o", "zone-a")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
	g.Expect(err).To(MatchError(ContainSubstring(`zoneCategory: 2 compute clusters have the tag "zone-a"`)))
	g.Expect(v.with(cloud.TagToken, "o")).To(BeEmpty())
}

// addClusters adds a compute cluster in a folder of the account's datacenter, and one in another
// datacenter.
func (v *vcsim) addClusters(t testing.TB, d *driver) (here, abroad types.ManagedObjectReference) {
	t.Helper()
	cluster := func(s *session, folder types.ManagedObjectReference, name string) (types.ManagedObjectReference, error) {
		made, err := methods.CreateClusterEx(t.Context(), s, &types.CreateClusterEx{This: folder, Name: name})
		if err != nil {
			return types.ManagedObjectReference{}, err
		}
		return made.Returnval, nil
	}
	err := d.vcenter.withSession(t.Context(), func(s *session) error {
		folder, err := methods.CreateFolder(t.Context(), s,
			&types.CreateFolder{This: v.Context.Map.Get(s.datacenter).(*simulator.Datacenter).HostFolder, Name: "racks"})
		if err != nil {
			return err
		}
		if here, err = cluster(s, folder.Returnval, "C1"); err != nil {
			return err
		}
		datacenter, err := methods.CreateDatacenter(t.Context(), s, &types.CreateDatacenter{This: v.model.ServiceContent.RootFolder, Name: "DC1"})
		if err != nil {
			return err
		}
		abroad, err = cluster(s, v.Context.Map.Get(datacenter.Returnval).(*simulator.Datacenter).HostFolder, "C2")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return here, abroad
}
