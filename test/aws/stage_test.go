// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/test/internal/rig"
)

var house = rig.House{Patience: 10 * time.Minute} // hundreds of machines take long on a busy computer

func TestMain(m *testing.M) { os.Exit(house.Main(m, rig.StartOnAWS)) }

// stage is a cluster whose machines come from the stand-in for the cloud.
type stage struct{ *rig.Stage }

// start starts a stage with this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	return &stage{house.Stage(t, name)}
}
