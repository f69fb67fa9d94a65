// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/controllers/safety"
	"github.com/drover-io/drover/internal/options"
)

// newOrphansCommand returns the command "drover orphans".
func newOrphansCommand(version string) *cobra.Command {
	var (
		management options.Management
		clouds     options.Clouds
		limits     options.Orphans
	)
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "Print what a pass of the orphan collector would do now, and change nothing",
		Long: `Connect each DroverAccount with its own credentials, list it once, read clusters and machines, and print what a pass
of the orphan collector would find and do now. The command deletes nothing and writes nothing. It reads from the status
that the manager has written how long a resource has had no machine.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printOrphans(cmd.Context(), cmd.OutOrStdout(), management, clouds, limits, version)
		},
	}
	management.AddFlags(cmd.Flags())
	clouds.AddFlags(cmd.Flags())
	limits.AddFlags(cmd.Flags())
	return cmd
}

// listingTimeout limits the wait for one account's complete listing.
const listingTimeout = 2 * time.Minute

// printOrphans prints what a pass over each account would do.
func printOrphans(
	ctx context.Context, out io.Writer, management options.Management, clouds options.Clouds, limits options.Orphans, version string,
) error {
	c, err := management.Client(version)
	if err != nil {
		return err
	}
	identity, err := controllers.Identity(ctx, c)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	dialer, err := clouds.Dialer()
	if err != nil {
		return err
	}
	accounts := fleet.NewAccounts(clouds.Accounts(dialer))
	go func() { _ = accounts.Start(ctx) }()
	connect := &controllers.DroverAccountReconciler{
		Client: c, APIReader: c, Accounts: accounts, Clouds: clouds.Offered(), AmbientNamespaces: clouds.AmbientNamespaces, ConnectOnly: true,
	}
	collector := &safety.OrphanReconciler{
		Client: c, APIReader: c, Accounts: accounts, Identity: identity, Namespace: management.Namespace,
		Grace: limits.Grace, MaxDeletions: limits.MaxDeletions, MaxShare: limits.MaxShare,
	}
	list := &infrav1.DroverAccountList{}
	if err := c.List(ctx, list, client.InNamespace(management.Namespace)); err != nil {
		return fmt.Errorf("listing the DroverAccounts: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ACCOUNT\tKIND\tID\tSINCE\tSTATE\tDUE")
	var failed []error
	for i := range list.Items {
		account := &list.Items[i]
		one, done := context.WithTimeout(ctx, listingTimeout)
		err := connect.Connect(one, account)
		if err == nil {
			err = collector.DryRun(one, account)
		}
		done()
		key := client.ObjectKeyFromObject(account)
		if err != nil {
			failed = append(failed, fmt.Errorf("DroverAccount %s: %w", key, err))
			continue
		}
		for _, x := range account.Status.Orphans.Observed {
			due := ""
			if !x.DueTime.IsZero() {
				due = x.DueTime.UTC().Format(time.RFC3339)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", key, x.Kind, x.ID, x.Since.UTC().Format(time.RFC3339), x.State, due)
		}
		fmt.Fprintf(table, "%s\t\t\t\t\t%s, %d with an unknown owner: %s\n", key, conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition),
			ptr.Deref(account.Status.Orphans.UnknownOwner, 0), conditions.GetMessage(account, infrav1.AccountOrphansResolvedCondition))
	}
	return errors.Join(append(failed, table.Flush())...)
}
