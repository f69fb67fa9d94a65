// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Metrics are the metrics of the safety controllers. The number of accounts, pools and clusters
// bounds their labels.
type Metrics struct {
	orphans *prometheus.GaugeVec
	blocked *prometheus.GaugeVec
	deleted *prometheus.CounterVec
	frozen  *prometheus.GaugeVec
	// unreachable is labeled by DroverCluster.
	unreachable *prometheus.GaugeVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_orphans",
			Help: "Resources in the cloud at the last pass over the account, by state: found (of a cluster here, and of no machine), confirmed (so for the whole grace), other_manager (found, but created by another management cluster) or unknown_owner (of no cluster here).",
		}, []string{"account", "state"}),
		blocked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_orphan_deletion_blocked",
			Help: "1 while a person must confirm the account's orphans, because there are too many.",
		}, []string{"account"}),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_orphans_deleted_total",
			Help: "Machines whose remaining resources were deleted.",
		}, []string{"account"}),
		frozen: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_pool_frozen",
			Help: "1 while a MachineDeployment or MachineSet is frozen, because it has far more machines than it should.",
		}, []string{"namespace", "kind", "name"}),
		unreachable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "drover_cluster_unreachable",
			Help: "1 while no machine of a cluster is replaced, because its API server does not answer or its Nodes have not reported to it since; 0 otherwise.",
		}, []string{"namespace", "name"}),
	}
	registry.MustRegister(m.orphans, m.blocked, m.deleted, m.frozen, m.unreachable)
	return m
}

// found records the result of a pass.
func (m *Metrics) found(account string, r report, blocked bool) {
	m.orphans.WithLabelValues(account, "found").Set(float64(len(r.orphans)))
	m.orphans.WithLabelValues(account, "confirmed").Set(float64(r.confirmed()))
	m.orphans.WithLabelValues(account, "other_manager").Set(float64(len(r.otherManager)))
	m.orphans.WithLabelValues(account, "unknown_owner").Set(float64(r.unknownOwner))
	value := 0.0
	if blocked {
		value = 1
	}
	m.blocked.WithLabelValues(account).Set(value)
}

// reachable records whether a cluster is reachable.
func (m *Metrics) reachable(infra client.Object, reachable bool) {
	value := 1.0
	if reachable {
		value = 0
	}
	m.unreachable.WithLabelValues(infra.GetNamespace(), infra.GetName()).Set(value)
}

// forget removes an account's time series.
func (m *Metrics) forget(account string) {
	labels := prometheus.Labels{"account": account}
	m.orphans.DeletePartialMatch(labels)
	m.blocked.DeletePartialMatch(labels)
	m.deleted.DeletePartialMatch(labels)
}
