// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"net/http"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

// TestCrash: whichever call the process dies at, there is no second machine, and nothing is left.
func TestCrash(t *testing.T) {
	t.Parallel()
	conformance.Crash(t, conformance.Crashing{
		Start: func(t testing.TB) conformance.Standin {
			return start(t, armstub.Options{Keep: true, Boot: time.Millisecond, Stop: time.Millisecond})
		},
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(transport)})
		},
		Request: testRequest("m-1", func(m *infrav1.AzureMachine) { m.NetworkInterfaces[0].PublicIP = &infrav1.AzurePublicIP{} }),
		Calls:   10,
	})
}
