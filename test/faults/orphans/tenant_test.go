// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// tenant is a namespace with a Cluster, an account, and machines that the test creates and deletes
// as Drover's other controllers would.
type tenant struct {
	scenario.Adopted
	bench *bench
	proxy *faultproxy.Proxy
	rand  *rand.Rand
	owner string // the cluster's ownership ID
	names int
	later sync.WaitGroup // creates under way, and faults that end by themselves
	// gone means that the collector must leave everything here alone, because the cluster has moved
	// away or its namespace is being deleted.
	gone bool

	mu       sync.Mutex
	machines []*machine
	// lost holds, by token, the time at which the token's resources lost their owner for good.
	// lostVM holds the same by VM ID, for one of several VMs. The collector must keep all others.
	lost, lostVM map[string]time.Time
	// touched holds the tokens and VM IDs of which the test itself deleted something, so that the
	// collector is not blamed.
	touched map[string]bool
	there   map[string]simulator.SnapshotResource
	broken  error
	// late means that an object came back so late that the schedule proves nothing.
	late bool
	log  []string
	// collected is the number of deleted VMs without an owner, and asked how often a person was
	// asked.
	collected, asked int
}

// machine is a DroverMachine with its VM.
type machine struct {
	object *infrav1.DroverMachine
	vm     string
	back   bool // it was lost and restored
}

func newTenant(b *bench, seed uint64) *tenant {
	name := fmt.Sprintf("o%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	return &tenant{
		Adopted: scenario.Adopted{
			Namespace: name, Name: name, Token: "token-of-" + name, OrphanPolicy: infrav1.OrphanPolicyDelete,
			Inventory: infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1},
		},
		bench: b, rand: r, owner: fmt.Sprintf("owner%021d", seed),
		lost: map[string]time.Time{}, lostVM: map[string]time.Time{}, touched: map[string]bool{},
	}
}

func (x *tenant) note(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.log = append(x.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (x *tenant) history() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.Join(x.log, "\n")
}

// token returns a new creation token of a management cluster.
func (x *tenant) token(identity string) string {
	x.names++
	return fmt.Sprintf("%s%012x%012x", identity, x.rand.Uint64()>>16, x.names)
}

// setUp creates the account, the cluster, and machines that exist from the start.
func (x *tenant) setUp(ctx context.Context) error {
	err := x.bench.admin.SetAccount(ctx, simulator.AccountOptions{Name: x.Name, Tokens: []string{x.Token}})
	if err != nil {
		return err
	}
	x.proxy, err = faultproxy.Start(faultproxy.Options{Name: x.Name, Upstream: x.bench.cloud.URL, Parse: faultproxy.Cloud})
	if err != nil {
		return err
	}
	x.Endpoint = x.proxy.URL()
	if err := scenario.Create(ctx, x.bench.client, x.objects()...); err != nil {
		return err
	}
	for range 3 + x.rand.IntN(5) {
		if err := x.create(ctx, x.token(x.bench.identity), 0, 0, true); err != nil {
			return err
		}
	}
	return nil
}

// objects returns the namespace and everything in it except machines.
func (x *tenant) objects() []client.Object {
	infra, cluster := x.DroverCluster(), x.Cluster()
	infra.Spec.Creation.OwnershipID = x.owner
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
	var objects []client.Object
	for _, o := range x.Adopted.Objects() {
		switch o := o.(type) {
		case *infrav1.DroverCluster, *clusterv1.Cluster:
			continue
		case *infrav1.DroverAccount: // the manager with the webhooks proves its place
			o.Labels = map[string]string{clusterv1.WatchLabel: webhooksOnly}
		}
		objects = append(objects, o)
	}
	return append(objects, infra, cluster)
}

// object returns a DroverMachine as its controller leaves it after it has chosen the token.
func (x *tenant) object(token string) *infrav1.DroverMachine {
	m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: x.Namespace, Name: "m-" + token[8:]}}
	m.Labels = map[string]string{clusterv1.ClusterNameLabel: x.Name}
	m.Spec.AccountRef.Name, m.Spec.Creation.Token = x.Name, token
	m.Spec.Cloud.Simulated = &infrav1.SimulatedMachine{}
	return m
}

// run creates a VM in the cloud, optionally with a disk that outlives it.
func (x *tenant) run(ctx context.Context, owner, token string, disk bool) (wire.Resource, error) {
	request := wire.RunInstancesRequest{Region: "sim-1", InstanceType: "small", Image: "node-image", Tags: map[string]string{}}
	if owner != "" {
		request.Tags[cloud.TagOwnership], request.Tags[cloud.TagToken] = owner, token
	}
	if disk {
		request.DataDisksGiB = []int32{1}
	}
	return x.bench.admin.Run(ctx, x.Name, request)
}

func (x *tenant) record(ctx context.Context, m *infrav1.DroverMachine, vm wire.Resource) error {
	return scenario.Patch(ctx, x.bench.client, m, func() { m.Spec.ProviderID = "simulated:///" + vm.Zone + "/" + vm.ID })
}

