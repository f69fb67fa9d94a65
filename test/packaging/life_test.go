// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

const team = "team-a"

// life is a cluster created as docs/adopt-a-cluster.md tells users to, with the real programs: two
// Secrets, the output of clusterctl, three machines. The management cluster adopts itself, with a
// kubeconfig that has only the permissions from that page.
type life struct {
	ctl        clusterctl
	management *playground.Management
	cloud      *playground.Simulator
	admin      client.Client
	drover     *playground.Process
	blue       scenario.Adopted
	pool       scenario.Pool
	kubeconfig *corev1.Secret
}

// newLife starts a cloud and Drover's manager.
func newLife(t *testing.T, ctl clusterctl, management *playground.Management) *life {
	t.Helper()
	l := &life{ctl: ctl, management: management, blue: scenario.Adopted{Namespace: team, Name: "blue"}}
	l.pool = scenario.Pool{Cluster: l.blue, Name: "blue-md-0"}
	var err error
	if l.cloud, err = playground.StartSimulator(t.Context(), playground.SimulatorOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.cloud.Stop(); err != nil {
			t.Error(err)
		}
	})
	if l.admin, err = scenario.NewClient(management.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	l.startDrover(t)
	return l
}

func (l *life) startDrover(t *testing.T) {
	t.Helper()
	var err error
	l.drover, err = l.management.StartDrover(t.Context(), playground.DroverOptions{Args: []string{
		"--simulated-endpoint=" + l.cloud.URL, "--leader-elect=false",
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func (l *life) begin(t *testing.T) {
	kubeconfig, err := l.management.Kubeconfig("drover")
	if err != nil {
		t.Fatal(err)
	}
	l.kubeconfig = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "adopted-kubeconfig"},
		Data: map[string][]byte{"value": kubeconfig}}
	if err := scenario.Create(t.Context(), l.admin, append(scenario.Rights("drover"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}},
		l.kubeconfig,
		scenario.Credentials(metav1.ObjectMeta{Namespace: team, Name: "simulated-credentials"}, "simulated",
			map[string][]byte{"token": []byte(l.cloud.Token)}),
	)...); err != nil {
		t.Fatal(err)
	}
	l.create(t, "adopted", "blue", team)
	until(t, l.blue.Available(l.admin))
	until(t, l.pool.Ready(l.admin, 3))
}

// create creates the objects of the flavor, with the given variables. Objects that the clusters of
// a namespace share may already exist.
func (l *life) create(t *testing.T, flavor, name, namespace string, variables ...string) {
	t.Helper()
	ctl := l.ctl
	ctl.env = slices.Concat(ctl.env, variables)
	for _, o := range objects(t, ctl.generate(t, flavor, name, namespace)) {
		if err := client.IgnoreAlreadyExists(l.admin.Create(t.Context(), o)); err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// describe checks that clusterctl shows the whole cluster on one screen, and every part as healthy.
func (l *life) describe(t *testing.T) {
	show := func(more ...string) string {
		return string(l.ctl.run(t, append([]string{"describe", "cluster", "blue", "--namespace", team, "--color=false"}, more...)...))
	}
	until(t, func(context.Context) (string, error) { // conditions are summarized a moment after the machines are ready
		out := show()
		for _, line := range []string{"Cluster team-a/blue", "─DroverCluster team-a/blue", "─AdoptedControlPlane team-a/blue",
			"─MachineDeployment team-a/blue-md-0", "─3 Machines"} {
			if found := grep([]byte(out), line); !strings.Contains(found, "True") {
				return fmt.Sprintf("%s is not shown to be well:\n%s", line, out), nil
			}
		}
		return "", nil
	})
	short := show()
	t.Log("\n" + short)
	if n := strings.Count(short, "\n"); n > 20 {
		t.Errorf("three machines take %d lines", n)
	}
	// Each machine is shown with its conditions, including those of the DroverMachine.
	long := show("--show-conditions", "all", "--grouping=false", "--echo")
	for _, m := range l.machines(t) {
		_, part, _ := strings.Cut(long, "DroverMachine "+team+"/"+m.Name)
		if first := grep([]byte(part), "Ready"); !strings.Contains(strings.SplitN(first, "\n", 2)[0], "True") {
			t.Errorf("DroverMachine %s is not shown, or not well:\n%s", m.Name, long)
		}
	}
}

// upgrade upgrades to the next release while machines run. clusterctl deletes the old manager's
// Deployment and its other objects except CRDs and namespace, and installs the new ones. The
// upgrade must change no machine and no VM, and must make no call to the cloud.
func (l *life) upgrade(t *testing.T, server client.Client) {
	plan := string(l.ctl.run(t, "upgrade", "plan"))
	t.Log("\n" + plan)
	if line := grep([]byte(plan), "infrastructure-drover"); !strings.Contains(line, version) || !strings.Contains(line, nextVersion) {
		t.Errorf("the plan does not lead from %s to %s", version, nextVersion)
	}
	admin := simulator.Admin{URL: l.cloud.URL}
	before, vms := l.machines(t), l.vms(t, admin)
	if len(vms) != 3 {
		t.Fatalf("there are %d VMs", len(vms))
	}
	l.drover.Kill() // this process stands for the Deployment's Pods
	if err := admin.ResetAudit(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.ctl.run(t, "upgrade", "apply", "--infrastructure", namespace+"/drover:"+nextVersion)
	if got := installed(t, server); !slices.Contains(got, "infrastructure-drover "+nextVersion) {
		t.Errorf("clusterctl's list is %v", got)
	}
	deployment := &appsv1.Deployment{}
	if err := l.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "drover-controller-manager"}, deployment); err != nil {
		t.Fatal(err)
	}
	if is := deployment.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(is, ":"+nextVersion) {
		t.Errorf("the Deployment runs %s", is)
	}
	if err := l.management.ServeDrover(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.startDrover(t)

	until(t, l.blue.Available(l.admin))
	until(t, l.pool.Ready(l.admin, 3))
	if now := l.machines(t); !slices.EqualFunc(before, now,
		func(a, b clusterv1.Machine) bool { return a.UID == b.UID && a.Spec.ProviderID == b.Spec.ProviderID }) {
		t.Errorf("the machines were %v, and are %v", before, now)
	}
	if now := l.vms(t, admin); !slices.Equal(vms, now) {
		t.Errorf("the VMs were %v, and are %v", vms, now)
	}
	audit, err := admin.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{wire.RunInstances, wire.TerminateInstances, wire.DeleteResources} {
		if n := audit.Calls(op); n > 0 {
			t.Errorf("the upgrade cost %d calls of %s", n, op)
		}
	}
	if err := l.pool.Scale(t.Context(), l.admin, 4); err != nil {
		t.Fatal(err)
	}
	until(t, l.pool.Ready(l.admin, 4))
}

// autoscaled tests a second cluster in the namespace, with the same account. Its pool starts at the
// minimum size, and then has as many machines as the autoscaler sets.
func (l *life) autoscaled(t *testing.T) {
	amber := scenario.Adopted{Namespace: team, Name: "amber"}
	pool := scenario.Pool{Cluster: amber, Name: "amber-md-0"}
	l.create(t, "autoscaled", amber.Name, team, "DROVER_MIN_SIZE=1")
	until(t, pool.Ready(l.admin, 1))
	if err := pool.Scale(t.Context(), l.admin, 2); err != nil {
		t.Fatal(err)
	}
	until(t, pool.Ready(l.admin, 2))
	if err := l.admin.Delete(t.Context(), pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	until(t, l.gone(pool))
	if err := l.admin.Delete(t.Context(), amber.Cluster()); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) (string, error) {
		err := l.admin.Get(ctx, client.ObjectKeyFromObject(amber.Cluster()), &infrav1.DroverCluster{})
		if err == nil {
			return "its DroverCluster is there", nil
		}
		return "", client.IgnoreNotFound(err)
	})
}

// end deletes the machines first, so that they are drained, and then the Cluster. While a Cluster
// is being deleted, Cluster API neither drains nor deletes Nodes.
func (l *life) end(t *testing.T) {
	for _, step := range []struct {
		end  client.Object
		gone []client.ObjectList
	}{
		{l.pool.Deployment(), []client.ObjectList{&clusterv1.MachineList{}, &infrav1.DroverMachineList{}, &corev1.NodeList{}}},
		{l.blue.Cluster(), []client.ObjectList{&clusterv1.ClusterList{}, &infrav1.DroverClusterList{},
			&controlplanev1.AdoptedControlPlaneList{}}},
	} {
		if err := l.admin.Delete(t.Context(), step.end); err != nil {
			t.Fatal(err)
		}
		for _, list := range step.gone {
			until(t, scenario.Empty(l.admin, list, ""))
		}
	}
	if err := l.admin.Get(t.Context(), client.ObjectKeyFromObject(l.kubeconfig), &corev1.Secret{}); err != nil {
		t.Errorf("the user's kubeconfig: %v", err)
	}
	// The account has no owner, so it stays until the user deletes it.
	account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "simulated"}}
	if err := l.admin.Delete(t.Context(), account); err != nil {
		t.Error(err)
	}
	until(t, scenario.Empty(l.admin, &infrav1.DroverAccountList{}, ""))
}

func (l *life) machines(t *testing.T) []clusterv1.Machine {
	t.Helper()
	list := &clusterv1.MachineList{}
	if err := l.admin.List(t.Context(), list, client.InNamespace(team)); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b clusterv1.Machine) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// vms returns the IDs of the running VMs.
func (l *life) vms(t *testing.T, admin simulator.Admin) (ids []string) {
	t.Helper()
	snapshot, err := admin.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range snapshot.Instances() {
		ids = append(ids, i.ID)
	}
	slices.Sort(ids)
	return ids
}
