// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/tagging"
)

// TestTagger: an instance that others have made is found by their tags, and is the driver's as long
// as it has Drover's tags.
func TestTagger(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	made, err := newDriver(cloud.Config{Account: testAccount(stub.URL), Credentials: testCredentials(),
		Connect: conformance.Through(http.DefaultTransport)})
	g.Expect(err).NotTo(HaveOccurred())
	d := made.(tagging.Tagger)
	id, _ := stub.Launch(map[string]string{"Name": "one", "cluster": "1", "role": "1"})
	stub.Launch(map[string]string{"Name": "two", "cluster": "1"})
	ended, _ := stub.Launch(map[string]string{"Name": "three", "cluster": "1", "role": "1"})
	stub.Interrupt(ended)
	names := func(keys ...string) (names []string) {
		found, err := d.Tagged(ctx, keys)
		g.Expect(err).NotTo(HaveOccurred())
		for _, f := range found {
			g.Expect(f.Type).To(Equal("t3.small"))
			names = append(names, f.Tags["Name"])
		}
		return names
	}
	g.Expect(names()).To(BeEmpty(), "never all that the account has")
	g.Expect(names("cluster")).To(ConsistOf("one", "two"))
	g.Expect(names("cluster", "role")).To(ConsistOf("one"))
	g.Expect(names("cluster", "rol*")).To(BeEmpty())

	ours := func() int {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		return len(all)
	}
	g.Expect(ours()).To(Equal(0))
	for range 2 {
		g.Expect(d.Tag(ctx, id, map[string]string{cloud.TagOwnership: "owner", cloud.TagToken: "token"}, nil)).To(Succeed())
	}
	found, err := d.Describe(ctx, []cloud.Reference{{Token: "token"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(And(HaveField("ID", id), HaveField("OwnershipID", "owner"), HaveField("State", cloud.StateRunning))))
	g.Expect(ours()).To(Equal(1))
	for range 2 {
		g.Expect(d.Untag(ctx, []string{id}, []string{cloud.TagOwnership, cloud.TagToken, "role"})).To(Succeed())
	}
	g.Expect(ours()).To(Equal(0))
	g.Expect(names("cluster", "role")).To(BeEmpty())
	g.Expect(names("cluster")).To(ConsistOf("one", "two"))
	g.Expect(cloud.CodeOf(d.Tag(ctx, "i-0dead00000000dead", map[string]string{"a": "1"}, nil))).To(Equal(cloud.NotFound))
}
