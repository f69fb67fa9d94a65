// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"
)

// StartScheduler runs kube-scheduler, so that pods are scheduled. Few tests need that. It returns
// as soon as the process runs, and does not wait until the scheduler works.
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
