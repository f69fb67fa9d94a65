// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"
	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/tagging"
)

// oldTags are those that another system gives a machine and its parts.
func oldTags(name string) map[string]string {
	return map[string]string{"kubernetes.io-cluster-blue": "1", "kubernetes.io-role-node": "1", "Machine-UID": "uid-" + name}
}

// droverKeys are those that a rollback takes off.
var droverKeys = []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}

// imported returns the ID of a machine, and the tags that make it the driver's.
func imported(d *driver, name string) (id string, tags map[string]string) {
	return d.idOf(virtualMachines, name), map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: "1a2b3c4d-" + name,
		cloud.TagMachine: "team/" + name}
}

// tagsIn returns the tags of everything in the stub's books, by name.
func tagsIn(stub *armstub.Cloud) map[string]string {
	all := map[string]string{}
	for _, e := range stub.Books() {
		all[e.Name] = fmt.Sprint(e.State, e.Tags)
	}
	return all
}

// TestTagger tests that a machine that others made becomes the driver's, and theirs again, and that
// the driver deletes it with all that is its own. Azure deletes its parts with it, or keeps them.
// What a CSI driver has attached stays.
func TestTagger(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cascade bool
		tagged  int // resources that get tags
	}{"Azure deletes parts": {true, 1}, "others delete parts": {false, 5}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := start(t, armstub.Options{})
			d := connect(t, stub)
			stub.LaunchWith("old-1", oldTags("old-1"), c.cascade)
			stub.LaunchWith("old-2", map[string]string{"kubernetes.io-cluster-blue": "1"}, c.cascade)
			before := tagsIn(stub)
			find := func(keys ...string) []tagging.Instance {
				t.Helper()
				found, err := d.Tagged(ctx, keys)
				g.Expect(err).NotTo(HaveOccurred())
				return found
			}
			id, tags := imported(d, "old-1")
			g.Expect(find()).To(BeEmpty(), "never all that the group has")
			g.Expect(find("kubernetes.io-cluster-blue")).To(HaveLen(2))
			g.Expect(find("kubernetes.io-cluster-blue", "KUBERNETES.IO-role-node")).To(ConsistOf(And(
				HaveField("ID", id), HaveField("ProviderID", "azure://"+id), HaveField("Type", "Standard_D2s_v5"), HaveField("Token", ""),
				HaveField("State", cloud.StateRunning), HaveField("Tags",
					And(HaveKeyWithValue("Name", "old-1"), HaveKeyWithValue("KUBERNETES.IO-role-node", "1"))),
			)))
			g.Expect(d.List(ctx)).To(BeEmpty())

			patches := func() (n int) {
				for op, calls := range stub.Calls() {
					if strings.HasPrefix(op, http.MethodPatch) {
						n += calls
					}
				}
				return n
			}
			for range 2 {
				g.Expect(d.Tag(ctx, id, tags, nil)).To(Succeed())
			}
			g.Expect(stub.Left(cloud.TagToken, tags[cloud.TagToken])).To(HaveLen(c.tagged))
			ref := cloud.Reference{Token: tags[cloud.TagToken], OwnershipID: "blue", ProviderID: "azure://" + id}
			one := ConsistOf(And(HaveField("ID", id), HaveField("OwnershipID", "blue"), HaveField("Token", ref.Token),
				HaveField("State", cloud.StateRunning)))
			for name, d := range map[string]*driver{"the same process": d, "another": connect(t, stub)} {
				g.Expect(d.List(ctx)).To(one, name)
				g.Expect(d.Describe(ctx, []cloud.Reference{ref})).To(one, name)
				g.Expect(d.Tagged(ctx, droverKeys)).To(ConsistOf(And(HaveField("ID", id), HaveField("Partial", false))), name)
			}
			for range 2 {
				g.Expect(d.Untag(ctx, []string{id, d.idOf(virtualMachines, "gone")}, droverKeys)).To(Succeed())
			}
			g.Expect(tagsIn(stub)).To(Equal(before), "all is as it was")

			was := patches()
			g.Expect(connect(t, stub).Tag(ctx, id, tags, nil)).To(Succeed())
			g.Expect(patches()-was).To(Equal(c.tagged), "one write for each resource")
			g.Expect(d.Untag(ctx, []string{id}, []string{"kubernetes.io-role-node"})).To(Succeed())
			g.Expect(stub.Left("kubernetes.io-role-node", "1")).To(BeEmpty(), "of machine and parts")
			g.Expect(stub.Left("kubernetes.io-cluster-blue", "1")).NotTo(BeEmpty())

			g.Eventually(func() []cloud.Resource {
				found, err := d.Describe(ctx, []cloud.Reference{ref})
				g.Expect(err).NotTo(HaveOccurred())
				d.Delete(ctx, found)
				return found
			}).Should(BeEmpty())
			left := slices.DeleteFunc(slices.Sorted(maps.Keys(tagsIn(stub))), func(name string) bool { return strings.HasPrefix(name, "old-2") })
			g.Expect(left).To(Equal([]string{"old-1", "old-1-pvc"}), "the machine in the books, and the volume")
		})
	}
}

