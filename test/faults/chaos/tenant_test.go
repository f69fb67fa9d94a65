// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// patient is how long a user waits for the API server.
const patient = 5 * time.Second

// tenant is a running schedule.
type tenant struct {
	*rig.Tenant
	rig     *rig.Rig
	world   world
	seed    uint64
	actions []action
	lines   lines

	mu    sync.Mutex // guards log and start
	log   []string
	start time.Time
	// played counts the actions by what they do, and failed those of them with an error.
	played, failed map[string]int

	acting   sync.Mutex // guards the fields below, up to deleted
	pools    int
	clusters int // those with load balancers
	rolls    int
	tokens   int
	faults   []func(context.Context) error // functions that end the faults
	deleted  bool                          // the user has deleted the Cluster
	foreign  map[string]bool
	moved    map[string]*infrav1.DroverMachine // deleted by the first half of a move, by name
	// made holds the IDs of all instances ever seen, by the machine and by the token in their tags.
	made map[string]map[string]bool

	// claims counts what hostile guests have made: certificate requests and Nodes.
	claims atomic.Int64
}

// armed reports whether the orphan collector may delete. In every other schedule it only reports,
// and no users tear out machines, so there are no orphans.
func (x *tenant) armed() bool { return x.seed%2 == 1 }

// ownership returns the ownership ID in the tags of the cluster's machines.
func (x *tenant) ownership() string { return "house-of-" + x.Name }

func (x *tenant) note(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := 0.0
	if !x.start.IsZero() {
		at = time.Since(x.start).Seconds()
	}
	x.log = append(x.log, fmt.Sprintf("%6.2fs %s", at, fmt.Sprintf(format, args...)))
}

// setUp creates the cluster with a pool, and foreign VMs in the account.
func (x *tenant) setUp(ctx context.Context) error {
	x.foreign, x.made, x.moved = map[string]bool{}, map[string]map[string]bool{}, map[string]*infrav1.DroverMachine{}
	for _, tags := range []map[string]string{
		nil,
		{"Name": "somebody's database"},
		{cloud.TagOwnership: "somebody-elses-cluster", cloud.TagToken: "somebody-elses-token", cloud.TagMachine: x.Namespace + "/theirs"},
		// Another management cluster with a copy of the DroverCluster created this VM: the token
		// shows which management cluster did.
		{cloud.TagOwnership: x.ownership(), cloud.TagToken: "ffffffff-" + x.Name, cloud.TagMachine: x.Namespace + "/copied"},
	} {
		id, err := x.world.launch(ctx, x, tags)
		if err != nil {
			return err
		}
		x.foreign[id] = true
	}
	objects, err := x.Objects()
	if err != nil {
		return err
	}
	for _, o := range objects {
		if c, ok := o.(*infrav1.DroverCluster); ok {
			c.Spec.Creation.OwnershipID = x.ownership()
		}
	}
	if err := scenario.Create(ctx, x.rig.Client, objects...); err != nil {
		return err
	}
	return x.addPool()(ctx)
}

// addPool returns a function that creates the next pool. It may be repeated until it succeeds.
func (x *tenant) addPool() (create func(context.Context) error) {
	x.pools++
	p := x.NewPool(string(rune('a'+x.pools-1)), 1)
	return func(ctx context.Context) error {
		return scenario.Create(ctx, x.rig.Client, append(p.Objects(), healthCheck(p))...)
	}
}

// insist goes on beside the user's next actions if the API server does not answer in time, for
// example because it waits for the webhooks of a frozen manager.
func (x *tenant) insist(ctx context.Context, do func(context.Context) error) error {
	if do(ctx) == nil {
		return nil
	}
	x.note("   without an answer, goes on")
	x.rig.Later(0, func(ctx context.Context) { x.note("   end of it: %v", do(ctx)) })
	return nil
}

// healthCheck returns a health check that replaces a VM that does not become a Node. Its patience
// is long enough for a Node that joins on a busy computer.
func healthCheck(p scenario.Pool) *clusterv1.MachineHealthCheck {
	health := p.HealthCheck(60)
	health.Spec.Checks.NodeStartupTimeoutSeconds = ptr.To(int32(90))
	return health
}

