// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/predicates"
)

// budget is the time in which machines of a pool should become ready Nodes, and the share of them
// that may be late.
type budget struct {
	within time.Duration
	late   float64
}

var budgetForm = regexp.MustCompile(`^\s*(\S+?)\s*,\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*$`)

// parseBudget parses the value of ReadyBudgetAnnotation.
func parseBudget(value string) (budget, error) {
	const want = `want a time and a share of the machines, such as "180s, 95%"`
	m := budgetForm.FindStringSubmatch(value)
	if m == nil {
		return budget{}, fmt.Errorf("%q: %s", value, want)
	}
	within, err := time.ParseDuration(m[1])
	if err != nil || within <= 0 {
		return budget{}, fmt.Errorf(`%q: %q is no time that is longer than 0, such as "180s" or "5m": %s`, value, m[1], want)
	}
	share, err := strconv.ParseFloat(m[2], 64)
	if err != nil || share <= 0 || share > 100 {
		return budget{}, fmt.Errorf("%q: the share is more than 0%% and at most 100%%: %s", value, want)
	}
	return budget{within, (100 - share) / 100}, nil
}

// PoolBudgets measures how the machines of pools keep to their budgets. It calculates its metrics
// from the machines that exist whenever they are read. So it keeps no state, a restart changes
// nothing, and the series of a pool end with it. It runs only in the leader.
type PoolBudgets struct {
	Client           client.Reader
	Startups         Startups
	Recorder         events.EventRecorder
	Metrics          prometheus.Registerer
	WatchFilterValue string

	informers ctrl.Manager
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinedeployments;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

var (
	poolInTime = prometheus.NewDesc("drover_pool_machines_in_time",
		"Machines of a pool with a budget that became ready Nodes in time, until an hour after they joined.", []string{"namespace", "pool"}, nil)
	poolLate = prometheus.NewDesc("drover_pool_machines_late",
		"Machines of a pool with a budget that took longer, until an hour after they joined, or that are still no ready Nodes, by the step that took longest.",
		[]string{"namespace", "pool", "step"}, nil)
	poolLateLimit = prometheus.NewDesc("drover_pool_late_limit_ratio",
		"Share of a pool's machines that may be late, by its budget.", []string{"namespace", "pool"}, nil)
)

// Describe implements prometheus.Collector.
func (b *PoolBudgets) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolInTime, poolLate, poolLateLimit} {
		descriptions <- d
	}
}

// SetupWithManager adds b to the manager.
func (b *PoolBudgets) SetupWithManager(mgr ctrl.Manager) error {
	b.informers = mgr
	return mgr.Add(b)
}

// Start implements manager.Runnable.
func (b *PoolBudgets) Start(ctx context.Context) error {
	pools, err := b.informers.GetCache().GetInformer(ctx, &clusterv1.MachineDeployment{})
	if err != nil {
		return fmt.Errorf("watching MachineDeployments for their budgets: %w", err)
	}
	if _, err := pools.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { b.check(o.(*clusterv1.MachineDeployment)) },
		UpdateFunc: func(before, after any) {
			if budgetOf(before.(*clusterv1.MachineDeployment)) != budgetOf(after.(*clusterv1.MachineDeployment)) {
				b.check(after.(*clusterv1.MachineDeployment))
			}
		},
	}); err != nil {
		return fmt.Errorf("watching MachineDeployments for their budgets: %w", err)
	}
	if err := b.Metrics.Register(b); err != nil {
		return fmt.Errorf("registering the metrics of budgets: %w", err)
	}
	<-ctx.Done()
	b.Metrics.Unregister(b)
	return nil
}

func budgetOf(pool *clusterv1.MachineDeployment) string {
	return pool.Annotations[infrav1.ReadyBudgetAnnotation]
}

// check says on a pool that its budget is malformed.
func (b *PoolBudgets) check(pool *clusterv1.MachineDeployment) {
	value, has := pool.Annotations[infrav1.ReadyBudgetAnnotation]
	if !has || !predicates.Watched(pool, b.WatchFilterValue) {
		return
	}
	if _, err := parseBudget(value); err != nil {
		b.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, "ReadyBudgetInvalid", "Measure", "The annotation %s has no effect: %s",
			infrav1.ReadyBudgetAnnotation, err)
	}
}

