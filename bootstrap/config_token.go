// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/index"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	"github.com/drover-io/drover/bootstrap/render"
)

// What Drover writes into workload clusters for each joining machine: a token Secret, in kube-system, and what config_files.go has.
// config_rights.go has what it writes for all.
const (
	// TokenConfigLabel tells token Secrets of Drover from others. Its value stands for the config that the token
	// belongs to.
	TokenConfigLabel = "bootstrap.cluster.x-k8s.io/config"
	// TokenMachineAnnotation names the Machine that the token is for, as namespace/name.
	TokenMachineAnnotation = "bootstrap.cluster.x-k8s.io/machine"
	// TokenClusterAnnotation names the Cluster, as namespace/name.
	TokenClusterAnnotation = "bootstrap.cluster.x-k8s.io/cluster"
	// TokenNodeAnnotation names the only Node that the token may become. Without it, that is one that the cloud names among the machine's
	// addresses.
	TokenNodeAnnotation = "bootstrap.cluster.x-k8s.io/node"
)

const (
	// listingAge is how long one listing of a workload cluster's tokens serves: long enough for one to serve all
	// machines of a cluster after a restart.
	listingAge = 10 * time.Second
)

var errTokenTaken = errors.New("another token has the same ID")

func newToken() (string, error) {
	token, err := bootstraputil.GenerateBootstrapToken() // crypto/rand
	if err != nil {
		return "", fmt.Errorf("making a bootstrap token: %w", err)
	}
	return token, nil
}

func ttl(config *bootstrapv1.CloudInitConfig) time.Duration {
	if config.Spec.TokenTTLSeconds <= 0 {
		return 30 * time.Minute
	}
	return time.Duration(config.Spec.TokenTTLSeconds) * time.Second
}

// hasNode asks the workload cluster itself whether the machine has joined, where its status may have been lost, as in
// "clusterctl move": a token that was used is not to be made good again, not even until Cluster API has found the Node anew.
// While this process keeps a token for the machine, nothing is asked.
func (r *ConfigReconciler) hasNode(ctx context.Context, s *scope, workload client.Client) (bool, error) {
	known, ok := r.tokens.get(s.config.UID)
	if (ok && !known.gone) || s.machine.Spec.ProviderID == "" {
		return false, nil
	}
	name, err := r.likelyNode(ctx, s)
	if name == "" || err != nil {
		return false, err
	}
	node := &corev1.Node{}
	err = workload.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, permitted(err, "the machine's Node")
	}
	return node.Spec.ProviderID == s.machine.Spec.ProviderID, nil
}

