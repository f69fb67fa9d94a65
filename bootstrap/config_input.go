// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// readSecrets reads the values that a spec takes from Secrets of its own namespace, past any cache.
// If one is missing, the error names it, and the controller checks again later. It accepts only
// Secrets with the label MachineSecretLabel.
func readSecrets(ctx context.Context, reader client.Reader, namespace string,
	keys []bootstrapv1.SecretKey) (map[bootstrapv1.SecretKey][]byte, error) {
	out := make(map[bootstrapv1.SecretKey][]byte, len(keys))
	missing := func(format string, args ...any) error {
		return &waiting{reason: bootstrapv1.WaitingForSecretReason, after: recheck, message: fmt.Sprintf(format, args...)}
	}
	found := &corev1.Secret{}
	for _, key := range keys { // sorted by Secret
		if found.Name != key.Name {
			found = &corev1.Secret{}
			err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: key.Name}, found)
			if apierrors.IsNotFound(err) {
				return nil, missing("Waiting for Secret %q to exist", key.Name)
			}
			if err != nil {
				return nil, fmt.Errorf("reading the Secret %q: %w", key.Name, err)
			}
			if _, ok := found.Labels[bootstrapv1.MachineSecretLabel]; !ok {
				return nil, missing("Waiting for the label %s on Secret %q, which permits Drover to put the Secret onto machines",
					bootstrapv1.MachineSecretLabel, key.Name)
			}
		}
		value, ok := found.Data[key.Key]
		if !ok {
			return nil, missing("Waiting for the key %q in Secret %q", key.Key, key.Name)
		}
		out[key] = value
	}
	return out, nil
}

// controlPlaneVersion reads the version from the workload cluster's API server. A kubelet must fit
// that version, whatever the kind of control plane.
func (r *ConfigReconciler) controlPlaneVersion(ctx context.Context, cluster *clusterv1.Cluster) (string, error) {
	config, err := r.ClusterCache.GetRESTConfig(ctx, client.ObjectKeyFromObject(cluster))
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return "", &waiting{reason: bootstrapv1.WaitingForControlPlaneReason, message: "Waiting for a connection to the workload cluster",
			after: recheck}
	}
	if err != nil {
		return "", err
	}
	version, err := serverVersion(ctx, config)
	if err != nil {
		return "", wrapForbidden(err, "the API server's version")
	}
	return version, nil
}

func serverVersion(ctx context.Context, config *rest.Config) (string, error) {
	c, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", fmt.Errorf("creating a client for the API server's version: %w", err)
	}
	raw, err := c.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", fmt.Errorf("requesting the API server's version: %w", err)
	}
	info := apiversion.Info{}
	if err := json.Unmarshal(raw, &info); err != nil {
		return "", fmt.Errorf("reading the API server's version: %w", err)
	}
	return info.GitVersion, nil
}
