// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/secret"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/predicates"
)

const (
	// DefaultProbeInterval is the default time between two checks of an adopted API server.
	DefaultProbeInterval = time.Minute
	// firstProbeInterval is the first retry interval for an API server that does not answer. It is
	// short because a user is waiting.
	firstProbeInterval = 10 * time.Second
)

// AdoptedControlPlaneReconciler reports an existing API server to Cluster API. It probes the
// server, reports its version, and maintains the Cluster's Secrets with its kubeconfig and
// certificate authority. It creates and deletes nothing in the workload cluster. The cluster runs
// on when the object is deleted, so there is no finalizer.
type AdoptedControlPlaneReconciler struct {
	Client client.Client
	// APIReader reads the contents of Secrets, which are never cached.
	APIReader client.Reader
	// ClusterCache holds the connections to workload clusters, and probes them.
	ClusterCache     clustercache.ClusterCache
	WatchFilterValue string
	// ProbeInterval is the time between two checks. 0 means DefaultProbeInterval.
	ProbeInterval time.Duration
	// Dial connects to the API servers. nil means the default of net/http.
	Dial Dial

	retries retries
	proven  sync.Map // client.ObjectKey → provenKubeconfig
	hanging sync.Map // client.ObjectKey → true: the last request was not answered in time
}

// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanes/status,verbs=patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanes/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch

// SetupWithManager registers the reconciler.
func (r *AdoptedControlPlaneReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		For(&controlplanev1.AdoptedControlPlane{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusterToAdoptedControlPlane),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.secretToControlPlanes)).
		WithOptions(options).
		Named("adoptedcontrolplane").
		Complete(conflict.Retried(r))
}

