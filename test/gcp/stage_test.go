// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

var house = rig.House{Patience: 10 * time.Minute} // a busy computer is slow

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts the rig with the kinds of the systems whose machines Drover takes over.
func begin(ctx context.Context, args ...string) (*rig.Rig, error) {
	r, err := rig.StartOnGCP(ctx, append(args, takeover.PatientWithNodes)...)
	if err == nil {
		err = takeover.InstallKinds(ctx, r.Client)
	}
	return r, err
}
