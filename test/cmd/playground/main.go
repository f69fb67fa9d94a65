// SPDX-License-Identifier: Apache-2.0

// Command playground ("make playground") starts a management cluster with Cluster API and Drover,
// and a simulated cloud, and keeps them running until Ctrl-C. The cluster is management and
// workload cluster at once, and it is adopted as docs/adopt-a-cluster.md describes. Enter rebuilds
// and restarts Drover, for its developers: objects and VMs stay. Kinds are installed once: after a
// change of api/, start the playground again.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/test/playground"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdin, os.Stdout)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

// run starts everything and keeps it running until ctx is done. Each line of in rebuilds and
// restarts Drover.
func run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%5.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
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
	cloud, err := playground.StartSimulator(ctx, playground.SimulatorOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cloud.Stop()) }()
	say("starting Drover")
	args := []string{"--simulated-endpoint=" + cloud.URL, "--allow-endpoints=127.0.0.0/8,::1/128"}
	start := func(binary string) (*playground.Process, error) {
		return m.StartDrover(ctx, playground.DroverOptions{Binary: binary, Args: args})
	}
	drover, err := start(binary)
	if err != nil {
		return err
	}
	if err := handOver(ctx, m, cloud, args); err != nil {
		return err
	}
	path, err := programs(ctx, binary)
	if err != nil {
		return err
	}
	say("ready; Enter builds and restarts Drover, Ctrl-C stops everything")
	fmt.Fprintf(out, introduction, m.AdminKubeconfig(), path, cloud.URL, m.Dir)

	lines, ended := linesOf(in), drover.Done()
	for {
		select {
		case <-ctx.Done():
			say("stopping")
			return nil
		case <-ended:
			say("%v\nEnter builds Drover and starts it again", errors.Join(errors.New("the manager ended"), drover.Wait()))
			ended = nil
		case <-lines:
			next, err := restart(ctx, drover, start)
			if err != nil {
				say("%v\nEnter tries again", err)
				continue
			}
			drover, ended = next, next.Done()
			say("restarted; log: %s", drover.Log)
		}
	}
}

// restart replaces the manager with one that is built from the current source. A failed build stops
// nothing.
func restart(ctx context.Context, old *playground.Process,
	start func(binary string) (*playground.Process, error)) (*playground.Process, error) {
	binary, err := playground.Build(ctx, false)
	if err != nil {
		return nil, err
	}
	const grace = time.Minute // longer than --shutdown-timeout
	select {
	case <-old.Done(): // it has already ended by itself
	default:
		if err := old.Stop(grace); err != nil {
			return nil, err
		}
	}
	return start(binary)
}

// linesOf sends one value for each line. At the end of the input it sends nothing more.
func linesOf(in io.Reader) <-chan struct{} {
	lines := make(chan struct{})
	go func() {
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
	return lines
}

// introduction is printed when everything runs, and works in any folder. Its arguments are the
// kubeconfig, the folders of the programs, the simulated cloud's address, and the folder of the logs.
const introduction = `
  export KUBECONFIG=%s
  export PATH=%s:$PATH
  export DROVER_SIMULATED_ENDPOINT=%s

docs/quick-start.md goes on from here. Logs: %s/*.log

`

// programs returns the folders of drover, which lies beside the manager, kubectl and clusterctl.
func programs(ctx context.Context, manager string) (string, error) {
	root, err := playground.Root(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "tool"), "kubectl", "clusterctl")
	cmd.Stderr = os.Stderr // it says what it builds
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find kubectl and clusterctl: %w", err)
	}
	folders := []string{filepath.Dir(manager)}
	for file := range strings.Lines(string(out)) {
		if folder := filepath.Dir(strings.TrimSpace(file)); !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	return strings.Join(folders, ":"), nil
}

// handOver creates the Secrets that the template for an adopted cluster refers to, and the manager's
// Deployment. The manager is a process, so the Deployment has no Pods: it tells the command drover
// the manager's flags.
func handOver(ctx context.Context, m *playground.Management, cloud *playground.Simulator, args []string) error {
	client, err := kubernetes.NewForConfig(m.AdminConfig())
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	kubeconfig, err := m.Kubeconfig("adopter", "system:masters")
	if err != nil {
		return err
	}
	for _, secret := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Name: "adopted-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig}},
		{ObjectMeta: metav1.ObjectMeta{Name: "simulated-credentials", Labels: map[string]string{infrav1.CredentialsLabel: "simulated"}},
			Data: map[string][]byte{"token": []byte(cloud.Token)}},
	} {
		if _, err := client.CoreV1().Secrets(metav1.NamespaceDefault).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create the Secret %s: %w", secret.Name, err)
		}
	}
	labels := map[string]string{clusterv1.ProviderNameLabel: "infrastructure-drover"}
	manager := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "drover-controller-manager", Labels: labels},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "drover:" + playground.Version, Args: args}}},
		}},
	}
	if _, err := client.AppsV1().Deployments("drover-system").Create(ctx, manager, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the manager's Deployment: %w", err)
	}
	return nil
}
