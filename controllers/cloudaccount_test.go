// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// TestRefuseAmbient: only the namespaces that the operator has listed may use the manager's own
// credentials, and only for VMs in the same namespace.
func TestRefuseAmbient(t *testing.T) {
	r := &CloudAccountReconciler{AmbientNamespaces: []string{"team-a"}}
	for name, test := range map[string]struct {
		namespace string
		spec      infrav1.CloudAccountSpec
		refused   bool
	}{
		"listed":                 {"team-a", infrav1.CloudAccountSpec{AWS: &infrav1.AWSAccount{}}, false},
		"not listed":             {"team-b", infrav1.CloudAccountSpec{AWS: &infrav1.AWSAccount{}}, true},
		"an endpoint of its own": {"team-a", infrav1.CloudAccountSpec{AWS: &infrav1.AWSAccount{Endpoint: "https://example.com"}}, true},
		"VMs in its namespace":   {"team-a", infrav1.CloudAccountSpec{KubeVirt: &infrav1.KubeVirtAccount{Namespace: "team-a"}}, false},
		"VMs in another one":     {"team-a", infrav1.CloudAccountSpec{KubeVirt: &infrav1.KubeVirtAccount{Namespace: "kube-system"}}, true},
	} {
		account := &infrav1.CloudAccount{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace}, Spec: test.spec}
		NewWithT(t).Expect(r.refuseAmbient(account) != nil).To(Equal(test.refused), name)
	}
}
