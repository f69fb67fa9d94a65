// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

// dying is a transport whose process dies at one of its calls: before the call has an effect, or
// after it.
type dying struct {
	wire  http.RoundTripper
	at    int
	after bool

	mu    sync.Mutex // guards the fields below, because deletions run side by side
	calls int
	dead  bool
}

// RoundTrip implements http.RoundTripper.
func (d *dying) RoundTrip(req *http.Request) (*http.Response, error) {
	d.mu.Lock()
	d.calls++
	wasDead := d.dead
	d.dead = d.dead || d.calls == d.at
	dies := d.dead && !wasDead
	d.mu.Unlock()
	if dies && d.after {
		if resp, err := d.wire.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	}
	if dies || wasDead {
		return nil, io.ErrUnexpectedEOF
	}
	return d.wire.RoundTrip(req)
}

// isDead reports whether the process has died.
func (d *dying) isDead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}

// life creates a machine, waits until it runs, and deletes it until a live read shows nothing. It
// returns false where the process died.
func life(t *testing.T, transport *dying, req cloud.Request, deleting *bool) bool {
	t.Helper()
	made, err := quick(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
	if err != nil {
		t.Fatal(err)
	}
	d := made.(*driver)
	d.poll, d.replay, d.looks.TTL = 0, 0, 0
	for range 1000 {
		if transport.isDead() {
			return false
		}
		if !*deleting {
			made, err := d.Ensure(t.Context(), req)
			*deleting = err == nil && made.State == cloud.StateRunning
			continue
		}
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID}})
		if err == nil && len(found) == 0 {
			return true
		}
		d.Delete(t.Context(), instancesFirst(found))
	}
	t.Error("it does not end")
	return true
}

// instancesFirst returns what the engine deletes now.
func instancesFirst(found []cloud.Resource) (now []cloud.Resource) {
	for _, r := range found {
		if r.Kind == cloud.KindInstance {
			now = append(now, r)
		}
	}
	if len(now) == 0 {
		return found
	}
	return now
}

// TestCrash makes the process die at each of the calls in a machine's life, before and after the
// call's effect. The next process makes no second machine, and leaves nothing behind.
func TestCrash(t *testing.T) {
	t.Parallel()
	req := testRequest("m-1", everything)
	died := 0
	for at := 1; ; at++ {
		survived := false
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after its effect: %t", at, after), func(t *testing.T) {
				g := NewWithT(t)
				stub := start(t, gcpstub.Options{Keep: true, Boot: 2 * time.Millisecond, Stop: time.Millisecond})
				deleting := false
				survived = life(t, &dying{wire: stub.Transport(), at: at, after: after}, req, &deleting)
				if !survived {
					died++
					next := req
					next.MaybeSent = true
					g.Expect(life(t, &dying{wire: stub.Transport()}, next, &deleting)).To(BeTrue())
				}
				g.Expect(stub.Made()).To(Equal(1))
				g.Expect(stub.Left(cloud.TagOwnership, req.OwnershipID)).To(BeEmpty())
			})
		}
		if survived {
			break
		}
	}
	NewWithT(t).Expect(died).To(BeNumerically(">=", 14), "each life has seven calls at least")
}
