// SPDX-License-Identifier: Apache-2.0

// Command cmd ("make playground") starts a management cluster with Cluster API and Drover, and a simulated cloud, and
// leaves them to you until Ctrl-C. The cluster gets its own machines: it is the management and the workload cluster at
// once, and it is handed over as docs/adopt-a-cluster.md says.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/drover-io/drover/test/playground"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	began := time.Now()
	say := func(what string) { fmt.Printf("%5.1f s  %s\n", time.Since(began).Seconds(), what) }
	say("building Drover")
	binary, err := playground.Build(ctx, false)
	if err != nil {
		return err
	}
	say("starting a management cluster")
	m, err := playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	say("starting a simulated cloud")
	cloud, err := playground.StartSimulator(ctx, playground.SimulatorOptions{Binary: binary})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cloud.Stop()) }()
	say("starting Drover")
	drover, err := m.StartDrover(ctx, playground.DroverOptions{Binary: binary, Args: []string{"--simulated-endpoint=" + cloud.URL}})
	if err != nil {
		return err
	}
	if err := handOver(ctx, m, cloud); err != nil {
		return err
	}
	say("ready; Ctrl-C stops everything")
	fmt.Printf(introduction, m.AdminKubeconfig(), m.Dir, cloud.URL)
	select {
	case <-ctx.Done():
		say("stopping")
		return nil
	case <-drover.Done():
		return errors.Join(errors.New("the manager ended"), drover.Wait())
	}
}

// introduction is said when all runs: the kubeconfig, the folder with logs, the simulated cloud's address.
const introduction = `
  export KUBECONFIG=%s
  alias kubectl=$(hack/tool kubectl)

A cluster with three machines:

  CLUSTER_NAME=one NAMESPACE=default WORKER_MACHINE_COUNT=3 KUBERNETES_VERSION=v1.36.3 \
    $(hack/tool clusterctl) generate yaml --from templates/cluster-template-adopted.yaml | kubectl apply -f -
  kubectl get machines,cloudmachines,nodes
  kubectl scale machinedeployment one-md-0 --replicas=6

Logs: %s/*.log   The simulated cloud: %s

`

// handOver makes the Secrets that the template for an adopted cluster refers to.
func handOver(ctx context.Context, m *playground.Management, cloud *playground.Simulator) error {
	client, err := kubernetes.NewForConfig(m.AdminConfig())
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	kubeconfig, err := m.Kubeconfig("adopter", "system:masters")
	if err != nil {
		return err
	}
	for name, data := range map[string]map[string][]byte{
		"adopted-kubeconfig":    {"value": kubeconfig},
		"simulated-credentials": {"token": []byte(cloud.Token)},
	} {
		_, err := client.CoreV1().Secrets(metav1.NamespaceDefault).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data,
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create the Secret %s: %w", name, err)
		}
	}
	return nil
}
