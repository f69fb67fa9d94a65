// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// Crashing is a driver whose process dies.
type Crashing struct {
	// Start starts a stand-in for the cloud, for each life another one.
	Start func(testing.TB) Standin
	// Connect returns a process's driver. It does not wait between its calls.
	Connect func(http.RoundTripper) (cloud.Driver, error)
	// Request is a machine with dependants.
	Request cloud.Request
	// Calls is how many calls a life has at least.
	Calls int
}

// Standin is what stands in for a cloud.
type Standin interface {
	Transport() *http.Transport
	// Made returns how many instances were ever made, and Left what still has the tag.
	Made() int
	Left(key, value string) []string
}

// Crash makes the process die at each of the calls in a machine's life, before and after the call's
// effect. The next process makes no second machine, and leaves nothing behind.
func Crash(t *testing.T, c Crashing) {
	died := 0
	for at, survived := 1, false; !survived; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after its effect: %t", at, after), func(t *testing.T) {
				stub := c.Start(t)
				deleting := false
				survived = c.life(t, &dying{wire: stub.Transport(), at: at, after: after}, &deleting)
				if !survived {
					died++
					next := c
					next.Request.MaybeSent = true
					next.life(t, &dying{wire: stub.Transport()}, &deleting)
				}
				if n := stub.Made(); n != 1 {
					t.Errorf("%d instances were made", n)
				}
				if left := stub.Left(cloud.TagOwnership, c.Request.OwnershipID); len(left) > 0 {
					t.Errorf("%v are left", left)
				}
			})
		}
	}
	if died < 2*c.Calls {
		t.Errorf("the process died at %d points, want %d", died, 2*c.Calls)
	}
}

// life creates a machine, asks until it runs, and deletes it until a live read shows nothing. It
// returns false where the process died.
func (c Crashing) life(t *testing.T, transport *dying, deleting *bool) (done bool) {
	t.Helper()
	d, err := c.Connect(transport)
	if err != nil {
		t.Fatal(err)
	}
	ref := cloud.Reference{Token: c.Request.Token, OwnershipID: c.Request.OwnershipID}
	for began := time.Now(); time.Since(began) < time.Minute; {
		if transport.isDead() {
			return false
		}
		if !*deleting {
			made, err := d.Ensure(t.Context(), c.Request)
			*deleting = err == nil && made.State == cloud.StateRunning
			continue
		}
		found, err := d.Describe(t.Context(), []cloud.Reference{ref})
		if err == nil && len(found) == 0 {
			return true
		}
		d.Delete(t.Context(), instancesFirst(found))
	}
	t.Error("it does not end")
	return true
}

// instancesFirst returns what the engine deletes now: dependants only once no instance is left.
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
	switch {
	case dies && d.after:
		if resp, err := d.wire.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
		return nil, io.ErrUnexpectedEOF
	case dies || wasDead:
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
