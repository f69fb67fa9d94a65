// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/internal/egress"
	"github.com/drover-io/drover/internal/naming"
	"github.com/drover-io/drover/internal/options"
	"github.com/drover-io/drover/internal/terminal"
)

// checkTimeout limits all calls of one check.
const checkTimeout = 2 * time.Minute

// checkOptions say what to check, and how to print the result.
type checkOptions struct {
	template, cluster string
	output            format
}

// newCheckCommand returns the command "drover check".
func newCheckCommand() *cobra.Command {
	var (
		management management
		clouds     options.Clouds
		o          checkOptions
	)
	cmd := &cobra.Command{
		Use:   "check TEMPLATE",
		Short: "Check whether machines of a DroverMachineTemplate can be made, and make none",
		Long: `Check, before the first machine, what a DroverMachineTemplate and its DroverAccount need: credentials, permissions, instance
type, image, failure domains, and what the machine names in the cloud. The cloud is asked to try a create without making
anything, as far as it can. With --cluster, the cluster's API server is asked for its version.

The command writes nothing. It ends with code 0 if nothing failed, and 1 otherwise. ` + likeManagerHelp,
		Example: `  # Can machines of the template "workers" be made, and does the API server of Cluster "blue" answer?
  drover check workers -n team-a --cluster blue

  # For programs
  drover check workers -n team-a -o json`,
		Args: theName("a DroverMachineTemplate"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.template = args[0]
			c, namespace, err := management.connect()
			if err != nil {
				return err
			}
			ctx, stop := context.WithTimeout(cmd.Context(), checkTimeout)
			defer stop()
			if err := likeManager(ctx, c, cmd); err != nil {
				return err
			}
			dialer, err := clouds.Dialer()
			if err != nil {
				return err
			}
			k := newChecker(c, dialer, clouds, namespace)
			if err := k.run(ctx, o); err != nil {
				return err
			}
			return k.print(cmd.OutOrStdout(), o.output)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return management.names(cmd.Context(), &infrav1.DroverMachineTemplateList{}), cobra.ShellCompDirectiveNoFileComp
		},
	}
	management.addFlags(cmd.Flags())
	cmd.Flags().Lookup("namespace").Usage = "Namespace of the DroverMachineTemplate. Default: that of the kubeconfig's context."
	clouds.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "Name of an adopted Cluster whose API server to check, too. Default: none.")
	o.output.addFlag(cmd)
	return cmd
}

// The results of a check.
const (
	passed     = "Passed"
	failed     = "Failed"
	notChecked = "NotChecked"
)

