// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/drover-io/drover/cloud"
)

// EnsureBalancer returns the load balancer, as last seen. If it does not exist, is not as requested,
// or has failed before its address was recorded, it takes one step towards that; otherwise it calls
// nothing. OnMachines reports changes of the token, as for a machine. Apart from the errors of
// Balancer.EnsureBalancer, it returns
//   - InvalidSpec if the account's cloud has no load balancers,
//   - *Queued, without a call, if a balancer is to be made and the account's creates already hold
//     as many workers as they may,
//   - Conflict if several balancers have the token, if a resource of another cluster has it, or if
//     the balancer is being deleted.
func (a *Account) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	driver, able := a.driver.(cloud.Balancer)
	if !able {
		return cloud.Resource{}, cloud.Invalid("Drover makes no load balancers on %s", a.cloud.Name)
	}
	if err := checkToken(req.Token); err != nil {
		return cloud.Resource{}, err
	}
	var found *cloud.Resource
	var err error
	a.inventory.locked(func(now time.Time) { found, err = a.inventory.records.findBalancer(req, now) })
	if err != nil {
		return cloud.Resource{}, err
	}
	repairable := found != nil && found.State == cloud.StateFailed && !req.Recorded // nobody has its address yet
	if found != nil && !repairable && isAsRequested(found.Balancer, req) {
		return *found, nil
	}
	token := req.Token
	if req.Recorded {
		token = "" // a change of targets waits for no create
	}
	var created cloud.Resource
	err = a.admitted(token, func() (err error) {
		created, err = ask(ctx, a, "EnsureBalancer", driver.EnsureBalancer, req)
		return err
	})
	if err != nil {
		return cloud.Resource{}, err
	}
	if created.OwnershipID != req.OwnershipID || created.Token != req.Token || created.Balancer == nil {
		return cloud.Resource{}, otherOwnerError(req.Token, []cloud.Resource{created})
	}
	created = sanitize(created)
	a.inventory.locked(func(now time.Time) { a.inventory.records.recordBalancer(req, created, now) })
	return created, nil
}

// DeleteBalancer starts the deletion of a load balancer and all its parts, and returns its
// progress, as Delete does for a machine. That of one whose creation was recorded need not wait for
// a create without an answer.
func (s *accountState) DeleteBalancer(ref cloud.Reference, asked time.Time) Deletion {
	if err := checkToken(ref.Token); err != nil {
		return Deletion{Err: err}
	}
	if ref.Balancer {
		s.inventory.locked(func(time.Time) { s.inventory.records.machine(ref.Token).creation = recorded })
	}
	return s.Delete(ref, asked)
}

// isAsRequested reports whether nothing of the balancer must be changed.
func isAsRequested(b *cloud.BalancerState, req cloud.BalancerRequest) bool {
	return b.Address != "" && b.Port == req.Port &&
		slices.EqualFunc(b.Targets, req.Targets, func(t cloud.BalancerTarget, address string) bool { return t.Address == address })
}

// findBalancer tracks the request's balancer, and returns it if it is known.
func (r *records) findBalancer(req cloud.BalancerRequest, now time.Time) (*cloud.Resource, error) {
	m := r.machine(req.Token)
	if m.phase >= deleting {
		return nil, cloud.Errorf(cloud.Conflict, "load balancer of %s/%s: it is being deleted", req.Namespace, req.Name)
	}
	r.track(m, cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID, Balancer: req.Recorded})
	own, err := ownOf(m.resources(), req.Token, req.OwnershipID)
	if err != nil {
		return nil, err
	}
	balancers := slices.DeleteFunc(own, func(r cloud.Resource) bool { return r.Balancer == nil })
	m.reported = r.refresh(m, now)
	switch len(balancers) {
	case 0:
		return nil, nil
	case 1:
		return &balancers[0], nil
	default:
		return nil, cloud.Errorf(cloud.Conflict, "load balancer of %s/%s: %s and %s both have its token", req.Namespace, req.Name,
			balancers[0].ID, balancers[1].ID)
	}
}

// recordBalancer records a balancer that a call has returned.
func (r *records) recordBalancer(req cloud.BalancerRequest, created cloud.Resource, now time.Time) {
	m := r.machine(req.Token)
	if m.phase >= deleting {
		return
	}
	r.addSightings(m, []cloud.Resource{created}, now)
	m.reported = r.refresh(m, now)
	r.changes.listings = true
}

// isStable reports whether a balancer runs and all its targets are healthy, so that nothing about
// it is about to change by itself.
func isStable(b *cloud.Resource) bool {
	return b.State != cloud.StatePending && !slices.ContainsFunc(b.Balancer.Targets, func(t cloud.BalancerTarget) bool { return !t.Healthy })
}
