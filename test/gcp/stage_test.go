// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/test/rig"
)

var house = rig.House{Patience: 10 * time.Minute} // a busy computer is slow

func TestMain(m *testing.M) { os.Exit(house.Main(m, rig.StartOnGCP)) }
