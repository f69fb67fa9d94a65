// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// clusterConfig configures a kubeadm cluster, as far as its phases need it. Its kubelets request
// serving certificates.
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

// InitKubeadm runs those phases of "kubeadm init" that write what a join of this version reads into
// the cluster.
func (c *ControlPlane) InitKubeadm(ctx context.Context, version string) error {
	tools, err := FindTools(ctx, os.Stderr, "kubeadm")
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "kubeadm.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, clusterConfig, version), 0o600); err != nil {
		return fmt.Errorf("write kubeadm's configuration: %w", err)
	}
	for _, phase := range [][]string{{"upload-config", "kubeadm"}, {"upload-config", "kubelet"}, {"bootstrap-token", "--skip-token-print"}} {
		args := append([]string{"init", "phase"}, phase...)
		cmd := exec.CommandContext(ctx, tools["kubeadm"], append(args, "--config="+config, "--kubeconfig="+c.AdminKubeconfig())...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubeadm %v: %w\n%s", args, err, out)
		}
	}
	return nil
}
