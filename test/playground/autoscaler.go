// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
)

// AutoscalerOptions say as whom the cluster-autoscaler runs, and how.
type AutoscalerOptions struct {
	// Management and Workload are kubeconfigs: where it finds MachineDeployments, and where pods and Nodes.
	Management, Workload []byte
	// Args come last on the command line, Env adds to the environment.
	Args, Env []string
}

// StartAutoscaler runs the real cluster-autoscaler for this cluster and returns once it has made a first round. It ends with
// the control plane.
func (c *ControlPlane) StartAutoscaler(ctx context.Context, opts AutoscalerOptions) (*Process, error) {
	if c.autoscaler != nil {
		return nil, errors.New("start the cluster-autoscaler: it was started before")
	}
	tools, err := c.opts.Tools.with(ctx, c.opts.Progress, "cluster-autoscaler")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir, "cluster-autoscaler")
	if err := writeFiles(dir, map[string][]byte{"management.kubeconfig": opts.Management, "workload.kubeconfig": opts.Workload}); err != nil {
		return nil, err
	}
	c.autoscaler, err = onFreePorts(1, func(ports []int) (*Process, error) {
		address := local(ports[0])
		p, err := start(command{
			name: "cluster-autoscaler", path: tools["cluster-autoscaler"], dir: c.Dir, env: opts.Env,
			args: append([]string{
				"--address=" + address, "--kubeconfig=" + filepath.Join(dir, "workload.kubeconfig"),
				"--cloud-config=" + filepath.Join(dir, "management.kubeconfig"),
			}, opts.Args...),
		})
		if err != nil {
			return nil, err
		}
		p.Metrics = "http://" + address + "/metrics"
		return p, p.waitFor(ctx, "the cluster-autoscaler works", startDeadline, probe(http.DefaultClient, "http://"+address+"/health-check"))
	})
	if err != nil {
		return nil, fmt.Errorf("start the cluster-autoscaler of %s: %w", c.Name, err)
	}
	return c.autoscaler, nil
}
