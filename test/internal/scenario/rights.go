// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Rights returns the objects that let a user of the workload cluster adopt it, and nothing more:
// the permissions that docs/adopt-a-cluster.md requires of the kubeconfig, which are those that
// Drover and Cluster API use.
func Rights(user string) []client.Object {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover-adopter"}, Rules: []rbacv1.PolicyRule{
		allow("", []string{"nodes"}, "get", "list", "watch", "patch", "update", "delete"),
		allow("", []string{"pods"}, "get", "list", "watch", "delete"),
		allow("", []string{"pods/eviction"}, "create"),
		allow("", []string{"namespaces"}, "get", "list", "watch"),
		allow("apps", []string{"daemonsets"}, "get"),
		allow("", []string{"persistentvolumes", "persistentvolumeclaims"}, "get", "list", "watch"),
		allow("storage.k8s.io", []string{"volumeattachments"}, "get", "list", "watch"),
		allow("certificates.k8s.io", []string{"certificatesigningrequests"}, "get", "list", "watch"),
		allow("certificates.k8s.io", []string{"certificatesigningrequests/approval"}, "update", "patch"),
		named("certificates.k8s.io", "signers", []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"},
			"approve"),
		allow("rbac.authorization.k8s.io", []string{"clusterrolebindings"}, "get", "create", "patch"),
		named("rbac.authorization.k8s.io", "clusterroles", []string{"system:node-bootstrapper"}, "bind"),
		named("rbac.authorization.k8s.io", "clusterroles", []string{"kubeadm:get-nodes"}, "get", "bind"),
		{NonResourceURLs: []string{"/", "/version"}, Verbs: []string{"get"}},
	}}
	tokens := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: role.Name}, Rules: []rbacv1.PolicyRule{
		allow("", []string{"secrets"}, "get", "list", "watch", "create", "update", "patch", "delete"),
		named("", "configmaps", []string{"extension-apiserver-authentication"}, "get"),
		allow("rbac.authorization.k8s.io", []string{"rolebindings"}, "get", "create", "patch"),
		allow("rbac.authorization.k8s.io", []string{"roles"}, "get", "create"),
		named("rbac.authorization.k8s.io", "roles", []string{"kubeadm:nodes-kubeadm-config", "kubeadm:kubelet-config"}, "get", "bind"),
	}}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	return []client.Object{
		role, tokens,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: tokens.Namespace, Name: role.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: tokens.Name},
		},
	}
}

func allow(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

func named(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}