// checkHealth creates missing health checks of pools, whose creation was cut off earlier.
func (x *tenant) checkHealth(ctx context.Context) error {
	all, err := x.deployments(ctx)
	for i := range all {
		p := x.NewPool(strings.TrimPrefix(all[i].Name, x.Name+"-"), 0)
		err = errors.Join(err, client.IgnoreAlreadyExists(x.rig.Client.Create(ctx, healthCheck(p))))
	}
	return err
}

// play runs the schedule's actions at their times. Only insist retries an action that fails.
func (x *tenant) play(ctx context.Context, start time.Time) {
	x.mu.Lock()
	x.start = start
	x.mu.Unlock()
	for _, a := range x.actions {
		if !waitUntil(ctx, start.Add(a.at)) {
			return
		}
		x.note("%s", a)
		short, cancel := context.WithTimeout(ctx, patient)
		x.acting.Lock()
		err := x.do(short, a)
		x.acting.Unlock()
		cancel()
		x.played[a.what]++
		if err != nil {
			x.failed[a.what]++
			x.note("   failed: %v", err)
		}
	}
}

func (x *tenant) do(ctx context.Context, a action) error {
	switch a.what {
	case "scale", "roll", "delete pool", "edit template":
		return x.changePool(ctx, a)
	case "add pool":
		return x.insist(ctx, x.addPool())
	case "delete machine":
		return x.deleteMachine(ctx, a.n)
	case "pause":
		return x.forAWhile(ctx, a, x.pause)
	case "rotate credentials":
		return x.rotate(ctx)
	case "revoke credentials":
		return x.forAWhile(ctx, a, x.revoke)
	case "delete cluster":
		x.deleted = true
		return errors.Join(scenario.Delete(ctx, x.rig.Client, x.Cluster()), x.dropClusters(ctx))
	case "add cluster":
		return x.addCluster(ctx)
	case "drop cluster":
		return x.dropCluster(ctx, a.n)
	case "cloud fault":
		undo, err := x.world.fault(ctx, x, a.fault)
		if err == nil {
			x.faults = append(x.faults, undo)
		}
		return err
	case "terminate VM":
		return x.harm(ctx, a.n, simulator.ActTerminate)
	case "make VM vanish":
		return x.harm(ctx, a.n, simulator.ActVanish)
	case "tear out machine":
		if !x.armed() {
			return nil
		}
		return x.tearOut(ctx, a.n)
	case "swap credentials":
		return x.forAWhile(ctx, a, x.swap)
	case "copy machine":
		return x.forAWhile(ctx, a, func(ctx context.Context, on bool) error { return x.copyMachine(ctx, a.n, on) })
	case "restore machine":
		return x.restore(ctx, a.n)
	case "hostile guest":
		return x.forAWhile(ctx, a, func(ctx context.Context, on bool) error { return x.attack(ctx, a.n, on) })
	case "move half-way":
		return x.forAWhile(ctx, a, x.move)
	case "lose permissions":
		undo, err := x.world.fault(ctx, x, a.fault)
		if err != nil {
			return err
		}
		x.rig.Later(a.lasts, func(ctx context.Context) { x.note("   end of %s: %v", a.what, undo(ctx)) })
		return nil
	case "kill connections":
		map[string]*faultproxy.Proxy{"workload": x.API, "cloud": x.Cloud}[a.line].KillConnections()
		return nil
	case "cut", "conflict", "slow", "hang":
		x.lines.disturb(a, x.seed)
		return nil
	}
	return fmt.Errorf("nobody knows how to %s", a.what)
}

// forAWhile starts something, and ends it after its duration even if the schedule has gone on.
func (x *tenant) forAWhile(ctx context.Context, a action, do func(context.Context, bool) error) error {
	err := do(ctx, true)
	x.rig.Later(a.lasts, func(ctx context.Context) {
		x.acting.Lock()
		defer x.acting.Unlock()
		x.note("   end of %s: %v", a.what, do(ctx, false))
	})
	return err
}

// deployments returns the pools that are not being deleted.
func (x *tenant) deployments(ctx context.Context) ([]clusterv1.MachineDeployment, error) {
	list := &clusterv1.MachineDeploymentList{}
	if err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace)); err != nil {
		return nil, err
	}
	var live []clusterv1.MachineDeployment
	for _, md := range list.Items {
		if md.DeletionTimestamp.IsZero() {
			live = append(live, md)
		}
	}
	return live, nil
}

