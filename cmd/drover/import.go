// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/tagging"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/internal/options"
	"github.com/drover-io/drover/internal/takeover"
)

// importOptions say which machines to take over, and into which Cluster.
type importOptions struct {
	management management
	namespace  string
	clouds     options.Clouds
	// from and nodes are kubeconfigs: of the old objects, and of the Nodes.
	from, fromNamespace, nodes  string
	cluster, account, bootstrap string
	drop                        []string
	output                      format
	stopped, assumeStopped      bool
	confirm                     string
	timeout                     time.Duration
}

// newImportCommand returns the command "drover import".
func newImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Take over running machines of another system",
		Long:  "Make running machines of another system Drover's. Each subcommand is one system.",
	}
	for _, system := range []takeover.System{takeover.ClusterAPI(), takeover.MachineController(), takeover.MachineControllerManager()} {
		cmd.AddCommand(importFrom(system))
	}
	return group(cmd)
}

// importFrom returns the command "drover import" for one system.
func importFrom(system takeover.System) *cobra.Command {
	var o importOptions
	clouds, flags := "AWS, Azure, Google Cloud, KubeVirt, OpenStack and vSphere are supported.",
		"-n team-a --cluster blue --bootstrap base --from-namespace old"
	if system.Cluster != nil {
		clouds = "Its providers for AWS and OpenStack are supported."
		flags += " --from-cluster green --nodes green.kubeconfig"
	}
	steps := []string{"plan", "stage", "check", "switch", "commit", "rollback", "status"}
	cmd := &cobra.Command{
		Use:   system.Name + " [STEP]",
		Short: "Take over " + system.Name + "'s machines",
		Long: "Take over the machines of " + system.Name + `, which run on, in steps. ` + clouds + `

  plan      print what would be made and tagged, and what can't be carried over, field by field; write nothing (the default)
  stage     pause the Cluster, make the objects that stand for the machines, and tag their VMs
  check     print what would make Cluster API or Drover make or delete a machine once the pause ends; write nothing
  switch    check, and end the pause: Cluster API and Drover adopt the machines; deletions are held
  commit    take the old tag off the VMs, delete the old objects, and end the hold on deletions; there is no way back
  rollback  until commit: delete what was staged, and take the tags off
  status    print how far the takeover is; write nothing

Each step can be interrupted anywhere and run again. It ends with code 0 if it is done, and 1 otherwise. ` + likeManagerHelp,
		Example: "  # What would be made, and what can't be carried over?\n  drover import " + system.Name + " plan " + flags +
			"\n\n  # The same for review, with all objects\n  drover import " + system.Name + " plan " + flags + " -o yaml",
		Args:      oneOf("step", func() []string { return steps }),
		ValidArgs: steps,
		RunE: func(cmd *cobra.Command, args []string) error {
			step := "plan"
			if len(args) > 0 {
				step = args[0]
			}
			ctx, stop := context.WithTimeout(cmd.Context(), o.timeout)
			defer stop()
			i, err := newImporter(ctx, cmd, system, &o)
			if err != nil {
				return err
			}
			return i.run(ctx, step)
		},
	}
	f := cmd.Flags()
	o.management.addFlags(f)
	f.Lookup("namespace").Usage = "Namespace of the Cluster that the machines get into. Default: that of the kubeconfig's context."
	o.clouds.AddFlags(f)
	f.StringVar(&o.from, "from", "", "Path to the kubeconfig of the cluster that has "+system.Name+
		"'s objects. Default: the management cluster.")
	f.StringVar(&o.fromNamespace, "from-namespace", "", "Namespace of "+system.Name+"'s objects. Required.")
	f.StringVar(&o.nodes, "nodes", "", "Path to the kubeconfig of the cluster that has the Nodes. Default: the cluster of --from.")
	f.StringVar(&o.cluster, "cluster", "", "Name of the adopted Cluster that the machines get into. Required.")
	f.StringVar(&o.account, "account", "", "Name of the DroverAccount that the machines get. Default: that of the Cluster's DroverCluster, if it has only one.")
	f.StringVar(&o.bootstrap, "bootstrap", "", "Name of the DroverConfigTemplate that new machines are set up with. Each pool gets a copy, with its labels and taints. Required.")
	f.StringSliceVar(&o.drop, "drop", nil, "Fields that new machines may lack, as the plan names them. Default: none.")
	o.output.addFlag(cmd)
	f.Lookup("output").Usage = "How to print the result: text; or json or yaml, with all objects of a plan, for review."
	f.StringVar(&o.confirm, "confirm", "", "Name of the Cluster, to confirm the step commit.")
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "How long the step may take, with all that it waits for.")
	f.BoolVar(&o.assumeStopped, "assume-stopped", false,
		"State that the managers of Cluster API and Drover run nowhere if their Deployments are scaled to 0, so that the step rollback does not wait until they have seen the pause.")
	required := []string{"from-namespace", "cluster", "bootstrap"}
	if system.Cluster != nil {
		f.StringVar(system.Cluster, "from-cluster", "", "Name of the Cluster that has the machines now. Required.")
		required = append(required, "from-cluster", "nodes")
		f.Lookup("nodes").Usage = "Path to the kubeconfig of the cluster that has the Nodes. Required."
	} else {
		f.BoolVar(&o.stopped, "stopped", false, "State that "+system.Name+" does not run. Needed only if --from-namespace has neither its Leases nor its Deployments.")
	}
	for _, name := range required {
		_ = cmd.MarkFlagRequired(name) // fails for names that are no flag
	}
	return cmd
}

