// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"
)

// StartScheduler runs kube-scheduler, so that pods find nodes by themselves. Few tests need that.
// It returns as soon as the scheduler runs: that it works shows when a pod has a node.
func (c *ControlPlane) StartScheduler(ctx context.Context) error {
	if c.scheduler != nil {
		return nil
	}
	tools, err := c.opts.Tools.with(ctx, c.opts.Progress, "kube-scheduler")
	if err != nil {
		return err
	}
	c.scheduler, err = start(command{
		name: "kube-scheduler", path: tools["kube-scheduler"], dir: c.Dir,
		args: []string{"--kubeconfig=admin.kubeconfig", "--leader-elect=false", "--secure-port=0"},
	})
	if err != nil {
		return fmt.Errorf("start the scheduler of %s: %w", c.Name, err)
	}
	return nil
}