func (x *tenant) changePool(ctx context.Context, a action) error {
	all, err := x.deployments(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	md := all[a.n%len(all)]
	pool := x.NewPool(strings.TrimPrefix(md.Name, x.Name+"-"), 0)
	switch a.what {
	case "scale":
		return pool.Scale(ctx, x.rig.Client, int32(a.n))
	case "delete pool":
		return scenario.Delete(ctx, x.rig.Client, &md)
	case "roll":
		x.rolls++
		template := fmt.Sprintf("%s-r%d", pool.Name, x.rolls)
		return x.insist(ctx, func(ctx context.Context) error { return pool.Roll(ctx, x.rig.Client, template, pool.Machine) })
	}
	template := &infrav1.DroverMachineTemplate{}
	key := client.ObjectKey{Namespace: x.Namespace, Name: md.Spec.Template.Spec.InfrastructureRef.Name}
	if err := x.rig.Client.Get(ctx, key, template); err != nil {
		return err
	}
	x.world.resize(&template.Spec.Template.Spec)
	if x.rig.Client.Update(ctx, template) == nil {
		return errors.New("INVARIANT: a template was changed in place")
	}
	return nil
}

func (x *tenant) deleteMachine(ctx context.Context, n int) error {
	list := &clusterv1.MachineList{}
	if err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace)); err != nil || len(list.Items) == 0 {
		return err
	}
	m := &list.Items[n%len(list.Items)]
	x.note("   %s", m.Name)
	return scenario.Delete(ctx, x.rig.Client, m)
}

func (x *tenant) pause(ctx context.Context, on bool) error {
	patch := fmt.Sprintf(`{"spec":{"paused":%t}}`, on)
	return client.IgnoreNotFound(x.rig.Client.Patch(ctx, x.Cluster(), mergePatch(patch)))
}

// rotate creates a new token and revokes the old one, alternating the order of cloud and Secret.
func (x *tenant) rotate(ctx context.Context) error {
	x.tokens++
	token := fmt.Sprintf("token-of-%s-%d", x.Name, x.tokens)
	inCloud := func() error { return x.world.accept(ctx, x, token) }
	inSecret := func() error {
		credentials, err := x.world.credentials(ctx, x, token)
		if err != nil {
			return err
		}
		return x.writeSecret(ctx, credentials)
	}
	if x.tokens%2 == 0 {
		inCloud, inSecret = inSecret, inCloud
	}
	return errors.Join(inCloud(), inSecret())
}

func (x *tenant) writeSecret(ctx context.Context, credentials map[string]string) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: x.Namespace, Name: x.Account().Spec.CredentialsRef.Name}}
	patch, err := json.Marshal(map[string]any{"stringData": credentials})
	if err != nil {
		return err
	}
	return x.rig.Client.Patch(ctx, secret, mergePatch(string(patch)))
}

// revoke revokes the account's tokens. A rotation ends it: a user who was locked out creates a new
// token.
func (x *tenant) revoke(ctx context.Context, on bool) error {
	if !on {
		return x.rotate(ctx)
	}
	return x.world.accept(ctx, x)
}

// harm harms one of the tenant's own VMs behind Drover's back. It spares VMs whose provider ID is
// not recorded yet: if such a VM is gone before that, nothing shows which Node to delete.
func (x *tenant) harm(ctx context.Context, n int, act simulator.InstanceAction) error {
	machines := &infrav1.DroverMachineList{}
	if err := x.rig.Client.List(ctx, machines, client.InNamespace(x.Namespace)); err != nil {
		return err
	}
	recorded := map[string]bool{}
	for i := range machines.Items {
		if m := &machines.Items[i]; m.Spec.ProviderID != "" {
			recorded[m.Spec.Creation.Token] = true
		}
	}
	snapshot, err := x.rig.Snapshot(ctx)
	if err != nil {
		return err
	}
	var own []string
	for _, r := range x.Live(snapshot) {
		if r.Kind == wire.Instance && !x.foreign[r.ID] && recorded[r.Tags[cloud.TagToken]] {
			own = append(own, r.ID)
		}
	}
	if len(own) == 0 {
		return nil
	}
	x.note("   %s", own[n%len(own)])
	return x.world.harm(ctx, x, own[n%len(own)], act)
}

