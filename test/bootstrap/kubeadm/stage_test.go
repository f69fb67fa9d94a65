// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/internal/rig"
)

// tokenTTL is the lifetime of the provider's tokens. It is short so that a test sees them expire.
const tokenTTL = 2 * time.Minute

var house = rig.House{Patience: 5 * time.Minute}

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts a rig whose workload cluster is set up like one of kubeadm, and whose management
// cluster has both kubeadm providers.
func begin(ctx context.Context, _ ...string) (*rig.Rig, error) {
	// This controller is added to the others. Otherwise Drover approves, except for kubeadm's
	// tokens.
	r, err := rig.Start(ctx, "--controllers=certificatesigningrequest-approving-controller")
	if err != nil {
		return nil, err
	}
	if _, err = r.Management.StartKubeadmBootstrap(ctx, "--bootstrap-token-ttl="+tokenTTL.String()); err == nil {
		_, err = r.Management.StartKubeadmControlPlane(ctx)
	}
	if err == nil {
		err = r.Workload.InitKubeadm(ctx, body.DefaultKubeletVersion)
	}
	if err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}
