// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/internal/measure"
)

func writeJSON(file string, results []*measure.Result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// figure is a row of the table: a measured value, per machine where possible.
type figure struct {
	name  string
	value func(*measure.Result) (float64, bool) // false: not measured in this run
	// goals holds the upper limits by the name of the run; "" is for all runs. Limits of a cloud
	// take precedence: first by cloud and run, then by cloud.
	goals map[string]float64
}

// none means that there is no goal.
const none = -1

// goal returns the upper limit for a run. ok is false if there is none.
func (f figure) goal(r *measure.Result) (goal float64, ok bool) {
	for _, key := range []string{string(r.Cloud) + " " + name(r), string(r.Cloud), name(r), ""} {
		if goal, ok = f.goals[key]; ok {
			return goal, goal != none
		}
	}
	return 0, false
}

func per(r *measure.Result, n float64) (float64, bool) { return n / float64(r.Machines), true }

// figures returns the rows with the goals of issue and design. The goals are for a computer with 2
// cores on which nothing else runs.
func figures() []figure {
	figures := []figure{
		{"cloud calls to Ready, per machine", func(r *measure.Result) (float64, bool) { return per(r, float64(r.Create.Calls())) },
			map[string]float64{"300": 1.1, vsphere + " 300": 4, vsphere: none}},
		{"cloud calls to delete, per machine", func(r *measure.Result) (float64, bool) { return per(r, float64(r.Delete.Calls())) },
			map[string]float64{"300": 0.05, vsphere: none}},
		{"cloud calls refused, throttled", func(r *measure.Result) (float64, bool) {
			return float64(r.Create.Throttled + r.Delete.Throttled),
				true
		},
			map[string]float64{"": 0}},
		{"Kubernetes writes to Ready: infrastructure", func(r *measure.Result) (float64, bool) {
			return per(r, float64(r.Create.Writes.Side(measure.Infrastructure)))
		}, map[string]float64{"": 6}},
		{"Kubernetes writes to Ready: bootstrap", func(r *measure.Result) (float64, bool) {
			return per(r, float64(r.Create.Writes.Side(measure.Bootstrap)))
		}, map[string]float64{"": 6}},
		{"Kubernetes writes to delete", func(r *measure.Result) (float64, bool) { return per(r, float64(r.Delete.Writes.Total())) }, nil},
		{"reconciles to Ready", func(r *measure.Result) (float64, bool) { return per(r, sum(r.Create.Reconciles)) }, nil},
		{"reconciles to delete", func(r *measure.Result) (float64, bool) { return per(r, sum(r.Delete.Reconciles)) }, nil},
		{"Drover's CPU ms to Ready, per machine", cpu("drover", create), map[string]float64{"300": 15, "1000": 15, "3000": 15}},
		{"Drover's CPU ms to delete, per machine", cpu("drover", remove), nil},
		{"Drover's peak memory, MB", func(r *measure.Result) (float64, bool) { return float64(r.PeakMemory) / 1e6, true },
			map[string]float64{"300": 120, bare(10000): 600}},
		{"last VM made, s", func(r *measure.Result) (float64, bool) { return r.LastVM, true }, nil},
		{"all Ready, s", func(r *measure.Result) (float64, bool) { return r.Create.Seconds, true },
			map[string]float64{"300": 45, throttledName: 60, vsphere: none}},
		{"all gone, s", func(r *measure.Result) (float64, bool) { return r.Delete.Seconds, true }, map[string]float64{"300": 40, vsphere: none}},
	}
	figures = append(figures, idleFigures()...)
	for _, p := range []string{"capi-core", "kube-apiserver", "etcd", "kube-controller-manager", "simulated-cloud"} {
		figures = append(figures,
			figure{"beside: CPU ms to Ready, " + p, cpu(p, create), nil}, figure{"beside: CPU ms to delete, " + p, cpu(p, remove), nil})
	}
	return append(figures, figure{"beside: Cluster API's writes to Ready", func(r *measure.Result) (float64, bool) {
		return per(r, float64(r.Create.CoreWrites.Total()))
	}, nil})
}

func idleFigures() []figure {
	const tenMinutes = 600
	idle := func(value func(*measure.Phase) float64) func(*measure.Result) (float64, bool) {
		return func(r *measure.Result) (float64, bool) {
			if r.Idle == nil {
				return 0, false
			}
			return value(r.Idle) * tenMinutes / r.Idle.Seconds / float64(r.Machines), true
		}
	}
	return []figure{
		{"idle: cloud calls in 10 minutes, per machine", idle(func(p *measure.Phase) float64 { return float64(p.Calls()) }),
			map[string]float64{"": 0.1, vsphere + " 300": 0.1, vsphere: none}},
		{"idle: reconciles of machines in 10 minutes, per machine", idle(func(p *measure.Phase) float64 {
			return float64(p.Reconciles["drovermachine"] + p.Reconciles["node"] + p.Reconciles["droverconfig"])
		}), map[string]float64{"": 0}},
		{"idle: Kubernetes writes in 10 minutes, per machine", idle(func(p *measure.Phase) float64 { return float64(p.Writes.Total()) }),
			map[string]float64{"": 0}},
		{"idle: Drover's CPU ms in 10 minutes, per machine", idle(func(p *measure.Phase) float64 { return p.CPUSeconds["drover"] * 1000 }), nil},
		{"a vanished VM is reported, s (listings: every 60 s)", func(r *measure.Result) (float64, bool) { return r.VanishSeen, r.VanishSeen > 0 },
			map[string]float64{"": 90}},
		{"idle: Drover's CPU, percent of a core", func(r *measure.Result) (float64, bool) {
			if r.Idle == nil {
				return 0, false
			}
			return 100 * r.Idle.CPUSeconds["drover"] / r.Idle.Seconds, true
		}, map[string]float64{"": 2}},
		{"all reconciled after a restart, s", func(r *measure.Result) (float64, bool) { return r.Restart, r.Restart > 0 },
			map[string]float64{"": 60}},
	}
}

func create(r *measure.Result) measure.Phase { return r.Create }
func remove(r *measure.Result) measure.Phase { return r.Delete }

func cpu(process string, phase func(*measure.Result) measure.Phase) func(*measure.Result) (float64, bool) {
	return func(r *measure.Result) (float64, bool) { return per(r, phase(r).CPUSeconds[process]*1000) }
}

func sum(counts map[string]int) float64 {
	n := 0
	for _, c := range counts {
		n += c
	}
	return float64(n)
}

const (
	throttledName = "throttled"
	vsphere       = string(measure.VSphere)
)

func name(r *measure.Result) string {
	if r.Throttle == simulator.ThrottleEC2 {
		return throttledName
	}
	if r.Bare {
		return bare(r.Machines)
	}
	return fmt.Sprint(r.Machines)
}

// bare names a run without Cluster API's core.
func bare(machines int) string { return fmt.Sprintf("%d bare", machines) }

// report prints the table, and below it the calls and writes in detail.
func report(w io.Writer, results []*measure.Result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	cells := []string{"machines"}
	for _, r := range results {
		title := name(r)
		if title == throttledName {
			title = fmt.Sprintf("%d throttled", r.Machines)
		}
		title += map[measure.Cloud]string{measure.AWS: " on EC2", measure.VSphere: " on vSphere"}[r.Cloud]
		if r.Clusters > 1 {
			title += fmt.Sprintf(" in %d clusters", r.Clusters)
		}
		cells = append(cells, title)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	for _, f := range figures() {
		cells := []string{f.name}
		for _, r := range results {
			cells = append(cells, f.cell(r))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	_ = t.Flush()
	for _, r := range results {
		fmt.Fprintf(w, "\n%s machines:\n", name(r))
		detail(w, "calls to Ready", r.Create.CloudCalls)
		detail(w, "calls to delete", r.Delete.CloudCalls)
		detail(w, "writes to Ready", r.Create.Writes)
		detail(w, "writes to delete", r.Delete.Writes)
		detail(w, "reconciles to Ready", r.Create.Reconciles)
		if r.Idle != nil {
			detail(w, fmt.Sprintf("calls in %.0f s of idling", r.Idle.Seconds), r.Idle.CloudCalls)
			detail(w, "writes while idling", r.Idle.Writes)
			detail(w, "reconciles while idling", r.Idle.Reconciles)
		}
	}
}

// cell returns the value of a run, with its goal if there is one.
func (f figure) cell(r *measure.Result) string {
	value, ok := f.value(r)
	if !ok {
		return "–"
	}
	text := fmt.Sprintf("%.2f", value)
	if value >= 100 {
		text = fmt.Sprintf("%.0f", value)
	}
	goal, ok := f.goal(r)
	switch {
	case !ok:
		return text
	case value <= goal:
		return fmt.Sprintf("%s (≤ %g ok)", text, goal)
	default:
		return fmt.Sprintf("%s (≤ %g MISSED)", text, goal)
	}
}

func detail(w io.Writer, what string, counts map[string]int) {
	keys := slices.Collect(maps.Keys(counts))
	slices.SortFunc(keys, func(a, b string) int { return counts[b] - counts[a] })
	parts := make([]string, 0, len(keys))
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%d %s", counts[k], k))
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	fmt.Fprintf(w, "  %s: %s\n", what, strings.Join(parts, ", "))
}
