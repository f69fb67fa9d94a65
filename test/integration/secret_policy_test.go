// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/test/internal/scenario"
)

// TestSecretPolicy: with the example policy, a tenant who may write Secrets can't write those that
// Cluster API's managers believe, and the managers still can.
func TestSecretPolicy(t *testing.T) {
	s := newTenant(t)
	s.create(&rbacv1.RoleBinding{
		ObjectMeta: s.meta("edit"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
	}, &rbacv1.RoleBinding{
		ObjectMeta: s.meta("manager"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "capi-system", Name: "capi-manager"}},
	})
	s.applySecretPolicy()
	as := func(user string) client.Client {
		config := env.management.AdminConfig()
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		c, err := scenario.NewClient(config)
		s.Expect(err).NotTo(HaveOccurred())
		return c
	}
	tenant, manager := as("tenant"), as("system:serviceaccount:capi-system:capi-manager")
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: s.meta(name), Type: kind, Data: map[string][]byte{"value": []byte("x")}}
	}
	// The API server enforces a new policy after a while.
	s.Eventually(func() bool {
		return apierrors.IsForbidden(tenant.Create(s.ctx, secret("blue-kubeconfig", clusterv1.ClusterSecretType), client.DryRunAll))
	}).Should(BeTrue())
	for _, c := range []*corev1.Secret{
		secret("blue-kubeconfig", corev1.SecretTypeOpaque), secret("blue-ca", corev1.SecretTypeOpaque),
		secret("blue-etcd", corev1.SecretTypeOpaque),
		secret("blue-sa", corev1.SecretTypeOpaque), secret("blue-proxy", corev1.SecretTypeOpaque), secret("other", clusterv1.ClusterSecretType),
	} {
		err := tenant.Create(s.ctx, c)
		s.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s %s: %v", c.Name, c.Type, err)
		s.Expect(err).To(MatchError(ContainSubstring("only the managers of providers may write Secrets such as " + c.Name)))
	}
	s.Expect(tenant.Create(s.ctx, secret("credentials", corev1.SecretTypeOpaque))).To(Succeed())
	written := secret("blue-kubeconfig", clusterv1.ClusterSecretType)
	s.Expect(manager.Create(s.ctx, written)).To(Succeed())
	written.Data["value"] = []byte("y")
	s.Expect(apierrors.IsForbidden(tenant.Update(s.ctx, written.DeepCopy()))).To(BeTrue(), "a change by the tenant")
	s.Expect(manager.Update(s.ctx, written)).To(Succeed())
}

// applySecretPolicy installs config/secret-policy for this namespace alone, because all tests share
// the API server.
func (s *tenant) applySecretPolicy() {
	s.t.Helper()
	file, err := os.Open("../../config/secret-policy/policy.yaml")
	s.Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for range 2 {
		o := &unstructured.Unstructured{}
		s.Expect(decoder.Decode(o)).To(Succeed())
		if o.GetKind() == "ValidatingAdmissionPolicyBinding" {
			err := unstructured.SetNestedStringMap(o.Object, map[string]string{corev1.LabelMetadataName: s.Namespace},
				"spec", "matchResources", "namespaceSelector", "matchLabels")
			s.Expect(err).NotTo(HaveOccurred())
		}
		s.create(o)
		s.t.Cleanup(func() { s.Expect(env.client.Delete(context.WithoutCancel(s.ctx), o)).To(Succeed()) })
	}
}