// Reconcile brings one control plane up to date.
func (r *AdoptedControlPlaneReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	adopted := &controlplanev1.AdoptedControlPlane{}
	if err := r.Client.Get(ctx, req.NamespacedName, adopted); err != nil {
		if apierrors.IsNotFound(err) {
			r.retries.forget(req.NamespacedName)
			r.proven.Delete(req.NamespacedName)
			r.hanging.Delete(req.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !predicates.Watched(adopted, r.WatchFilterValue) || !adopted.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, adopted.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}

	before := adopted.DeepCopy()
	adopted.Status.ExternalManagedControlPlane = ptr.To(true)
	adopted.Status.ObservedGeneration = adopted.Generation
	var result reconcile.Result
	switch {
	case setPaused(adopted, cluster):
	case cluster == nil:
		setUnavailable(adopted, controlplanev1.WaitingForOwnerReason, "Waiting for a Cluster to refer to this object in spec.controlPlaneRef")
	default:
		result, err = r.adopt(ctx, adopted, cluster)
	}
	return result, errors.Join(err, patchStatus(ctx, r.Client, before, adopted))
}

// ownEndpoint is what helps if machines, which know only host and port, can't use the kubeconfig's
// server.
const ownEndpoint = "set spec.controlPlaneEndpoint to a host and port at which machines reach the API server itself"

// adopt reads the user's kubeconfig, checks that it works, and passes it to Cluster API. It reports
// the result in the Available condition.
func (r *AdoptedControlPlaneReconciler) adopt(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster) (reconcile.Result, error) {
	source, config, refused, err := r.kubeconfig(ctx, adopted)
	if err != nil {
		return reconcile.Result{}, err
	}
	if refused != nil {
		setUnavailable(adopted, refused.reason, refused.message)
		return reconcile.Result{}, nil // a change of the Secret triggers a reconcile
	}
	endpoint := endpointOf(adopted, cluster, config)
	theServers := endpoint == config.Endpoint()
	if theServers && strings.Trim(config.Server.Path, "/") != "" {
		setUnavailable(adopted, controlplanev1.KubeconfigRefusedReason,
			"The server in the kubeconfig has a path, which machines do not know, so none could join: "+ownEndpoint)
		return r.nextProbe(adopted), nil
	}
	named := theServers && config.HasOtherName()
	version, failure, err := r.probe(ctx, adopted, cluster, config)
	if err != nil {
		return reconcile.Result{}, err
	}
	if failure == nil && named && !(apiServerProbe{config, r.Dial}).hasHostsCertificate(ctx, probeTimeout) {
		failure = &probeFailure{controlplanev1.KubeconfigRefusedReason,
			"The API server's certificate is valid for the kubeconfig's tls-server-name, " +
				"which machines do not know, and not for the server's host, so none could join: " + ownEndpoint}
	}
	if failure != nil {
		setUnavailable(adopted, failure.reason, failure.message)
		return r.nextProbe(adopted), nil
	}
	// The endpoint of a kubeconfig that does not work would outlive its correction.
	if err := r.ensureEndpoint(ctx, adopted, endpoint); err != nil {
		return reconcile.Result{}, err
	}
	adopted.Status.Version = version

	// Only a kubeconfig that has been proved to work replaces the one that Cluster API uses.
	conflict, err := r.ensureKubeconfigSecret(ctx, adopted, cluster, source, config)
	if err != nil {
		return reconcile.Result{}, err
	}
	if conflict != "" {
		setUnavailable(adopted, controlplanev1.KubeconfigConflictReason, conflict)
		return r.nextProbe(adopted), nil
	}
	if err := r.ensureCASecret(ctx, adopted, cluster, config); err != nil {
		return reconcile.Result{}, err
	}
	adopted.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	setAvailable(adopted, cluster)
	return r.nextProbe(adopted), nil
}

// versionChecks is how many checks of an API server whose connection works share one request for
// its version.
const versionChecks = 10

// provenKubeconfig is a kubeconfig that an API server has accepted.
type provenKubeconfig struct {
	digest  [sha256.Size]byte
	version string
	at      time.Time
}

// probe returns the API server's version. Cluster API's connection to the workload cluster, which
// uses the same kubeconfig, probes the server's health for all. So probe asks the server itself
// only about a kubeconfig that it has not seen working, while that connection does not answer, and
// once in a while for the version.
func (r *AdoptedControlPlaneReconciler) probe(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane, cluster *clusterv1.Cluster,
	config *kubeconfig.Config) (version string, failure *probeFailure, err error) {
	data, err := config.Serialize(cluster.Name)
	if err != nil {
		return "", nil, err
	}
	key, digest := client.ObjectKeyFromObject(adopted), sha256.Sum256(data)
	if last, ok := r.proven.Load(key); ok {
		known := last.(provenKubeconfig)
		if known.digest == digest && time.Since(known.at) < versionChecks*r.interval() && r.isConnected(ctx, cluster) {
			return known.version, nil, nil
		}
	}
	asked := time.Now()
	version, failure = apiServerProbe{config, r.Dial}.run(ctx, probeTimeout)
	if failure != nil && time.Since(asked) >= probeTimeout {
		r.hanging.Store(key, true)
	} else {
		r.hanging.Delete(key)
	}
	if failure != nil {
		r.proven.Delete(key)
		return "", failure, nil
	}
	r.proven.Store(key, provenKubeconfig{digest, version, time.Now()})
	return version, nil, nil
}

// Hangs reports whether the last request to a control plane was not answered in time.
func (r *AdoptedControlPlaneReconciler) Hangs(key client.ObjectKey) bool {
	_, hangs := r.hanging.Load(key)
	return hangs
}

// isConnected reports whether Cluster API's connection to the workload cluster has answered since
// the last check.
func (r *AdoptedControlPlaneReconciler) isConnected(ctx context.Context, cluster *clusterv1.Cluster) bool {
	health := r.ClusterCache.GetHealthCheckingState(ctx, client.ObjectKeyFromObject(cluster))
	return health.ConsecutiveFailures == 0 && time.Since(health.LastProbeSuccessTime) < r.interval()
}

func (r *AdoptedControlPlaneReconciler) interval() time.Duration {
	return cmp.Or(r.ProbeInterval, DefaultProbeInterval)
}

// nextProbe returns when to probe again, with jitter so that many control planes are not probed at
// once. A server that does not answer occupies a worker for up to probeTimeout, so its probes back
// off up to the probe interval.
func (r *AdoptedControlPlaneReconciler) nextProbe(adopted *controlplanev1.AdoptedControlPlane) reconcile.Result {
	interval := r.interval()
	key := client.ObjectKeyFromObject(adopted)
	if conditions.IsTrue(adopted, clusterv1.AvailableCondition) {
		r.retries.forget(key)
	} else {
		interval = min(interval, firstProbeInterval<<min(r.retries.fail(key), 16))
	}
	return reconcile.Result{RequeueAfter: jitter(interval)}
}

// setAvailable sets Available to True, or to False if the Cluster and the spec have different
// endpoints. The message says if spec.version differs from the version that the server runs.
func setAvailable(adopted *controlplanev1.AdoptedControlPlane, cluster *clusterv1.Cluster) {
	ours, theirs := adopted.Spec.ControlPlaneEndpoint, cluster.Spec.ControlPlaneEndpoint
	if theirs.IsValid() && ours.IsValid() && ours != theirs {
		setUnavailable(adopted, controlplanev1.EndpointMismatchReason, fmt.Sprintf(
			"The field spec.controlPlaneEndpoint is %s, but the Cluster's is %s: make them equal", ours.String(), theirs.String()))
		return
	}
	message := ""
	if adopted.Spec.Version != "" && adopted.Spec.Version != adopted.Status.Version {
		message = fmt.Sprintf("The API server runs version %s, but spec.version is %s", adopted.Status.Version, adopted.Spec.Version)
	}
	setCondition(adopted, clusterv1.AvailableCondition, metav1.ConditionTrue, controlplanev1.AvailableReason, message)
}

func setUnavailable(adopted *controlplanev1.AdoptedControlPlane, reason, message string) {
	setCondition(adopted, clusterv1.AvailableCondition, metav1.ConditionFalse, reason, message)
}

// kubeconfigKey returns the key of the user's kubeconfig in its Secret.
func kubeconfigKey(adopted *controlplanev1.AdoptedControlPlane) string {
	return cmp.Or(adopted.Spec.KubeconfigRef.Key, secret.KubeconfigDataName)
}

// kubeconfig reads and checks the user's kubeconfig, or returns why it can't be used.
func (r *AdoptedControlPlaneReconciler) kubeconfig(ctx context.Context,
	adopted *controlplanev1.AdoptedControlPlane) (*corev1.Secret, *kubeconfig.Config, *probeFailure, error) {
	ref := adopted.Spec.KubeconfigRef
	source := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: adopted.Namespace, Name: ref.Name}, source)
	if apierrors.IsNotFound(err) {
		return nil, nil, &probeFailure{controlplanev1.KubeconfigMissingReason,
			fmt.Sprintf("Waiting for Secret %q with the kubeconfig to exist in this namespace", ref.Name)}, nil
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading Secret %q: %w", ref.Name, err)
	}
	data, ok := source.Data[kubeconfigKey(adopted)]
	if !ok {
		return nil, nil, &probeFailure{controlplanev1.KubeconfigMissingReason,
			fmt.Sprintf("Secret %q has no key %q", ref.Name, kubeconfigKey(adopted))}, nil
	}
	config, err := kubeconfig.Parse(data)
	if err != nil {
		return nil, nil, &probeFailure{controlplanev1.KubeconfigRefusedReason,
			fmt.Sprintf("The kubeconfig in Secret %q is not accepted: %s", ref.Name, err)}, nil
	}
	return source, config, nil, nil
}

