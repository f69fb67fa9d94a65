// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"net/http"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
	"github.com/drover-io/drover/cloud/simulated"
	"github.com/drover-io/drover/cloud/simulated/simulator"
)

func TestDamagedAnswers(t *testing.T) {
	admin := newCloud(t, simulator.Options{Settings: simulator.Settings{BootMin: ms(1), BootMax: ms(1), Stop: ms(1), PageSize: 2,
		Throttle: simulator.ThrottleNone}})
	target := damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return simulated.Cloud("").New(cloud.Config{
				Account: &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: admin.URL,
					Region: "sim-1"}}},
				Credentials: map[string][]byte{"token": []byte(secret)},
				Connect:     conformance.Through(transport),
			})
		},
		Machine: request("token-1"),
		Secrets: []string{secret},
		Drivers: 1000,
	}
	var tape damage.Tape
	tape.Record(t, target, http.DefaultTransport, "token-2", "token-3")
	damage.Run(t, &tape, target)
}
