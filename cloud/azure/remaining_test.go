// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

// buckets are an answer's headers.
func buckets(left string) http.Header {
	return http.Header{"X-Ms-Ratelimit-Remaining-Resource": {left}}
}

// sent begins a call, or returns how long it must wait.
func (r *remaining) sent(g Gomega, class cloud.Class) (end func(http.Header), wait time.Duration) {
	end, err := r.begin(class)
	if err == nil {
		return end, 0
	}
	var queued *cloud.Queued
	g.Expect(errors.As(err, &queued)).To(BeTrue(), "%v", err)
	return nil, queued.After
}

// TestRemaining: no more calls of a kind are under way than Azure said are left. When none is left,
// none is sent for a moment, and then one. Calls of other kinds go on.
func TestRemaining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := &remaining{}
		send := func() func(http.Header) {
			end, wait := r.sent(g, cloud.ClassCreate)
			g.Expect(wait).To(BeZero())
			return end
		}
		waits := func() time.Duration {
			_, wait := r.sent(g, cloud.ClassCreate)
			return wait
		}
		send()(buckets("Microsoft.Compute/PutVM;1,Microsoft.Compute/PutVMSubscription;0"))
		g.Expect(waits()).To(Equal(remainingHold))
		_, wait := r.sent(g, cloud.ClassRead)
		g.Expect(wait).To(BeZero())

		time.Sleep(remainingHold)
		asks := send()
		g.Expect(waits()).To(Equal(remainingHold), "one call asks how many are left")
		asks(buckets("Microsoft.Compute/PutVM;2"))
		first, second := send(), send()
		g.Expect(waits()).To(Equal(remainingHold))
		first(nil)
		send()(buckets("Microsoft.Compute/PutVM;1"))
		g.Expect(waits()).To(Equal(remainingHold), "the second is under way")
		second(nil)
		send()
	})
}

// TestRemainingOutOfOrder: an answer that Azure gave before others does not count when it comes
// after them: what is left then is what those others said.
func TestRemainingOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := &remaining{}
		var ends []func(http.Header)
		for range 8 {
			end, wait := r.sent(g, cloud.ClassDelete)
			g.Expect(wait).To(BeZero())
			ends = append(ends, end)
		}
		for i, left := range []int{9, 3, 10, 8} {
			ends[i](buckets(fmt.Sprintf("Microsoft.Compute/DeleteVM;%d", left)))
		}
		_, wait := r.sent(g, cloud.ClassDelete)
		g.Expect(wait).To(Equal(remainingHold), "3 are left, and 4 are under way")
		for _, end := range ends[4:] {
			end(nil)
		}
		newer, wait := r.sent(g, cloud.ClassDelete)
		g.Expect(wait).To(BeZero())
		newer(buckets("Microsoft.Compute/DeleteVM;8"))
		for range 8 {
			_, wait = r.sent(g, cloud.ClassDelete)
			g.Expect(wait).To(BeZero(), "the buckets have taken in more")
		}
		_, wait = r.sent(g, cloud.ClassDelete)
		g.Expect(wait).To(Equal(remainingHold))
	})
}

// TestRemainingIsRead: what a create's answer says of its buckets counts for the next create. While
// none is left, no create is sent, and a listing goes on.
func TestRemainingIsRead(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, armstub.Options{})
	var puts int
	made, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
		Connect: conformance.Through(roundTrip(func(req *http.Request) (*http.Response, error) {
			resp, err := stub.Transport().RoundTrip(req)
			if err == nil && req.Method == http.MethodPut {
				puts++
				resp.Header.Set("x-ms-ratelimit-remaining-resource", "Microsoft.Compute/PutVM;7")
			}
			return resp, err
		}))})
	g.Expect(err).NotTo(HaveOccurred())
	d := made.(*driver)
	_, err = d.Ensure(t.Context(), testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	create := d.remaining.classes[cloud.ClassCreate]
	g.Expect(*create).To(Equal(remainder{hasReport: true, left: 7, lowered: 1}))

	create.until = time.Now().Add(time.Hour)
	before := puts
	_, err = d.Ensure(t.Context(), testRequest("m-2", nil))
	var queued *cloud.Queued
	g.Expect(errors.As(err, &queued)).To(BeTrue(), "%v", err)
	g.Expect(puts).To(Equal(before))
	instances, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(instances).To(HaveLen(1))
}
