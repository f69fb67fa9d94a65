// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/drover-io/drover/cloud"
)

// EnsureBalancer returns the load balancer, as last seen. If it does not exist, or is not as
// requested, it takes one step towards that; otherwise it calls nothing. OnMachines reports
// changes of the token, as for a machine. Apart from the errors of Balancer.EnsureBalancer, it
// returns
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
	found, err := a.inventory.findBalancer(req)
	if err != nil {
		return cloud.Resource{}, err
	}
	if found != nil && isAsRequested(found.Balancer, req) {
		return *found, nil
	}
	var made cloud.Resource
	step := func() (err error) {
		made, err = ask(ctx, a, "EnsureBalancer", driver.EnsureBalancer, req)
		return err
	}
	if req.Recorded { // a change of targets waits for no create
		err = a.lookup(step)
	} else {
		err = a.stepFirst(req.Token, step)
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	if made.OwnershipID != req.OwnershipID || made.Token != req.Token || made.Balancer == nil {
		return cloud.Resource{}, otherOwnerError(req.Token, []cloud.Resource{made})
	}
	made = sanitize(made)
	a.inventory.recordBalancer(req, made)
	return made, nil
}

// DeleteBalancer starts the deletion of a load balancer and all its parts, and returns its
// progress, as Delete does for a machine. recorded is true if the balancer is known to have been
// made: then the deletion need not wait for a create without an answer.
func (a *Account) DeleteBalancer(ref cloud.Reference, recorded bool, asked time.Time) Deletion {
	if err := checkToken(ref.Token); err != nil {
		return Deletion{Err: err}
	}
	a.inventory.mu.Lock()
	a.inventory.machine(ref.Token).isRecordedBalancer = recorded
	a.inventory.mu.Unlock()
	return a.Delete(ref, asked)
}

// isAsRequested reports whether nothing of the balancer must be changed.
func isAsRequested(b *cloud.BalancerState, req cloud.BalancerRequest) bool {
	return b.Address != "" && b.Port == req.Port &&
		slices.EqualFunc(b.Targets, req.Targets, func(t cloud.BalancerTarget, address string) bool { return t.Address == address })
}

// findBalancer tracks the request's balancer, and returns it if it is known. It takes the lock.
func (v *inventory) findBalancer(req cloud.BalancerRequest) (*cloud.Resource, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(req.Token)
	if m.phase >= deleting {
		return nil, cloud.Errorf(cloud.Conflict, "load balancer of %s/%s: it is being deleted", req.Namespace, req.Name)
	}
	v.track(m, cloud.Reference{Token: req.Token, OwnershipID: req.OwnershipID})
	all := m.resources()
	if own := ownedBy(all, req.OwnershipID); len(own) < len(all) {
		return nil, otherOwnerError(req.Token, slices.DeleteFunc(all, func(r cloud.Resource) bool { return r.OwnershipID == req.OwnershipID }))
	}
	balancers := slices.DeleteFunc(all, func(r cloud.Resource) bool { return r.Balancer == nil })
	m.reported = m.refresh()
	switch len(balancers) {
	case 0:
		return nil, nil
	case 1:
		return &balancers[0], nil
	default:
		return nil, cloud.Errorf(cloud.Conflict, "load balancer of %s/%s: %s and %s both have its token", req.Namespace, req.Name, balancers[0].ID, balancers[1].ID)
	}
}

// recordBalancer records a balancer that a call has returned. It takes the lock.
func (v *inventory) recordBalancer(req cloud.BalancerRequest, r cloud.Resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.machine(req.Token)
	if m.phase >= deleting {
		return
	}
	v.addSighting(m, []cloud.Resource{r}, time.Now())
	m.reported = m.refresh()
	v.listWakeup.wake()
}

// isSettled reports whether a balancer runs and all its targets are healthy, so that nothing about
// it is about to change by itself.
func isSettled(b *cloud.Resource) bool {
	return b.State != cloud.StatePending && !slices.ContainsFunc(b.Balancer.Targets, func(t cloud.BalancerTarget) bool { return !t.Healthy })
}
