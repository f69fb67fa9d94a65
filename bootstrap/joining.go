// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/bootstrap/render"
)

// Joining tells how far a machine came on its way to being a Node, for those who wonder why there is none. It writes
// nothing, and asks only when it is asked.
type Joining struct {
	Configs  *ConfigReconciler
	Requests *CSRReconciler
}

// Progress returns a reason (one of infrav1's) and the end of a sentence that began with the VM. Both are empty for a machine
// whose bootstrap config is not a CloudInitConfig: how it joins is not known here. It returns
// clustercache.ErrClusterNotConnected while the workload cluster can't be asked.
func (j Joining) Progress(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (reason, message string, err error) {
	if len(configOfMachine(ctx, machine)) == 0 {
		return "", "", nil
	}
	csr, why, err := j.Requests.latest(ctx, cluster, machine)
	if err != nil {
		return "", "", err
	}
	if csr == nil {
		message, err = j.Configs.unasked(ctx, cluster, machine)
		return infrav1.NoCertificateRequestReason, message, err
	}
	reason, message = describeRequest(csr, why)
	return reason, message, nil
}

// latest returns the newest request for a first certificate that the machine is known to have sent, or that is for its
// Node, and why it is left alone.
func (r *CSRReconciler) latest(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (*certificatesv1.CertificateSigningRequest, string, error) {
	key := client.ObjectKeyFromObject(cluster)
	cached, err := r.ClusterCache.GetReader(ctx, key)
	if err != nil {
		return nil, "", err
	}
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, "", fmt.Errorf("listing certificate requests: %w", err)
	}
	cloud, err := r.cloudMachine(ctx, machine)
	if err != nil {
		return nil, "", err
	}
	names := []string{nodeUserPrefix + render.NodeName(machine.Name)}
	for _, host := range hostNames(addressesOf(machine, cloud)) {
		names = append(names, nodeUserPrefix+host)
	}
	var found *certificatesv1.CertificateSigningRequest
	var why string
	for i := range list.Items {
		csr := &list.Items[i]
		if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || (found != nil && csr.CreationTimestamp.Before(&found.CreationTimestamp)) {
			continue
		}
		said := report{}
		if value, ok := r.reported.Load(CSRRequest{Cluster: key, Name: csr.Name}); ok {
			said, _ = value.(report)
		}
		// Whose token it came with counts more than what it asks for: that may be another's name.
		if said.machine == client.ObjectKeyFromObject(machine) ||
			(said.machine.Name == "" && slices.Contains(names, commonName(csr))) {
			found, why = csr, said.why
		}
	}
	return found, why, nil
}

// commonName is the name that a request is for, or "". Nothing is granted by it alone: see checkClient.
func commonName(csr *certificatesv1.CertificateSigningRequest) string {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return ""
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	return request.Subject.CommonName
}

// describeRequest says what became of a request that its machine has not become a Node by.
func describeRequest(csr *certificatesv1.CertificateSigningRequest, why string) (reason, message string) {
	asked := fmt.Sprintf("its kubelet has asked for a certificate (%s), which ", csr.Name)
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return infrav1.CertificateNotApprovedReason, asked + strings.TrimRight(fmt.Sprintf("someone has answered with %s: %s %s", c.Type, c.Reason, c.Message), ": ")
		}
	}
	switch {
	case len(csr.Status.Certificate) > 0:
		return infrav1.NodeMissingReason, fmt.Sprintf(
			"its kubelet has got a certificate (%s) and not registered its Node: look at \"journalctl -u kubelet\" on it", csr.Name)
	case decided(csr):
		return infrav1.CertificateNotApprovedReason, asked + "is approved and was not issued: look at the controller manager of the workload cluster"
	case why != "":
		return infrav1.CertificateNotApprovedReason, asked + "is left alone: " + why
	}
	return infrav1.CertificateNotApprovedReason, asked + "waits to be approved"
}

// unasked says why a kubelet may not have asked for a certificate, as far as that can be seen from outside of the machine.
func (r *ConfigReconciler) unasked(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (string, error) {
	message := fmt.Sprintf("no kubelet on it has asked https://%s for a certificate: ", cluster.Spec.ControlPlaneEndpoint.String())
	config := &bootstrapv1.CloudInitConfig{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config)
	if client.IgnoreNotFound(err) != nil {
		return message, fmt.Errorf("reading the CloudInitConfig: %w", err)
	}
	if ready := conditions.Get(config, clusterv1.ReadyCondition); ready != nil && ready.Status == metav1.ConditionFalse {
		return message + fmt.Sprintf("CloudInitConfig %q says: %s", config.Name, ready.Message), nil
	}
	good, err := r.tokenIsGood(ctx, cluster, machine)
	if err != nil {
		return message, err
	}
	if !good {
		r.tokens.forget(config.UID) // what is remembered of it is wrong
		return message + fmt.Sprintf("its bootstrap token has expired or was deleted, and is made good again within %s", ttl(config)/2), nil
	}
	return message + "look at " + render.LogPath + " on it", nil
}

// tokenIsGood asks the workload cluster itself whether the token in the machine's user data can still be used. User data that
// someone else made have no token that is known here: it counts as good.
func (r *ConfigReconciler) tokenIsGood(ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine) (bool, error) {
	data := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ptr.Deref(machine.Spec.Bootstrap.DataSecretName, "")}, data)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the Secret with the user data: %w", err)
	}
	id, _, ok := strings.Cut(string(data.Data[tokenKey]), ".")
	if !ok {
		return true, nil
	}
	workload, err := r.ClusterCache.GetUncachedClient(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return false, err
	}
	token := &corev1.Secret{}
	err = workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)}, token)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, permitted(err, "a bootstrap token in the namespace kube-system")
	}
	return time.Now().Before(expiration(token)), nil
}