// checked is the result of one check, as it is printed.
type checked struct {
	Check   string `json:"check"`
	Result  string `json:"result"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// checker runs the checks in the order in which a machine would meet them.
type checker struct {
	client        client.Client
	accounts      *controllers.DroverAccountReconciler
	controlPlanes *controllers.AdoptedControlPlaneReconciler
	namespace     string

	results []checked
}

func newChecker(c client.Client, dialer *egress.Dialer, clouds options.Clouds, namespace string) *checker {
	return &checker{
		client: c, namespace: namespace,
		accounts: &controllers.DroverAccountReconciler{
			Client: c, APIReader: c, Accounts: fleet.NewAccounts(clouds.Accounts(dialer)), Clouds: clouds.Offered(),
			AmbientNamespaces: clouds.AmbientNamespaces, ConnectOnly: true,
		},
		controlPlanes: &controllers.AdoptedControlPlaneReconciler{Client: c, APIReader: c, Dial: dialer.DialContext},
	}
}

// run makes all checks. An error means that the management cluster could not be read.
func (k *checker) run(ctx context.Context, o checkOptions) error {
	template, account := &infrav1.DroverMachineTemplate{}, &infrav1.DroverAccount{}
	found, err := k.get(ctx, "DroverMachineTemplate", o.template, template)
	if err == nil && found {
		found, err = k.get(ctx, "DroverAccount", template.Spec.Template.Spec.AccountRef.Name, account)
	}
	if err == nil && found {
		err = k.cloud(ctx, template, account)
	}
	if err == nil {
		err = k.apiServer(ctx, o.cluster)
	}
	return err
}

// get reads an object. An object that does not exist is a failed check.
func (k *checker) get(ctx context.Context, kind, name string, o client.Object) (found bool, err error) {
	err = k.client.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		k.add(kind, failed, fmt.Sprintf("%q does not exist in namespace %q", name, k.namespace), "Create it, or change the reference to it")
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s %q: %w", kind, name, err)
	}
	return true, nil
}

// cloud checks what the account's cloud says. Later checks need the account to work.
func (k *checker) cloud(ctx context.Context, template *infrav1.DroverMachineTemplate, account *infrav1.DroverAccount) error {
	var live *fleet.Account
	var info cloud.Info
	err := retryWhenThrottled(ctx, func() (err error) {
		live, info, err = k.accounts.Check(ctx, account)
		return err
	})
	if _, ofCloud := errors.AsType[*cloud.Error](err); err != nil && !ofCloud {
		return err // of the management cluster
	}
	if cloud.CodeOf(err) == cloud.InvalidSpec {
		k.add("credentials", failed, err.Error(), "Change the DroverAccount, or give this command the flags of the manager that concern clouds: its Deployment could not be read, or has others")
		return nil
	}
	if !k.cloudResult("credentials", "they lead to "+info.Place, err) {
		return nil
	}
	fields := &template.Spec.Template.Spec
	req := k.request(fields)
	k.reads(ctx, live)
	k.offering(ctx, live, fields)
	domains, err := k.failureDomains(ctx, live, info, fields)
	if err == nil {
		k.creates(ctx, live, req, domains)
	}
	return nil
}

// request returns that of a machine that does not exist. No management cluster has the identity in
// its token.
func (k *checker) request(fields *infrav1.DroverMachineFields) cloud.Request {
	return cloud.Request{
		Token: naming.NewToken("00000000"), OwnershipID: string(uuid.NewUUID()), Namespace: k.namespace, Name: "drover-check",
		UserData: []byte("#cloud-config\n"), Spec: fields,
	}
}

// reads lists the machines. Some clouds take minutes to say that one machine does not exist: an
// earlier process may have sent its create.
func (k *checker) reads(ctx context.Context, live *fleet.Account) {
	err := retryWhenThrottled(ctx, func() error {
		_, err := live.List(ctx, checkTimeout)
		return err
	})
	k.cloudResult("read machines", "permitted", err)
}

func (k *checker) offering(ctx context.Context, live *fleet.Account, fields *infrav1.DroverMachineFields) {
	var o cloud.Offering
	err := retryWhenThrottled(ctx, func() (err error) {
		o, err = live.Offering(ctx, fields)
		return err
	})
	described := []string{o.OperatingSystem, o.Architecture}
	for _, name := range slices.Sorted(maps.Keys(o.Capacity)) {
		quantity := o.Capacity[name]
		described = append(described, string(name)+" "+quantity.String())
	}
	k.cloudResult("type and image", strings.Join(described, ", "), err)
}

// failureDomains returns those in which the machine can be made: one without a name if the cloud
// has none.
func (k *checker) failureDomains(ctx context.Context, live *fleet.Account, info cloud.Info,
	fields *infrav1.DroverMachineFields) (domains []string, err error) {
	err = retryWhenThrottled(ctx, func() (err error) {
		domains, err = live.FailureDomains(ctx, fields)
		return err
	})
	if err == nil && len(domains) == 0 {
		domains = info.FailureDomains
	}
	message := strings.Join(domains, ", ")
	if len(domains) == 0 {
		domains, message = []string{""}, "the account has none"
	}
	k.cloudResult("failure domains", message, err)
	return domains, err
}

// creates tries a create in each failure domain. Same answers are one result.
func (k *checker) creates(ctx context.Context, live *fleet.Account, req cloud.Request, domains []string) {
	const what = "create a machine"
	answers, order := map[string][]string{}, []error{}
	for _, domain := range domains {
		req.FailureDomain = domain
		var able bool
		err := retryWhenThrottled(ctx, func() (err error) {
			able, err = live.DryRun(ctx, req)
			return err
		})
		if !able {
			k.add(what, notChecked, "this cloud's driver can't try a create without making a machine", "")
			return
		}
		text := fmt.Sprint(err)
		if answers[text] == nil {
			order = append(order, err)
		}
		answers[text] = append(answers[text], domain)
	}
	for _, err := range order {
		where := strings.Join(answers[fmt.Sprint(err)], ", ")
		if where != "" {
			where = " in " + where
		}
		k.cloudResult(what+where, "the cloud would accept it", err)
	}
}

// apiServer checks the API server of an adopted cluster.
func (k *checker) apiServer(ctx context.Context, name string) error {
	const what = "API server"
	if name == "" {
		k.add(what, notChecked, "no --cluster is given", "")
		return nil
	}
	cluster := &clusterv1.Cluster{}
	if found, err := k.get(ctx, "Cluster", name, cluster); err != nil || !found {
		return err
	}
	ref := cluster.Spec.ControlPlaneRef
	if ref.Kind != "AdoptedControlPlane" {
		k.add(what, notChecked, fmt.Sprintf("the control plane of Cluster %q is a %s, which is not Drover's", name, ref.Kind), "")
		return nil
	}
	adopted := &controlplanev1.AdoptedControlPlane{}
	if found, err := k.get(ctx, "AdoptedControlPlane", ref.Name, adopted); err != nil || !found {
		return err
	}
	version, err := k.controlPlanes.Check(ctx, adopted)
	if err != nil {
		k.add(what, failed, err.Error(), "Correct the kubeconfig or the network between here and the API server, or permit its address with --allow-endpoints")
		return nil
	}
	k.add(what, passed, "it runs "+version+", and can be reached from here; whether it can be reached from the machines' network shows only when one joins", "")
	return nil
}

// cloudResult adds the result of a call to the cloud, and reports whether it was good.
func (k *checker) cloudResult(what, good string, err error) bool {
	if err == nil {
		k.add(what, passed, good, "")
		return true
	}
	k.add(what, failed, err.Error(), remedies[cloud.CodeOf(err)])
	return false
}

func (k *checker) add(what, result, message, remedy string) {
	k.results = append(k.results, checked{terminal.Printable(what), result, terminal.Printable(message), remedy})
}

// remedies say what to do about each kind of failure. The message itself names the field, where the
// cloud says which one it is.
var remedies = map[cloud.Code]string{
	cloud.Unauthorized:  "Check the account's credentials, and give them the permissions that the page of this cloud lists",
	cloud.QuotaExceeded: "Ask for a higher quota, or delete what uses it up",
	cloud.NoCapacity:    "Use another type or failure domain, or try again later",
	cloud.InvalidSpec:   "Change the DroverMachineTemplate's field: templates can't be changed, so make another one",
	cloud.NotFound:      "Create in the cloud what the message names, or name something else in another DroverMachineTemplate",
	cloud.Conflict:      "Resolve what the message names. If the credentials lead elsewhere, use those with which the account was first connected, or make another DroverAccount",
	cloud.Throttled:     "Try again later: the cloud limits the account's calls",
	cloud.Unavailable:   "Check the account's endpoint and the network between here and the cloud, and try again",
	cloud.Unknown:       "Check the account's endpoint",
}

// retryWhenThrottled calls do until its turns in the account's rate limit have come.
func retryWhenThrottled(ctx context.Context, do func() error) error {
	for {
		err := do()
		queued, waits := errors.AsType[*cloud.Queued](err)
		if !waits {
			return err
		}
		turn := time.NewTimer(queued.After)
		select {
		case <-turn.C:
		case <-ctx.Done():
			turn.Stop()
			return ctx.Err()
		}
	}
}

// print prints the results, and returns an error if a check failed.
func (k *checker) print(out io.Writer, output format) error {
	bad := 0
	for _, r := range k.results {
		if r.Result == failed {
			bad++
		}
	}
	err := output.print(out, map[string]any{"passed": bad == 0, "checks": k.results}, func() error { return k.table(out) })
	if err == nil && bad > 0 {
		err = &resultError{fmt.Errorf("%d of %d checks failed", bad, len(k.results))}
	}
	return err
}

func (k *checker) table(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "RESULT\tCHECK\tMESSAGE")
	for _, r := range k.results {
		fmt.Fprintf(table, "%s\t%s\t%s\n", r.Result, r.Check, r.Message)
		if r.Remedy != "" {
			fmt.Fprintf(table, "\t\t→ %s\n", r.Remedy)
		}
	}
	return table.Flush()
}
