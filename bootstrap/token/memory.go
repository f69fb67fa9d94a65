// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// listingAge is how long one listing of a workload cluster's tokens is used. One listing serves
	// all machines of a cluster after a restart.
	listingAge = 10 * time.Second
	// bindingAge is how long a binding, once seen, is assumed to exist.
	bindingAge = 10 * time.Minute
	// maxName is the length of a token Secret's name and of a label's value, in bytes: a Secret of a
	// token has 23, and Kubernetes takes 63 of a label.
	maxName = 63
)

// Memory is what this process knows of the tokens that it created, so that a reconcile without
// changes and a joined machine need no call. It can all be read again, and is lost with the
// process. The zero Memory is empty.
type Memory struct {
	mu       sync.Mutex
	tokens   map[types.UID]Known    // by the config's UID
	clusters map[types.UID]*cluster // by the Cluster's UID
}

// Known is a token that this process has seen in the workload cluster, or knows to be gone.
type Known struct {
	Cluster, Machine types.UID
	// Token is the token itself.
	Token   string
	Expires time.Time
	// Files: the files that the machine fetches with the token need no work until the token is
	// written again.
	Files bool
	// Gone: there is no token.
	Gone bool
}

// cluster contains what is known of one workload cluster.
type cluster struct {
	bound   map[string]time.Time // when each binding was last seen
	listed  time.Time
	byOwner map[string][]string // names of token Secrets by ConfigLabel
}

// Get returns the known state of a config's token.
func (m *Memory) Get(config types.UID) (Known, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.tokens[config]
	return k, ok
}

// Put remembers a config's token.
func (m *Memory) Put(config types.UID, k Known) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tokens == nil {
		m.tokens = map[types.UID]Known{}
	}
	m.tokens[config] = k
}

// Forget drops a config's token.
func (m *Memory) Forget(config types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tokens, config)
}

// ForgetCluster drops the state of a Cluster.
func (m *Memory) ForgetCluster(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.clusters, uid)
	maps.DeleteFunc(m.tokens, func(_ types.UID, k Known) bool { return k.Cluster == uid })
}

// of returns the state of a Cluster. The caller must hold the lock.
func (m *Memory) of(uid types.UID) *cluster {
	if m.clusters == nil {
		m.clusters = map[types.UID]*cluster{}
	}
	if m.clusters[uid] == nil {
		m.clusters[uid] = &cluster{bound: map[string]time.Time{}}
	}
	return m.clusters[uid]
}

// IsBound reports whether a binding was seen within bindingAge.
func (m *Memory) IsBound(cluster types.UID, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[cluster]
	return c != nil && time.Since(c.bound[name]) < bindingAge
}

// SetBound records that a binding exists.
func (m *Memory) SetBound(cluster types.UID, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(cluster).bound[name] = time.Now()
}

// List returns the names of an owner's token Secrets. The listing may be as old as listingAge:
// newer tokens of this process are in memory, and older ones of another process are in the listing.
func (m *Memory) List(ctx context.Context, uid types.UID, workload client.Client, owner string) ([]string, error) {
	if names, fresh := m.listed(uid, owner); fresh {
		return names, nil
	}
	at := time.Now()
	found := &metav1.PartialObjectMetadataList{}
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := workload.List(ctx, found, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{ConfigLabel}); err != nil {
		return nil, err
	}
	byOwner := map[string][]string{}
	for _, o := range found.Items {
		if len(o.Name) > maxName || len(o.Labels[ConfigLabel]) > maxName { // not from an API server
			continue
		}
		byOwner[o.Labels[ConfigLabel]] = append(byOwner[o.Labels[ConfigLabel]], o.Name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.of(uid)
	c.listed, c.byOwner = at, byOwner
	return byOwner[owner], nil
}

func (m *Memory) listed(uid types.UID, owner string) (names []string, fresh bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clusters[uid]
	if c == nil || time.Since(c.listed) > listingAge {
		return nil, false
	}
	return c.byOwner[owner], true
}
