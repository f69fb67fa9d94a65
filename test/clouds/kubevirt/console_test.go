// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// TestConsole tests that the guest's console output is read from the pod's log, with the
// permissions from the book. There is no kubelet here, so a stand-in answers the API server's
// requests to it.
func TestConsole(t *testing.T) {
	g := NewWithT(t)
	d, calls := connect(t, account())
	owner := newOwner(t)
	req := request(owner, machine(nil))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.(cloud.Console).Console(t.Context(), cloud.Resource{Token: "no-such-vm", OwnershipID: owner})).To(BeEmpty())
	g.Expect(calls.count("GetPodLog")).To(BeZero())

	var asked atomic.Pointer[url.URL]
	infra.kubelet(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL)
		_, _ = io.WriteString(w, "drover: Fetching\n")
	})
	until(t, "its console is read", func() bool {
		text, err := d.(cloud.Console).Console(t.Context(), made)
		return err == nil && string(text) == "drover: Fetching\n"
	})
	g.Expect(asked.Load().Path).To(MatchRegexp("^/containerLogs/" + namespace + "/virt-launcher-" + req.Token + "[^/]*/guest-console-log$"))
	g.Expect(asked.Load().Query().Get("tailLines")).To(Equal("400"))
}