// create creates a machine: it writes the token, after a delay creates the VM, and after another
// delay records the provider ID.
func (x *tenant) create(ctx context.Context, token string, slow, record time.Duration, disk bool) error {
	m := x.object(token)
	if err := scenario.Create(ctx, x.bench.client, m); err != nil {
		return err
	}
	if !scenario.Pause(ctx, slow) {
		return ctx.Err()
	}
	vm, err := x.run(ctx, x.owner, token, disk)
	if err != nil {
		return fmt.Errorf("make the VM: %w", err)
	}
	if !scenario.Pause(ctx, record) {
		return ctx.Err()
	}
	if err := x.record(ctx, m, vm); err != nil {
		return fmt.Errorf("write the VM's name: %w", err)
	}
	x.note("machine %s has VM %s", m.Name, vm.ID)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.machines = append(x.machines, &machine{object: m, vm: vm.ID})
	return nil
}

// see compares the cloud's records, read shortly before at, with those of the last check.
func (x *tenant) see(at time.Time, now []simulator.SnapshotResource) {
	x.mu.Lock()
	defer x.mu.Unlock()
	there := map[string]simulator.SnapshotResource{}
	for _, r := range now {
		there[string(r.Kind)+"/"+r.ID] = r
	}
	for key, r := range x.there {
		if _, still := there[key]; still || x.touched[r.Tags[cloud.TagToken]] && r.Kind != wire.Instance || x.touched[r.ID] {
			continue
		}
		since, lost := x.since(r)
		switch {
		case !lost && x.broken == nil:
			x.broken = fmt.Errorf("%s of token %q was gone at %s and should have been kept", key, r.Tags[cloud.TagToken], at.Format("15:04:05.000"))
		case lost && at.Sub(since) < grace && x.broken == nil:
			x.broken = fmt.Errorf("%s is gone %s after it lost its owner: within the grace", key, at.Sub(since))
		case r.Kind == wire.Instance:
			x.collected++
		}
	}
	x.there = there
}

// since reports whether a resource is a true orphan, and the time at which it became one.
func (x *tenant) since(r simulator.SnapshotResource) (time.Time, bool) {
	if at, lost := x.lostVM[r.ID]; lost {
		return at, true
	}
	at, lost := x.lost[r.Tags[cloud.TagToken]]
	return at, lost && r.Tags[cloud.TagOwnership] == x.owner
}

func (x *tenant) violation() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.late {
		return nil
	}
	return x.broken
}

// rest waits until every true orphan is gone, and answers questions like a person who checks first.
// Everything that was to be kept must still exist.
func (x *tenant) rest(ctx context.Context) error {
	x.later.Wait()
	x.proxy.SetRule(nil)
	for !x.gone {
		left := x.orphans()
		if len(left) == 0 || x.violation() != nil {
			break
		}
		if err := x.answer(ctx); err != nil {
			return err
		}
		if !scenario.Pause(ctx, 500*time.Millisecond) {
			return fmt.Errorf("%d orphans are left: %s; the account says %s", len(left), strings.Join(left, ", "), x.says(context.Background()))
		}
	}
	scenario.Pause(ctx, long)
	if err := x.violation(); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.machines {
		if _, there := x.there[string(wire.Instance)+"/"+m.vm]; !there && !x.late {
			return fmt.Errorf("machine %s has lost its VM %s", m.object.Name, m.vm)
		}
	}
	return nil
}

// orphans returns the existing resources that should be gone.
func (x *tenant) orphans() (left []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, r := range x.there {
		if _, lost := x.since(r); lost {
			left = append(left, key)
		}
	}
	slices.Sort(left)
	return left
}

func (x *tenant) says(ctx context.Context) string {
	account := x.Account()
	if err := x.bench.client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
		return err.Error()
	}
	c := conditions.Get(account, infrav1.AccountOrphansResolvedCondition)
	return fmt.Sprintf("%+v, orphans %+v", c, account.Status.Orphans)
}

// answer confirms the set of orphans that the account asks about, if all that it shows are true
// orphans.
func (x *tenant) answer(ctx context.Context) error {
	account := x.Account()
	if err := x.bench.client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
		return err
	}
	c, o := conditions.Get(account, infrav1.AccountOrphansResolvedCondition), account.Status.Orphans
	if c == nil || c.Reason != infrav1.OrphansConfirmationRequiredReason || o == nil || o.Digest == "" ||
		account.Annotations[infrav1.ConfirmOrphansAnnotation] == o.Digest {
		return nil
	}
	orphans := x.orphans()
	for _, shown := range o.Observed {
		if shown.State == infrav1.OrphanOtherManager {
			continue // it is not in the set
		}
		if !slices.ContainsFunc(orphans, func(key string) bool { return strings.HasSuffix(key, "/"+shown.ID) }) {
			return nil // the status is stale, and the collector will update it
		}
	}
	x.note("a person confirms %s", o.Digest)
	x.mu.Lock()
	x.asked++
	x.mu.Unlock()
	return scenario.Patch(ctx, x.bench.client, account, func() {
		metav1.SetMetaDataAnnotation(&account.ObjectMeta, infrav1.ConfirmOrphansAnnotation, o.Digest)
	})
}

// clear removes the tenant.
func (x *tenant) clear(ctx context.Context) error {
	x.proxy.Close()
	err := x.release(ctx)
	for _, o := range []client.Object{x.Account(), x.Cluster(), x.Adopted.Objects()[0]} {
		err = errors.Join(err, scenario.Delete(ctx, x.bench.client, o)) // one that stays keeps no other
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.there {
		if r.Kind == wire.Instance {
			err = errors.Join(err, x.bench.admin.Act(ctx, r.ID, simulator.ActVanish))
		}
	}
	return err
}
