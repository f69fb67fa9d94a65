// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
)

// BindingName is the ClusterRoleBinding of token.Group to the role system:node-bootstrapper. Drover
// never binds the role by which certificate requests are approved automatically.
const BindingName = "drover:node-bootstrapper"

func joinsByKubeadm(config *bootstrapv1.DroverConfig) bool {
	return config.Spec.Join.Method == bootstrapv1.JoinKubeadm
}

func tokenGroups(config *bootstrapv1.DroverConfig) []string {
	if joinsByKubeadm(config) {
		return []string{token.Group, token.KubeadmGroup}
	}
	return []string{token.Group}
}

// grant is a binding of a role to a group of tokens. Role and binding are in namespace, or
// cluster-scoped if that is "".
type grant struct {
	name, namespace, role, group string
	// external: Drover does not create the role, so it may be missing.
	external bool
}

// grantsOf returns the grants that a config's token needs. The last three are what "kubeadm join"
// also reads (NodeBootstrapTokenAuthGroup in cmd/kubeadm of Kubernetes), with the roles that
// kubeadm creates in a cluster that it sets up.
func grantsOf(config *bootstrapv1.DroverConfig) []grant {
	out := []grant{{name: BindingName, role: "system:node-bootstrapper", group: token.Group}}
	if joinsByKubeadm(config) {
		out = append(out,
			grant{"drover:kubeadm-get-nodes", "", "kubeadm:get-nodes", token.KubeadmGroup, true},
			grant{"drover:kubeadm-config", metav1.NamespaceSystem, "kubeadm:nodes-kubeadm-config", token.KubeadmGroup, true},
			grant{"drover:kubelet-config", metav1.NamespaceSystem, "kubeadm:kubelet-config", token.KubeadmGroup, true},
		)
	}
	return out
}

// ensureRights grants the config's token its rights. It checks at most every ten minutes per
// Cluster. Only CSRReconciler approves certificates.
func (r *ConfigReconciler) ensureRights(ctx context.Context, config *bootstrapv1.DroverConfig, cluster *clusterv1.Cluster,
	workload client.Client) error {
	for _, g := range grantsOf(config) {
		if r.tokens.IsBound(cluster.UID, g.name) {
			continue
		}
		if err := g.ensure(ctx, workload); err != nil {
			return err
		}
		r.tokens.SetBound(cluster.UID, g.name)
	}
	return nil
}

func (g grant) ensure(ctx context.Context, workload client.Client) error {
	if err := g.checkRole(ctx, workload); err != nil {
		return err
	}
	desired, desiredRef, desiredSubjects := g.binding()
	*desiredRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: g.roleKind(), Name: g.role}
	*desiredSubjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: g.group}}

	found, ref, subjects := g.binding()
	err := workload.Get(ctx, client.ObjectKeyFromObject(desired), found)
	switch {
	case apierrors.IsNotFound(err):
		err = workload.Create(ctx, desired)
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case err == nil && *ref != *desiredRef:
		return &waiting{
			reason: bootstrapv1.NotPermittedReason, after: recheck,
			message: fmt.Sprintf("The workload cluster's %sBinding %q refers to a role other than %q: delete it", g.roleKind(), g.name, g.role),
		}
	case err == nil && !equality.Semantic.DeepEqual(*subjects, *desiredSubjects):
		before := found.DeepCopyObject().(client.Object)
		*subjects = *desiredSubjects
		err = workload.Patch(ctx, found, client.MergeFrom(before))
	}
	if err != nil {
		return wrapForbidden(err, fmt.Sprintf("the %sBinding %q", g.roleKind(), g.name))
	}
	return nil
}

// binding returns an empty binding, and pointers to its role and subjects.
func (g grant) binding() (client.Object, *rbacv1.RoleRef, *[]rbacv1.Subject) {
	if g.namespace == "" {
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
		return b, &b.RoleRef, &b.Subjects
	}
	b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: g.name}}
	return b, &b.RoleRef, &b.Subjects
}

func (g grant) roleKind() string {
	if g.namespace == "" {
		return "ClusterRole"
	}
	return "Role"
}

// checkRole returns an error if a cluster lacks one of kubeadm's roles. A binding to a missing role
// would permit nothing, and only the machine would notice.
func (g grant) checkRole(ctx context.Context, workload client.Client) error {
	if !g.external {
		return nil
	}
	role := &metav1.PartialObjectMetadata{}
	role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(g.roleKind()))
	err := workload.Get(ctx, client.ObjectKey{Namespace: g.namespace, Name: g.role}, role)
	if apierrors.IsNotFound(err) {
		return &waiting{
			reason: bootstrapv1.WaitingForControlPlaneReason, after: recheck,
			message: fmt.Sprintf("Waiting for the %s %q to exist in the workload cluster: a join by kubeadm needs it, and clusters that kubeadm created have it", g.roleKind(), g.role),
		}
	}
	if err != nil {
		return wrapForbidden(err, fmt.Sprintf("the %s %q", g.roleKind(), g.role))
	}
	return nil
}

// wrapForbidden turns a refusal by the workload cluster into a condition.
func wrapForbidden(err error, what string) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return &waiting{
			reason: bootstrapv1.NotPermittedReason, after: recheck,
			message: "The Cluster's kubeconfig does not permit Drover to read, write or delete " + what + " in the workload cluster",
		}
	}
	return fmt.Errorf("in the workload cluster, %s: %w", what, err)
}
