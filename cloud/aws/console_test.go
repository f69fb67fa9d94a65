// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
)

// TestConsole: Console reads the latest output, or where that is not supported, the output that EC2
// kept from the start.
func TestConsole(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		nitro bool
		calls int
	}{"Nitro": {true, 1}, "Xen": {false, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d, err := newDriver(cloud.Config{Account: testAccount(stub.URL), Credentials: testCredentials(),
				Connect: conformance.Through(http.DefaultTransport)})
			g.Expect(err).NotTo(HaveOccurred())
			id, _ := stub.Launch(nil)
			stub.Print(id, test.nitro, "drover: \x1b[1mFetching\xff\n")
			text, err := d.(cloud.Console).Console(ctx, cloud.Resource{ID: id})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(text)).To(Equal("drover: \x1b[1mFetching\xff\n"))
			g.Expect(stub.Calls()["GetConsoleOutput"]).To(Equal(test.calls))

			_, err = d.(cloud.Console).Console(ctx, cloud.Resource{ID: "i-0"})
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound))
		})
	}
}
