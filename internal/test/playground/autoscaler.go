// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// AutoscalerOptions configure the identity of the cluster-autoscaler and the cluster that it
// scales.
type AutoscalerOptions struct {
	// Management and Workload are the kubeconfigs of the cluster with the MachineDeployments, and
	// of the cluster with the pods and Nodes.
	Management, Workload []byte
	// Namespace and Cluster identify the one cluster whose pools it scales.
	Namespace, Cluster string
}

// AutoscalerHaste are arguments that make the cluster-autoscaler do in seconds what otherwise takes
// minutes.
var AutoscalerHaste = []string{"--scan-interval=1s", "--scale-down-unneeded-time=4s", "--scale-down-delay-after-add=4s",
	"--unremovable-node-recheck-timeout=4s", "--node-delete-delay-after-taint=0s", "--v=4"}

// StartAutoscaler runs the real cluster-autoscaler for this cluster, with the arguments and
// environment of the Deployment in the docs plus AutoscalerHaste. It returns after the first scan.
// The process ends with the control plane.
func (c *ControlPlane) StartAutoscaler(ctx context.Context, opts AutoscalerOptions) (*Process, error) {
	if c.autoscaler != nil {
		return nil, errors.New("start the cluster-autoscaler: it was started before")
	}
	tools, err := c.opts.Tools.with(ctx, c.opts.Progress, "cluster-autoscaler")
	if err != nil {
		return nil, err
	}
	args, env, err := autoscalerOfTheBook(ctx, opts)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir, "cluster-autoscaler")
	if err := writeFiles(dir, map[string][]byte{"management.kubeconfig": opts.Management, "workload.kubeconfig": opts.Workload}); err != nil {
		return nil, err
	}
	c.autoscaler, err = onFreePorts(1, func(ports []int) (*Process, error) {
		address := local(ports[0])
		p, err := start(command{
			name: "cluster-autoscaler", path: tools["cluster-autoscaler"], dir: c.Dir, env: env,
			args: slices.Concat([]string{
				"--address=" + address, "--kubeconfig=" + filepath.Join(dir, "workload.kubeconfig"),
				"--cloud-config=" + filepath.Join(dir, "management.kubeconfig"),
			}, args, AutoscalerHaste),
		})
		if err != nil {
			return nil, err
		}
		p.Metrics = "http://" + address + "/metrics"
		return p, p.waitFor(ctx, "the cluster-autoscaler works", startDeadline, probe(http.DefaultClient, "http://"+address+"/health-check"))
	})
	if err != nil {
		return nil, fmt.Errorf("start the cluster-autoscaler of %s: %w", c.Name, err)
	}
	return c.autoscaler, nil
}

// autoscalerOfTheBook reads the arguments and environment from the Deployment in the docs.
func autoscalerOfTheBook(ctx context.Context, opts AutoscalerOptions) (args, env []string, err error) {
	root, err := Root(ctx)
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "examples", "autoscaler", "deployment.yaml"))
	if err != nil {
		return nil, nil, fmt.Errorf("read the book's Deployment: %w", err)
	}
	deployment := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, deployment); err != nil {
		return nil, nil, fmt.Errorf("parse the book's Deployment: %w", err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	names := strings.NewReplacer("namespace=team-a", "namespace="+opts.Namespace, "clusterName=blue", "clusterName="+opts.Cluster)
	for _, arg := range container.Args {
		if !strings.HasPrefix(arg, "--kubeconfig=") {
			args = append(args, names.Replace(arg))
		}
	}
	for _, e := range container.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	return args, env, nil
}
