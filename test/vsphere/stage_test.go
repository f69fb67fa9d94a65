// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

var house = rig.House{Patience: 5 * time.Minute}

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts the rig with the kinds of the systems whose machines Drover takes over.
func begin(ctx context.Context, args ...string) (*rig.Rig, error) {
	r, err := rig.StartOnVSphere(ctx, append(args, takeover.PatientWithNodes)...)
	if err == nil {
		err = takeover.InstallKinds(ctx, r.Client)
	}
	return r, err
}

// stage is a cluster whose machines come from the stand-in for the cloud.
type stage struct{ *rig.Stage }

// start starts a stage with this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	return &stage{house.Stage(t, name)}
}
