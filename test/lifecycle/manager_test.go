// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// house is a management cluster whose managers a test may harm, unlike the one that the other tests
// share.
type house struct {
	*testing.T
	ctx        context.Context
	management *playground.Management
	client     client.Client
}

// newHouse starts a management cluster without a Drover manager.
func newHouse(t *testing.T) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	management, err := playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Name: "house", Progress: os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = management.Stop() })
	if err := management.InstallDrover(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := scenario.NewClient(management.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &house{T: t, ctx: ctx, management: management, client: c}
}

// start starts a manager that runs at most until the test ends.
func (h *house) start(args ...string) *playground.Process {
	h.Helper()
	p, err := h.management.StartDrover(h.ctx, playground.DroverOptions{
		Binary: env.binary,
		Args: append([]string{
			"--leader-elect-retry-period=500ms", "--cloud-call-timeout=10s",
			"--ambient-credentials-namespaces=operator", "--simulated-endpoint=" + env.cloud.URL,
		}, args...),
		Env: []string{"DROVER_SIMULATED_TOKEN=" + env.cloud.Token},
	})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(p.Kill)
	return p
}

// run runs a part of the test as a subtest, with a timeout of patience.
func (h *house) run(name string, test func(*house)) {
	h.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(h.ctx, patience)
		defer cancel()
		test(&house{T: t, ctx: ctx, management: h.management, client: h.client})
	})
}

// adopted returns a pool for a namespace and a cluster of its own, and creates its account in the
// shared cloud. None of its objects exists yet.
func (h *house) adopted(name string) scenario.Pool {
	h.Helper()
	kubeconfig, err := h.management.Kubeconfig("house", "system:masters")
	if err != nil {
		h.Fatal(err)
	}
	if err := env.admin.SetAccount(h.ctx, simulator.AccountOptions{Name: "house-" + name,
		Tokens: []string{"token-of-house-" + name}}); err != nil {
		h.Fatal(err)
	}
	return scenario.Pool{Name: "pool", Cluster: scenario.Adopted{
		Namespace: name, Name: name, Kubeconfig: kubeconfig, Endpoint: env.cloud.URL, Token: "token-of-house-" + name,
		Inventory: infrav1.InventorySpec{IdleSeconds: 2, ActiveSeconds: 1},
	}}
}

// create creates the objects. It retries, because a manager that was just killed may have cut off a
// call to its webhook.
func (h *house) create(objects ...client.Object) {
	h.Helper()
	h.soon("the objects are created", func(ctx context.Context) (string, error) {
		return "", scenario.Create(ctx, h.client, objects...)
	})
}

func (h *house) delete(objects ...client.Object) {
	h.Helper()
	if err := scenario.Delete(h.ctx, h.client, objects...); err != nil {
		h.Fatal(err)
	}
}

// soon waits for a check. It tolerates an API server that is down.
func (h *house) soon(what string, check scenario.Check) {
	h.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	still, err := "it was never looked at", error(nil)
	for h.ctx.Err() == nil {
		if still, err = check(h.ctx); still == "" && err == nil {
			return
		}
		select {
		case <-h.ctx.Done():
		case <-tick.C:
		}
	}
	h.Fatalf("waiting until %s: %s (%v)", what, still, err)
}

