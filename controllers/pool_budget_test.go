// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

func TestParseBudget(t *testing.T) {
	for value, want := range map[string]budget{
		"180s, 95%": {3 * time.Minute, 0.05}, "5m,90 %": {5 * time.Minute, 0.1}, " 1h30m , 99.5% ": {90 * time.Minute, 0.005},
		"1s, 100%": {time.Second, 0},
	} {
		if got, err := parseBudget(value); got != want || err != nil {
			t.Errorf("%q: %v, %v", value, got, err)
		}
	}
	for value, says := range map[string]string{
		"": "want a time and a share", "180s": "want a time and a share", "180s 95%": "want a time and a share",
		"180s, 95": "want a time and a share",
		"180, 95%": `"180" is no time`, "-3m, 95%": `"-3m" is no time`, "0s, 95%": `"0s" is no time`, "3 minutes, 95%": "want a time and a share",
		"3m, 0%": "the share is", "3m, 101%": "the share is", "3m, NaN%": "want a time and a share", "3m, -5%": "want a time and a share",
		"3m, 95%, 4m": "want a time and a share", "95%, 3m": "want a time and a share",
	} {
		if _, err := parseBudget(value); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "180s, 95%") {
			t.Errorf("%q: %v, want %q", value, err, says)
		}
	}
}

func budgeted(name, budget string) *clusterv1.MachineDeployment {
	return &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, Annotations: map[string]string{infrav1.ReadyBudgetAnnotation: budget},
	}}
}

// TestPoolBudget: a machine counts as in time or, by the step that took longest, as late, until an
// hour after it joined; and while it is on its way from when it is late. The metrics are only of
// pools that exist and have a budget.
func TestPoolBudget(t *testing.T) {
	g := NewWithT(t)
	objects := []client.Object{budgeted("pool", "180s, 90%"), budgeted("wrong", "soon")}
	requests := map[string][2]time.Time{}
	const joined = infrav1.MachineNodeJoinedCondition
	add := func(name string, ago time.Duration, change func(*clusterv1.Machine, *infrav1.DroverMachine)) {
		owner, m := starting(name, ago)
		change(owner, m)
		objects = append(objects, owner, m)
	}
	comes := func(o *clusterv1.Machine, m *infrav1.DroverMachine, running, requested, at time.Duration) {
		become(m, m.Status.Conditions, clusterv1.ReadyCondition, running)
		if requested > 0 {
			requests[o.Name] = [2]time.Time{since(requested).Time, since(requested - time.Second).Time}
		}
		if at > 0 {
			nodeReady(o, at)
			become(m, m.Status.Conditions, joined, at)
		}
	}
	const minute = time.Minute
	add("in-time", 10*minute, func(o *clusterv1.Machine, m *infrav1.DroverMachine) {
		comes(o, m, 9*minute, 8*minute+30*time.Second, 8*minute)
	})
	add("boots-slowly", 10*minute, func(o *clusterv1.Machine, m *infrav1.DroverMachine) { comes(o, m, 9*minute, 5*minute, 4*minute) })
	add("starts-slowly", 10*minute, func(o *clusterv1.Machine, m *infrav1.DroverMachine) { comes(o, m, 4*minute, 3*minute, 2*minute) })
	add("never-joins", 10*minute, func(o *clusterv1.Machine, m *infrav1.DroverMachine) { comes(o, m, 9*minute, 0, 0) })
	add("is-not-approved", 10*minute, func(o *clusterv1.Machine, m *infrav1.DroverMachine) {
		comes(o, m, 9*minute, 8*minute, 0)
		requests[o.Name] = [2]time.Time{since(8 * minute).Time}
	})
	add("has-no-token", 10*minute, func(_ *clusterv1.Machine, m *infrav1.DroverMachine) { m.Generation, m.Spec.Creation.Token = 1, "" })
	add("is-young", minute, func(*clusterv1.Machine, *infrav1.DroverMachine) {})
	add("ready-again", 48*time.Hour, func(o *clusterv1.Machine, m *infrav1.DroverMachine) {
		nodeReady(o, minute)
		become(m, nil, joined, 47*time.Hour)
	})
	add("goes", 10*minute, func(o *clusterv1.Machine, _ *infrav1.DroverMachine) { deleting(o) })
	add("moved", 10*minute, func(_ *clusterv1.Machine, m *infrav1.DroverMachine) { m.Generation = 1 })
	add("of-another-pool", 10*minute, func(o *clusterv1.Machine, _ *infrav1.DroverMachine) {
		o.Labels[clusterv1.MachineDeploymentNameLabel] = "wrong"
	})
	c := fake.NewClientBuilder().WithScheme(testScheme(t)).WithObjects(objects...).Build()
	recorder := events.NewFakeRecorder(2)
	b := &PoolBudgets{Client: c, Startups: startupsOf(requests), Recorder: recorder}

	expect := func(want string) {
		t.Helper()
		g.Expect(testutil.CollectAndCompare(b, strings.NewReader(want))).To(Succeed())
	}
	expect(`
# HELP drover_pool_late_limit_ratio Share of a pool's machines that may be late, by its budget.
# TYPE drover_pool_late_limit_ratio gauge
drover_pool_late_limit_ratio{namespace="team",pool="pool"} 0.1
# HELP drover_pool_machines_in_time Machines of a pool with a budget that became ready Nodes in time, until an hour after they joined.
# TYPE drover_pool_machines_in_time gauge
drover_pool_machines_in_time{namespace="team",pool="pool"} 1
# HELP drover_pool_machines_late Machines of a pool with a budget that took longer, until an hour after they joined, or that are still no ready Nodes, by the step that took longest.
# TYPE drover_pool_machines_late gauge
drover_pool_machines_late{namespace="team",pool="pool",step="boot"} 2
drover_pool_machines_late{namespace="team",pool="pool",step="certificate"} 1
drover_pool_machines_late{namespace="team",pool="pool",step="queue"} 2
`)
	for _, pool := range objects[:2] {
		b.check(pool.(*clusterv1.MachineDeployment))
	}
	b.check(&clusterv1.MachineDeployment{})
	g.Expect(recorder.Events).To(HaveLen(1))
	g.Expect(<-recorder.Events).To(ContainSubstring(
		`ReadyBudgetInvalid The annotation drover.io/ready-budget has no effect: "soon": want a time`))
	g.Expect(c.Delete(t.Context(), objects[0])).To(Succeed())
	expect("")
}

// TestBudgetsOfATenantAreBounded: whatever a tenant annotates, its namespace has few series.
func TestBudgetsOfATenantAreBounded(t *testing.T) {
	builder := fake.NewClientBuilder().WithScheme(testScheme(t))
	for i := range 2 * maxPools {
		builder.WithObjects(budgeted("pool-"+strings.Repeat("x", i+1), "180s, 95%"))
	}
	if n := testutil.CollectAndCount(&PoolBudgets{Client: builder.Build()}); n != 2*maxPools {
		t.Errorf("%d series, want two of each of %d pools", n, maxPools)
	}
}
