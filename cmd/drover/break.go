// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/options"
)

// endpointVariable is the environment variable with the simulated cloud's address: the playground
// prints it.
const endpointVariable = "DROVER_SIMULATED_ENDPOINT"

// breaker reaches the admin API of a simulated cloud.
type breaker struct {
	management      management
	endpoint, token string
}

// breakCommands returns the commands that break a simulated cloud, and repair it.
func breakCommands() []*cobra.Command {
	var all []*cobra.Command
	for _, a := range []struct {
		name, short string
		action      simulator.InstanceAction
	}{
		{"kill", "Terminate a machine, as somebody at the cloud's console would", simulator.ActTerminate},
		{"vanish", "Remove a machine without a trace", simulator.ActVanish},
		{"stop", "Switch a machine off", simulator.ActStop},
		{"start", "Switch a machine on that was stopped, or start one again that hangs", simulator.ActStart},
		{"hang", "Stop what runs on a machine, while the cloud reports it as running", simulator.ActHang},
		{"reclaim", "Take a spot machine back", simulator.ActReclaim},
	} {
		all = append(all, breakCommand(&cobra.Command{
			Use: a.name + " MACHINE", Short: a.short,
			Long:    a.short + ". MACHINE is the name of a Machine or DroverMachine, or a VM's ID or provider ID.",
			Example: "  drover simulate " + a.name + " one-md-0-x2b4c-9wz7k",
			Args:    theName("a machine"),
		}, func(ctx context.Context, cloud simulator.Admin, args []string) (string, error) {
			id, err := instanceOf(ctx, cloud, args[0])
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s: %s", a.name, id), cloud.Act(ctx, id, a.action)
		}))
	}
	return append(all, breakQuota(), breakCapacity(), breakDown(), breakUp(), breakSlow())
}

// breakCommand adds to a command the flags by which it finds the cloud, and what it does there.
func breakCommand(cmd *cobra.Command, do func(context.Context, simulator.Admin, []string) (string, error)) *cobra.Command {
	b := &breaker{}
	b.management.addFlags(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "Namespace of the DroverAccounts. Default: that of the kubeconfig's context."
	cmd.Flags().StringVar(&b.endpoint, "endpoint", os.Getenv(endpointVariable),
		"Address of the simulated cloud. Default: $"+endpointVariable+", or that of the namespace's DroverAccounts.")
	cmd.Flags().StringVar(&b.token, "admin-token", "",
		"Token of the admin API. Default: none; the API accepts only callers on its own machine.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		endpoint, err := b.find(cmd.Context())
		if err != nil {
			return err
		}
		done, err := do(cmd.Context(), simulator.Admin{URL: endpoint, Token: b.token}, args)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), done)
		return err
	}
	return cmd
}

// find returns the address of the simulated cloud.
func (b *breaker) find(ctx context.Context) (string, error) {
	if b.endpoint != "" {
		return b.endpoint, nil
	}
	c, namespace, err := b.management.connect()
	if err != nil {
		return "", err
	}
	list := &infrav1.DroverAccountList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("listing the DroverAccounts: %w", err)
	}
	var found []string
	for i := range list.Items {
		account := list.Items[i].Spec.Cloud.Simulated
		if account == nil {
			continue
		}
		endpoint := account.Endpoint
		if endpoint == "" {
			endpoint = managersEndpoint(ctx, c)
		}
		if endpoint != "" && !slices.Contains(found, endpoint) {
			found = append(found, endpoint)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("the DroverAccounts in namespace %q name %d simulated clouds: set --endpoint", namespace, len(found))
	}
	return found[0], nil
}

// managersEndpoint returns the address that the manager has for accounts without one.
func managersEndpoint(ctx context.Context, c client.Reader) string {
	var clouds options.Clouds
	probe := &cobra.Command{}
	clouds.AddFlags(probe.Flags())
	if likeManager(ctx, c, probe) != nil {
		return ""
	}
	return clouds.SimulatedEndpoint
}