// instances returns the VMs of a pool's account.
func (h *house) instances(pool scenario.Pool) []simulator.SnapshotResource {
	h.Helper()
	snapshot, err := env.admin.Snapshot(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	var ours []simulator.SnapshotResource
	for _, r := range snapshot.Instances() {
		if r.Account == "house-"+pool.Cluster.Name {
			ours = append(ours, r)
		}
	}
	return ours
}

// running checks that a pool's account has n VMs.
func (h *house) running(pool scenario.Pool, n int) scenario.Check {
	return func(context.Context) (string, error) {
		if have := len(h.instances(pool)); have != n {
			return fmt.Sprintf("there are %d VMs, want %d", have, n), nil
		}
		return "", nil
	}
}

// oneEach asserts that the pool has n machines with exactly one VM each, created by one effective
// request.
func (h *house) oneEach(pool scenario.Pool, n int) {
	h.Helper()
	list := &infrav1.DroverMachineList{}
	if err := h.client.List(h.ctx, list, client.InNamespace(pool.Cluster.Namespace)); err != nil {
		h.Fatal(err)
	}
	byToken := map[string]int{}
	for _, vm := range h.instances(pool) {
		byToken[vm.Tags["drover-creation-token"]]++
	}
	if len(list.Items) != n || len(byToken) != n {
		h.Errorf("there are %d machines, and VMs with %d tokens; want %d", len(list.Items), len(byToken), n)
	}
	for _, m := range list.Items {
		if byToken[m.Spec.Creation.Token] != 1 {
			h.Errorf("machine %s has %d VMs", m.Name, byToken[m.Spec.Creation.Token])
		}
	}
}

// gone checks that neither a machine nor a VM of the pool is left.
func (h *house) gone(pool scenario.Pool) scenario.Check {
	in := pool.Cluster.Namespace
	return scenario.All(scenario.Empty(h.client, &clusterv1.MachineList{}, in), scenario.Empty(h.client, &infrav1.DroverMachineList{}, in),
		h.running(pool, 0))
}

// TestManagers stops and disturbs managers and their peers, one case after another in one
// management cluster.
func TestManagers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run("webhook-down", (*house).webhookDown)
	h.run("leader-killed", (*house).leaderKilled)
	h.run("restarted", (*house).restarted)
	h.run("clock-skew", (*house).clockSkew)
	h.run("asked-to-stop", (*house).askedToStop)
	h.run("api-server-restarts", (*house).apiServerRestarts)
	h.run("namespace", (*house).onlyNamespace)
	h.run("watch-filter", (*house).dividedByLabel)
}

// TestManagersAtWork tests machines and objects while managers come and go.
func TestManagersAtWork(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run("safety-apart", (*house).safetyApart)
	h.run("freeze-in-two-passes", (*house).freezeInTwoPasses)
	h.run("node-before-its-address", (*house).nodeBeforeItsAddress)
	h.run("node-gone-before-its-trouble", (*house).nodeGoneBeforeItsTrouble)
	h.run("secrets", (*house).secretsStaySecret)
	h.run("behind-the-webhooks", (*house).behindTheWebhooks) // last, because it removes them
}

// webhookDown checks that new objects are rejected with a reason while no manager serves the
// webhooks, and that running machines are not touched.
func (h *house) webhookDown() {
	pool := h.adopted("webhook-down")
	drover := h.start()
	pool.Replicas = 1
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("a machine is ready", pool.Ready(h.client, 1))
	drover.Kill()
	err := h.client.Create(h.ctx, pool.Template("late", infrav1.SimulatedMachine{}))
	if err == nil || !strings.Contains(err.Error(), "failed calling webhook") || !strings.Contains(err.Error(), "drovermachinetemplate") {
		h.Errorf("a template is answered with %v while nobody serves its webhook", err)
	}
	machines := &infrav1.DroverMachineList{}
	if err := h.client.List(h.ctx, machines, client.InNamespace(pool.Cluster.Namespace)); err != nil || len(machines.Items) != 1 {
		h.Fatalf("there are %d machines (%v), want 1", len(machines.Items), err)
	}
	if !conditions.IsTrue(&machines.Items[0], clusterv1.ReadyCondition) || len(h.instances(pool)) != 1 {
		h.Error("the machine suffered from the loss of the webhook")
	}
	if err := pool.Scale(h.ctx, h.client, 2); err != nil { // the webhook rejects Cluster API's DroverMachine, and Cluster API retries
		h.Fatal(err)
	}
	h.start()
	h.soon("the second machine is made once the webhook is back", pool.Ready(h.client, 2))
	h.oneEach(pool, 2)
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
}

