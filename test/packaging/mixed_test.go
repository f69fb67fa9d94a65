// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// mixed tests one cluster with a pool on each of two clouds. The clouds are independent and have
// different credentials.
func (l *life) mixed(t *testing.T) {
	const namespace, name = "team-c", "violet"
	other := otherCloud(t)
	kubeconfig, err := l.management.Kubeconfig("drover")
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	credentials := func(name, token string) client.Object {
		return scenario.Credentials(meta(name), "simulated", map[string][]byte{"token": []byte(token)})
	}
	if err := scenario.Create(t.Context(), l.admin,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{ObjectMeta: meta("adopted-kubeconfig"), Data: map[string][]byte{"value": kubeconfig}},
		credentials("simulated-a-credentials", l.cloud.Token),
		credentials("simulated-b-credentials", other.Token),
	); err != nil {
		t.Fatal(err)
	}
	l.create(t, "mixed", name, namespace, "DROVER_SIMULATED_ENDPOINT_A="+l.cloud.URL, "DROVER_SIMULATED_ENDPOINT_B="+other.URL)
	violet := scenario.Adopted{Namespace: namespace, Name: name}
	a, b := scenario.Pool{Cluster: violet, Name: name + "-md-a"}, scenario.Pool{Cluster: violet, Name: name + "-md-b"}
	until(t, scenario.All(a.Ready(l.admin, 3), b.Ready(l.admin, 3)))
	for cloud, want := range map[*playground.Simulator]int{l.cloud: 3, other: 3} {
		if ids := l.vms(t, simulator.Admin{URL: cloud.URL}); len(ids) != want {
			t.Errorf("there are the VMs %v at %s, want %d", ids, cloud.URL, want)
		}
	}

	// Deleting one cloud's pool does not affect the other cloud's machines.
	if err := l.admin.Delete(t.Context(), b.Deployment()); err != nil {
		t.Fatal(err)
	}
	until(t, scenario.All(l.gone(b), a.Ready(l.admin, 3)))
	if ids := l.vms(t, simulator.Admin{URL: other.URL}); len(ids) > 0 {
		t.Errorf("the VMs %v are left", ids)
	}
	if err := l.admin.Delete(t.Context(), a.Deployment()); err != nil {
		t.Fatal(err)
	}
	until(t, scenario.All(scenario.Empty(l.admin, &clusterv1.MachineList{}, namespace), scenario.Empty(l.admin, &corev1.NodeList{}, "")))
	if err := l.admin.Delete(t.Context(), violet.Cluster()); err != nil {
		t.Fatal(err)
	}
	until(t, scenario.Empty(l.admin, &infrav1.DroverClusterList{}, namespace))
	for _, account := range []string{"simulated-a", "simulated-b"} {
		if err := l.admin.Delete(t.Context(), &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name: account}}); err != nil {
			t.Error(err)
		}
	}
	until(t, scenario.Empty(l.admin, &infrav1.DroverAccountList{}, namespace))
}

// gone checks that a pool has no machines left.
func (l *life) gone(p scenario.Pool) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &infrav1.DroverMachineList{}
		if err := l.admin.List(ctx, list, client.InNamespace(p.Cluster.Namespace),
			client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: p.Name}); err != nil {
			return "", err
		}
		if n := len(list.Items); n > 0 {
			return fmt.Sprintf("%d DroverMachines of %s are left", n, p.Name), nil
		}
		return "", nil
	}
}

// otherCloud starts a second cloud. Its machines have addresses of a separate network, because all
// Nodes are in one cluster.
func otherCloud(t *testing.T) *playground.Simulator {
	t.Helper()
	config := filepath.Join(t.TempDir(), "cloud.yaml")
	if err := os.WriteFile(config, []byte("networks: [{name: default, cidr: 10.80.0.0/16}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cloud, err := playground.StartSimulator(t.Context(), playground.SimulatorOptions{Args: []string{"--config=" + config}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cloud.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cloud
}
