// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/drover-io/drover/cloud"
)

// metrics are the metrics of all accounts. Their labels are bounded: by the accounts, the
// operations that the drivers name, the codes of package cloud and the classes of HTTP status.
type metrics struct {
	calls   *prometheus.CounterVec
	errors  *prometheus.CounterVec
	panics  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	wait    *prometheus.HistogramVec
}

var (
	inventoryAge = prometheus.NewDesc("drover_inventory_age_seconds",
		"Time since the account's last complete listing began; absent before the first.", []string{"cloud", "account"}, nil)
	inventoryInstances = prometheus.NewDesc("drover_inventory_instances",
		"Instances with Drover's tags in the account's last complete listing, without terminated ones.", []string{"cloud", "account"}, nil)
	machinesMissing = prometheus.NewDesc("drover_machines_missing",
		"Machines that are missing at once in the account, if they are too many to be taken for gone without a confirmation; otherwise 0.",
		[]string{"cloud", "account"}, nil)
	limiterQueue = prometheus.NewDesc("drover_cloud_limiter_queue",
		"Calls that wait for the account's rate limit, by class: create, delete or read. Accounts in the same place share a limit, and each reports it.",
		[]string{"cloud", "account", "class"}, nil)
	limiterRate = prometheus.NewDesc("drover_cloud_limiter_rate_ratio",
		"Share of the configured rate that is in force, by class: 1, or less for a minute after the cloud has throttled.",
		[]string{"cloud", "account", "class"}, nil)
)

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_cloud_calls_total",
			Help: "HTTP calls, by the cloud's name of the operation and the class of the response: 2xx, 3xx, 4xx, 429, 5xx, timeout, canceled or error.",
		}, []string{"cloud", "account", "operation", "code"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_cloud_errors_total",
			Help: "Failed calls of a driver's method, by method and error code. One method may make several HTTP calls.",
		}, []string{"cloud", "account", "method", "code"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_cloud_panics_total",
			Help: "Panics that ended a call of a driver's method, by method, or a loop of the account (listings, reads, deletions, turns, events, watch), which then starts again. Each is a bug: the log has its stack.",
		}, []string{"cloud", "account", "method"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "drover_cloud_call_seconds",
			Help:    "Time from sending an HTTP call to the response's header, without the wait for the rate limit.",
			Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, []string{"cloud", "operation"}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "drover_cloud_limiter_wait_seconds",
			Help:    "Time that a call waited for the account's rate limit, by class: create, delete or read.",
			Buckets: []float64{0.001, 0.1, 0.5, 1, 5, 15, 60, 300, 1800},
		}, []string{"cloud", "class"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.errors, m.panics, m.seconds, m.wait}
}

// meter records the metrics of one account.
type meter struct {
	*metrics
	cloud, account string

	mu       sync.Mutex
	ended    bool
	panicked map[string]bool // methods whose panic was logged
}

// end removes the account's series. Calls that are still under way are not counted any more.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.calls.DeletePartialMatch(prometheus.Labels{"account": m.account})
	m.errors.DeletePartialMatch(prometheus.Labels{"account": m.account})
	m.panics.DeletePartialMatch(prometheus.Labels{"account": m.account})
}

// count adds one to a series of the account.
func (m *meter) count(of *prometheus.CounterVec, labels ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		of.WithLabelValues(append([]string{m.cloud, m.account}, labels...)...).Inc()
	}
}

func (m *meter) call(operation, code string, took time.Duration) {
	m.count(m.calls, operation, code)
	m.seconds.WithLabelValues(m.cloud, operation).Observe(took.Seconds())
	if log := klog.V(4); log.Enabled() { // bodies and addresses may hold secrets
		log.InfoS("Called the cloud", "cloud", m.cloud, "account", m.account, "method", operation, "code", code, "duration", took)
	}
}

func (m *meter) failed(method string, code cloud.Code) {
	m.count(m.errors, method, string(code))
}

// recovered calls a method of the driver, or runs a loop. It counts a panic, and returns it as an
// Unknown error. It logs the first panic of a method with its stack: more would tell nothing new,
// and an endpoint could fill the log.
func (m *meter) recovered(method string, do func() error) error {
	err := cloud.Recover(do)
	p, panicked := errors.AsType[*cloud.PanicError](err)
	if !panicked {
		return err
	}
	m.count(m.panics, method)
	m.mu.Lock()
	first := !m.panicked[method]
	m.panicked[method] = true
	m.mu.Unlock()
	if first {
		klog.ErrorS(p, "Recovered from a panic", "cloud", m.cloud, "account", m.account, "method", method, "stack", string(p.Stack))
	}
	return &cloud.Error{Code: cloud.Unknown, Message: method + ": the driver failed on the cloud's answer", Err: p}
}

func (m *meter) waited(class cloud.Class, d time.Duration) {
	m.wait.WithLabelValues(m.cloud, string(class)).Observe(d.Seconds())
}

// Describe implements prometheus.Collector.
func (s *Accounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- inventoryAge
	ch <- inventoryInstances
	ch <- machinesMissing
	ch <- limiterQueue
	ch <- limiterRate
}

// Collect implements prometheus.Collector. It reads limits and inventories when it is called.
func (s *Accounts) Collect(ch chan<- prometheus.Metric) {
	for _, a := range s.all() {
		for _, class := range []cloud.Class{cloud.ClassCreate, cloud.ClassDelete, cloud.ClassRead} {
			queue, share := a.limiter.Load().of(class).load()
			ch <- prometheus.MustNewConstMetric(limiterQueue, prometheus.GaugeValue, float64(queue), a.cloud.Name, a.key.String(), string(class))
			ch <- prometheus.MustNewConstMetric(limiterRate, prometheus.GaugeValue, share, a.cloud.Name, a.key.String(), string(class))
		}
		state := a.Inventory()
		if state.LastComplete.IsZero() {
			continue
		}
		ch <- prometheus.MustNewConstMetric(inventoryAge, prometheus.GaugeValue, time.Since(state.LastComplete).Seconds(), a.cloud.Name,
			a.key.String())
		missing := 0
		if state.MassAbsence != nil {
			missing = state.MassAbsence.Missing
		}
		ch <- prometheus.MustNewConstMetric(machinesMissing, prometheus.GaugeValue, float64(missing), a.cloud.Name, a.key.String())
		ch <- prometheus.MustNewConstMetric(inventoryInstances, prometheus.GaugeValue, float64(state.Instances), a.cloud.Name, a.key.String())
	}
}