// endpointOf returns where machines reach the API server: what the user says, else the Cluster's
// endpoint, which may be a better address for machines, else the kubeconfig's.
func endpointOf(adopted *controlplanev1.AdoptedControlPlane, cluster *clusterv1.Cluster, config *kubeconfig.Config) clusterv1.APIEndpoint {
	switch {
	case adopted.Spec.ControlPlaneEndpoint.IsValid():
		return adopted.Spec.ControlPlaneEndpoint
	case isUsableEndpoint(cluster.Spec.ControlPlaneEndpoint):
		return cluster.Spec.ControlPlaneEndpoint
	}
	return config.Endpoint()
}

// ensureEndpoint sets an endpoint that the user left out. Cluster API copies it to the Cluster.
func (r *AdoptedControlPlaneReconciler) ensureEndpoint(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	endpoint clusterv1.APIEndpoint) error {
	if adopted.Spec.ControlPlaneEndpoint.IsValid() {
		return nil
	}
	patched := adopted.DeepCopy()
	patched.Spec.ControlPlaneEndpoint = endpoint
	patch := client.MergeFromWithOptions(adopted.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, patched, patch); err != nil {
		return fmt.Errorf("writing the endpoint: %w", err)
	}
	adopted.Spec = patched.Spec
	adopted.Status.ObservedGeneration = patched.Generation
	return nil
}

