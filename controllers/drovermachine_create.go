// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// recordTimeout bounds the write of the provider ID after a create. The write continues when the
// manager is asked to stop: the process waits for it (the manager's graceful shutdown). If the
// process is killed, the token finds the VM again.
const recordTimeout = 10 * time.Second

// create asks the account for the VM and records the result before anything else can fail.
func (r *DroverMachineReconciler) create(ctx context.Context, s *machineScope) (*reconcile.Result, error) {
	if s.Spec.ProviderID != "" {
		return nil, nil
	}
	if r.isUnsettled(s) {
		return &reconcile.Result{RequeueAfter: jitter(unsettledRecheck)}, nil
	}
	if moved, err := r.changeDomain(ctx, s); moved || err != nil {
		return done(r.handleDomainError(s, err))
	}
	domains, err := r.allowedDomains(ctx, s)
	if err != nil {
		return done(r.handleDomainError(s, err))
	}
	// Nothing is read live for a machine whose turn has not come: a list by token costs the API
	// server more with each machine of the fleet.
	release, err := s.account.Admit(s.reference())
	if err != nil {
		return done(r.createFailed(s, err), nil)
	}
	defer release()
	withToken, err := r.withToken(ctx, r.APIReader, s.Spec.Creation.Token)
	if err != nil {
		return nil, err
	}
	if stopped, err := reportDuplicate(ctx, r.Client, s, withToken); err != nil {
		return nil, err
	} else if stopped {
		return &reconcile.Result{RequeueAfter: jitter(deletionRecheck)}, nil
	}
	if !isCurrent(s, withToken) {
		return &reconcile.Result{}, nil // the cache lags behind, and its next event triggers a reconcile
	}
	userData, reason, err := r.userData(ctx, s)
	if err != nil {
		return nil, err
	}
	if reason != "" {
		setNotReady(s.DroverMachine, infrav1.SecretInvalidReason, reason)
		return &reconcile.Result{RequeueAfter: jitter(30 * time.Second)}, nil // Secrets are not watched for this
	}
	// A create in progress continues when the manager is asked to stop, to get its answer.
	ctx = context.WithoutCancel(ctx)
	known := r.attempts.get(s.DroverMachine)
	r.attempts.set(s.DroverMachine, attemptUnknown) // from here on a VM may exist
	r.recordCreate(s)
	instance, err := ensure(ctx, s, userData, domains, known == attemptUnknown || known == attemptUnsettled)
	if err != nil {
		return done(r.handleCreateError(ctx, s, known, err))
	}
	if err := r.record(ctx, s, instance.ProviderID); err != nil {
		return nil, err
	}
	r.retries.forget(s.key())
	return &reconcile.Result{}, nil // the record comes back as an event, and then the VM is observed
}

// isCurrent reports whether the machine is unchanged among the live objects, so that no VM is
// made for a machine that was deleted, already made or claimed again.
func isCurrent(s *machineScope, live []infrav1.DroverMachine) bool {
	return slices.ContainsFunc(live, func(m infrav1.DroverMachine) bool {
		return m.UID == s.UID && m.DeletionTimestamp.IsZero() && m.Spec.ProviderID == "" &&
			m.Spec.Creation.FailureDomain == s.Spec.Creation.FailureDomain &&
			m.Spec.Creation.Attempt == s.Spec.Creation.Attempt && controllerutil.ContainsFinalizer(&m, infrav1.MachineFinalizer)
	})
}

// userData returns the bootstrap data, or a reason that says what is wrong with the Secret.
func (r *DroverMachineReconciler) userData(ctx context.Context, s *machineScope) (data []byte, reason string, err error) {
	name := *s.owner.Spec.Bootstrap.DataSecretName
	secret := &corev1.Secret{}
	err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("Waiting for Secret %q with the bootstrap data to exist", name), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the bootstrap data: %w", err)
	}
	data, ok := secret.Data["value"]
	if !ok {
		return nil, fmt.Sprintf("Secret %q lacks the key \"value\" with the bootstrap data", name), nil
	}
	if err := s.account.Cloud().CheckUserData(data); err != nil {
		return nil, fmt.Sprintf("The bootstrap data in Secret %q is too large: %v; shorten the files and commands", name, err), nil
	}
	return data, "", nil
}