// importer runs the steps.
type importer struct {
	takeover.Takeover
	options importOptions
	out     io.Writer
}

// newImporter connects to the clusters and to the account.
func newImporter(ctx context.Context, cmd *cobra.Command, system takeover.System, o *importOptions) (*importer, error) {
	management, namespace, err := o.management.connect()
	if err != nil {
		return nil, err
	}
	if err := likeManager(ctx, management, cmd); err != nil {
		return nil, err
	}
	o.namespace = namespace
	i := &importer{options: *o, out: cmd.OutOrStdout()}
	i.System = system
	i.OldNamespace, i.Stopped, i.AssumeStopped = o.fromNamespace, o.stopped, o.assumeStopped
	i.Management = management
	if i.Old, err = clientOf(o.from, i.Management); err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	if i.Nodes, err = clientOf(o.nodes, i.Old); err != nil {
		return nil, fmt.Errorf("--nodes: %w", err)
	}
	if i.Target, err = targetOf(ctx, i.Management, i.options); err != nil {
		return nil, err
	}
	if i.VMs, err = accountOf(ctx, i.Management, o.clouds, i.Target.Account); err != nil {
		return nil, fmt.Errorf("DroverAccount %q: %w", i.Target.Account.Name, err)
	}
	return i, nil
}

func (i *importer) run(ctx context.Context, step string) error {
	switch step {
	case "rollback":
		return i.done(&stepResult{Step: step}, i.Rollback(ctx))
	case "status":
		status, err := i.Status(ctx)
		if err != nil {
			return err
		}
		return i.options.output.print(i.out, status, func() error { return status.Print(i.out) })
	}
	switched, err := i.Switched(ctx)
	if err != nil {
		return err
	}
	if switched && step == "switch" { // an earlier run has checked
		return i.adopt(ctx, &stepResult{Step: step})
	}
	read, err := i.System.Read(ctx, i.Old, i.OldNamespace, i.Nodes)
	if err != nil {
		return err
	}
	plan := read.Plan(i.Target, i.options.drop)
	if step == "commit" {
		return i.commit(ctx, plan)
	}
	if err := i.see(ctx, plan); err != nil {
		return err
	}
	if err := i.Try(ctx, i.Management, plan); err != nil {
		return err
	}
	if step == "check" || step == "switch" {
		if err := i.Check(ctx, plan); err != nil {
			return err
		}
	}
	if n := plan.Blocked(); n > 0 {
		return errors.Join(i.show(plan), &resultError{fmt.Errorf("findings that stop the takeover: %d", n)})
	}
	switch step {
	case "stage":
		made, err := i.Stage(ctx, plan)
		return i.done(&stepResult{Step: step, plan: plan, Made: made}, err)
	case "switch":
		return i.adopt(ctx, &stepResult{Step: step, plan: plan})
	}
	return i.show(plan)
}

// show prints what a plan would make. Its YAML is for review, with comments.
func (i *importer) show(plan *takeover.Plan) error {
	if i.options.output == asYAML {
		return i.PrintYAML(i.out, plan)
	}
	return i.options.output.print(i.out, i.Document(plan), func() error { return i.Print(i.out, plan) })
}

func (i *importer) commit(ctx context.Context, plan *takeover.Plan) error {
	if i.options.confirm != i.Cluster {
		return fmt.Errorf("there is no way back from this step: confirm it with --confirm=%s", i.Cluster)
	}
	err := i.Commit(ctx, plan)
	return i.done(&stepResult{Step: "commit", Next: i.nextSteps()}, err)
}

func (i *importer) adopt(ctx context.Context, r *stepResult) (err error) {
	r.Adopted, err = i.Switch(ctx)
	return i.done(r, err)
}

// stepResult is what a step did.
type stepResult struct {
	Step    string         `json:"step"`
	Done    bool           `json:"done"`
	Made    *takeover.Made `json:"made,omitempty"`
	Adopted int            `json:"adopted,omitempty"`
	Next    string         `json:"next,omitempty"`

	plan *takeover.Plan
}

// done prints what a step did, as far as it came, and that it is done, if it is.
func (i *importer) done(r *stepResult, err error) error {
	if r.Done = err == nil; !r.Done && r.Made == nil {
		return err
	}
	return errors.Join(err, i.options.output.print(i.out, r, func() error { return r.print(i.out) }))
}

