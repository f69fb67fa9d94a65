// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
)

// TestDamagedAnswers: govmomi's decoder panics on a fault of a type that is none. The session
// recovers this, and nothing else may panic.
func TestDamagedAnswers(t *testing.T) {
	v := start(t, 4)
	target := damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return newDriver(cloud.Config{Account: v.account, Credentials: credentials(), Connect: conformance.Through(transport)})
		},
		Machine:  request("token-1"),
		Secrets:  []string{username, password},
		Recovers: func(p *cloud.PanicError) bool { return bytes.Contains(p.Stack, []byte("govmomi/vim25/xml.(*Decoder)")) },
		Drivers:  300,
		Failed:   []uint64{27, 161, 163}, // the decoder panics
	}
	var tape damage.Tape
	tape.Record(t, target, v, "token-2", "token-3")
	damage.Run(t, &tape, target)
}