// leader returns the manager that holds the lease.
func (h *house) leader(managers ...*playground.Process) (leader *playground.Process) {
	h.Helper()
	h.soon("one of the managers leads", func(context.Context) (string, error) {
		for _, m := range managers {
			text, err := os.ReadFile(m.Log)
			if err != nil {
				return "", err
			}
			if strings.Contains(string(text), "Successfully acquired lease") || strings.Contains(string(text), "successfully acquired lease") {
				leader = m
				return "", nil
			}
		}
		return "none has the lease", nil
	})
	return leader
}

// leaderKilled kills a leader in the middle of creates, with many calls in flight. The other
// manager takes over. No machine is lost, and none is created twice.
func (h *house) leaderKilled() {
	pool := h.adopted("leader-killed")
	pool.Replicas = 5
	h.latency(500 * time.Millisecond)
	first, second := h.start(), h.start()
	leader := h.leader(first, second)
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("some creations are under way", func(ctx context.Context) (string, error) {
		machines := &infrav1.DroverMachineList{}
		if err := h.client.List(ctx, machines, client.InNamespace(pool.Cluster.Namespace)); err != nil {
			return "", err
		}
		for _, m := range machines.Items {
			if m.Spec.Creation.Token != "" && m.Spec.ProviderID == "" {
				return "", nil
			}
		}
		return fmt.Sprintf("of %d machines none waits for its VM", len(machines.Items)), nil
	})
	leader.Kill()
	h.soon("all machines are ready", pool.Ready(h.client, 5))
	h.oneEach(pool, 5)
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
}

// restarted checks that a manager that has just started writes nothing to objects that are as they
// should be, though it has not probed their account yet: with many objects it would be a storm.
func (h *house) restarted() {
	pool := h.adopted("restarted")
	pool.Replicas = 2
	first := h.start()
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("the machines are ready", pool.Ready(h.client, 2))
	before := h.versions(pool)
	h.soon("nothing is written any more", func(ctx context.Context) (string, error) {
		last := before
		before = h.versions(pool)
		if !maps.Equal(last, before) || !scenario.Pause(ctx, 2*time.Second) {
			return "objects change", nil
		}
		return "", nil
	})
	first.Kill()
	if _, err := env.admin.AddFault(h.ctx, simulator.Fault{
		Kind: simulator.SlowAfter, Operation: wire.DescribeCatalog, Account: "house-restarted", Count: 1,
		Delay: simulator.Duration{Duration: 5 * time.Second},
	}); err != nil {
		h.Fatal(err)
	}
	h.start()
	other := h.adopted("restarted-other")
	other.Replicas = 1
	h.create(append(other.Cluster.Objects(), other.Objects()...)...)
	h.soon("the new manager works", other.Ready(h.client, 1))
	after := h.versions(pool)
	for name, version := range before {
		if after[name] != version {
			h.Errorf("%s was written after the restart", name)
		}
	}
	h.delete(pool.Deployment(), other.Deployment())
	h.soon("nothing is left", scenario.All(h.gone(pool), h.gone(other)))
}

// versions returns the resource versions of a pool's objects, except its account, whose status says
// what this manager has checked.
func (h *house) versions(pool scenario.Pool) map[string]string {
	h.Helper()
	all := map[string]string{}
	for _, o := range h.objects(pool) {
		if _, account := o.(*infrav1.DroverAccount); !account {
			all[fmt.Sprintf("%T %s", o, o.GetName())] = o.GetResourceVersion()
		}
	}
	return all
}

