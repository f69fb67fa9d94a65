// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// If a cloud's idempotency is limited to one failure domain (cloud.Traits.ZonalIdempotency), the
// domain is part of the intent. It is recorded with the token, and another domain is recorded
// before it is asked. A machine leaves the recorded domain only when nothing can have been made
// there: because the cloud has refused this very machine, or because this process recorded the
// domain and has sent nothing yet. A process that starts after a crash knows neither, and asks the
// recorded domain first.

// attemptState is what a process knows about the recorded attempt.
type attemptState int

const (
	// attemptUnknown means that a create may have been sent, and may have made a VM.
	attemptUnknown attemptState = iota
	// attemptNotSent means that this process recorded the attempt and has sent nothing effective
	// since.
	attemptNotSent
	// attemptRefused means that the cloud has stated that the attempt makes nothing.
	attemptRefused
	// attemptUnsettled means that the cloud refuses the attempt now, but a create that an earlier
	// process may have sent could still take effect.
	attemptUnsettled
)

// createAttempts remembers the fate of each machine's attempt. The zero value is ready for use.
type createAttempts struct {
	mu  sync.Mutex
	all map[types.NamespacedName]tokenAttempt
}

type tokenAttempt struct {
	token string
	state attemptState
}

func (f *createAttempts) get(m *infrav1.DroverMachine) attemptState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.all[client.ObjectKeyFromObject(m)]; known.token == m.Spec.Creation.Token {
		return known.state
	}
	return attemptUnknown
}

func (f *createAttempts) set(m *infrav1.DroverMachine, to attemptState) {
	key := client.ObjectKeyFromObject(m)
	if to == attemptUnknown {
		f.forget(key)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[types.NamespacedName]tokenAttempt{}
	}
	f.all[key] = tokenAttempt{m.Spec.Creation.Token, to}
}

func (f *createAttempts) forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, key)
}

// chooseDomain returns the first of the machine's failure domains that is not known to lack
// capacity.
func (r *DroverMachineReconciler) chooseDomain(ctx context.Context, s *machineScope) (string, error) {
	domains, err := r.domains(ctx, s)
	if err != nil {
		return "", err
	}
	if len(domains) == 0 {
		return "", &cloud.Error{Code: cloud.Unavailable, RetryAfter: time.Second,
			Message: fmt.Sprintf("waiting for DroverAccount %q to report its failure domains", s.Spec.AccountRef.Name)}
	}
	return s.account.Domain(&s.Spec.DroverMachineFields, domains)
}

// changeDomain reports whether the machine leaves the recorded attempt for another one. If so, the
// new attempt is recorded and comes back as an event.
func (r *DroverMachineReconciler) changeDomain(ctx context.Context, s *machineScope) (bool, error) {
	if !s.account.Cloud().Traits.ZonalIdempotency {
		return false, nil
	}
	known := r.attempts.get(s.DroverMachine)
	if s.Spec.Creation.FailureDomain != "" && (known == attemptUnknown || known == attemptUnsettled) {
		return false, nil
	}
	domain, err := r.chooseDomain(ctx, s)
	if err != nil || (domain == s.Spec.Creation.FailureDomain && known == attemptNotSent) {
		return false, err
	}
	changed := s.DeepCopy()
	changed.Spec.Creation.FailureDomain = domain
	if known == attemptRefused {
		changed.Spec.Creation.Attempt++
	}
	patch := client.MergeFromWithOptions(s.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, changed, patch); err != nil {
		return false, fmt.Errorf("recording failure domain %s: %w", domain, err)
	}
	r.attempts.set(changed, attemptNotSent)
	return true, nil
}

// handleCreateError handles a create that made no VM. A definite refusal ends the attempt, unless
// an earlier process may have sent a create that can still take effect. Such an attempt ends once
// live reads have proved that nothing was made.
func (r *DroverMachineReconciler) handleCreateError(ctx context.Context, s *machineScope, before attemptState,
	err error) (reconcile.Result, error) {
	zonal := s.account.Cloud().Traits.ZonalIdempotency
	var queued *cloud.Queued
	var unfinished *fleet.Unfinished
	code := cloud.CodeOf(err)
	notDone := errors.As(err, &queued) || code == cloud.Throttled || code == cloud.Unauthorized
	switch {
	case notDone && !errors.As(err, &unfinished):
		r.attempts.set(s.DroverMachine, before) // this create had no effect, and earlier ones are as open as before
		return r.createFailed(s, err), nil
	case notDone, code == cloud.Unavailable, code == cloud.Unknown, before == attemptUnknown && !zonal: // the outcome is open
		return r.createFailed(s, err), nil
	case before == attemptUnknown, before == attemptUnsettled:
		r.attempts.set(s.DroverMachine, attemptUnsettled)
		s.account.ConfirmNothingCreated(s.reference()) // the account starts to check, and enqueues the machine when it knows
		r.createFailed(s, unsettledError(s, err))
		return reconcile.Result{RequeueAfter: jitter(unsettledRecheck)}, nil
	}
	r.attempts.set(s.DroverMachine, attemptRefused)
	if !zonal {
		return r.createFailed(s, err), nil
	}
	return r.endAttempt(ctx, s, err)
}

// unsettledRecheck is how often an unsettled attempt is checked, although its end comes as an
// event. The check makes no call.
const unsettledRecheck = time.Minute

// isUnsettled reports whether the recorded attempt is still open although the cloud refuses it.
// Another create now would keep it open for longer. The wait ends when live reads have proved that
// nothing was made, or have found a VM.
func (r *DroverMachineReconciler) isUnsettled(s *machineScope) bool {
	if r.attempts.get(s.DroverMachine) != attemptUnsettled {
		return false
	}
	if s.account.ConfirmNothingCreated(s.reference()) {
		r.attempts.set(s.DroverMachine, attemptRefused)
		return false
	}
	seen := s.account.Observe(s.reference(), false)
	return seen.Instance == nil && len(seen.Duplicates) == 0
}

// unsettledError adds to a refusal why the machine stays in the domain that refuses it.
func unsettledError(s *machineScope, err error) error {
	return &cloud.Error{Code: cloud.CodeOf(err), Err: err, Message: fmt.Sprintf(
		"%v; before the next attempt, Drover checks whether an earlier request created a VM in %s", err, s.Spec.Creation.FailureDomain)}
}

// endAttempt moves to another failure domain at once if there is one to try. Otherwise the next
// attempt raises the attempt number.
func (r *DroverMachineReconciler) endAttempt(ctx context.Context, s *machineScope, err error) (reconcile.Result, error) {
	domain, domainErr := r.chooseDomain(ctx, s)
	var createErr, cloudErr *cloud.Error
	switch {
	case errors.As(domainErr, &cloudErr):
		if cloud.CodeOf(err) == cloud.NoCapacity && errors.As(err, &createErr) {
			again := *createErr
			again.RetryAfter = cloudErr.RetryAfter // when the first domain may have capacity again
			err = &again
		}
		return r.createFailed(s, err), nil
	case domainErr != nil:
		return reconcile.Result{}, domainErr
	case domain == s.Spec.Creation.FailureDomain:
		return r.createFailed(s, err), nil
	}
	_, err = r.changeDomain(ctx, s)
	return reconcile.Result{}, err
}

// handleDomainError says in Ready why there is no domain to ask if the cloud is the cause, else
// returns err.
func (r *DroverMachineReconciler) handleDomainError(s *machineScope, err error) (reconcile.Result, error) {
	var cloudErr *cloud.Error
	if errors.As(err, &cloudErr) {
		return r.createFailed(s, err), nil
	}
	return reconcile.Result{}, err
}
