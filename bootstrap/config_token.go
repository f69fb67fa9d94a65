// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/index"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/naming"
)

// This file has the token Secret that Drover writes to kube-system of a workload cluster for each
// joining machine. config_files.go has the other objects per machine, config_rights.go those for
// all machines.

func ttl(config *bootstrapv1.DroverConfig) time.Duration {
	if config.Spec.TokenTTLSeconds <= 0 {
		return 30 * time.Minute
	}
	return time.Duration(config.Spec.TokenTTLSeconds) * time.Second
}

// hasNode reads from the workload cluster whether the machine has joined, because its status may be
// lost, as in "clusterctl move". A used token must not become valid again, not even until Cluster
// API has found the Node again. While this process has a token for the machine in memory, hasNode
// sends no request.
func (r *ConfigReconciler) hasNode(ctx context.Context, s *scope, workload client.Client) (bool, error) {
	known, ok := r.tokens.Get(s.config.UID)
	if (ok && !known.Gone) || s.machine.Spec.ProviderID == "" {
		return false, nil
	}
	name, err := r.expectedNodeName(ctx, s)
	if name == "" || err != nil {
		return false, err
	}
	node := &corev1.Node{}
	err = workload.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, wrapForbidden(err, "the machine's Node")
	}
	return node.Spec.ProviderID == s.machine.Spec.ProviderID, nil
}

// expectedNodeName returns the name that the machine's Node would have. If the machine uses the
// host name from its cloud, that name may no longer be known. expectedNodeName then returns the
// name of the cached Node with the machine's provider ID, or "" if there is none.
func (r *ConfigReconciler) expectedNodeName(ctx context.Context, s *scope) (string, error) {
	if s.config.Spec.NodeNameSource != bootstrapv1.NodeNameHostname {
		return naming.NodeName(s.machine.Name), nil
	}
	cached, err := r.ClusterCache.GetReader(ctx, client.ObjectKeyFromObject(s.cluster))
	if err != nil {
		return "", err
	}
	nodes := &corev1.NodeList{}
	if err := cached.List(ctx, nodes, client.MatchingFields{index.NodeProviderIDField: s.machine.Spec.ProviderID}); err != nil {
		return "", fmt.Errorf("finding the machine's Node: %w", err)
	}
	if len(nodes.Items) != 1 {
		return "", nil
	}
	return nodes.Items[0].Name, nil
}

// holder returns the machine that the config's token is for.
func holder(s *scope) token.Holder {
	h := token.Holder{
		Config:     client.ObjectKeyFromObject(s.config),
		Machine:    client.ObjectKeyFromObject(s.machine),
		MachineUID: s.machine.UID,
		Cluster:    client.ObjectKeyFromObject(s.cluster),
		Groups:     tokenGroups(s.config),
	}
	if s.config.Spec.NodeNameSource != bootstrapv1.NodeNameHostname {
		h.Node = naming.NodeName(s.machine.Name)
	}
	return h
}

// ensureToken keeps the token valid for at least half its time to live, and returns when to call it
// again. It returns token.ErrTaken if another token has the same ID.
func (r *ConfigReconciler) ensureToken(ctx context.Context, s *scope, workload client.Client, text string) (time.Duration, error) {
	if text == "" { // user data that Drover did not create
		return 0, nil
	}
	half := ttl(s.config) / 2
	known, ok := r.tokens.Get(s.config.UID)
	ok = ok && known.Token == text
	if ok && known.Machine == s.machine.UID && time.Until(known.Expires) > half {
		return time.Until(known.Expires) - half, nil
	}
	desired := holder(s).Secret(text, time.Now().Add(ttl(s.config)))
	expires := token.Expiration(desired)
	var err error
	if ok {
		err = token.Extend(ctx, workload, desired)
	} else {
		expires, err = token.Ensure(ctx, workload, desired, half, s.config.Status.DataSecretName != "")
	}
	if err != nil {
		return 0, wrapForbidden(err, "a bootstrap token in the namespace kube-system")
	}
	r.tokens.Put(s.config.UID, token.Known{Cluster: s.cluster.UID, Machine: s.machine.UID, Token: text, Expires: expires})
	return max(time.Until(expires)-half, time.Second), nil
}

// removeToken deletes the config's token from the workload cluster, if it exists. It sends no
// request if this process has already seen the token gone.
func (r *ConfigReconciler) removeToken(ctx context.Context, s *scope) error {
	known, ok := r.tokens.Get(s.config.UID)
	if ok && known.Gone {
		return nil
	}
	workload, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(s.cluster))
	if err != nil {
		return err
	}
	names := []string{token.Key(known.Token).Name}
	if !ok { // after a restart
		owner := token.Owner(client.ObjectKeyFromObject(s.config), s.cluster.Name)
		if names, err = r.tokens.List(ctx, s.cluster.UID, workload, owner); err != nil {
			return wrapForbidden(err, "the bootstrap tokens in the namespace kube-system")
		}
	}
	for _, name := range names {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}}
		if err := workload.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
			return wrapForbidden(err, "the bootstrap tokens in the namespace kube-system")
		}
	}
	r.tokens.Put(s.config.UID, token.Known{Cluster: s.cluster.UID, Gone: true})
	return nil
}
