// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/csr"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/internal/naming"
)

// errNotListed means that the certificate requests of a workload cluster have not been listed.
var errNotListed = errors.New("the certificate requests have not been listed")

// Joining reports how far a machine has come on its way to a Node, so that users can see why there
// is none. It writes nothing, and reads only when called.
type Joining struct {
	Configs  *ConfigReconciler
	Requests *CSRReconciler
}

// Progress returns a reason (one of infrav1's) and the end of a sentence that begins with the VM.
// Both are empty for a machine whose bootstrap config is not a DroverConfig, because Drover does
// not know how it joins. It returns clustercache.ErrClusterNotConnected while there is no
// connection to the workload cluster.
func (j Joining) Progress(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (reason, message string, err error) {
	if len(configOfMachine(ctx, machine)) == 0 {
		return "", "", nil
	}
	request, why, err := j.Requests.latestRequest(ctx, cluster, machine)
	if errors.Is(err, errNotListed) {
		return infrav1.NodeMissingReason, "no Node has registered, and it is unknown whether its kubelet has requested a certificate: the Cluster's " +
			"kubeconfig does not permit Drover to list and watch CertificateSigningRequests, or the list is not complete yet", nil
	}
	if err != nil {
		return "", "", err
	}
	if request == nil {
		message, err = j.Configs.diagnoseNoRequest(ctx, cluster, machine)
		return infrav1.NoCertificateRequestReason, message, err
	}
	reason, message = describeRequest(request, why)
	return reason, message, nil
}

// Certificates returns, by Node, when the kubelet last requested a client certificate and when the
// request was approved; the second is zero until then. It forgets what the workload cluster deletes:
// requests that are an hour old.
func (j Joining) Certificates(ctx context.Context, cluster client.ObjectKey) (map[string][2]time.Time, error) {
	list, err := j.Requests.listRequests(ctx, cluster)
	if err != nil {
		return nil, err
	}
	all := map[string][2]time.Time{}
	for i := range list.Items {
		request := &list.Items[i]
		if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
			continue
		}
		node := csr.NodeIn(request)
		if node == "" || request.CreationTimestamp.Time.Before(all[node][0]) {
			continue
		}
		times := [2]time.Time{request.CreationTimestamp.Time}
		for _, c := range request.Status.Conditions {
			if c.Type == certificatesv1.CertificateApproved {
				times[1] = c.LastUpdateTime.Time
			}
		}
		all[node] = times
	}
	return all, nil
}

// listRequests returns the requests in the cache of a workload cluster, which must not be modified.
func (r *CSRReconciler) listRequests(ctx context.Context, cluster client.ObjectKey) (*certificatesv1.CertificateSigningRequestList, error) {
	cached, err := r.ClusterCache.GetReader(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if !r.synced(ctx, cluster) {
		return nil, errNotListed
	}
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing certificate requests: %w", err)
	}
	return list, nil
}

// latestRequest returns the newest request for a first certificate that the machine is known to
// have sent, or that is for its Node. It also returns why the request was not approved.
func (r *CSRReconciler) latestRequest(ctx context.Context, cluster *clusterv1.Cluster,
	machine *clusterv1.Machine) (*certificatesv1.CertificateSigningRequest, string, error) {
	key := client.ObjectKeyFromObject(cluster)
	list, err := r.listRequests(ctx, key)
	if err != nil {
		return nil, "", err
	}
	cloud, err := r.droverMachine(ctx, machine)
	if err != nil {
		return nil, "", err
	}
	names := append(machineFacts(machine, cloud).HostNames(), naming.NodeName(machine.Name))
	var found *certificatesv1.CertificateSigningRequest
	var why string
	for i := range list.Items {
		request := &list.Items[i]
		if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
			(found != nil && request.CreationTimestamp.Before(&found.CreationTimestamp)) {
			continue
		}
		said := report{}
		if value, ok := r.reported.Load(CSRRequest{Cluster: key, Name: request.Name}); ok {
			said, _ = value.(report)
		}
		// The token of the request counts more than the requested name, which may be another
		// machine's.
		if said.machine == client.ObjectKeyFromObject(machine) ||
			(said.machine.Name == "" && slices.Contains(names, csr.NodeIn(request))) {
			found, why = request, said.why
		}
	}
	return found, why, nil
}

