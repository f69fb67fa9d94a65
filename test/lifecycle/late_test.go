// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestNodeThatDoesNotCome checks that a running VM that does not become a Node reports how far it
// got, as far as Drover can know, and clears the report when it has joined. (test/bootstrap tests
// its certificates.)
func TestNodeThatDoesNotCome(t *testing.T) {
	t.Parallel()
	t.Run("nothing starts on the VM", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.fault(simulator.Fault{Kind: simulator.DeadBody, Count: 1})
		pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
		s.create(pool.Objects()...)
		machine := s.late("The VM has been running since 2", "has requested a certificate from "+env.management.URL,
			"check /var/log/drover-bootstrap.log")
		if shown := s.shown(machine.Name); !strings.HasPrefix(shown, "The VM has been running since") {
			t.Errorf("kubectl shows %q under \"Waiting for\"", shown)
		}
		s.touch(machine)
		if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
			t.Fatal(err)
		}
		s.stays("what is written", func() string {
			have := &infrav1.DroverMachine{}
			if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(machine), have); err != nil ||
				have.ResourceVersion != machine.ResourceVersion {
				return fmt.Sprintf("it was written again: %+v, %v", have.Status.Conditions, err)
			}
			return ""
		})
		if err := env.admin.Act(s.ctx, s.instanceOf(machine).ID, simulator.ActStart); err != nil {
			t.Fatal(err)
		}
		s.joins(pool, machine)
	})
	t.Run("the VM does not start", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.fault(simulator.Fault{Kind: simulator.FailBoot, Count: 1})
		s.create(scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}.Objects()...)
		s.soon("the machine says why", s.onlyMachine(infrav1.InstanceGoneReason, "the instance failed to start"))
	})
	t.Run("its bootstrap token is gone", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		pool, data, goOn := s.held()
		id, _, _ := strings.Cut(string(data.Data["bootstrap-token"]), ".")
		token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem,
			Name: bootstraputil.BootstrapTokenSecretName(id)}}
		if err := scenario.Delete(s.ctx, env.client, token); err != nil {
			t.Fatal(err)
		}
		goOn()
		machine := s.late("its bootstrap token has expired or was deleted")
		s.touch(&bootstrapv1.DroverConfig{ObjectMeta: s.meta(data.Name)}) // it would be reconciled within a quarter of an hour anyway
		s.joins(pool, machine)
	})
	t.Run("it does not trust the API server", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		pool, data, goOn := s.held()
		ca, err := os.ReadFile(filepath.Join("..", "..", "bootstrap", "render", "testdata", "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		wrong, err := render.UserData(render.Input{
			Spec: &bootstrapv1.DroverConfigSpec{}, NodeName: data.Name, Server: env.management.URL, CA: ca,
			Token: string(data.Data["bootstrap-token"]),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.change(data, func() { data.Data["value"] = wrong }); err != nil {
			t.Fatal(err)
		}
		goOn()
		machine := s.late("has requested a certificate from "+env.management.URL, "check /var/log/drover-bootstrap.log",
			"its console ended with", "certificate signed by unknown authority")
		s.asksSeldom(machine)
		// Its user data stay wrong. The next machine's are right.
		if err := scenario.Delete(s.ctx, env.client, &clusterv1.Machine{ObjectMeta: s.meta(machine.Name)}); err != nil {
			t.Fatal(err)
		}
		s.until("another machine is ready in its place", scenario.All(s.deleted(machine), pool.Ready(env.view, 1)))
	})
}

// asksSeldom asserts the allowed number of console reads: one when the machine becomes late, and
// one each time that its VM has run twice as long.
func (s *stage) asksSeldom(machine *infrav1.DroverMachine) {
	s.Helper()
	runs := time.Since(conditions.Get(machine, clusterv1.ReadyCondition).LastTransitionTime.Time)
	audit, err := env.admin.Audit(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	asked := audit.Machine(machine.Spec.Creation.Token, wire.GetConsoleOutput)
	if most := 2 + int(math.Log2(max(1, runs.Seconds()/lateAfter.Seconds()))); asked < 1 || asked > most {
		s.Errorf("its console was read %d times in %s: at least once, at most %d times", asked, runs, most)
	}
}

// fault adds a fault to the creates of the test's VMs.
func (s *stage) fault(f simulator.Fault) (id string) {
	s.Helper()
	f.Account, f.Operation = s.Name, "RunInstances"
	id, err := env.admin.AddFault(s.ctx, f)
	if err != nil {
		s.Fatal(err)
	}
	return id
}

// held creates a pool of one machine, and returns its user data. No VM is created until goOn is
// called.
func (s *stage) held() (pool scenario.Pool, data *corev1.Secret, goOn func()) {
	s.Helper()
	id := s.fault(simulator.Fault{Kind: simulator.ErrorBefore})
	pool = scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.soon("user data and token are there", func(ctx context.Context) (string, error) {
		configs := &bootstrapv1.DroverConfigList{}
		if err := env.client.List(ctx, configs, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		if len(configs.Items) == 0 || configs.Items[0].Status.DataSecretName == "" {
			return "they are not", nil
		}
		data = &corev1.Secret{ObjectMeta: s.meta(configs.Items[0].Status.DataSecretName)}
		return "", env.client.Get(ctx, client.ObjectKeyFromObject(data), data)
	})
	return pool, data, func() {
		s.Helper()
		if err := env.admin.RemoveFault(s.ctx, id); err != nil {
			s.Fatal(err)
		}
	}
}

// late waits until the test's one machine reports, with the words, that no kubelet has requested a
// certificate.
func (s *stage) late(words ...string) *infrav1.DroverMachine {
	s.Helper()
	s.until("there is a machine", func(context.Context) (string, error) {
		if n := len(s.machines()); n != 1 {
			return fmt.Sprintf("there are %d", n), nil
		}
		return "", nil
	})
	machine := &s.machines()[0]
	s.soon("the machine says how far it came", says(machine, infrav1.MachineNodeJoinedCondition, infrav1.NoCertificateRequestReason, words...))
	return machine
}

// joins waits until the machine is a ready Node and has nothing more to report.
func (s *stage) joins(pool scenario.Pool, machine *infrav1.DroverMachine) {
	s.Helper()
	s.until("the machine is ready", pool.Ready(env.view, 1))
	s.soon("the machine is content", func(ctx context.Context) (string, error) {
		err := env.client.Get(ctx, client.ObjectKeyFromObject(machine), machine)
		if c := conditions.Get(machine, infrav1.MachineNodeJoinedCondition); c != nil && c.Status != metav1.ConditionTrue {
			return c.Reason + ": " + c.Message, nil
		}
		return "", err
	})
	if shown := s.shown(machine.Name); shown != "" {
		s.Errorf("kubectl shows %q under \"Message\"", shown)
	}
}

// shown returns what "kubectl get drovermachines" shows under "Message" with -o wide.
func (s *stage) shown(name string) string {
	s.Helper()
	c, err := kubernetes.NewForConfig(env.management.AdminConfig())
	if err != nil {
		s.Fatal(err)
	}
	raw, err := c.RESTClient().Get().AbsPath("/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces", s.Namespace, "drovermachines", name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(s.ctx).Raw()
	if err != nil {
		s.Fatal(err)
	}
	table := metav1.Table{}
	if err := json.Unmarshal(raw, &table); err != nil || len(table.Rows) != 1 {
		s.Fatalf("%s: %v", raw, err)
	}
	for i, column := range table.ColumnDefinitions {
		if column.Name == "Message" && table.Rows[0].Cells[i] != nil {
			return fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	return ""
}
