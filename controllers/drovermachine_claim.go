// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/naming"
)

// claim writes the intent to create in one write: finalizer, token and, on a cloud with
// ZonalIdempotency, the failure domain. The write fails if the object changed in the meantime. The
// create follows when the write comes back from the API server as an event.
func (r *DroverMachineReconciler) claim(ctx context.Context, s *machineScope) (*reconcile.Result, error) {
	if s.Spec.ProviderID != "" || s.Spec.Creation.Token != "" {
		return nil, nil
	}
	before := s.DeepCopy()
	claimed := s.DeepCopy()
	controllerutil.AddFinalizer(claimed, infrav1.MachineFinalizer)
	claimed.Spec.Creation.Token = naming.NewToken(r.Identity)
	if s.account.Cloud().Traits.ZonalIdempotency {
		var err error
		if claimed.Spec.Creation.FailureDomain, err = r.chooseDomain(ctx,
			&machineScope{DroverMachine: claimed, owner: s.owner, account: s.account}); err != nil {
			return done(r.handleDomainError(s, err))
		}
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, claimed, patch); err != nil {
		return nil, fmt.Errorf("claiming the machine: %w", err)
	}
	r.attempts.set(claimed, attemptNotSent)
	return &reconcile.Result{}, nil
}

// Identity returns the identity of a management cluster in 8 hexadecimal digits. It is derived from
// the UID of kube-system, which neither a copy of objects nor a move carries over.
func Identity(ctx context.Context, reader client.Reader) (string, error) {
	namespace := &corev1.Namespace{}
	if err := reader.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return "", fmt.Errorf("reading namespace %q for the management cluster's identity: %w", metav1.NamespaceSystem, err)
	}
	sum := sha256.Sum256([]byte(namespace.UID))
	return hex.EncodeToString(sum[:4]), nil
}
