// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the alert rules and the dashboard in config/prometheus with the real
// Prometheus, which scrapes a real manager. This package holds only tests.
package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	folder   = "../../../config/prometheus"
	patience = 20 * time.Minute

	runbook = "https://github.com/drover-io/drover/blob/main/docs/monitoring.md#"
)

// rules is a file of Prometheus' alert rules.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations map[string]string
		}
	}
}

func readRules(t *testing.T) rules {
	t.Helper()
	var r rules
	if err := yaml.Unmarshal(read(t, "alerts.yaml"), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRules checks the rules and runs their unit tests with Prometheus' own tool. Each alert must
// fire at least once there, and must stay quiet at least once.
func TestRules(t *testing.T) {
	promtool := program(t)
	for _, args := range [][]string{{"check", "rules", "alerts.yaml", "old-names.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, append([]string{"promtool"}, args...)...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	var played struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(read(t, "alerts_test.yaml"), &played); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range played.Tests {
		for _, a := range test.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
			quiet[a.Alertname] = quiet[a.Alertname] || len(a.ExpAlerts) == 0
		}
	}
	book := string(read(t, "../../docs/monitoring.md"))
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if !strings.Contains(book, "\n### "+r.Alert+"\n\n") {
				t.Errorf("docs/monitoring.md does not say what to do about %s", r.Alert)
			}
			if got, want := r.Annotations["runbook_url"], runbook+strings.ToLower(r.Alert); got != want {
				t.Errorf("the runbook of %s is %q, want %q", r.Alert, got, want)
			}
			if !fires[r.Alert] || !quiet[r.Alert] {
				t.Errorf("alerts_test.yaml has %s fire: %t, and be quiet: %t", r.Alert, fires[r.Alert], quiet[r.Alert])
			}
		}
	}
}

// TestQueries runs every query of the dashboard and of the alerts against a Prometheus that scrapes
// a manager with many problems. Each must have a result: the metrics exist, with those labels.
func TestQueries(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	s := start(t)
	prometheus := startPrometheus(t, s.drover.Metrics)
	began := time.Now()
	s.lives(prometheus)
	s.trouble()
	// DroverNoRoom is not in the list, because it needs a second cloud call, which comes minutes
	// later.
	s.until("what is wrong raises alarm", prometheus.raised("DroverPoolFrozen", "DroverPoolLate", "DroverUnauthorized", "DroverOrphansAsk",
		"DroverOrphansStay"))
	s.failingCalls()
	s.until("calls that fail do too", prometheus.raised("DroverThrottled", "DroverCloudFails"))
	s.until("every query has an answer", func(ctx context.Context) (string, error) {
		for name, query := range queries(t) {
			if n, err := prometheus.ask(ctx, query); n == 0 || err != nil {
				return fmt.Sprintf("%s has %d answers (%v): %s", name, n, err, query), nil
			}
		}
		return "", nil
	})
	drawDashboard(t, prometheus, began)
	s.drover.Kill()
	s.until("a manager that is gone does too", prometheus.raised("DroverDown"))
}

// panel is a part of the dashboard, as Grafana reads it.
type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []target
}

type target struct{ Expr, LegendFormat string }

// asked returns the query with values for Grafana's variables: all accounts.
func (t target) asked() string {
	return strings.NewReplacer("$__rate_interval", "30s", "$account", ".*").Replace(t.Expr)
}

type dashboard struct {
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal(read(t, "dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// comparison matches the end of an alert's expression. With "bool", the expression returns every
// series with its result, not only those for which it is true.
var comparison = regexp.MustCompile(` (>|==) ([0-9.]+)$`)

// queries returns the queries of the dashboard and the alerts, changed so that they always have a
// result.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if strings.HasPrefix(r.Expr, "absent(") {
				continue // has a result only if there is no data; it is tested at the end
			}
			if !comparison.MatchString(r.Expr) {
				t.Fatalf("%s compares with nothing: %s", r.Alert, r.Expr)
			}
			all["alert "+r.Alert] = comparison.ReplaceAllString(r.Expr, " $1 bool $2")
		}
	}
	board := readDashboard(t)
	for _, v := range board.Templating.List {
		if v.Type != "query" {
			continue
		}
		var q struct{ Query string }
		if err := json.Unmarshal(v.Query, &q); err != nil {
			t.Fatal(err)
		}
		metric, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(q.Query, "label_values("), ")"), "}, ")
		if !ok {
			t.Fatalf("variable %s: %s is not understood", v.Name, q.Query)
		}
		all["variable "+v.Name] = "count by (" + label + ") (" + metric + "}" + ")"
	}
	for _, p := range board.Panels {
		if (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("panel %s has %d queries", p.Title, len(p.Targets))
		}
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %s, query %d", p.Title, i)] = target.asked()
		}
	}
	return all
}