// likelyNode returns the name of the machine's Node if it has one. What the cloud named may not be known any more: it is the name
// of the Node with the machine's provider ID in the cache then, and "" where there is none.
func (r *ConfigReconciler) likelyNode(ctx context.Context, s *scope) (string, error) {
	if s.config.Spec.NodeName != bootstrapv1.NodeNameHostname {
		return render.NodeName(s.machine.Name), nil
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

// ensureToken makes the token good for at least half its time to live, and returns when that has to be done again.
// It returns errTokenTaken when the token's ID belongs to another.
func (r *ConfigReconciler) ensureToken(ctx context.Context, s *scope, workload client.Client, token string) (time.Duration, error) {
	if token == "" { // user data that someone else made and handed to the Machine
		return 0, nil
	}
	half := ttl(s.config) / 2
	known, ok := r.tokens.get(s.config.UID)
	if ok && known.token == token && time.Until(known.expires) > half {
		return time.Until(known.expires) - half, nil
	}
	desired := tokenSecret(s, token, time.Now().Add(ttl(s.config)))
	expires := expiration(desired)
	var err error
	if ok && known.token == token {
		err = extend(ctx, workload, desired)
	} else {
		expires, err = createToken(ctx, workload, desired, half, s.config.Status.DataSecretName != "")
	}
	if err != nil {
		return 0, permitted(err, "a bootstrap token in the namespace kube-system")
	}
	r.tokens.put(s.config.UID, knownToken{token: token, secret: desired.Name, expires: expires})
	return max(time.Until(expires)-half, time.Second), nil
}

// createToken returns the expiration of the token that is there afterwards. Where it is likely there already, as after a
// restart, it is looked for first.
func createToken(ctx context.Context, workload client.Client, desired *corev1.Secret, half time.Duration, likely bool) (time.Time, error) {
	if !likely {
		if err := workload.Create(ctx, desired.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return expiration(desired), err
		}
	}
	found := &corev1.Secret{}
	err := workload.Get(ctx, client.ObjectKeyFromObject(desired), found)
	if likely && apierrors.IsNotFound(err) {
		return expiration(desired), workload.Create(ctx, desired.DeepCopy())
	}
	if err != nil {
		return time.Time{}, err
	}
	if found.Labels[TokenConfigLabel] != desired.Labels[TokenConfigLabel] ||
		string(found.Data[bootstrapapi.BootstrapTokenSecretKey]) != string(desired.Data[bootstrapapi.BootstrapTokenSecretKey]) {
		return time.Time{}, errTokenTaken
	}
	if e := expiration(found); time.Until(e) > half {
		return e, nil
	}
	return expiration(desired), extend(ctx, workload, desired)
}

// extend moves the token's expiration, or makes the token again where it has expired and was cleaned up.
func extend(ctx context.Context, workload client.Client, desired *corev1.Secret) error {
	patch := fmt.Sprintf(`{"data":{%q:%q}}`, bootstrapapi.BootstrapTokenExpirationKey,
		base64.StdEncoding.EncodeToString(desired.Data[bootstrapapi.BootstrapTokenExpirationKey]))
	err := workload.Patch(ctx, desired.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
	if apierrors.IsNotFound(err) {
		return workload.Create(ctx, desired.DeepCopy())
	}
	return err
}

func tokenSecret(s *scope, token string, expires time.Time) *corev1.Secret {
	id, secret, _ := strings.Cut(token, ".")
	machine := client.ObjectKeyFromObject(s.machine).String()
	annotations := map[string]string{
		TokenMachineAnnotation: machine,
		TokenClusterAnnotation: client.ObjectKeyFromObject(s.cluster).String(),
	}
	if s.config.Spec.NodeName != bootstrapv1.NodeNameHostname {
		annotations[TokenNodeAnnotation] = render.NodeName(s.machine.Name)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: bootstraputil.BootstrapTokenSecretName(id), Namespace: metav1.NamespaceSystem,
			Labels:      map[string]string{TokenConfigLabel: tokenOwner(s)},
			Annotations: annotations,
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:               []byte(id),
			bootstrapapi.BootstrapTokenSecretKey:           []byte(secret),
			bootstrapapi.BootstrapTokenExpirationKey:       []byte(expires.UTC().Format(time.RFC3339)),
			bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
			bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(strings.Join(tokenGroups(s.config), ",")),
			bootstrapapi.BootstrapTokenDescriptionKey:      []byte("Lets the machine " + machine + " join. Drover deletes it when it has."),
		},
	}
}

// tokenOwner stands for the config in a label: a name may be longer than a label's value.
func tokenOwner(s *scope) string {
	cluster := s.config.Labels[clusterv1.ClusterNameLabel]
	if s.cluster != nil {
		cluster = s.cluster.Name
	}
	sum := sha256.Sum256([]byte(s.config.Namespace + "/" + cluster + "/" + s.config.Name))
	return hex.EncodeToString(sum[:20])
}

func expiration(token *corev1.Secret) time.Time {
	t, err := time.Parse(time.RFC3339, string(token.Data[bootstrapapi.BootstrapTokenExpirationKey]))
	if err != nil {
		return time.Time{}
	}
	return t
}

// removeToken deletes the config's token from the workload cluster, if there is one. Nothing is asked of the workload
// cluster when this process has seen it gone already.
func (r *ConfigReconciler) removeToken(ctx context.Context, s *scope) error {
	known, ok := r.tokens.get(s.config.UID)
	if ok && known.gone {
		return nil
	}
	workload, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(s.cluster))
	if err != nil {
		return err
	}
	names := []string{known.secret}
	if !ok { // after a restart
		if names, err = r.tokens.list(ctx, s.cluster.UID, workload, tokenOwner(s)); err != nil {
			return permitted(err, "the bootstrap tokens in the namespace kube-system")
		}
	}
	for _, name := range names {
		token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}}
		if err := workload.Delete(ctx, token); client.IgnoreNotFound(err) != nil {
			return permitted(err, "the bootstrap tokens in the namespace kube-system")
		}
	}
	r.tokens.put(s.config.UID, knownToken{gone: true})
	return nil
}

// tokenMemory is what this process knows of the tokens it made, so that neither a reconcile without news nor a joined
// machine costs a call. All of it can be found again: it is lost with the process.
type tokenMemory struct {
	mu       sync.Mutex
	tokens   map[types.UID]knownToken // by the config's UID
	bound    map[binding]time.Time    // when it was last seen
	listings map[types.UID]listing    // by the Cluster's UID
}

type knownToken struct {
	token, secret string // the token itself, and its Secret's name
	expires       time.Time
	// files says that nothing is to be done for what the machine fetches with the token, as long as the token is not made again.
	files, gone bool
}

type listing struct {
	at     time.Time
	byHash map[string][]string // names of token Secrets by TokenConfigLabel
}

func (m *tokenMemory) get(uid types.UID) (knownToken, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.tokens[uid]
	return t, ok
}

func (m *tokenMemory) put(uid types.UID, t knownToken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tokens == nil {
		m.tokens = map[types.UID]knownToken{}
	}
	m.tokens[uid] = t
}

func (m *tokenMemory) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tokens, uid)
}

// binding is a grant in a Cluster, by its UID.
type binding struct {
	cluster types.UID
	name    string
}

func (m *tokenMemory) isBound(b binding) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.bound[b]) < bindingAge
}

func (m *tokenMemory) setBound(b binding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bound == nil {
		m.bound = map[binding]time.Time{}
	}
	m.bound[b] = time.Now()
}

// list returns the names of the token Secrets with the given label value. It may be listingAge old: what this process
// made since is in memory, and what another made before is in the listing.
func (m *tokenMemory) list(ctx context.Context, cluster types.UID, workload client.Client, hash string) ([]string, error) {
	m.mu.Lock()
	l, ok := m.listings[cluster]
	m.mu.Unlock()
	if !ok || time.Since(l.at) > listingAge {
		l = listing{at: time.Now(), byHash: map[string][]string{}}
		found := &metav1.PartialObjectMetadataList{}
		found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
		if err := workload.List(ctx, found, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{TokenConfigLabel}); err != nil {
			return nil, err
		}
		for _, o := range found.Items {
			l.byHash[o.Labels[TokenConfigLabel]] = append(l.byHash[o.Labels[TokenConfigLabel]], o.Name)
		}
		m.mu.Lock()
		if m.listings == nil {
			m.listings = map[types.UID]listing{}
		}
		m.listings[cluster] = l
		m.mu.Unlock()
	}
	return l.byHash[hash], nil
}