// clockSkew runs managers whose clocks differ by many minutes. The one to which the other's lease
// seems expired does not take it, and creates no second VM when it leads at last.
func (h *house) clockSkew() {
	const lease = 4 * time.Second
	args := []string{"--leader-elect-lease-duration=" + lease.String(), "--leader-elect-renew-deadline=3s"}
	pool := h.adopted("clock-skew")
	pool.Replicas = 3
	h.latency(500 * time.Millisecond)
	first := h.start(append(args, "--kubeconfig="+h.proxied(faultproxy.Options{Name: "behind", Skew: -7 * time.Minute}))...)
	h.leader(first)
	second := h.start(append(args, "--kubeconfig="+h.proxied(faultproxy.Options{Name: "ahead", Skew: 7 * time.Minute}))...)
	holder := &coordinationv1.LeaseList{}
	leads := func() string {
		if err := h.client.List(h.ctx, holder, client.InNamespace("drover-system")); err != nil || len(holder.Items) != 1 {
			h.Fatalf("%d leases, %v", len(holder.Items), err)
		}
		return ptr.Deref(holder.Items[0].Spec.HolderIdentity, "")
	}
	before := leads()
	if off := time.Until(holder.Items[0].Spec.RenewTime.Time); off > -6*time.Minute {
		h.Errorf("the lease was renewed %s from now: is the clock not behind?", off)
	}
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	for tick, end := time.NewTicker(200*time.Millisecond), time.Now().Add(3*lease); time.Now().Before(end); <-tick.C {
		if now := leads(); now != before {
			h.Fatalf("%s took the lease of %s, which had renewed it", now, before)
		}
	}
	if err := pool.Scale(h.ctx, h.client, 6); err != nil {
		h.Fatal(err)
	}
	h.soon("all machines are there", func(ctx context.Context) (string, error) {
		machines := &infrav1.DroverMachineList{}
		if err := h.client.List(ctx, machines, client.InNamespace(pool.Cluster.Namespace)); err != nil || len(machines.Items) < 6 {
			return fmt.Sprintf("there are %d", len(machines.Items)), err
		}
		return "", nil
	})
	first.Kill()
	h.leader(second)
	h.soon("all machines are ready", pool.Ready(h.client, 6))
	h.oneEach(pool, 6)
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
}

// proxied returns a kubeconfig for a manager that reaches the management cluster through a proxy.
func (h *house) proxied(options faultproxy.Options) string {
	h.Helper()
	options.Upstream, options.CA, options.Parse = h.management.URL, h.management.CA(), faultproxy.Kubernetes
	proxy, err := faultproxy.Start(options)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(proxy.Close)
	raw, err := h.management.ServiceAccountKubeconfig(h.ctx, "drover-system", "drover-manager")
	file := filepath.Join(h.TempDir(), "kubeconfig")
	if err == nil {
		err = proxy.WriteKubeconfig(file, raw)
	}
	if err != nil {
		h.Fatal(err)
	}
	return file
}

// latency makes the shared cloud slow until the test ends. The other tests only wait a little
// longer.
func (h *house) latency(d time.Duration) {
	h.Helper()
	settings, err := env.admin.Settings(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	slow := settings
	slow.Latency = simulator.Latency{Min: simulator.Duration{Duration: d}, Mean: simulator.Duration{Duration: d}}
	if err := env.admin.SetSettings(h.ctx, slow); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if err := env.admin.SetSettings(context.WithoutCancel(h.ctx), settings); err != nil {
			h.Error(err)
		}
	})
}

