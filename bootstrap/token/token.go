// SPDX-License-Identifier: Apache-2.0

// Package token creates the bootstrap tokens by which machines join: Secrets in the workload
// cluster's kube-system, each bound to one Machine. It does not depend on the reconcilers. The
// caller passes a client for the workload cluster.
package token

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Group is the group that all of Drover's tokens authenticate as. It is not a group of kubeadm,
	// because certificate requests of those are approved automatically.
	Group = "system:bootstrappers:drover"
	// KubeadmGroup is the additional group of tokens that join by kubeadm.
	KubeadmGroup = "system:bootstrappers:drover:kubeadm"

	// ConfigLabel marks Drover's token Secrets. Its value identifies the token's config (see
	// Owner).
	ConfigLabel = "drover.io/bootstrap-config"
	// MachineAnnotation names the Machine that the token is for, as namespace/name.
	MachineAnnotation = "drover.io/machine"
	// MachineUIDAnnotation is the UID of that Machine. Another Machine of the same name can't join
	// by this token.
	MachineUIDAnnotation = "drover.io/machine-uid"
	// ClusterAnnotation names the Cluster, as namespace/name.
	ClusterAnnotation = "drover.io/cluster"
	// NodeAnnotation names the only Node that the token may become. Without it, the Node must be
	// one of the machine's host names according to the cloud.
	NodeAnnotation = "drover.io/node"
)

// ErrTaken means that another token has the same ID.
var ErrTaken = errors.New("another token has the same ID")

// Holder is the machine that a token is for.
type Holder struct {
	Config, Machine, Cluster types.NamespacedName
	MachineUID               types.UID
	// Node is the only name that the machine may join by, or "" for a host name from the cloud.
	Node string
	// Groups are the groups that the token authenticates as.
	Groups []string
}

// New returns a new token of the form ID.SECRET.
func New() (string, error) {
	token, err := bootstraputil.GenerateBootstrapToken() // crypto/rand
	if err != nil {
		return "", fmt.Errorf("making a bootstrap token: %w", err)
	}
	return token, nil
}

// Key returns the key of a token's Secret in the workload cluster.
func Key(token string) client.ObjectKey {
	id, _, _ := strings.Cut(token, ".")
	return client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)}
}

// Secret returns the token's Secret for the workload cluster.
func (h Holder) Secret(token string, expires time.Time) *corev1.Secret {
	id, secret, _ := strings.Cut(token, ".")
	annotations := map[string]string{
		MachineAnnotation:    h.Machine.String(),
		MachineUIDAnnotation: string(h.MachineUID),
		ClusterAnnotation:    h.Cluster.String(),
	}
	if h.Node != "" {
		annotations[NodeAnnotation] = h.Node
	}
	key := Key(token)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: key.Name, Namespace: key.Namespace,
			Labels:      map[string]string{ConfigLabel: Owner(h.Config, h.Cluster.Name)},
			Annotations: annotations,
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:               []byte(id),
			bootstrapapi.BootstrapTokenSecretKey:           []byte(secret),
			bootstrapapi.BootstrapTokenExpirationKey:       []byte(expires.UTC().Format(time.RFC3339)),
			bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
			bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(strings.Join(h.Groups, ",")),
			bootstrapapi.BootstrapTokenDescriptionKey: []byte("Permits Machine " + h.Machine.String() +
				" to join. Drover deletes this token when the machine has joined."),
		},
	}
}

// Owner returns a label value for the config, because a name may be too long for one. The value
// stays the same after "clusterctl move".
func Owner(config types.NamespacedName, cluster string) string {
	sum := sha256.Sum256([]byte(config.Namespace + "/" + cluster + "/" + config.Name))
	return hex.EncodeToString(sum[:20])
}

// Expiration returns when the token expires, or the zero time if that can't be parsed.
func Expiration(secret *corev1.Secret) time.Time {
	t, err := time.Parse(time.RFC3339, string(secret.Data[bootstrapapi.BootstrapTokenExpirationKey]))
	if err != nil {
		return time.Time{}
	}
	return t
}

// Ensure creates the token, and returns its expiration. It leaves an existing token unchanged if
// that is valid for more than atLeast and bound to the same Machine. If likely is set, as after a
// restart, it looks for the token first.
func Ensure(ctx context.Context, workload client.Client, desired *corev1.Secret, atLeast time.Duration, likely bool) (time.Time, error) {
	if !likely {
		if err := workload.Create(ctx, desired.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return Expiration(desired), err
		}
	}
	found := &corev1.Secret{}
	err := workload.Get(ctx, client.ObjectKeyFromObject(desired), found)
	if likely && apierrors.IsNotFound(err) {
		return Expiration(desired), workload.Create(ctx, desired.DeepCopy())
	}
	if err != nil {
		return time.Time{}, err
	}
	if found.Labels[ConfigLabel] != desired.Labels[ConfigLabel] ||
		string(found.Data[bootstrapapi.BootstrapTokenSecretKey]) != string(desired.Data[bootstrapapi.BootstrapTokenSecretKey]) {
		return time.Time{}, ErrTaken
	}
	bound := found.Annotations[MachineUIDAnnotation] == desired.Annotations[MachineUIDAnnotation] // false after "clusterctl move"
	if e := Expiration(found); bound && time.Until(e) > atLeast {
		return e, nil
	}
	return Expiration(desired), Extend(ctx, workload, desired)
}

// Extend sets the token's expiration and binds it to its Machine. If the token has expired and was
// deleted, Extend creates it again.
func Extend(ctx context.Context, workload client.Client, desired *corev1.Secret) error {
	const key = bootstrapapi.BootstrapTokenExpirationKey
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": desired.Annotations},
		"data":     map[string][]byte{key: desired.Data[key]},
	})
	if err != nil {
		return fmt.Errorf("writing a patch: %w", err)
	}
	err = workload.Patch(ctx, desired.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return workload.Create(ctx, desired.DeepCopy())
	}
	return err
}