// instanceOf returns the ID of a machine's VM. A path is an object as kubectl prints it, or a
// provider ID: its last part tells.
func instanceOf(ctx context.Context, admin simulator.Admin, name string) (string, error) {
	snapshot, err := admin.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, r := range snapshot.Instances() {
		if last := path.Base(name); r.ID == last || path.Base(r.Tags[cloud.TagMachine]) == last {
			ids = append(ids, r.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("no machine %q has a VM in this cloud", name)
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("%d machines have the name %q: give the VM's ID, one of %s", len(ids), name, strings.Join(ids, ", "))
}

// unlimited is the word for no limit.
const unlimited = "unlimited"

// limit reads a number of machines, or gives none for the word.
func limit(text string, none int) (int, error) {
	if text == unlimited {
		return none, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q: must be a number of machines, or %s", text, unlimited)
	}
	return n, nil
}

func breakQuota() *cobra.Command {
	var account string
	cmd := breakCommand(&cobra.Command{
		Use: "quota MACHINES", Short: "Limit the machines of an account",
		Long: "Limit how many machines an account of the cloud may have in each region: a number greater than 0, or \"unlimited\".",
		Example: `  drover simulate quota 4
  drover simulate quota unlimited`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, cloud simulator.Admin, args []string) (string, error) {
		n, err := limit(args[0], 0)
		if err == nil && n == 0 && args[0] != unlimited {
			err = errors.New("a quota must be greater than 0")
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("quota of account %q: %s", account, args[0]), cloud.SetQuota(ctx, account, simulator.Quota{Instances: n})
	})
	cmd.Flags().StringVar(&account, "account", "default", "Name of the cloud's account.")
	return cmd
}

func breakCapacity() *cobra.Command {
	var change simulator.CapacityChange
	cmd := breakCommand(&cobra.Command{
		Use: "capacity ZONE MACHINES", Short: "Limit the machines in a zone",
		Long: "Limit how many machines a zone has room for: a number, or \"unlimited\". Machines that run stay.",
		Example: `  drover simulate capacity sim-1a 0
  drover simulate capacity sim-1a unlimited`,
		Args: cobra.ExactArgs(2),
	}, func(ctx context.Context, cloud simulator.Admin, args []string) (said string, err error) {
		change.Zone = args[0]
		if change.Instances, err = limit(args[1], -1); err != nil {
			return "", err
		}
		return fmt.Sprintf("capacity of zone %s: %s", args[0], args[1]), cloud.SetCapacity(ctx, change)
	})
	cmd.Flags().StringVar(&change.Region, "region", "sim-1", "Region of the zone.")
	cmd.Flags().StringVar(&change.InstanceType, "type", "*", "Instance type that is limited. \"*\" is all that have no limit of their own.")
	return cmd
}

func breakDown() *cobra.Command {
	var mode string
	modes := map[string]simulator.DownMode{"cut": simulator.DownCut, "unavailable": simulator.DownUnavailable, "hang": simulator.DownHang}
	cmd := breakCommand(&cobra.Command{
		Use: "down", Short: "Take the cloud's API down",
		Long:    "Take the cloud's API down. Machines keep running.",
		Example: "  drover simulate down\n  drover simulate down --mode hang",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, cloud simulator.Admin, _ []string) (string, error) {
		m, known := modes[mode]
		if !known {
			return "", fmt.Errorf("--mode %q: must be cut, unavailable or hang", mode)
		}
		return "the cloud is down", cloud.SetDown(ctx, m)
	})
	cmd.Flags().StringVar(&mode, "mode", "unavailable",
		"How it answers: unavailable, an error; cut, a closed connection; or hang, not at all.")
	return cmd
}

func breakUp() *cobra.Command {
	return breakCommand(&cobra.Command{
		Use: "up", Short: "Bring the cloud's API up again", Long: "Bring the cloud's API up again.",
		Example: "  drover simulate up",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, cloud simulator.Admin, _ []string) (string, error) {
		return "the cloud is up", cloud.SetDown(ctx, "")
	})
}

func breakSlow() *cobra.Command {
	return breakCommand(&cobra.Command{
		Use: "slow LATENCY", Short: "Make the cloud's API slow",
		Long: "Make each call to the cloud's API take this long on average, and at least half of it. 0s makes it fast again.",
		Example: `  drover simulate slow 3s
  drover simulate slow 0s`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, cloud simulator.Admin, args []string) (string, error) {
		mean, err := time.ParseDuration(args[0])
		if err != nil {
			return "", fmt.Errorf("%q: must be a duration, such as 3s", args[0])
		}
		settings, err := cloud.Settings(ctx)
		if err != nil {
			return "", err
		}
		settings.Latency = latencyOf(mean)
		return fmt.Sprintf("mean latency: %s", mean), cloud.SetSettings(ctx, settings)
	})
}

// latencyOf returns the distribution of a mean latency.
func latencyOf(mean time.Duration) simulator.Latency {
	return simulator.Latency{Min: simulator.Duration{Duration: mean / 2}, Mean: simulator.Duration{Duration: mean}}
}