// ensure asks the account for the VM. open means that a create may have been sent before.
func ensure(ctx context.Context, s *machineScope, userData []byte, domains []string, open bool) (cloud.Resource, error) {
	return s.account.Ensure(ctx, cloud.Request{
		Token:       s.Spec.Creation.Token,
		Attempt:     int(s.Spec.Creation.Attempt),
		MaybeSent:   open,
		OwnershipID: s.ownershipID,
		Namespace:   s.Namespace,
		Name:        s.Name,
		UserData:    userData,
		Spec:        &s.Spec.DroverMachineFields,
	}, domains)
}

// allowedDomains returns the failure domains that the create may use: on a cloud with
// ZonalIdempotency the recorded one, else those of domains.
func (r *DroverMachineReconciler) allowedDomains(ctx context.Context, s *machineScope) ([]string, error) {
	if s.account.Cloud().Traits.ZonalIdempotency {
		return []string{s.Spec.Creation.FailureDomain}, nil
	}
	return r.domains(ctx, s)
}

// domains returns the failure domains that the machine may go to, in the order to try: its
// Machine's, which its own fields must allow, else those that they allow, else all of the
// account's. If there are several, the token decides which one is first, so machines start in
// different domains and each machine always in the same one.
func (r *DroverMachineReconciler) domains(ctx context.Context, s *machineScope) ([]string, error) {
	allowed, err := s.account.FailureDomains(ctx, &s.Spec.DroverMachineFields)
	if err != nil {
		return nil, err
	}
	if domain := s.owner.Spec.FailureDomain; domain != "" {
		if len(allowed) > 0 && !slices.Contains(allowed, domain) {
			return nil, cloud.Errorf(cloud.InvalidSpec, "the Machine requests failure domain %q, but the fields of the DroverMachine allow only %q",
				domain, allowed)
		}
		return []string{domain}, nil
	}
	if len(allowed) == 1 {
		return allowed, nil
	}
	account := &infrav1.DroverAccount{}
	key := client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.AccountRef.Name}
	if err := r.Client.Get(ctx, key, account); err != nil {
		return nil, fmt.Errorf("reading the DroverAccount: %w", err)
	}
	all := account.Status.FailureDomains
	if len(allowed) > 0 {
		all = allowed
	}
	if len(all) < 2 {
		return all, nil
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(s.Spec.Creation.Token))
	first := int(hash.Sum32() % uint32(len(all)))
	return append(append([]string{}, all[first:]...), all[:first]...), nil
}

// record writes the provider ID.
func (r *DroverMachineReconciler) record(ctx context.Context, s *machineScope, providerID string) error {
	r.recordExists(s, providerID)
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	recorded := s.DeepCopy()
	recorded.Spec.ProviderID = providerID
	before := s.DeepCopy()
	if err := r.Client.Patch(ctx, recorded, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("recording provider ID %s: %w", providerID, err)
	}
	r.say(s, saidRecorded, providerID)
	return nil
}

// createFailed says in Ready why there is no VM yet, and returns when to retry.
func (r *DroverMachineReconciler) createFailed(s *machineScope, err error) reconcile.Result {
	var queued *cloud.Queued
	switch {
	case errors.As(err, &queued):
		// The message does not say how long: a status write for each machine and turn would cost
		// more than the create.
		setNotReady(s.DroverMachine, infrav1.QueuedReason, "Waiting for a turn in the account's rate limit")
	case cloud.CodeOf(err) == cloud.InvalidSpec:
		setNotReady(s.DroverMachine, infrav1.InvalidSpecReason,
			invalidSpec(&s.Spec.Cloud, s.account.Cloud().Name, s.owner.Spec.FailureDomain, cloudMessage(err)))
	default:
		setCloudError(s.DroverMachine, err)
	}
	after, ok := r.retries.after(s.key(), err)
	if !ok {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: after}
}