// tearOut does what impatient users do during a deletion: it removes the finalizer, and the VM
// becomes an orphan.
func (x *tenant) tearOut(ctx context.Context, n int) error {
	list := &clusterv1.MachineList{}
	if err := x.rig.Client.List(ctx, list, client.InNamespace(x.Namespace)); err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return !m.Status.NodeRef.IsDefined() })
	if len(list.Items) == 0 {
		return nil
	}
	owner := &list.Items[n%len(list.Items)]
	x.note("   %s", owner.Name)
	machine := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: x.Namespace, Name: owner.Spec.InfrastructureRef.Name}}
	return errors.Join(
		scenario.Delete(ctx, x.rig.Client, owner),
		scenario.Delete(ctx, x.rig.Client, machine),
		client.IgnoreNotFound(x.rig.Client.Patch(ctx, machine, mergePatch(`{"metadata":{"finalizers":null}}`))),
	)
}

// confirm acts as a person who is asked whether orphans may be deleted. Here each of them was torn
// out.
func (x *tenant) confirm(ctx context.Context, r client.Reader) error {
	account := x.Account()
	if err := r.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := x.confirmMissing(ctx, account); err != nil || !x.armed() {
		return err
	}
	orphans := account.Status.Orphans
	if conditions.GetReason(account, infrav1.AccountOrphansResolvedCondition) != infrav1.OrphansConfirmationRequiredReason || orphans == nil ||
		account.Annotations[infrav1.ConfirmOrphansAnnotation] == orphans.Digest {
		return nil
	}
	x.note("confirms that %d orphans may go", len(orphans.Observed))
	return x.rig.Client.Patch(ctx, account, mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, infrav1.ConfirmOrphansAnnotation,
		orphans.Digest)))
}

// confirmMissing acts as a person who is asked whether many missing machines are gone. Here they
// are.
func (x *tenant) confirmMissing(ctx context.Context, account *infrav1.DroverAccount) error {
	if conditions.GetReason(account, infrav1.AccountMachinesFoundCondition) != infrav1.MassAbsenceReason {
		return nil
	}
	_, digest, _ := strings.Cut(conditions.GetMessage(account, infrav1.AccountMachinesFoundCondition), infrav1.ConfirmMissingAnnotation+"=")
	digest, _, _ = strings.Cut(digest, "`")
	if digest == "" || account.Annotations[infrav1.ConfirmMissingAnnotation] == digest {
		return nil
	}
	x.note("confirms that missing machines are gone: %s", digest)
	return x.rig.Client.Patch(ctx, account, mergePatch(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, infrav1.ConfirmMissingAnnotation,
		digest)))
}

// heal ends all of the tenant's own faults.
func (x *tenant) heal(ctx context.Context) error {
	x.lines.heal()
	var errs []error
	for _, undo := range x.faults {
		errs = append(errs, undo(ctx))
	}
	errs = append(errs, x.move(ctx, false), x.removeCopies(ctx), x.endAttack(ctx), x.completeClusters(ctx))
	if x.deleted { // the delete may have failed while the API server was down
		errs = append(errs, scenario.Delete(ctx, x.rig.Client, x.Cluster()), x.dropClusters(ctx))
	} else {
		errs = append(errs, x.checkHealth(ctx))
	}
	return errors.Join(append(errs, x.rotate(ctx))...)
}

// watch checks what must never happen, against the cloud's own records.
func (x *tenant) watch(s simulator.Snapshot) error {
	var errs []error
	intact := map[string]int{}
	for _, r := range s.Resources {
		if r.Account != x.Name {
			continue
		}
		if x.foreign[r.ID] && (r.State == wire.Running || r.State == wire.Pending) {
			intact[r.ID] += 1
		}
		if x.foreign[r.AttachedTo] {
			intact[r.AttachedTo] += 1
		}
		if r.Kind != wire.Instance && r.Kind != wire.Balancer || x.foreign[r.ID] {
			continue
		}
		for _, key := range []string{"Machine " + r.Tags[cloud.TagMachine], "token " + r.Tags[cloud.TagToken]} {
			if x.made[key] == nil {
				x.made[key] = map[string]bool{}
			}
			x.made[key][r.ID] = true
			if len(x.made[key]) > 1 {
				errs = append(errs, fmt.Errorf("%d VMs or load balancers were made for %s: %v", len(x.made[key]), key,
					slices.Sorted(maps.Keys(x.made[key]))))
			}
		}
	}
	for id := range x.foreign {
		if intact[id] != x.world.parts() {
			errs = append(errs, fmt.Errorf("the foreign VM %s was touched: %d of %d parts are left", id, intact[id], x.world.parts()))
		}
	}
	return errors.Join(errs...)
}

