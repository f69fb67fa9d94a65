// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/takeover"
)

// planTimeout limits all reads of one plan.
const planTimeout = 10 * time.Minute

// importOptions say which machines to take over, and into which Cluster.
type importOptions struct {
	management managementOptions
	clouds     cloudOptions
	// from and nodes are kubeconfigs: of the old objects, and of the Nodes.
	from, fromNamespace, nodes  string
	cluster, account, bootstrap string
	drop                        []string
	output                      string
}

// importing returns the command "drover import".
func importing(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Plan the takeover of running machines of another system",
		Long:  "Plan how running machines of another system become Drover's. Each subcommand is one system.",
	}
	cmd.AddCommand(importMCM(version))
	return cmd
}

// importMCM returns the command "drover import machine-controller-manager".
func importMCM(version string) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "machine-controller-manager [plan]",
		Short: "Plan the takeover of machine-controller-manager's machines",
		Long: `Read the objects of machine-controller-manager, its Nodes and its VMs, and print which objects would stand for them in a
Cluster of Drover, which tags the VMs would get, and what can't be carried over, field by field. Only AWS is supported.

The command writes nothing. It ends with code 0 if nothing stops the takeover, and 1 otherwise.`,
		Args:         cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs:    []string{"plan"},
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.output != "text" && o.output != "yaml" {
				return fmt.Errorf("--output %q: must be text or yaml", o.output)
			}
			if o.management.namespace == "" {
				o.management.namespace = "default"
			}
			ctx, stop := context.WithTimeout(cmd.Context(), planTimeout)
			defer stop()
			return planMCM(ctx, cmd.OutOrStdout(), o, version)
		},
	}
	f := cmd.Flags()
	o.management.flags(f)
	f.Lookup("namespace").Usage = "Namespace of the Cluster that the machines get into. Default: default."
	o.clouds.flags(f)
	f.StringVar(&o.from, "from", "", "Path to the kubeconfig of the cluster that has machine-controller-manager's objects. Default: the management cluster.")
	f.StringVar(&o.fromNamespace, "from-namespace", "", "Namespace of machine-controller-manager's objects. Required.")
	f.StringVar(&o.nodes, "nodes", "", "Path to the kubeconfig of the cluster that has the Nodes. Default: the cluster of --from.")
	f.StringVar(&o.cluster, "cluster", "", "Name of the adopted Cluster that the machines get into. Required.")
	f.StringVar(&o.account, "account", "", "Name of the CloudAccount that the machines get. Default: that of the Cluster's CloudCluster, if it has only one.")
	f.StringVar(&o.bootstrap, "bootstrap", "", "Name of the CloudInitConfigTemplate that new machines are set up with. Each pool gets a copy, with its labels and taints. Required.")
	f.StringSliceVar(&o.drop, "drop", nil, "Fields that new machines may lack, as the plan names them. Default: none.")
	f.StringVarP(&o.output, "output", "o", "text", "How to print the plan: text, or yaml with all objects, for review.")
	for _, name := range []string{"from-namespace", "cluster", "bootstrap"} {
		_ = cmd.MarkFlagRequired(name) // fails for names that are no flag
	}
	return cmd
}

// planMCM prints the plan, and returns an error if something stops the takeover.
func planMCM(ctx context.Context, out io.Writer, o importOptions, version string) error {
	config, err := managementConfig(o.management, version)
	if err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	management, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making a client of the management cluster: %w", err)
	}
	old, err := clientOf(o.from, management, version)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	nodes, err := clientOf(o.nodes, old, version)
	if err != nil {
		return fmt.Errorf("--nodes: %w", err)
	}
	target, err := targetOf(ctx, management, o)
	if err != nil {
		return err
	}
	read, err := takeover.ReadMCM(ctx, old, o.fromNamespace, nodes)
	if err != nil {
		return err
	}
	plan := read.Plan(target, o.drop)
	if err := see(ctx, management, o.clouds, plan, target); err != nil {
		return err
	}
	if err := target.Try(ctx, management, plan); err != nil {
		return err
	}
	show := target.Print
	if o.output == "yaml" {
		show = target.PrintYAML
	}
	if err := show(out, plan); err != nil {
		return err
	}
	if n := plan.Blocked(); n > 0 {
		return fmt.Errorf("findings that stop the takeover: %d", n)
	}
	return nil
}