// ensureKubeconfigSecret writes <cluster>-kubeconfig in the form that Cluster API expects, unless
// it is up to date. It never changes a Secret of that name that the control plane does not own. In
// that case it returns a message that describes the conflict.
func (r *AdoptedControlPlaneReconciler) ensureKubeconfigSecret(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster, source *corev1.Secret, config *kubeconfig.Config) (string, error) {
	name := secret.Name(cluster.Name, secret.Kubeconfig)
	if source.Name == name {
		return missingInSecret(source, adopted, cluster), nil
	}
	if err := labelForMove(ctx, r.Client, source); err != nil {
		return "", err
	}
	data, err := config.Serialize(cluster.Name)
	if err != nil {
		return "", err
	}
	ours, err := r.ensureSecret(ctx, adopted, cluster, name, map[string][]byte{secret.KubeconfigDataName: data})
	if err == nil && !ours {
		return fmt.Sprintf("Secret %q, which is reserved for the Cluster's kubeconfig, exists and does not belong to this control plane: "+
			"delete it, or refer to it in spec.kubeconfigRef", name), nil
	}
	return "", err
}

// noKey replaces the key in the Secret of a certificate authority. Cluster API's kubeadm bootstrap
// provider refuses a Secret without a key (util/secret, EnsureAllExist). It writes the key only to
// control plane machines, which an adopted cluster does not have. The text is not PEM, so that
// nothing can mistake it for a key.
const noKey = "The key of this authority is not known here. Workers join without it."

// ensureCASecret writes <cluster>-ca, where Cluster API's kubeadm bootstrap provider finds the
// certificate authority that its machines pin. A Secret of that name that the control plane does
// not own takes precedence and stays unchanged.
func (r *AdoptedControlPlaneReconciler) ensureCASecret(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster, config *kubeconfig.Config) error {
	_, err := r.ensureSecret(ctx, adopted, cluster, secret.Name(cluster.Name, secret.ClusterCA), map[string][]byte{
		secret.TLSCrtDataName: config.CA(), secret.TLSKeyDataName: []byte(noKey),
	})
	return err
}

// ensureSecret creates or updates the control plane's Secret of this name. ours is false if another
// Secret has the name.
func (r *AdoptedControlPlaneReconciler) ensureSecret(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster, name string, data map[string][]byte) (ours bool, err error) {
	have := &corev1.Secret{}
	err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: adopted.Namespace, Name: name}, have)
	if apierrors.IsNotFound(err) {
		return true, r.createSecret(ctx, adopted, cluster, name, data)
	}
	if err != nil {
		return false, fmt.Errorf("reading Secret %q: %w", name, err)
	}
	if !ownedBy(have, adopted) {
		return false, nil
	}
	return true, r.refreshSecret(ctx, have, adopted, cluster, data)
}

func (r *AdoptedControlPlaneReconciler) createSecret(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster, name string, data map[string][]byte) error {
	if here, err := r.stillExists(ctx, adopted, cluster); err != nil || !here {
		return err
	}
	created := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: adopted.Namespace, Name: name},
		Type:       clusterv1.ClusterSecretType,
	}
	fillSecret(created, adopted, cluster, data)
	if err := r.Client.Create(ctx, created); err != nil {
		return fmt.Errorf("creating Secret %q: %w", name, err)
	}
	return nil
}

// stillExists reports whether the Cluster and the control plane still exist, unpaused and not
// deleted. It bypasses the cache, so that the reconciler does not recreate a Secret that
// "clusterctl move" has just deleted. The move pauses the Cluster first, but that arrives through
// another watch, which may lag behind.
func (r *AdoptedControlPlaneReconciler) stillExists(ctx context.Context, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster) (bool, error) {
	liveCluster, liveAdopted := &clusterv1.Cluster{}, &controlplanev1.AdoptedControlPlane{}
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(cluster), liveCluster)
	if err == nil {
		err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(adopted), liveAdopted)
	}
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	same := liveCluster.UID == cluster.UID && liveAdopted.UID == adopted.UID
	return same && !setPaused(liveAdopted, liveCluster) && liveAdopted.DeletionTimestamp.IsZero(), nil
}

