// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/bootstrap/token"
)

// ensureFiles writes the files that did not fit into the user data to the workload cluster. Of
// Drover's tokens, only the machine's own token may read them. The token's Secret owns them, so
// they are deleted with it, or when it has expired.
func (r *ConfigReconciler) ensureFiles(ctx context.Context, s *scope, workload client.Client, dataSecret string) error {
	known, _ := r.tokens.Get(s.config.UID)
	if known.Token == "" || known.Files || len(s.config.Spec.Files) == 0 {
		return nil
	}
	data := &corev1.Secret{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: s.config.Namespace, Name: dataSecret}, data); err != nil {
		return fmt.Errorf("reading the Secret with the user data: %w", err)
	}
	if files := data.Data[render.FilesKey]; len(files) > 0 {
		if err := writeFiles(ctx, workload, known.Token, files); err != nil {
			return wrapForbidden(err, "the Secret, Role and RoleBinding with a machine's files in the namespace kube-system")
		}
	}
	known.Files = true
	r.tokens.Put(s.config.UID, known)
	return nil
}

// writeFiles creates the Secret, and the Role and RoleBinding that let the token's user read it.
func writeFiles(ctx context.Context, workload client.Client, text string, files []byte) error {
	id, _, _ := strings.Cut(text, ".")
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := workload.Get(ctx, token.Key(text), owner); err != nil {
		return err
	}
	name := render.FilesSecretName(id)
	meta := metav1.ObjectMeta{
		Name: name, Namespace: metav1.NamespaceSystem,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: owner.Name, UID: owner.UID}},
	}
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{render.FilesKey: files}},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name}, Verbs: []string{"get"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: bootstrapapi.BootstrapUserPrefix + id}},
		},
	} {
		if err := create(ctx, workload, o, owner.UID); err != nil {
			return err
		}
	}
	return nil
}

// create creates o, unless the token's Secret already owns an object of that name. An object of an
// earlier token with the same ID is about to be deleted.
func create(ctx context.Context, workload client.Client, o client.Object, owner types.UID) error {
	err := workload.Create(ctx, o)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := workload.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	if !slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == owner }) {
		return fmt.Errorf("%T %q already exists and belongs to another token", o, o.GetName())
	}
	return nil
}