// askedToStop stops a manager while a create is in flight. The manager waits for the answer,
// records it and exits without an error.
func (h *house) askedToStop() {
	pool := h.adopted("asked-to-stop")
	pool.Replicas = 1
	fault := simulator.Fault{Kind: simulator.SlowAfter, Operation: wire.RunInstances, Account: "house-asked-to-stop",
		Delay: simulator.Duration{Duration: 3 * time.Second}}
	if _, err := env.admin.AddFault(h.ctx, fault); err != nil {
		h.Fatal(err)
	}
	drover := h.start()
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("the VM is made, and the answer is on its way", h.running(pool, 1))
	asked := time.Now()
	if err := drover.Stop(40 * time.Second); err != nil {
		h.Error(err)
	}
	h.Logf("the manager ended %s after it was asked to", time.Since(asked).Round(100*time.Millisecond))
	machines := &infrav1.DroverMachineList{}
	if err := h.client.List(h.ctx, machines, client.InNamespace(pool.Cluster.Namespace)); err != nil || len(machines.Items) != 1 {
		h.Fatalf("there are %d machines (%v), want 1", len(machines.Items), err)
	}
	if machines.Items[0].Spec.ProviderID == "" {
		h.Error("the manager ended without writing down what VM it made")
	}
	h.start()
	h.soon("the machine is ready", pool.Ready(h.client, 1))
	h.oneEach(pool, 1)
	audit, err := env.admin.Audit(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	if n := audit.Machine(machines.Items[0].Spec.Creation.Token, wire.RunInstances); n != 1 {
		h.Errorf("RunInstances was called %d times, want once", n)
	}
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
}

// apiServerRestarts restarts the API server while machines are created.
func (h *house) apiServerRestarts() {
	pool := h.adopted("api-server-restarts")
	pool.Replicas = 3
	h.start()
	h.latency(500 * time.Millisecond)
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("a VM is made", func(context.Context) (string, error) {
		if len(h.instances(pool)) == 0 {
			return "there is none", nil
		}
		return "", nil
	})
	if err := h.management.RestartAPIServer(h.ctx); err != nil {
		h.Fatal(err)
	}
	h.start() // a leader that could not renew its Lease exits, as it should, and nothing else restarts it here
	h.soon("all machines are ready", pool.Ready(h.client, 3))
	h.oneEach(pool, 3)
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
}

// objects returns the objects in a pool's namespace of the kinds to which Drover writes.
func (h *house) objects(pool scenario.Pool) (all []client.Object) {
	h.Helper()
	for _, list := range []client.ObjectList{
		&infrav1.DroverAccountList{}, &infrav1.DroverClusterList{}, &infrav1.DroverMachineTemplateList{}, &infrav1.DroverMachineList{},
		&bootstrapv1.DroverConfigList{}, &controlplanev1.AdoptedControlPlaneList{}, &corev1.SecretList{},
	} {
		if err := h.client.List(h.ctx, list, client.InNamespace(pool.Cluster.Namespace)); err != nil {
			h.Fatal(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			all = append(all, o.(client.Object))
			return nil
		}); err != nil {
			h.Fatal(err)
		}
	}
	return all
}

// touched lists what Drover has written for a pool and its cluster.
func (h *house) touched(pool scenario.Pool) (all []string) {
	h.Helper()
	for _, o := range h.objects(pool) {
		if slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool { return strings.HasPrefix(f.Manager, "drover") }) {
			all = append(all, fmt.Sprintf("%T %s", o, o.GetName()))
		}
	}
	for _, vm := range h.instances(pool) {
		all = append(all, "VM "+vm.ID)
	}
	return all
}

// only asserts that Drover has written to every kind of object of the pool mine, and to nothing of
// the pool other.
func (h *house) only(mine, other scenario.Pool) {
	h.Helper()
	if n := len(h.touched(mine)); n < 10 { // one of each kind, three Secrets and a VM
		h.Errorf("of the pool that is this manager's, only this was written: %q", h.touched(mine))
	}
	if wrong := h.touched(other); len(wrong) > 0 {
		h.Errorf("of the pool that is not this manager's, this was written: %q", wrong)
	}
}

// onlyNamespace checks that a manager for one namespace serves only that namespace.
func (h *house) onlyNamespace() {
	inside, outside := h.adopted("inside"), h.adopted("outside")
	inside.Replicas, outside.Replicas = 1, 1
	drover := h.start("--namespace=inside")
	for _, pool := range []scenario.Pool{outside, inside} {
		h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	}
	h.soon("a machine inside is ready", inside.Ready(h.client, 1))
	h.only(inside, outside)
	h.delete(inside.Deployment())
	h.soon("nothing is left inside", h.gone(inside))
	drover.Kill()
	h.delete(outside.Deployment(), outside.Cluster.Cluster())
}

