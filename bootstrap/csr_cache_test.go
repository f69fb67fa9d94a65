// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/drover-io/drover/internal/budget"
)

// TestSlimRequest: whatever a machine puts into a request, the cache keeps little of it, unless the
// approver judges it.
func TestSlimRequest(t *testing.T) {
	const signer, serving = certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	type csr = certificatesv1.CertificateSigningRequest
	large := bytes.Repeat([]byte("A"), 1<<20)
	decide := func(condition certificatesv1.RequestConditionType) func(*csr) {
		return func(r *csr) {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: condition, Reason: "Why", Message: "because"}}
		}
	}
	const whole, described, decided, empty = "whole", "described", "decided", "empty"
	for name, c := range map[string]struct {
		signer string
		change func(*csr)
		kept   string
		refuse bool
	}{
		"of a kubelet":               {signer, func(*csr) {}, whole, false},
		"of a kubelet, to serve":     {serving, func(*csr) {}, whole, false},
		"of another signer":          {"example.com/other", func(*csr) {}, empty, false},
		"of another signer, large":   {"example.com/other", func(r *csr) { r.Spec.Request = large }, empty, false},
		"of another signer, decided": {"example.com/other", decide(certificatesv1.CertificateApproved), empty, false},
		"of another signer, with a long name": {"example.com/other", func(r *csr) {
			r.Name, r.UID, r.ResourceVersion = string(large), types.UID(large), string(large)
		}, empty, false},
		"of a signer with a long name":   {string(large), func(*csr) {}, empty, false},
		"of a person":                    {certificatesv1.KubeAPIServerClientSignerName, func(*csr) {}, empty, false},
		"with a large content":           {signer, func(r *csr) { r.Spec.Request = large }, empty, true},
		"with a large content, to serve": {serving, func(r *csr) { r.Spec.Request = large }, empty, true},
		"with a large annotation": {signer, func(r *csr) { r.Annotations = map[string]string{"note": string(large[:256<<10])} },
			empty, true},
		"with many labels": {signer, func(r *csr) { r.Labels = manyLabels() }, empty, true},
		"of a user with many groups": {signer, func(r *csr) { r.Spec.Groups = strings.Split(strings.Repeat("group,", 10_000), ",") },
			empty, true},
		"with large extra": {signer, func(r *csr) { r.Spec.Extra = map[string]certificatesv1.ExtraValue{"x": {string(large)}} },
			empty, true},
		"with a condition that decides nothing": {signer, func(r *csr) {
			decide("Other")(r)
			r.Status.Conditions[0].Message = string(large)
		}, empty, true},
		"with many conditions": {signer, func(r *csr) { // 16 KiB as protobuf
			r.Status.Conditions = make([]certificatesv1.CertificateSigningRequestCondition, 1170)
		}, empty, true},
		"approved":          {signer, decide(certificatesv1.CertificateApproved), described, false},
		"denied":            {signer, decide(certificatesv1.CertificateDenied), described, false},
		"issued":            {signer, func(r *csr) { r.Status.Certificate = []byte("certificate") }, described, false},
		"denied, and large": {signer, func(r *csr) { decide(certificatesv1.CertificateDenied)(r); r.Spec.Request = large }, decided, false},
		"issued, and large": {serving, func(r *csr) { r.Status.Certificate = large }, decided, false},
		"failed, with a large message": {signer, func(r *csr) {
			decide(certificatesv1.CertificateFailed)(r)
			r.Status.Conditions[0].Message = string(large)
		}, decided, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := &csr{
				ObjectMeta: metav1.ObjectMeta{
					Name: "csr-1", UID: "1", ResourceVersion: "2", CreationTimestamp: metav1.Now(), Labels: map[string]string{"a": "b"},
					ManagedFields: []metav1.ManagedFieldsEntry{{Manager: string(large)}},
				},
				Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: c.signer, Username: "system:node:blue-1",
					Groups: []string{"system:nodes"}, Request: request(t)},
			}
			c.change(r)
			want := r.DeepCopy()
			want.ManagedFields = nil
			if c.kept != whole {
				want.ObjectMeta = metav1.ObjectMeta{
					Name: r.Name[:min(len(r.Name), 600)], UID: r.UID[:min(len(r.UID), 600)],
					ResourceVersion: r.ResourceVersion[:min(len(r.ResourceVersion), 600)], CreationTimestamp: r.CreationTimestamp,
				}
				want.Spec = certificatesv1.CertificateSigningRequestSpec{SignerName: r.Spec.SignerName[:min(len(r.Spec.SignerName), 600)]}
				switch c.kept {
				case described: // joining.go reads it
					want.Spec.Request = r.Spec.Request
				case decided:
					want.Status = certificatesv1.CertificateSigningRequestStatus{
						Conditions: []certificatesv1.CertificateSigningRequestCondition{{Type: decisionOf(r)}}}
				case empty:
					want.Status = certificatesv1.CertificateSigningRequestStatus{}
				}
			}
			kept, err := SlimRequest(r)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kept).To(Equal(want))
			slim := kept.(*csr)
			g.Expect(budget.SizeOf(slim)).To(BeNumerically("<=", maxCachedRequest))
			g.Expect(isKubeletRequest(slim)).To(Equal(isKubeletRequest(want)))
			judged := isKubeletRequest(slim) && !isDecided(slim)
			g.Expect(judged).To(Equal(c.kept == whole || c.refuse))
			if c.refuse {
				cluster := testCluster()
				all := fakeClient(t, interceptor.Funcs{}, cluster)
				v, err := (&CSRReconciler{Client: all, ClusterCache: clustercache.NewFakeClusterCache(all, client.ObjectKeyFromObject(cluster)),
					APIServer: noKubeconfig}).
					judge(t.Context(), cluster, all, slim)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(v).To(Equal(verdict{why: "it is larger than 16 KiB, and a kubelet's is not"}))
			}
		})
	}
}

func manyLabels() map[string]string {
	labels := map[string]string{}
	for i := range 10_000 {
		labels[strings.Repeat("a", i%50)+string(rune('A'+i%26))+strings.Repeat("b", i/50%13)] = strings.Repeat("c", 60)
	}
	return labels
}