// stage is a cluster that adopts itself.
type stage struct {
	*testing.T
	management *playground.Management
	cloud      *playground.Simulator
	admin      simulator.Admin
	client     client.Client
	drover     *playground.Process
	blue       scenario.Adopted
}

func start(t *testing.T) *stage {
	s := &stage{T: t}
	var err error
	s.management, err = playground.StartManagement(t.Context(), playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.management.Stop(); err != nil {
			t.Error(err)
		}
	})
	if s.cloud, err = playground.StartSimulator(t.Context(), playground.SimulatorOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.cloud.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.admin = simulator.Admin{URL: s.cloud.URL}
	if s.client, err = scenario.NewClient(s.management.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	s.drover, err = s.management.StartDrover(t.Context(), playground.DroverOptions{Args: []string{
		"--leader-elect=false", "--simulated-endpoint=" + s.cloud.URL,
		"--machine-safety-overshooting-period=1s", "--machine-safety-orphan-vms-period=1s", "--machine-safety-orphan-vms-grace=2s",
		"--machine-safety-apiserver-statuscheck-period=2s", "--machine-safety-apiserver-statuscheck-timeout=1s",
		"--node-late-after=30s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := s.management.Kubeconfig("blue", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	s.blue = scenario.Adopted{
		Namespace: "blue", Name: "blue", Kubeconfig: kubeconfig, Endpoint: s.cloud.URL, Token: s.cloud.Token,
		Inventory: infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}, OrphanPolicy: infrav1.OrphanPolicyDelete,
	}
	return s
}

// lives creates and deletes a pool of machines in two steps, and checks that each phase was
// measured once per machine.
func (s *stage) lives(prometheus server) {
	s.Helper()
	const machines, first = 10, 4
	brief := scenario.Pool{Cluster: s.blue, Name: "brief", Replicas: machines}
	s.must(scenario.Create(s.Context(), s.client, slices.Concat(s.blue.Objects(), brief.Objects())...))
	s.until("its machines have come", brief.Ready(s.client, machines))
	s.must(brief.Scale(s.Context(), s.client, machines-first))
	s.until("some are gone", prometheus.measured("delete", first))
	s.must(scenario.Delete(s.Context(), s.client, brief.Deployment()))
	s.until("all are gone", scenario.Empty(s.client, &infrav1.DroverMachineList{}, s.blue.Namespace))
	for _, part := range []string{"create", "join", "drain", "delete"} {
		s.until("it is known how long they took to "+part, prometheus.measured(part, machines))
	}
}

// measured checks that a phase of machines was measured the given number of times.
func (s server) measured(part string, times int) scenario.Check {
	return func(ctx context.Context) (string, error) {
		query := fmt.Sprintf(`sum(drover_machine_%s_seconds_count{cloud="simulated"}) == %d and sum(drover_machine_%s_seconds_sum) > 0`, part,
			times, part)
		n, err := s.ask(ctx, query)
		if n != 1 {
			return query + " is not so", err
		}
		return "", err
	}
}

// trouble causes the states that have alerts: a frozen pool, too many orphans, wrong credentials,
// no capacity, a machine that does not become a Node.
func (s *stage) trouble() {
	good := scenario.Pool{Cluster: s.blue, Name: "good", Replicas: 1}
	none := scenario.Pool{Cluster: s.blue, Name: "none", Replicas: 1, Machine: infrav1.SimulatedMachine{InstanceType: "large"}}
	for _, zone := range []string{"sim-1a", "sim-1b", "sim-1c"} {
		s.must(s.admin.SetCapacity(s.Context(), simulator.CapacityChange{Region: "sim-1", Zone: zone, InstanceType: "large"}))
	}
	refused := s.blue.Account()
	refused.Name, refused.Spec.CredentialsRef.Name = "refused", "refused"
	secret := scenario.Credentials(metav1.ObjectMeta{Namespace: s.blue.Namespace, Name: "refused"}, "simulated",
		map[string][]byte{"token": []byte("wrong")})
	s.must(scenario.Create(s.Context(), s.client, slices.Concat(good.Objects(), none.Objects(), []client.Object{secret, refused})...))
	s.until("there is a machine", good.Ready(s.client, 1))

	snapshot, err := s.admin.Snapshot(s.Context())
	s.must(err)
	vm := snapshot.Instances()[0]
	for range 6 { // of one machine, which freezes its pool
		s.byHand(vm, vm.Tags[cloud.TagToken])
	}
	for i := range 4 { // of no machine, but with the token prefix of this management cluster
		s.byHand(vm, fmt.Sprintf("%s%0*d", vm.Tags[cloud.TagToken][:8], len(vm.Tags[cloud.TagToken])-8, i))
	}
	_, err = s.admin.AddFault(s.Context(), simulator.Fault{Kind: simulator.DeadBody, Operation: wire.RunInstances, Count: 1})
	s.must(err)
	late := scenario.Pool{Cluster: s.blue, Name: "late", Replicas: 1}
	deployment := late.Deployment()
	deployment.Annotations = map[string]string{infrav1.ReadyBudgetAnnotation: "1s, 95%"}
	s.must(scenario.Create(s.Context(), s.client, late.Template(late.Name, late.Machine), late.ConfigTemplate(), deployment))
	s.until("a machine is late", func(ctx context.Context) (string, error) {
		list := &infrav1.DroverMachineList{}
		err := s.client.List(ctx, list, client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: late.Name})
		for i := range list.Items {
			if conditions.IsFalse(&list.Items[i], infrav1.MachineNodeJoinedCondition) {
				return "", err
			}
		}
		return "no machine of the pool is", err
	})
}

// failingCalls makes half of all listings fail in the cloud, and throttles half of the rest. From
// then on few listings are complete.
func (s *stage) failingCalls() {
	for _, code := range []string{wire.InternalError, wire.RequestLimitExceeded} {
		_, err := s.admin.AddFault(s.Context(), simulator.Fault{
			Kind: simulator.ErrorBefore, Operation: wire.DescribeResources, Code: code, Probability: 0.5,
		})
		s.must(err)
	}
}

// byHand creates a VM without Drover.
func (s *stage) byHand(like simulator.SnapshotResource, token string) {
	s.Helper()
	_, err := s.admin.Run(s.Context(), like.Account, wire.RunInstancesRequest{
		Region: like.Region, InstanceType: like.InstanceType, Image: like.Image,
		Tags: map[string]string{cloud.TagOwnership: like.Tags[cloud.TagOwnership], cloud.TagToken: token},
	})
	s.must(err)
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) until(what string, check scenario.Check) {
	s.Helper()
	var missing string
	begin := time.Now()
	err := wait.PollUntilContextTimeout(s.Context(), 300*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		missing, err = check(ctx)
		return missing == "" && err == nil, err
	})
	if err != nil {
		list := &infrav1.DroverMachineList{}
		_ = s.client.List(s.Context(), list)
		for i := range list.Items {
			s.Logf("DroverMachine %s: %+v", list.Items[i].Name, list.Items[i].Status)
		}
		s.Fatalf("waiting until %s: %v: %s", what, err, missing)
	}
	s.Logf("%5.1fs until %s", time.Since(begin).Seconds(), what)
}

