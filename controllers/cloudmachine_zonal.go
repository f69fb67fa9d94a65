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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// If a cloud's idempotency is limited to one failure domain (cloud.Traits.ZonalIdempotency), the
// domain is part of the intent. It is recorded with the token, and another domain is recorded
// before it is asked. A machine leaves the recorded domain only when nothing can have been made
// there: because the cloud has refused this very machine, or because this process recorded the
// domain and has sent nothing yet. A process that starts after a crash knows neither, and asks the
// recorded domain first.

// fate is what a process knows about the recorded attempt.
type fate int

const (
	// unknown means that a create may have been sent, and may have made a VM.
	unknown fate = iota
	// unsent means that this process recorded the attempt and has sent nothing effective since.
	unsent
	// refused means that the cloud has stated that the attempt makes nothing.
	refused
	// unsettled means that the cloud refuses the attempt now, but a create that an earlier process
	// may have sent could still take effect.
	unsettled
)

// fates remembers the fate of each machine's attempt. The zero value is ready for use.
type fates struct {
	mu  sync.Mutex
	all map[types.NamespacedName]tokenFate
}

type tokenFate struct {
	token string
	fate  fate
}

func (f *fates) of(m *infrav1.CloudMachine) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.all[client.ObjectKeyFromObject(m)]; known.token == m.Spec.Creation.Token {
		return known.fate
	}
	return unknown
}

func (f *fates) set(m *infrav1.CloudMachine, to fate) {
	key := client.ObjectKeyFromObject(m)
	if to == unknown {
		f.forget(key)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[types.NamespacedName]tokenFate{}
	}
	f.all[key] = tokenFate{m.Spec.Creation.Token, to}
}

func (f *fates) forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, key)
}

// chooseDomain returns the first of the machine's failure domains that is not known to lack
// capacity.
func (r *CloudMachineReconciler) chooseDomain(ctx context.Context, s *machineScope) (string, error) {
	domains, err := r.domains(ctx, s)
	if err != nil {
		return "", err
	}
	if len(domains) == 0 {
		return "", &cloud.Error{Code: cloud.Unavailable, RetryAfter: time.Second,
			Message: fmt.Sprintf("waits for CloudAccount %q to tell its failure domains", s.Spec.AccountRef.Name)}
	}
	return s.account.Domain(&s.Spec.CloudMachineFields, domains)
}

// moves reports whether the machine leaves the recorded attempt for another one. If so, the new
// attempt is recorded and comes back as an event.
func (r *CloudMachineReconciler) moves(ctx context.Context, s *machineScope) (bool, error) {
	if !s.account.Cloud().Traits.ZonalIdempotency {
		return false, nil
	}
	known := r.fates.of(s.CloudMachine)
	if s.Spec.Creation.FailureDomain != "" && (known == unknown || known == unsettled) {
		return false, nil
	}
	domain, err := r.chooseDomain(ctx, s)
	if err != nil || (domain == s.Spec.Creation.FailureDomain && known == unsent) {
		return false, err
	}
	moved := s.DeepCopy()
	moved.Spec.Creation.FailureDomain = domain
	if known == refused {
		moved.Spec.Creation.Attempt++
	}
	patch := client.MergeFromWithOptions(s.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, moved, patch); err != nil {
		return false, fmt.Errorf("recording failure domain %s: %w", domain, err)
	}
	r.fates.set(moved, unsent)
	s.later = true
	return true, nil
}

// notMade handles a create that made no VM. A definite refusal ends the attempt, unless an earlier
// process may have sent a create that can still take effect. Such an attempt ends once live reads
// have proved that nothing was made.
func (r *CloudMachineReconciler) notMade(ctx context.Context, s *machineScope, before fate, err error) (reconcile.Result, error) {
	zonal := s.account.Cloud().Traits.ZonalIdempotency
	var queued *cloud.Queued
	switch code := cloud.CodeOf(err); {
	case errors.As(err, &queued), code == cloud.Throttled, code == cloud.Unauthorized:
		r.fates.set(s.CloudMachine, before) // this create had no effect, and earlier ones are as open as before
		return r.createFailed(s, err), nil
	case code == cloud.Unavailable, code == cloud.Unknown, before == unknown && !zonal: // the outcome is open
		return r.createFailed(s, err), nil
	case before == unknown, before == unsettled:
		r.fates.set(s.CloudMachine, unsettled)
		s.account.Settled(s.reference()) // the account starts to check, and enqueues the machine when it knows
		r.createFailed(s, stillOpen(s, err))
		return reconcile.Result{RequeueAfter: jitter(settledCheck)}, nil
	}
	r.fates.set(s.CloudMachine, refused)
	if !zonal {
		return r.createFailed(s, err), nil
	}
	return r.leaveAttempt(ctx, s, err)
}

// settledCheck is how often an unsettled attempt is checked, although its end comes as an event.
// The check makes no call.
const settledCheck = time.Minute

// waitsToSettle reports whether the recorded attempt is still open although the cloud refuses it.
// Another create now would keep it open for longer. The wait ends when live reads have proved that
// nothing was made, or have found a VM.
func (r *CloudMachineReconciler) waitsToSettle(s *machineScope) bool {
	if r.fates.of(s.CloudMachine) != unsettled {
		return false
	}
	if s.account.Settled(s.reference()) {
		r.fates.set(s.CloudMachine, refused)
		return false
	}
	seen := s.account.Observe(s.reference(), false)
	return seen.Instance == nil && len(seen.Duplicates) == 0
}

// stillOpen adds to a refusal why the machine stays in the domain that refuses it.
func stillOpen(s *machineScope, err error) error {
	return &cloud.Error{Code: cloud.CodeOf(err), Err: err, Message: fmt.Sprintf(
		"%v; whether an earlier create made a VM in %s is being looked up before the machine is tried again", err, s.Spec.Creation.FailureDomain)}
}

// leaveAttempt moves to another failure domain at once if there is one to try. Otherwise the next
// attempt raises the attempt number.
func (r *CloudMachineReconciler) leaveAttempt(ctx context.Context, s *machineScope, err error) (reconcile.Result, error) {
	domain, nowhere := r.chooseDomain(ctx, s)
	var said, told *cloud.Error
	switch {
	case errors.As(nowhere, &told):
		if cloud.CodeOf(err) == cloud.NoCapacity && errors.As(err, &said) {
			again := *said
			again.RetryAfter = told.RetryAfter // when the first domain may have capacity again
			err = &again
		}
		return r.createFailed(s, err), nil
	case nowhere != nil:
		return reconcile.Result{}, nowhere
	case domain == s.Spec.Creation.FailureDomain:
		return r.createFailed(s, err), nil
	}
	_, err = r.moves(ctx, s)
	return reconcile.Result{}, err
}

// noDomain says in Ready why there is no domain to ask if the cloud is the cause, else returns err.
func (r *CloudMachineReconciler) noDomain(s *machineScope, err error) (reconcile.Result, error) {
	var told *cloud.Error
	if errors.As(err, &told) {
		return r.createFailed(s, err), nil
	}
	return reconcile.Result{}, err
}