func (r *stepResult) print(out io.Writer) error {
	if r.plan != nil && len(r.plan.Findings) > 0 {
		if err := r.plan.PrintFindings(out); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	if r.Made != nil {
		fmt.Fprintf(out, "Made: %s\nTagged: VM %d\n", takeover.Counts(r.Made.Objects), r.Made.Tagged)
	}
	if r.Adopted > 0 {
		fmt.Fprintf(out, "Adopted: Machine %d\n", r.Adopted)
	}
	if !r.Done {
		return nil
	}
	if r.Next != "" {
		fmt.Fprintln(out, r.Next)
	}
	_, err := fmt.Fprintf(out, "%s: done\n", r.Step)
	return err
}

// nextSteps says what is left to do after the commit.
func (i *importer) nextSteps() string {
	return fmt.Sprintf("DroverAccount %s only reports orphans. To have them deleted from now on:\n"+
		"  kubectl patch droveraccount -n %s %s --type merge -p '{\"spec\":{\"orphanPolicy\":%q}}'", i.Account.Name, i.Namespace, i.Account.Name,
		infrav1.OrphanPolicyDelete)
}

// see compares the plan with the VMs.
func (i *importer) see(ctx context.Context, plan *takeover.Plan) error {
	for _, keys := range plan.KeySets() {
		listed, err := i.VMs.Tagged(ctx, keys)
		if err != nil {
			return fmt.Errorf("listing the VMs: %w", err)
		}
		plan.MatchInstances(keys, listed, i.Target)
	}
	return nil
}

// clientOf returns a client of a kubeconfig's cluster, or otherwise if there is no kubeconfig.
func clientOf(path string, otherwise client.Client) (client.Client, error) {
	if path == "" {
		return otherwise, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.UserAgent = options.UserAgent(version)
	return client.New(config, client.Options{})
}

// targetOf reads what the machines get into.
func targetOf(ctx context.Context, c client.Client, o importOptions) (*takeover.Target, error) {
	t := &takeover.Target{
		Namespace: o.namespace, Cluster: o.cluster,
		Account: &infrav1.DroverAccount{}, Bootstrap: &bootstrapv1.DroverConfigTemplate{},
		Refuses: func(spec *bootstrapv1.DroverConfigSpec) field.ErrorList {
			return render.Validate(spec, field.NewPath("spec"))
		},
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
	cluster, infrastructure := &clusterv1.Cluster{}, &infrav1.DroverCluster{}
	if err := get("Cluster", o.cluster, cluster); err != nil {
		return nil, err
	}
	if kind := cluster.Spec.InfrastructureRef.Kind; kind != "DroverCluster" {
		return nil, fmt.Errorf("the infrastructure of Cluster %q is a %q, which is not Drover's", o.cluster, kind)
	}
	if err := get("DroverCluster", cluster.Spec.InfrastructureRef.Name, infrastructure); err != nil {
		return nil, err
	}
	if t.OwnershipID = infrastructure.Spec.Creation.OwnershipID; t.OwnershipID == "" {
		return nil, fmt.Errorf("DroverCluster %q has no ownership ID yet: wait until Cluster %q is provisioned", infrastructure.Name, o.cluster)
	}
	if o.account == "" {
		if len(infrastructure.Spec.AccountRefs) != 1 {
			return nil, fmt.Errorf("DroverCluster %q has %d accounts: choose one with --account", infrastructure.Name,
				len(infrastructure.Spec.AccountRefs))
		}
		o.account = infrastructure.Spec.AccountRefs[0].Name
	}
	return t, errors.Join(get("DroverAccount", o.account, t.Account), get("DroverConfigTemplate", o.bootstrap, t.Bootstrap))
}

// accountOf connects the account with its own credentials.
func accountOf(ctx context.Context, c client.Client, clouds options.Clouds, account *infrav1.DroverAccount) (throttledAccount, error) {
	dialer, err := clouds.Dialer()
	if err != nil {
		return throttledAccount{}, err
	}
	accounts := &controllers.DroverAccountReconciler{
		Client: c, APIReader: c, Accounts: fleet.NewAccounts(clouds.Accounts(dialer)), Clouds: clouds.Offered(),
		AmbientNamespaces: clouds.AmbientNamespaces, ConnectOnly: true,
	}
	var live *fleet.Account
	err = retryWhenThrottled(ctx, func() (err error) {
		live, _, err = accounts.Check(ctx, account)
		return err
	})
	return throttledAccount{live}, err
}

// throttledAccount waits for the turns of its calls in the account's rate limit.
type throttledAccount struct{ live *fleet.Account }

func (a throttledAccount) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	err = retryWhenThrottled(ctx, func() (err error) {
		found, err = a.live.Tagged(ctx, keys)
		return err
	})
	return found, err
}

func (a throttledAccount) Tag(ctx context.Context, id string, tags map[string]string, own []string) error {
	return retryWhenThrottled(ctx, func() error { return a.live.Tag(ctx, id, tags, own) })
}

// untagged is how many VMs lose tags in the time of one call, on a cloud that needs calls for each.
const untagged = 25

func (a throttledAccount) Untag(ctx context.Context, ids, keys []string) error {
	for some := range slices.Chunk(ids, untagged) {
		if err := retryWhenThrottled(ctx, func() error { return a.live.Untag(ctx, some, keys) }); err != nil {
			return err
		}
	}
	return nil
}
