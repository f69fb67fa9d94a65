// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/test/rig"
)

var house = rig.House{Patience: 10 * time.Minute} // hundreds of machines on a busy computer take their time

func TestMain(m *testing.M) { os.Exit(house.Main(m, rig.StartOnAWS)) }

// stage is a cluster whose machines are made by the stand-in for the cloud.
type stage struct{ *rig.Stage }

// start sets a stage of this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	return &stage{house.Stage(t, name)}
}
