// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator"
)

// glance is the maximum age of a cached read of what all tenants share. Dozens of them wait at the
// same time, and each would otherwise read all of it.
const glance = 150 * time.Millisecond

// memo caches a value for the duration age, or for a glance when age is 0.
type memo[T any] struct {
	age time.Duration

	mu    sync.Mutex
	at    time.Time
	value T
}

func (m *memo[T]) get(load func() (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.at) < cmp.Or(m.age, glance) {
		return m.value, nil
	}
	at := time.Now()
	value, err := load()
	if err == nil {
		m.at, m.value = at, value
	}
	return value, err
}

// Snapshot returns the cloud's own records, usually at most a glance old.
func (r *Rig) Snapshot(ctx context.Context) (simulator.Snapshot, error) {
	return r.snapshot.get(func() (simulator.Snapshot, error) { return r.place.books(ctx) })
}

// systemSecrets returns the Secrets in kube-system of the workload cluster.
func (r *Rig) systemSecrets(ctx context.Context) ([]corev1.Secret, error) {
	return r.secrets.get(func() ([]corev1.Secret, error) {
		list := &corev1.SecretList{}
		if err := r.Nodes.List(ctx, list, client.InNamespace(metav1.NamespaceSystem)); err != nil {
			return nil, fmt.Errorf("list the workload cluster's Secrets: %w", err)
		}
		return list.Items, nil
	})
}

// allNodes returns the workload cluster's Nodes.
func (r *Rig) allNodes(ctx context.Context) ([]corev1.Node, error) {
	return r.nodes.get(func() ([]corev1.Node, error) {
		list := &corev1.NodeList{}
		if err := r.Nodes.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list the Nodes: %w", err)
		}
		return list.Items, nil
	})
}