// server is a running Prometheus.
type server struct{ url string }

// startPrometheus runs the real Prometheus with the rules and one target: the URL of a manager's
// metrics.
func startPrometheus(t *testing.T, metrics string) server {
	t.Helper()
	target, err := url.Parse(metrics)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(filepath.Join(folder, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\n"+
		"scrape_configs:\n- job_name: drover\n  honor_labels: true\n  static_configs: [{targets: [%q]}]\n", rules, target.Host)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ports, err := playground.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", ports[0])
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t), "prometheus", "--config.file="+dir+"/prometheus.yaml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("Prometheus:\n%s", text)
		}
	})
	s := server{url: "http://" + address}
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		n, err := s.ask(ctx, `up{job="drover"} == 1`)
		return n == 1 && err == nil, nil
	}); err != nil {
		t.Fatalf("Prometheus does not read the manager: %v", err)
	}
	return s
}

// ask returns the number of series in the result of a query.
func (s server) ask(ctx context.Context, query string) (int, error) {
	var answer struct{ Result []any }
	if err := s.get(ctx, "/api/v1/query?query="+url.QueryEscape(query), &answer); err != nil {
		return 0, err
	}
	return len(answer.Result), nil
}

// raised checks that alerts are pending. They fire only after a time for which no test waits.
func (s server) raised(names ...string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		var answer struct {
			Alerts []struct{ Labels map[string]string }
		}
		if err := s.get(ctx, "/api/v1/alerts", &answer); err != nil {
			return err.Error(), nil
		}
		for _, name := range names {
			if !slices.ContainsFunc(answer.Alerts, func(a struct{ Labels map[string]string }) bool { return a.Labels["alertname"] == name }) {
				return fmt.Sprintf("%s is not raised: %v", name, answer.Alerts), nil
			}
		}
		return "", nil
	}
}

// get calls Prometheus' API.
func (s server) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("read the answer to %s: %w", path, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// program returns the command that runs Prometheus' programs, from the package archive of Debian or
// Ubuntu.
func program(t *testing.T) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "../../../hack/debs", "prometheus")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("Prometheus can't be had: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