// TestTagsContract: Microsoft's client for Go understands the stub's tags.
func TestTagsContract(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	stub.LaunchWith("old-1", oldTags("old-1"), true)
	before := tagsIn(stub)
	d := connect(t, stub)
	credential, err := d.source.get()
	g.Expect(err).NotTo(HaveOccurred())
	client, err := armresources.NewTagsClient(armstub.Subscription, credential,
		&arm.ClientOptions{DisableRPRegistration: true, ClientOptions: azcore.ClientOptions{
			APIVersion: tagsVersion, Cloud: placeOf(d.account).config, Transport: d.api.Client, Retry: policy.RetryOptions{MaxRetries: -1},
		}})
	g.Expect(err).NotTo(HaveOccurred())
	scope := strings.TrimPrefix(d.idOf(virtualMachines, "old-1"), "/")
	for _, op := range []armresources.TagsPatchOperation{armresources.TagsPatchOperationMerge, armresources.TagsPatchOperationDelete} {
		poller, err := client.BeginUpdateAtScope(ctx, scope, armresources.TagsPatchResource{
			Operation: new(op), Properties: &armresources.Tags{Tags: map[string]*string{"one": new("1")}},
		}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		done, err := poller.PollUntilDone(ctx, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(done.Properties.Tags).To(HaveLen(map[bool]int{true: 4, false: 3}[op == armresources.TagsPatchOperationMerge]))
	}
	g.Expect(tagsIn(stub)).To(Equal(before))
}

// TestTagRole makes the driver call each operation of a takeover, and compares them with the role
// in the documentation.
func TestTagRole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	stub.LaunchWith("old-1", oldTags("old-1"), false)
	d := connect(t, stub)
	_, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	id, tags := imported(d, "old-1")
	g.Expect(d.Tag(ctx, id, tags, nil)).To(Succeed())
	_, err = d.Tagged(ctx, droverKeys)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Untag(ctx, []string{id}, droverKeys)).To(Succeed())
	conformance.Document(t, "../../docs/clouds/azure.md", "takeover", map[string]any{
		"Name": "Drover takeover", "IsCustom": true, "Description": "Tags virtual machines for drover import",
		"Actions": stub.Required(), "AssignableScopes": []string{"/subscriptions/" + armstub.Subscription},
	}, *update)
}

// TestTagInterrupted cuts the connection after each of the writes, and once the calls are repeated,
// all is tagged, or as it was. Meanwhile the machine counts as partial.
func TestTagInterrupted(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	stub.LaunchWith("old-1", oldTags("old-1"), false)
	before := tagsIn(stub)
	id, tags := imported(connect(t, stub), "old-1")
	for _, kind := range []string{"virtualMachines", "disks", "networkInterfaces", "publicIPAddresses"} {
		for step, do := range []func(*driver) error{
			func(d *driver) error { return d.Tag(ctx, id, tags, nil) },
			func(d *driver) error { return d.Untag(ctx, []string{id}, droverKeys) },
		} {
			stub.Inject(armstub.Fault{Operation: "PATCH " + kind + "/providers/tags", After: true, Status: http.StatusServiceUnavailable, Count: 1})
			g.Expect(do(connect(t, stub))).NotTo(Succeed(), "%s, %d", kind, step)
			g.Expect(do(connect(t, stub))).To(Succeed(), "%s, %d", kind, step)
		}
		g.Expect(tagsIn(stub)).To(Equal(before), kind)
	}

	stub.Inject(armstub.Fault{Operation: "PATCH disks/providers/tags", Status: http.StatusServiceUnavailable, Count: 1})
	d := connect(t, stub)
	g.Expect(d.Tag(ctx, id, tags, nil)).NotTo(Succeed())
	g.Expect(d.Tagged(ctx, droverKeys)).To(ConsistOf(HaveField("Partial", true)))
	g.Expect(d.Tag(ctx, id, tags, nil)).To(Succeed())
	g.Expect(d.Tagged(ctx, droverKeys)).To(ConsistOf(HaveField("Partial", false)))
}

// TestTagRefused tests that a machine that does not exist, or has too many tags, is not tagged.
func TestTagRefused(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	many := map[string]string{}
	for i := range 48 {
		many[fmt.Sprintf("tag-%d", i)] = "1"
	}
	stub.LaunchWith("full", many, true)
	before := tagsIn(stub)
	id, tags := imported(d, "full")
	err := d.Tag(ctx, id, tags, nil)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
	g.Expect(err).To(MatchError(ContainSubstring("has 48 tags")))
	g.Expect(tagsIn(stub)).To(Equal(before))
	id, tags = imported(d, "none")
	g.Expect(cloud.CodeOf(d.Tag(ctx, id, tags, nil))).To(Equal(cloud.NotFound))
}
