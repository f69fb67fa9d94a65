// SPDX-License-Identifier: Apache-2.0

package whole

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/drover-io/drover/internal/test/playground"
)

// Address is an address of this computer's that machines reach. It is one of the simulated cloud's
// network of load balancers, which takes them from the beginning.
const Address = "100.127.255.254"

// MoveIn makes the first cluster its own management cluster, as "clusterctl move" does. From then
// on Client is the cluster's. The managers are processes of this computer.
func (s *Stage) MoveIn(ctx context.Context) error {
	config, err := s.Config(ctx)
	if err != nil {
		return err
	}
	s.inside, err = playground.HostManagement(ctx, config, Address, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: Name, Dir: filepath.Join(s.options.Dir, Name)},
		CoreArgs:            s.options.coreArgs(),
	})
	if err != nil {
		return err
	}
	c, err := s.prepare(ctx, s.inside)
	if err != nil {
		return err
	}
	if err := s.move(ctx, s.Management, s.inside); err != nil {
		return err
	}
	s.outside, s.Client = s.Client, c
	return nil
}

// MoveOut moves the cluster back: a cluster can't delete itself.
func (s *Stage) MoveOut(ctx context.Context) error {
	if err := s.move(ctx, s.inside, s.Management); err != nil {
		return err
	}
	s.Client = s.outside
	return nil
}

func (s *Stage) move(ctx context.Context, from, to *playground.Management) error {
	cmd := exec.CommandContext(ctx, s.clusterctl, "move", "--namespace", Namespace, "--kubeconfig", from.AdminKubeconfig(), "--to-kubeconfig",
		to.AdminKubeconfig())
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.options.Dir) // not the user's configuration
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("clusterctl move from %s to %s: %w: %s", from.Name, to.Name, err, said)
	}
	return nil
}
