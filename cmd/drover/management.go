// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/apiwarnings"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/internal/options"
)

// management is the management cluster that a command reads, found as kubectl finds it.
type management struct {
	flags *genericclioptions.ConfigFlags
}

// addFlags adds those of kubectl's flags that a kubeconfig does not make superfluous.
func (m *management) addFlags(f *pflag.FlagSet) {
	all := genericclioptions.NewConfigFlags(false)
	m.flags = &genericclioptions.ConfigFlags{
		KubeConfig: all.KubeConfig, Context: all.Context, Namespace: all.Namespace, AuthInfoName: all.AuthInfoName,
		Impersonate: all.Impersonate, ImpersonateGroup: all.ImpersonateGroup, Timeout: all.Timeout,
	}
	m.flags.AddFlags(f)
}

// config returns the configuration of a connection to the management cluster.
func (m *management) config() (*rest.Config, error) {
	raw, err := m.flags.ToRawKubeConfigLoader().RawConfig()
	if err == nil && len(raw.Clusters) == 0 {
		err = inPod()
	}
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	config, err := m.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	config.UserAgent, config.QPS = options.UserAgent(version), -1
	config.WarningHandler = apiwarnings.DefaultHandler(klog.Background().WithName("API server"))
	return config, nil
}

// inPod says what is missing if there is no kubeconfig outside of a Pod.
func inPod() error {
	_, err := rest.InClusterConfig()
	switch paths := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case !errors.Is(err, rest.ErrNotInCluster):
		return err
	case paths != "":
		return fmt.Errorf("KUBECONFIG names no file with a cluster: %s", paths)
	}
	return fmt.Errorf("there is no kubeconfig: set KUBECONFIG or --kubeconfig, or write %s", clientcmd.RecommendedHomeFile)
}

// namespace returns that of the flag, or that of the kubeconfig's context.
func (m *management) namespace() (string, error) {
	namespace, _, err := m.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("finding the management cluster: %w", err)
	}
	return namespace, nil
}

// connect returns an uncached client of the management cluster, and the namespace.
func (m *management) connect() (client.Client, string, error) {
	config, err := m.config()
	if err != nil {
		return nil, "", err
	}
	namespace, err := m.namespace()
	if err != nil {
		return nil, "", err
	}
	scheme, err := options.NewScheme()
	if err != nil {
		return nil, "", err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", fmt.Errorf("making a client of the management cluster: %w", err)
	}
	return c, namespace, nil
}

// names returns the names of the objects of a kind, for the shell's completion.
func (m *management) names(ctx context.Context, list client.ObjectList) (names []string) {
	c, namespace, err := m.connect()
	if err != nil || c.List(ctx, list, client.InNamespace(namespace)) != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error { // fails for no list
		names = append(names, o.(client.Object).GetName())
		return nil
	})
	return names
}

// providerLabel is that of everything that a release of Drover installs.
const providerLabel = "infrastructure-drover"

// managers returns the Deployments of Drover's managers, by name: none if they may not be read.
func managers(ctx context.Context, c client.Reader) []appsv1.Deployment {
	list := &appsv1.DeploymentList{}
	labels := client.MatchingLabels{clusterv1.ProviderNameLabel: providerLabel}
	if c.List(ctx, list, labels) != nil && c.List(ctx, list, labels, client.InNamespace("drover-system")) != nil {
		return nil
	}
	slices.SortFunc(list.Items, func(a, b appsv1.Deployment) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list.Items
}

// managerContainer returns the container that runs the manager.
func managerContainer(d *appsv1.Deployment) *corev1.Container {
	for i := range d.Spec.Template.Spec.Containers {
		if c := &d.Spec.Template.Spec.Containers[i]; c.Name == "manager" {
			return c
		}
	}
	return nil
}

// likeManagerHelp is part of the help of each command that calls likeManager.
const likeManagerHelp = `The flags that concern clouds
are by default those of the manager's Deployment, if you may read it.`

// likeManager gives the flags that the user has not set the values that the manager has, so that
// a command sees the clouds that the manager sees. Managers that differ are of no help.
func likeManager(ctx context.Context, c client.Reader, cmd *cobra.Command) error {
	var args []string
	for _, d := range managers(ctx, c) {
		container := managerContainer(&d)
		if container == nil {
			continue
		}
		// Several managers may divide the work.
		these := slices.DeleteFunc(options.Expand(container), func(arg string) bool {
			name, _, _ := strings.Cut(arg, "=")
			return slices.Contains([]string{"--run", "--namespace", "--watch-filter"}, name)
		})
		if args != nil && !slices.Equal(args, these) {
			return nil
		}
		args = these
	}
	if err := options.Take(cmd.Flags(), args); err != nil {
		return fmt.Errorf("reading the flags of the manager's Deployment: %w", err)
	}
	return nil
}