// synced reports whether the certificate requests of a workload cluster have been listed. If RBAC
// forbids the list, it never completes, and a read would block.
func (r *CSRReconciler) synced(ctx context.Context, cluster client.ObjectKey) bool {
	value, _ := r.caches.Load(cluster)
	watched, ok := value.(cache.Cache)
	if !ok {
		return false
	}
	informer, err := watched.GetInformer(ctx, &certificatesv1.CertificateSigningRequest{}, cache.BlockUntilSynced(false))
	return err == nil && informer.HasSynced()
}

// describeRequest describes the state of a request whose machine has not become a Node.
func describeRequest(request *certificatesv1.CertificateSigningRequest, why string) (reason, message string) {
	prefix := fmt.Sprintf("its kubelet has requested a certificate (%s), which ", request.Name)
	for _, c := range request.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return infrav1.CertificateNotApprovedReason, prefix +
				strings.TrimRight(fmt.Sprintf("has the condition %s: %s %s", c.Type, c.Reason, c.Message), ": ")
		}
	}
	switch {
	case len(request.Status.Certificate) > 0:
		return infrav1.NodeMissingReason, fmt.Sprintf(
			"its kubelet has received a certificate (%s) and has not registered its Node: check \"journalctl -u kubelet\" on the machine",
			request.Name)
	case isDecided(request):
		return infrav1.CertificateNotApprovedReason, prefix +
			"is approved but was not issued: check the controller manager of the workload cluster"
	case why != "":
		return infrav1.CertificateNotApprovedReason, prefix + "was not approved: " + why
	}
	return infrav1.CertificateNotApprovedReason, prefix + "is waiting for approval"
}

// diagnoseNoRequest returns why a kubelet may not have requested a certificate, as far as that is
// visible from outside the machine.
func (r *ConfigReconciler) diagnoseNoRequest(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (string, error) {
	message := fmt.Sprintf("no kubelet on it has requested a certificate from https://%s: ", cluster.Spec.ControlPlaneEndpoint.String())
	config := &bootstrapv1.DroverConfig{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config)
	if client.IgnoreNotFound(err) != nil {
		return message, fmt.Errorf("reading the DroverConfig: %w", err)
	}
	if ready := conditions.Get(config, clusterv1.ReadyCondition); ready != nil && ready.Status == metav1.ConditionFalse {
		return message + fmt.Sprintf("DroverConfig %q says: %s", config.Name, ready.Message), nil
	}
	valid, err := r.isTokenValid(ctx, cluster, machine)
	if err != nil {
		return message, err
	}
	if !valid {
		r.tokens.Forget(config.UID) // the cached token is stale
		return message + fmt.Sprintf("its bootstrap token has expired or was deleted, and is created again within %s", ttl(config)/2), nil
	}
	return message + "check " + render.LogPath + " on the machine", nil
}

// isTokenValid reads from the workload cluster whether the token in the machine's user data is
// still valid. User data that Drover did not create have no known token and count as good.
func (r *ConfigReconciler) isTokenValid(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (bool, error) {
	data := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: machine.Namespace,
		Name: ptr.Deref(machine.Spec.Bootstrap.DataSecretName, "")}, data)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the Secret with the user data: %w", err)
	}
	text := string(data.Data[tokenKey])
	if text == "" {
		return true, nil
	}
	workload, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return false, err
	}
	secret := &corev1.Secret{}
	err = workload.Get(ctx, token.Key(text), secret)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, wrapForbidden(err, "a bootstrap token in the namespace kube-system")
	}
	return time.Now().Before(token.Expiration(secret)), nil
}
