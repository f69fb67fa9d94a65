// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/drover-io/drover/internal/test/playground"
)

// marks holds all counters at one time.
type marks struct {
	at           time.Time
	calls        map[string]int
	throttled    int
	drover, core Writes
	reconciles   map[string]int
	cpu          map[string]time.Duration
}

// Phase holds the changes between two marks.
type Phase struct {
	Seconds float64 `json:"seconds"`
	// CloudCalls counts the calls by operation. Throttled counts those that were refused.
	CloudCalls map[string]int `json:"cloudCalls"`
	Throttled  int            `json:"throttled"`
	// Writes counts Drover's writes in both clusters, CoreWrites those of Cluster API.
	Writes     Writes `json:"writes"`
	CoreWrites Writes `json:"coreWrites"`
	// Reconciles counts Drover's reconciles by controller.
	Reconciles map[string]int `json:"reconciles"`
	// CPUSeconds holds the CPU time by process.
	CPUSeconds map[string]float64 `json:"cpuSeconds"`
}

// Calls returns the sum of all cloud calls.
func (p Phase) Calls() int {
	n := 0
	for _, c := range p.CloudCalls {
		n += c
	}
	return n
}

func (m marks) since(before marks) Phase {
	p := Phase{
		Seconds: m.at.Sub(before.at).Seconds(), Throttled: m.throttled - before.throttled,
		CloudCalls: map[string]int{}, Reconciles: map[string]int{}, CPUSeconds: map[string]float64{},
		Writes: m.drover.minus(before.drover), CoreWrites: m.core.minus(before.core),
	}
	for op, n := range m.calls {
		if n -= before.calls[op]; n != 0 {
			p.CloudCalls[op] = n
		}
	}
	for controller, n := range m.reconciles {
		if n -= before.reconciles[controller]; n != 0 {
			p.Reconciles[controller] = n
		}
	}
	for process, used := range m.cpu {
		p.CPUSeconds[process] = (used - before.cpu[process]).Seconds()
	}
	return p
}

// mark reads all counters.
func (f *fleet) mark(ctx context.Context) (marks, error) {
	m := marks{at: time.Now(), cpu: map[string]time.Duration{}}
	var err error
	if m.calls, m.throttled, err = f.place.calls(ctx); err != nil {
		return m, err
	}
	if m.drover, m.core, err = f.audit.read(); err != nil {
		return m, err
	}
	if m.reconciles, err = reconciles(ctx, f.drover.Metrics); err != nil {
		return m, err
	}
	for name, process := range f.processes() {
		usage, err := process.Usage()
		if err != nil {
			return m, err
		}
		m.cpu[name] = usage.CPU
	}
	return m, nil
}

// processes returns the processes whose CPU time is reported.
func (f *fleet) processes() map[string]*playground.Process {
	all := map[string]*playground.Process{
		"drover": f.drover, "capi-core": f.management.Core(), "kube-apiserver": f.management.APIServer(),
		"etcd": f.management.Etcd(), "kube-controller-manager": f.management.ControllerManager(),
	}
	maps.Copy(all, f.place.processes())
	return all
}

// reconciles reads controller_runtime_reconcile_total by controller.
func reconciles(ctx context.Context, url string) (map[string]int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("read Drover's metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read Drover's metrics: %w", err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read Drover's metrics: %w", err)
	}
	counts := map[string]int{}
	for _, metric := range families["controller_runtime_reconcile_total"].GetMetric() {
		counts[label(metric, "controller")] += int(metric.GetCounter().GetValue())
	}
	return counts, nil
}

func label(metric *dto.Metric, name string) string {
	for _, l := range metric.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