// clientOf returns a client of a kubeconfig's cluster, or otherwise if there is no kubeconfig.
func clientOf(path string, otherwise client.Client, version string) (client.Client, error) {
	if path == "" {
		return otherwise, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent(version)
	return client.New(config, client.Options{})
}

// targetOf reads what the machines get into.
func targetOf(ctx context.Context, c client.Client, o importOptions) (*takeover.Target, error) {
	t := &takeover.Target{
		Namespace: o.management.namespace, Cluster: o.cluster,
		Account: &infrav1.CloudAccount{}, Bootstrap: &bootstrapv1.CloudInitConfigTemplate{},
	}
	var err error
	if t.Identity, err = controllers.Identity(ctx, c); err != nil {
		return nil, err
	}
	get := func(kind, name string, into client.Object) error {
		if err := c.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, into); err != nil {
			return fmt.Errorf("reading %s %q: %w", kind, name, err)
		}
		return nil
	}
	cluster, infrastructure := &clusterv1.Cluster{}, &infrav1.CloudCluster{}
	if err := get("Cluster", o.cluster, cluster); err != nil {
		return nil, err
	}
	if kind := cluster.Spec.InfrastructureRef.Kind; kind != "CloudCluster" {
		return nil, fmt.Errorf("the infrastructure of Cluster %q is a %q, which is not Drover's", o.cluster, kind)
	}
	if err := get("CloudCluster", cluster.Spec.InfrastructureRef.Name, infrastructure); err != nil {
		return nil, err
	}
	if t.OwnershipID = infrastructure.Spec.Creation.OwnershipID; t.OwnershipID == "" {
		return nil, fmt.Errorf("CloudCluster %q has no ownership ID yet: wait until Cluster %q is provisioned", infrastructure.Name, o.cluster)
	}
	if o.account == "" {
		if len(infrastructure.Spec.AccountRefs) != 1 {
			return nil, fmt.Errorf("CloudCluster %q has %d accounts: choose one with --account", infrastructure.Name, len(infrastructure.Spec.AccountRefs))
		}
		o.account = infrastructure.Spec.AccountRefs[0].Name
	}
	return t, errors.Join(get("CloudAccount", o.account, t.Account), get("CloudInitConfigTemplate", o.bootstrap, t.Bootstrap))
}

// see lists the VMs of the plan with the account's credentials, and compares them with it.
func see(ctx context.Context, c client.Client, clouds cloudOptions, plan *takeover.Plan, target *takeover.Target) error {
	dialer, err := newDialer(clouds)
	if err != nil {
		return err
	}
	accounts := &controllers.CloudAccountReconciler{
		Client: c, APIReader: c, Accounts: fleet.NewAccounts(accountOptions(clouds, dialer)), Clouds: offered(clouds),
		AmbientNamespaces: clouds.ambientNamespaces, ConnectOnly: true,
	}
	var live *fleet.Account
	err = patiently(ctx, func() (err error) {
		live, _, err = accounts.Check(ctx, target.Account)
		return err
	})
	for _, keys := range plan.KeySets() {
		if err != nil {
			break
		}
		var listed []cloud.Tagged
		if err = patiently(ctx, func() (err error) {
			listed, err = live.Tagged(ctx, keys)
			return err
		}); err == nil {
			plan.See(keys, listed, target)
		}
	}
	if err != nil {
		return fmt.Errorf("CloudAccount %q: %w", target.Account.Name, err)
	}
	return nil
}
