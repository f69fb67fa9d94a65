// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/apiwarnings"
	ctrl "sigs.k8s.io/controller-runtime"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Management says which objects of which management cluster a program handles.
type Management struct {
	Kubeconfig string
	Namespace  string
}

// AddFlags adds the flags to a set.
func (o *Management) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "Path to the kubeconfig of the management cluster. Default: the Pod's service account, or $KUBECONFIG.")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "Handle only objects in this namespace. Default: all namespaces.")
}

// Config returns the configuration of a connection to the management cluster.
func (o Management) Config(version string) (*rest.Config, error) {
	config, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	config.UserAgent = UserAgent(version)
	config.WarningHandler = apiwarnings.DefaultHandler(klog.Background().WithName("API server"))
	return config, nil
}

// loadConfig reads a kubeconfig, or finds one if path is "". As ctrl.GetConfig does, it leaves the
// rate of requests to the API server's own limits.
func loadConfig(path string) (*rest.Config, error) {
	if path == "" {
		return ctrl.GetConfig()
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// UserAgent is what API servers see of a Drover of this version.
func UserAgent(version string) string { return "drover/" + version }

// NewScheme returns a scheme with all kinds that Drover reads or writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, ipamv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme,
		controlplanev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}