// dividedByLabel runs two managers that divide the work by label. Both lead at the same time, each
// for its part. Neither waits for the other, neither takes over when the other is gone, and no
// manager serves objects without a label. The test failed when both shared one lease.
func (h *house) dividedByLabel() {
	one, two, other := h.adopted("part-one"), h.adopted("part-two"), h.adopted("no-part")
	one.Replicas, two.Replicas, other.Replicas = 1, 1, 1
	first := h.start("--watch-filter=one")
	second := h.start("--watch-filter=two")
	h.createLabeled(one, "one")
	h.createLabeled(two, "two")
	h.create(append(other.Cluster.Objects(), other.Objects()...)...)
	h.soon("a machine of each part is ready", scenario.All(one.Ready(h.client, 1), two.Ready(h.client, 1)))
	h.only(one, other)
	first.Kill()
	for _, pool := range []scenario.Pool{one, two} {
		if err := pool.Scale(h.ctx, h.client, 2); err != nil {
			h.Fatal(err)
		}
	}
	h.soon("the part whose manager lives goes on", two.Ready(h.client, 2))
	if n := len(h.instances(one)); n != 1 {
		h.Errorf("there are %d VMs of the part that has no manager, want 1", n)
	}
	first = h.start("--watch-filter=one")
	h.soon("the other part goes on once its manager is back", one.Ready(h.client, 2))
	h.oneEach(one, 2)
	h.oneEach(two, 2)
	h.delete(one.Deployment(), two.Deployment())
	h.soon("nothing is left", scenario.All(h.gone(one), h.gone(two)))
	first.Kill()
	second.Kill()
	h.delete(other.Deployment(), other.Cluster.Cluster())
}

// createLabeled creates a cluster with its pool. All objects have the label that managers filter
// by.
func (h *house) createLabeled(pool scenario.Pool, value string) {
	h.Helper()
	label := map[string]string{clusterv1.WatchLabel: value}
	for _, o := range append(pool.Cluster.Objects(), pool.Objects()...) {
		labels := maps.Clone(label)
		maps.Copy(labels, o.GetLabels()) // a Secret has a label that says that it holds credentials
		o.SetLabels(labels)
		switch o := o.(type) { // clones get the label of their template
		case *infrav1.DroverMachineTemplate:
			o.Spec.Template.ObjectMeta.Labels = label
		case *clusterv1.MachineDeployment:
			o.Spec.Template.Labels[clusterv1.WatchLabel] = value
		}
		h.create(o)
	}
}

// behindTheWebhooks checks that the controller refuses by itself what the webhooks reject, if a
// user removed them: the manager's own credentials never go to a tenant's endpoint.
func (h *house) behindTheWebhooks() {
	h.start()
	h.delete(&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: h.webhooks()}})
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer server.Close()
	account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "own-endpoint"}}
	account.Spec.Cloud.Simulated = &infrav1.SimulatedAccount{Endpoint: server.URL}
	h.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "operator"}})
	h.soon("the account is taken", func(ctx context.Context) (string, error) { // the API server takes a moment to forget the webhooks
		return "", client.IgnoreAlreadyExists(h.client.Create(ctx, account.DeepCopy()))
	})
	h.soon("the account is refused", h.says(account, clusterv1.ReadyCondition, infrav1.NotPermittedReason, "never sent to a custom endpoint"))
	if n := calls.Load(); n != 0 {
		h.Errorf("%d calls with the manager's own credentials reached a tenant's endpoint", n)
	}
}

// webhooks returns the name of Drover's webhook configuration.
func (h *house) webhooks() string {
	h.Helper()
	list := &admissionv1.ValidatingWebhookConfigurationList{}
	if err := h.client.List(h.ctx, list); err != nil {
		h.Fatal(err)
	}
	for _, c := range list.Items {
		if strings.HasPrefix(c.Name, "drover") {
			return c.Name
		}
	}
	h.Fatalf("Drover has no webhook configuration among %d", len(list.Items))
	return ""
}
