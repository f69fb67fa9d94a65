// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/registry"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/controllers/safety"
	"github.com/drover-io/drover/internal/forwarder"
	"github.com/drover-io/drover/internal/manager"
)

// recorder is a registry that records the description of each collector, with or without samples.
type recorder struct {
	*prometheus.Registry
	described []string
}

func (r *recorder) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc)
	go func() { c.Describe(descriptions); close(descriptions) }()
	for d := range descriptions {
		r.described = append(r.described, d.String())
	}
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

var description = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)",(?: unit: "[^"]*",)? constLabels: \{\}, variableLabels: \{([^}]*)\}`)

// TestMetrics tests that docs/metrics.md matches the metrics that the manager registers.
func TestMetrics(t *testing.T) {
	r := &recorder{Registry: prometheus.NewRegistry()}
	fleet.NewAccounts(fleet.Options{Clouds: registry.Clouds(), Times: fleet.TimesFor(fleet.DefaultCall), Metrics: r})
	controllers.NewMachineMetrics(nil, nil, "", r)
	r.MustRegister(&controllers.PoolBudgets{})
	safety.NewMetrics(r)
	r.MustRegister(manager.NewBuildInfo("v1.2.3", ""))
	if _, err := forwarder.New(forwarder.Options{Metrics: r}); err != nil {
		t.Fatal(err)
	}

	rows := map[string]string{}
	for _, d := range r.described {
		m := description.FindStringSubmatch(d)
		if m == nil {
			t.Fatalf("not understood: %s", d)
		}
		if !strings.HasPrefix(m[1], "drover_") || len(m[2]) < 20 {
			t.Errorf("%s: the name must begin with drover_, and the help must help: %q", m[1], m[2])
		}
		labels := strings.ReplaceAll(m[3], ",", ", ")
		rows[m[1]] = fmt.Sprintf("| `%s` | %s | %s |\n", m[1], labels, strings.ReplaceAll(m[2], `\"`, `"`))
	}
	if len(rows) == 0 {
		t.Fatal("no metric is registered")
	}
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Written by 'go test -C test ./docs -update' from what the code registers. Do not edit. -->\n\n" +
		"Served at `/metrics` on `--diagnostics-address`, with TLS, to whoever may get that URL: bind the ClusterRole\n" +
		"`drover-metrics-reader` to the reader's service account. Beside these there are controller-runtime's (`controller_runtime_*`,\n" +
		"`workqueue_*`), client-go's (`rest_client_*`) and Go's own.\n\n| metric | labels | what it says |\n| --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		b.WriteString(rows[name])
	}
	page(t, "docs/metrics.md", b.String())
}
