// SPDX-License-Identifier: Apache-2.0

package toycloud

import (
	"net/http"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
)

// TestDamagedAnswers replays to the driver what the cloud answers, with damage.
func TestDamagedAnswers(t *testing.T) {
	_, endpoint := startToy(t)
	target := damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return Cloud().New(cloud.Config{
				Account:     &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: endpoint}}},
				Credentials: map[string][]byte{"token": []byte(toyKey)},
				Connect:     conformance.Through(transport),
			})
		},
		Machine: cloud.Request{Token: "token-1", OwnershipID: "owner-1", Namespace: "default", Name: "m-1",
			Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{InstanceType: "small",
				Image: "node-image", DiskGiB: 20}}}},
		Secrets: []string{toyKey},
		Drivers: 500,
	}
	var tape damage.Tape
	tape.Record(t, target, http.DefaultTransport, "token-2", "token-3")
	damage.Run(t, &tape, target)
}
