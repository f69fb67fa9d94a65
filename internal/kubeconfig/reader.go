// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reader reads the kubeconfig Secrets of Clusters for a library that connects to them. A library
// obeys every field of a kubeconfig, also those that name files of the manager. So it gets a
// kubeconfig that we write of what Parse accepts, and nothing else of a tenant's Secret.
type Reader struct {
	// Live reads the Secrets from the API server.
	Live client.Reader
	// Write returns the kubeconfig that the library gets for a Cluster.
	Write func(cluster client.ObjectKey, config *Config) ([]byte, error)
}

// Get reads the Secret <cluster>-kubeconfig. It refuses every other object, and a kubeconfig that
// Parse refuses.
func (r Reader) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	out, ok := into.(*corev1.Secret)
	cluster, purpose, err := secret.ParseSecretName(key.Name)
	if !ok || err != nil || purpose != secret.Kubeconfig {
		return fmt.Errorf("reading %T %s: only the kubeconfig Secrets of Clusters can be read here", into, key)
	}
	read := &corev1.Secret{}
	if err := r.Live.Get(ctx, key, read, options...); err != nil {
		return err
	}
	config, err := Parse(read.Data[secret.KubeconfigDataName])
	if err != nil {
		return fmt.Errorf("the Secret %s: change its key %s: %w", key, secret.KubeconfigDataName, err)
	}
	data, err := r.Write(client.ObjectKey{Namespace: key.Namespace, Name: cluster}, config)
	if err != nil {
		return fmt.Errorf("the Secret %s: %w", key, err)
	}
	*out = corev1.Secret{
		TypeMeta:   read.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{Namespace: read.Namespace, Name: read.Name, UID: read.UID, ResourceVersion: read.ResourceVersion},
		Type:       read.Type,
		Data:       map[string][]byte{secret.KubeconfigDataName: data},
	}
	return nil
}

// List refuses, because no library has to list tenants' Secrets.
func (r Reader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("kubeconfig Secrets can't be listed")
}
