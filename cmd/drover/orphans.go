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
	"github.com/drover-io/drover/internal/terminal"
)

// newOrphansCommand returns the command "drover orphans".
func newOrphansCommand() *cobra.Command {
	var (
		management management
		clouds     options.Clouds
		limits     options.Orphans
		all        bool
		output     format
	)
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "Print what a pass of the orphan collector would do now, and change nothing",
		Long: `Connect each DroverAccount with its own credentials, list it once, read clusters and machines, and print what a pass
of the orphan collector would find and do now. The command deletes nothing and writes nothing. It reads from the status
that the manager has written how long a resource has had no machine. ` + likeManagerHelp,
		Example: `  # In the accounts of the namespace "team-a"
  drover orphans -n team-a

  # In all accounts
  drover orphans -A`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, namespace, err := management.connect()
			if err != nil {
				return err
			}
			if all {
				namespace = ""
			}
			if err := likeManager(cmd.Context(), c, cmd); err != nil {
				return err
			}
			found, err := findOrphans(cmd.Context(), c, namespace, clouds, limits)
			if found == nil {
				return err
			}
			printed := output.print(cmd.OutOrStdout(), map[string]any{"accounts": found},
				func() error { return printOrphans(cmd.OutOrStdout(), found) })
			return errors.Join(err, printed)
		},
	}
	management.addFlags(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "Namespace of the DroverAccounts. Default: that of the kubeconfig's context."
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Look at the DroverAccounts of all namespaces.")
	clouds.AddFlags(cmd.Flags())
	limits.AddFlags(cmd.Flags())
	output.addFlag(cmd)
	return cmd
}

// listingTimeout limits the wait for one account's complete listing.
const listingTimeout = 2 * time.Minute

// accountOrphans is what a pass over one account would find and do.
type accountOrphans struct {
	Namespace string                `json:"namespace"`
	Account   string                `json:"account"`
	Reason    string                `json:"reason"`
	Message   string                `json:"message"`
	Orphans   infrav1.OrphansStatus `json:"orphans"`
}

// findOrphans returns what a pass over each account would do.
func findOrphans(
	ctx context.Context, c client.Client, namespace string, clouds options.Clouds, limits options.Orphans,
) ([]accountOrphans, error) {
	identity, err := controllers.Identity(ctx, c)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	dialer, err := clouds.Dialer()
	if err != nil {
		return nil, err
	}
	accounts := fleet.NewAccounts(clouds.Accounts(dialer))
	go func() { _ = accounts.Start(ctx) }()
	connect := &controllers.DroverAccountReconciler{
		Client: c, APIReader: c, Accounts: accounts, Clouds: clouds.Offered(), AmbientNamespaces: clouds.AmbientNamespaces, ConnectOnly: true,
	}
	collector := &safety.OrphanReconciler{
		Client: c, APIReader: c, Accounts: accounts, Identity: identity, Namespace: namespace,
		Grace: limits.Grace, MaxDeletions: limits.MaxDeletions, MaxShare: limits.MaxShare,
	}
	list := &infrav1.DroverAccountList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing the DroverAccounts: %w", err)
	}
	found, failed := []accountOrphans{}, []error{}
	for i := range list.Items {
		account := &list.Items[i]
		one, done := context.WithTimeout(ctx, listingTimeout)
		err := retryWhenThrottled(one, func() error {
			_, _, err := connect.Check(one, account)
			return err
		})
		if err == nil {
			err = collector.DryRun(one, account)
		}
		done()
		if err != nil {
			failed = append(failed, &resultError{fmt.Errorf("DroverAccount %s: %w", client.ObjectKeyFromObject(account), err)})
			continue
		}
		found = append(found, accountOrphans{
			Namespace: account.Namespace, Account: account.Name, Orphans: ptr.Deref(account.Status.Orphans, infrav1.OrphansStatus{}),
			Reason:  conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition),
			Message: conditions.GetMessage(account, infrav1.AccountOrphansResolvedCondition),
		})
	}
	return found, errors.Join(failed...)
}

// printOrphans prints a table of what was found, and a line for each account.
func printOrphans(out io.Writer, found []accountOrphans) error {
	some := false
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, a := range found {
		for _, x := range a.Orphans.Observed {
			if !some {
				fmt.Fprintln(table, "NAMESPACE\tACCOUNT\tKIND\tID\tSINCE\tSTATE\tDUE")
			}
			some = true
			due := ""
			if !x.DueTime.IsZero() {
				due = x.DueTime.UTC().Format(time.RFC3339)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.Namespace, a.Account, x.Kind, terminal.Printable(x.ID),
				x.Since.UTC().Format(time.RFC3339), x.State, due)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, a := range found {
		said := "No orphans."
		if a.Reason != infrav1.NoOrphansReason {
			said = a.Reason + ": " + terminal.Printable(a.Message)
		}
		if n := ptr.Deref(a.Orphans.UnknownOwner, 0); n > 0 {
			said += fmt.Sprintf(" %d resources have an owner that is not known here.", n)
		}
		fmt.Fprintf(out, "DroverAccount %s/%s: %s\n", a.Namespace, a.Account, said)
	}
	if len(found) == 0 {
		fmt.Fprintln(out, "No DroverAccounts.")
	}
	return nil
}
