// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/rig"
)

// tokenTTL is for how long the provider's tokens are good, so that a test sees them go.
const tokenTTL = 2 * time.Minute

var house = rig.House{Patience: 5 * time.Minute}

func TestMain(m *testing.M) { os.Exit(house.Main(m, begin)) }

// begin starts a rig whose workload cluster is as kubeadm leaves one, and whose management cluster has the kubeadm bootstrap provider.
func begin(ctx context.Context, _ ...string) (*rig.Rig, error) {
	// It comes on top of the others: approving is Drover's work but for kubeadm's tokens.
	r, err := rig.Start(ctx, "--controllers=certificatesigningrequest-approving-controller")
	if err != nil {
		return nil, err
	}
	if _, err = r.Management.StartKubeadmBootstrap(ctx, "--bootstrap-token-ttl="+tokenTTL.String()); err == nil {
		err = prepare(ctx, r.Workload)
	}
	if err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// clusterConfig is a cluster of kubeadm's, as far as its phases want to know, whose kubelets ask for serving certificates.
const clusterConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
  name: control-plane
  criSocket: unix:///run/containerd/containerd.sock
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %s
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
serverTLSBootstrap: true
`

// prepare runs the phases of "kubeadm init" that write into the cluster what a join reads.
func prepare(ctx context.Context, workload *playground.ControlPlane) error {
	tools, err := playground.FindTools(ctx, os.Stderr, "kubeadm")
	if err != nil {
		return err
	}
	config := filepath.Join(workload.Dir, "kubeadm.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, clusterConfig, body.DefaultKubeletVersion), 0o600); err != nil {
		return fmt.Errorf("write kubeadm's configuration: %w", err)
	}
	for _, phase := range [][]string{{"upload-config", "kubeadm"}, {"upload-config", "kubelet"}, {"bootstrap-token", "--skip-token-print"}} {
		args := append([]string{"init", "phase"}, phase...)
		cmd := exec.CommandContext(ctx, tools["kubeadm"], append(args, "--config="+config, "--kubeconfig="+workload.AdminKubeconfig())...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubeadm %v: %w\n%s", args, err, out)
		}
	}
	return nil
}
