// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/test/internal/rig"
)

var house = rig.House{Patience: 8 * time.Minute} // 300 machines take long on a busy computer

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts the rig with the kinds of the old systems: those of Cluster API's providers as they
// have them.
func begin(ctx context.Context, args ...string) (*rig.Rig, error) {
	r, err := rig.StartOnAWS(ctx, append(args, PatientWithNodes)...)
	if err == nil {
		err = InstallKinds(ctx, r.Client)
	}
	if err == nil {
		err = errors.Join(InstallKubeadm(ctx, r.Client), installAWS(ctx, r.Client))
	}
	return r, err
}