// collectTime is more than reading from caches takes.
const collectTime = 10 * time.Second

// Collect implements prometheus.Collector.
func (b *PoolBudgets) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	pools := &clusterv1.MachineDeploymentList{}
	if err := b.Client.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		return // the manager stops
	}
	byNamespace := map[string]map[string]budget{}
	slices.SortFunc(pools.Items, func(a, b clusterv1.MachineDeployment) int { return strings.Compare(a.Name, b.Name) })
	for i := range pools.Items {
		pool := &pools.Items[i]
		wanted, err := parseBudget(budgetOf(pool))
		if err != nil || !predicates.Watched(pool, b.WatchFilterValue) || len(byNamespace[pool.Namespace]) == maxPools {
			continue
		}
		if byNamespace[pool.Namespace] == nil {
			byNamespace[pool.Namespace] = map[string]budget{}
		}
		byNamespace[pool.Namespace][pool.Name] = wanted
	}
	for namespace, budgets := range byNamespace {
		b.collect(ctx, namespace, budgets, metrics)
	}
}

// kept is how the machines of a pool keep to its budget.
type kept struct {
	inTime int
	late   map[string]int // by step
}

// collect calculates the metrics of the pools with budgets in one namespace.
func (b *PoolBudgets) collect(ctx context.Context, namespace string, budgets map[string]budget, metrics chan<- prometheus.Metric) {
	owners, machines := &clusterv1.MachineList{}, &infrav1.DroverMachineList{}
	for _, list := range []client.ObjectList{owners, machines} {
		if err := b.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return
		}
	}
	byName := map[string]*infrav1.DroverMachine{}
	for i := range machines.Items {
		byName[machines.Items[i].Name] = &machines.Items[i]
	}
	result, known, now := map[string]*kept{}, certificates{}, time.Now()
	for pool := range budgets {
		result[pool] = &kept{late: map[string]int{}}
	}
	for i := range owners.Items {
		owner := &owners.Items[i]
		pool := owner.Labels[clusterv1.MachineDeploymentNameLabel]
		m := byName[owner.Spec.InfrastructureRef.Name]
		if result[pool] == nil || m == nil || !counts(owner, m, now) {
			continue
		}
		end := readySince(owner)
		if end.IsZero() {
			end = now
		}
		late := end.Sub(owner.CreationTimestamp.Time) > budgets[pool].within
		switch {
		case late:
			s, _ := b.Startups.read(ctx, owner, m, known) // what is not known makes the steps coarser
			result[pool].late[longest(s.steps(end))]++
		case !readySince(owner).IsZero():
			result[pool].inTime++
		}
	}
	for pool, r := range result {
		metrics <- prometheus.MustNewConstMetric(poolLateLimit, prometheus.GaugeValue, budgets[pool].late, namespace, pool)
		metrics <- prometheus.MustNewConstMetric(poolInTime, prometheus.GaugeValue, float64(r.inTime), namespace, pool)
		for step, n := range r.late {
			metrics <- prometheus.MustNewConstMetric(poolLate, prometheus.GaugeValue, float64(n), namespace, pool, step)
		}
	}
}

// counts reports whether a machine counts for its pool's budget: it is on its way, or has joined
// within startupAge. A machine that was moved here has meaningless times.
func counts(owner *clusterv1.Machine, m *infrav1.DroverMachine, now time.Time) bool {
	if !owner.DeletionTimestamp.IsZero() || owner.Spec.InfrastructureRef.GroupKind() != infrav1.DroverMachineKind ||
		m.Spec.Creation.Token != "" && !isCreatedHere(m) {
		return false
	}
	joined := trueSince(m, infrav1.MachineNodeJoinedCondition)
	if joined.IsZero() {
		return readySince(owner).IsZero()
	}
	return now.Sub(joined) < startupAge
}