func (r *AdoptedControlPlaneReconciler) refreshSecret(ctx context.Context, have *corev1.Secret, adopted *controlplanev1.AdoptedControlPlane,
	cluster *clusterv1.Cluster, data map[string][]byte) error {
	before := have.DeepCopy()
	fillSecret(have, adopted, cluster, data)
	if equality.Semantic.DeepEqual(before, have) {
		return nil
	}
	if err := r.Client.Patch(ctx, have, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("refreshing Secret %q: %w", have.Name, err)
	}
	return nil
}

// fillSecret sets the fields that Cluster API reads in a cluster's Secret, and no other metadata.
func fillSecret(s *corev1.Secret, adopted *controlplanev1.AdoptedControlPlane, cluster *clusterv1.Cluster, data map[string][]byte) {
	s.Labels = util.MergeMap(s.Labels, map[string]string{clusterv1.ClusterNameLabel: cluster.Name})
	s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(adopted,
		controlplanev1.GroupVersion.WithKind(controlplanev1.AdoptedControlPlaneKind.Kind))}
	s.Data = data
}

// ownedBy reports whether this control plane is the Secret's controller. It compares names, not
// UIDs, because a restore from backup or a move changes UIDs.
func ownedBy(s *corev1.Secret, adopted *controlplanev1.AdoptedControlPlane) bool {
	owner := metav1.GetControllerOf(s)
	if owner == nil || owner.Kind != controlplanev1.AdoptedControlPlaneKind.Kind || owner.Name != adopted.Name {
		return false
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == controlplanev1.GroupVersion.Group
}

// missingInSecret returns what Cluster API lacks in a Secret that the user wrote under the name
// that Cluster API reads, or "" if it lacks nothing.
func missingInSecret(source *corev1.Secret, adopted *controlplanev1.AdoptedControlPlane, cluster *clusterv1.Cluster) string {
	if source.Labels[clusterv1.ClusterNameLabel] == cluster.Name && kubeconfigKey(adopted) == secret.KubeconfigDataName {
		return ""
	}
	return fmt.Sprintf("The name of Secret %q is reserved for the Cluster's kubeconfig: give your Secret another name, "+
		"or label it %s=%s and use the key %q", source.Name, clusterv1.ClusterNameLabel, cluster.Name, secret.KubeconfigDataName)
}

func clusterToAdoptedControlPlane(_ context.Context, o client.Object) []reconcile.Request {
	cluster, ok := o.(*clusterv1.Cluster)
	if !ok {
		return nil
	}
	name := adoptedControlPlaneOf(cluster)
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: name}}}
}

// adoptedControlPlaneOf returns the name of the Cluster's AdoptedControlPlane, or "" if its control
// plane is of another kind.
func adoptedControlPlaneOf(cluster *clusterv1.Cluster) string {
	ref := cluster.Spec.ControlPlaneRef
	if ref.GroupKind() != controlplanev1.AdoptedControlPlaneKind {
		return ""
	}
	return ref.Name
}

// secretToControlPlanes returns the control planes that read the Secret, and those whose Cluster
// has the Secret as its kubeconfig or certificate authority.
func (r *AdoptedControlPlaneReconciler) secretToControlPlanes(ctx context.Context, o client.Object) []reconcile.Request {
	reads := func(adopted *controlplanev1.AdoptedControlPlane) bool {
		cluster := adopted.Labels[clusterv1.ClusterNameLabel]
		return slices.Contains([]string{adopted.Spec.KubeconfigRef.Name, secret.Name(cluster, secret.Kubeconfig),
			secret.Name(cluster, secret.ClusterCA)}, o.GetName())
	}
	return listRequests(ctx, r.Client, &controlplanev1.AdoptedControlPlaneList{}, reads, client.InNamespace(o.GetNamespace()))
}
