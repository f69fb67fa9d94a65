// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-io/drover/internal/budget"
)

// maxCachedRequest is the size in memory, in bytes, up to which a request is cached whole. A
// kubelet's has about 1 KiB of content, and 3 KiB with its certificate.
const maxCachedRequest = 16 << 10

// SlimRequest is the transform of CertificateSigningRequests in the cache of a workload cluster.
// Every machine of the cluster may create requests of any signer, with more than 1 MiB each, and
// nothing in Kubernetes counts them. So SlimRequest keeps the content only of requests that the
// approver judges, or whose decision the diagnosis of a machine explains. A request that is too
// large loses its content, which isTooLarge recognizes.
func SlimRequest(object any) (any, error) {
	request, ok := object.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return object, nil
	}
	request.ManagedFields = nil
	small := isKubeletRequest(request) && budget.SizeOf(request) <= maxCachedRequest
	if small && !isDecided(request) {
		return request, nil
	}
	slim := &certificatesv1.CertificateSigningRequest{
		TypeMeta:   request.TypeMeta,
		ObjectMeta: SlimMeta(request.ObjectMeta),
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: clip(request.Spec.SignerName)},
	}
	switch {
	case small:
		slim.Spec.Request, slim.Status = request.Spec.Request, request.Status
	case isKubeletRequest(request) && isDecided(request):
		slim.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: decisionOf(request)}}
	}
	return slim, nil
}

// maxMetaText limits each text of an object's metadata, in bytes. API servers accept names of up to
// 253, and signers of up to 571.
const maxMetaText = 600

// SlimMeta keeps what the caches of workload clusters need of an object's metadata. A server that
// is no API server may send texts of any length; of those, it keeps the beginning.
func SlimMeta(from metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: clip(from.Name), UID: types.UID(clip(string(from.UID))), ResourceVersion: clip(from.ResourceVersion),
		CreationTimestamp: from.CreationTimestamp, DeletionTimestamp: from.DeletionTimestamp,
	}
}

// clip returns the beginning of a text, and does not keep the rest in memory.
func clip(text string) string {
	if len(text) <= maxMetaText {
		return text
	}
	return strings.Clone(text[:maxMetaText])
}

// decisionOf returns the type of the condition that decided on a request, or Approved if there is
// only its certificate.
func decisionOf(request *certificatesv1.CertificateSigningRequest) certificatesv1.RequestConditionType {
	for _, c := range request.Status.Conditions {
		if isDecision(c) {
			return c.Type
		}
	}
	return certificatesv1.CertificateApproved
}

// isTooLarge reports whether SlimRequest has removed the content of a request that is not decided.
// The API server accepts no request without content.
func isTooLarge(request *certificatesv1.CertificateSigningRequest) bool {
	return len(request.Spec.Request) == 0
}