// atRest returns what is missing from the state that the user wants, or "" if nothing is.
func (x *tenant) atRest(ctx context.Context) (string, error) {
	return x.rig.Confirmed(func(r client.Reader) scenario.Check {
		return func(ctx context.Context) (string, error) { return x.restsBy(ctx, r) }
	})(ctx)
}

// restsBy is atRest with the reads of r.
func (x *tenant) restsBy(ctx context.Context, r client.Reader) (string, error) {
	if err := x.confirm(ctx, r); err != nil {
		return "", err
	}
	if x.deleted {
		return scenario.Empty(r, &clusterv1.ClusterList{}, x.Namespace)(ctx)
	}
	all := &clusterv1.MachineDeploymentList{}
	if err := r.List(ctx, all, client.InNamespace(x.Namespace)); err != nil {
		return "", err
	}
	wanted := 0
	for _, md := range all.Items {
		if !md.DeletionTimestamp.IsZero() {
			return "MachineDeployment " + md.Name + " is being deleted", nil
		}
		n := ptr.Deref(md.Spec.Replicas, 0)
		wanted += int(n)
		pool := scenario.Pool{Cluster: x.Adopted, Name: md.Name}
		if missing, err := scenario.All(pool.Ready(r, n), pool.Current(r))(ctx); missing != "" || err != nil {
			return missing, err
		}
	}
	return x.owned(ctx, r, wanted)
}

// owned checks that there are as many VMs as wanted, each with its DroverMachine, and that each
// load balancer has its DroverCluster.
func (x *tenant) owned(ctx context.Context, r client.Reader, wanted int) (string, error) {
	machines := &infrav1.DroverMachineList{}
	if err := r.List(ctx, machines, client.InNamespace(x.Namespace)); err != nil {
		return "", err
	}
	byToken := map[string]*infrav1.DroverMachine{}
	for i := range machines.Items {
		byToken[machines.Items[i].Spec.Creation.Token] = &machines.Items[i]
	}
	snapshot, err := x.rig.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	alive := 0
	for _, live := range x.Live(snapshot) {
		if x.foreign[live.ID] || x.foreign[live.AttachedTo] || live.Kind == wire.Balancer {
			continue
		}
		m := byToken[live.Tags[cloud.TagToken]]
		switch {
		case m == nil:
			return fmt.Sprintf("%s %s (%s) has no owner", live.Kind, live.ID, live.Tags[cloud.TagMachine]), nil
		case live.Kind == wire.Instance && !strings.HasSuffix(m.Spec.ProviderID, "/"+live.ID):
			return fmt.Sprintf("VM %s is not the recorded one of %s: %s", live.ID, m.Name, m.Spec.ProviderID), nil
		case live.Kind == wire.Instance:
			alive++
		}
	}
	if alive != wanted || len(machines.Items) != wanted {
		return fmt.Sprintf("%d VMs live and there are %d DroverMachines; %d are wanted", alive, len(machines.Items), wanted), nil
	}
	return x.hasEndpoints(ctx, r, snapshot)
}

// deletePools deletes all pools, and the clusters without any.
func (x *tenant) deletePools(ctx context.Context) error {
	all, err := x.deployments(ctx)
	err = errors.Join(err, x.dropClusters(ctx))
	for i := range all {
		err = errors.Join(err, scenario.Delete(ctx, x.rig.Client, &all[i]))
	}
	return err
}

// gone returns what is left of the tenant's machines. When the Cluster itself was deleted, Cluster
// API leaves the Nodes, and unreachable bootstrap tokens are left to expire.
func (x *tenant) gone(ctx context.Context) (string, error) {
	if err := x.confirm(ctx, x.rig.View); err != nil {
		return "", err
	}
	return x.Left(ctx, rig.Except{Instances: x.foreign, Workload: x.deleted})
}
