// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/tagging"
)

// droverKeys are those that a rollback takes off.
var droverKeys = []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}

// eventually repeats a call of a Tagger until it is done.
func eventually(do func() error) error {
	for {
		err := do()
		if _, queued := errors.AsType[*cloud.Queued](err); !queued {
			return err
		}
	}
}

// everythingIn returns labels and network tags of all instances.
func everythingIn(t *testing.T, d *driver) string {
	t.Helper()
	all, err := d.Tagged(t.Context(), []string{"Name"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	text := ""
	for _, one := range all {
		text += fmt.Sprintln(one.ID, one.Tags)
	}
	return text
}

// TestTagger tests that an instance that others made becomes the driver's, and theirs again, and is
// deleted with its disk. They recognize it by network tags or by a label.
func TestTagger(t *testing.T) {
	t.Parallel()
	const role, uid = "kubernetes-io-role-node", "machine_uid"
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d, zone := connect(t, stub), gcpstub.Zones()[1]
	stub.LaunchWith(zone, "old-1", map[string]string{uid: "uid-1"}, "nodes", "kubernetes-io-cluster-blue", role)
	stub.LaunchWith(zone, "old-2", nil, "kubernetes-io-cluster-blue")
	before := everythingIn(t, d)
	find := func(keys ...string) []tagging.Instance {
		t.Helper()
		found, err := d.Tagged(ctx, keys)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	id := zone + "/old-1"
	tags := map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: "1a2b3c4d-old-1", cloud.TagMachine: "team/old-1"}
	g.Expect(find()).To(BeEmpty(), "never all that the project has")
	g.Expect(find("kubernetes-io-cluster-blue")).To(HaveLen(2))
	g.Expect(find("kubernetes-io-cluster-blue", role)).To(ConsistOf(And(
		HaveField("ID", id), HaveField("ProviderID", "gce://"+gcpstub.Project+"/"+zone+"/old-1"), HaveField("Type", "e2-standard-2"),
		HaveField("Token", ""),
		HaveField("State", cloud.StateRunning), HaveField("Tags", And(HaveKeyWithValue("Name", "old-1"), HaveKeyWithValue(uid, "uid-1"))),
	)))
	g.Expect(find(uid)).To(HaveLen(1))
	g.Expect(d.List(ctx)).To(BeEmpty())

	tag := func() { g.Expect(eventually(func() error { return d.Tag(ctx, id, tags, nil) })).To(Succeed()) }
	tag()
	tag()
	g.Expect(stub.Calls()["POST instances/setLabels"]).To(Equal(1), "one write, once")
	ref := cloud.Reference{Token: tags[cloud.TagToken], OwnershipID: "blue", ProviderID: "gce://" + gcpstub.Project + "/" + zone + "/old-1"}
	one := ConsistOf(And(HaveField("ProviderID", ref.ProviderID), HaveField("OwnershipID", "blue"), HaveField("Token", ref.Token),
		HaveField("State", cloud.StateRunning)))
	for name, d := range map[string]*driver{"the same process": d, "another": connect(t, stub)} {
		g.Expect(d.List(ctx)).To(one, name)
		g.Expect(d.Describe(ctx, []cloud.Reference{ref})).To(one, name)
		g.Expect(d.Tagged(ctx, []string{cloud.TagOwnership, cloud.TagToken})).To(ConsistOf(HaveField("ID", id)), name)
	}
	untag := func(keys ...string) {
		g.Expect(eventually(func() error { return d.Untag(ctx, []string{id, zone + "/gone"}, keys) })).To(Succeed())
	}
	untag(droverKeys...)
	untag(droverKeys...)
	g.Expect(everythingIn(t, d)).To(Equal(before), "all is as it was")
	g.Expect(stub.Calls()["POST instances/setLabels"]).To(Equal(2))

	tag()
	untag(role)
	g.Expect(find(role)).To(BeEmpty())
	g.Expect(find("nodes", "kubernetes-io-cluster-blue")).To(HaveLen(1), "firewall rules may go by them")
	untag(uid)
	g.Expect(find(uid)).To(BeEmpty())
	g.Eventually(func() []cloud.Resource {
		found, err := d.Describe(ctx, []cloud.Reference{ref})
		g.Expect(err).NotTo(HaveOccurred())
		d.Delete(ctx, found)
		return found
	}).Should(BeEmpty())
	left := []string{}
	for _, e := range stub.Books() {
		if e.State != "Gone" {
			left = append(left, e.Name)
		}
	}
	g.Expect(left).To(ConsistOf("old-2", "old-2"), "of the other one, the instance and its disk")
}

// TestTagRole makes the driver call each operation of a takeover, and compares the permissions with
// the role in the documentation.
func TestTagRole(t *testing.T) {
	t.Parallel()
	const role = "kubernetes-io-role-node"
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	id := gcpstub.Zones()[0] + "/old-1"
	stub.LaunchWith(gcpstub.Zones()[0], "old-1", nil, role)
	d, seen := watched(t, stub)
	_, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Tagged(ctx, []string{role})
	g.Expect(err).NotTo(HaveOccurred())
	tags := map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: "1a2b3c4d-old-1"}
	g.Expect(eventually(func() error { return d.Tag(ctx, id, tags, nil) })).To(Succeed())
	g.Expect(eventually(func() error { return d.Untag(ctx, []string{id}, append(droverKeys, role)) })).To(Succeed())
	conformance.Document(t, "../../docs/clouds/gcp.md", "takeover", map[string]any{
		"title": "Drover takeover", "description": "Labels instances for drover import", "stage": "GA",
		"includedPermissions": slices.Sorted(maps.Keys(seen)),
	}, *update)
}

// TestTagRaced tests that a label that another writes between the read and the write is kept, and
// that the connection may be cut after the write.
func TestTagRaced(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d, zone := connect(t, stub), gcpstub.Zones()[0]
	stub.LaunchWith(zone, "old-1", map[string]string{"team": "blue"})
	tags := map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: "1a2b3c4d-old-1"}
	found, err := d.get(ctx, zone, "old-1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(eventually(func() error {
		return d.Tag(ctx, zone+"/old-1", map[string]string{cloud.TagOwnership: "x", cloud.TagToken: "y"}, nil)
	})).To(Succeed())
	err = d.setLabels(ctx, zone, found, func(labels map[string]string) { labels["late"] = "1" })
	g.Expect(err).To(BeAssignableToTypeOf(&cloud.Queued{}), "read again")
	g.Expect(everythingIn(t, d)).NotTo(ContainSubstring("late"))

	stub.Inject(gcpstub.Fault{Operation: "POST instances/setLabels", After: true, Status: http.StatusServiceUnavailable, Count: 1})
	g.Expect(d.Tag(ctx, zone+"/old-1", tags, nil)).NotTo(Succeed())
	g.Expect(connect(t, stub).Tag(ctx, zone+"/old-1", tags, nil)).To(Succeed(), "it was made")
	g.Expect(everythingIn(t, d)).To(And(ContainSubstring("team:blue"), ContainSubstring("1a2b3c4d-old-1")))
	g.Expect(cloud.CodeOf(d.Tag(ctx, zone+"/none", tags, nil))).To(Equal(cloud.NotFound))
}
