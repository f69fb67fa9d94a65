// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

const (
	// invalidOfferingMemory is how long an answer that a kind of machine does not exist is
	// believed: images and types appear while people set things up.
	invalidOfferingMemory = time.Minute
	// offeringsKept bounds the memory of Offerings.
	offeringsKept = 1000
	// nextDomainDelay is after how long another failure domain is tried when one had no capacity.
	nextDomainDelay = 10 * time.Millisecond
)

// AccountConfig is what an Account is made from.
type AccountConfig struct {
	Spec infrav1.CloudAccountSpec
	// Credentials is the Secret's data; nil means ambient credentials, which the caller has
	// permitted.
	Credentials map[string][]byte
	// Place is the place that is on record for the account; empty when none is yet. See cloud.Info.
	Place string
}

// Account is one place where machines are made: a driver, with what it shares between all its
// machines. Its methods may be called at the same time. Errors are *Error, or *Queued.
type Account struct {
	key     types.NamespacedName
	cloud   cloud.Cloud
	config  AccountConfig
	driver  cloud.Driver
	limits  cloud.Limits
	limiter atomic.Pointer[limiter]
	times   Times
	meter   *meter
	*ledger
	place place
	// admitted is called when the credentials were proved to lead to the account's place.
	admitted func(*Account)
	creates  creates
	console  sync.Mutex // held while one is read

	offeringsMu sync.Mutex
	offerings   map[[sha256.Size]byte]offering
}

type offering struct {
	cloud.Offering
	err   error
	until time.Time // zero: for the account's life
}

// ledger is what is known of an account's machines. It outlives the credentials: an account that
// replaces another takes it over.
type ledger struct {
	current   atomic.Pointer[Account] // whose driver the loops use
	inventory *inventory
	news      *source
	changes   *source
	capacity  *capacity
	stop      context.CancelFunc // ends the loops; nil while they do not run
}

// InventoryState says how much the account's inventory is worth.
type InventoryState struct {
	// LastComplete is when the last complete listing began; zero before the first.
	LastComplete time.Time
	// Err is why the latest listing failed; nil when it did not.
	Err error
	// Fresh is false when a complete listing is overdue: no machine's absence or state is to be
	// believed. An account of which no machine is observed is not listed, and is fresh.
	Fresh bool
	// Instances counts those with Drover's tags, of any cluster, terminated ones apart.
	Instances int
	// Deaf is why what the cloud tells by itself can't be had: the news that the account names a
	// place for (Herald), or the changes (Follower). nil when it can, or the cloud tells nothing.
	Deaf error
	// Doubt is what is not believed although the cloud says so; nil for nothing.
	Doubt *Doubt
}

// Observation is what is known of one machine, without a call to the cloud.
type Observation struct {
	// Instance is the machine's, as last seen; nil when none was seen yet. It may be Terminated:
	// that alone is not Gone.
	Instance *cloud.Resource
	// Gone is true when live reads confirmed that the recorded instance exists no more. It becomes
	// false again when the instance is seen again after all.
	Gone bool
	// NeverSeen is true when live reads found nothing, and nothing of the machine was ever seen:
	// perhaps its instance lacks the tags.
	NeverSeen bool
	// Duplicates are the IDs of the machine's instances when there is more than one that lives, or
	// one that lives and is not the recorded one.
	Duplicates []string
}

// Deletion is how far a deletion is.
type Deletion struct {
	// Gone is true when a live read said that nothing is left: no instance that lives, and no
	// dependant. It stays true until Forget.
	Gone bool
	// Left is what the last live read found of what must go; nil before the first.
	Left []cloud.Resource
	// Instance is the machine's as it was last seen; nil where none was. Where the creation was
	// never recorded, it is the only way to learn the provider ID: nothing is deleted then until
	// the Reference carries it.
	Instance *cloud.Resource
	// Err is why the latest attempt failed; nil when it did not. The deletion goes on by itself.
	Err error
}

// Cloud returns the account's row of the registry.
func (a *Account) Cloud() cloud.Cloud { return a.cloud }

// Probe proves the credentials, and that they lead to the account's place. Until it has, the
// account makes no other call. Credentials that lead elsewhere are Conflict. The failure domains
// that it returns are a set, in order.
func (a *Account) Probe(ctx context.Context) (cloud.Info, error) {
	var info cloud.Info
	err := a.do(ctx, "Probe", a.times.Call, &step{}, func(ctx context.Context) (err error) {
		info, err = a.driver.Probe(ctx)
		return err
	})
	if err != nil {
		return cloud.Info{}, err
	}
	if !fits(info.Place, maxPlace) {
		return cloud.Info{}, cloud.Errorf(cloud.Unknown, "the cloud does not say where the credentials lead: check the account's endpoint")
	}
	if info.FailureDomains, err = zones(info.FailureDomains); err != nil {
		return cloud.Info{}, err
	}
	return info, a.proved(info.Place)
}

// Offering says what a machine of this kind will be. It is asked for once in the account's life;
// that there is no such kind (InvalidSpec) is believed for a minute.
func (a *Account) Offering(ctx context.Context, spec *infrav1.CloudMachineFields) (cloud.Offering, error) {
	shape, err := shapeOf(spec)
	if err != nil {
		return cloud.Offering{}, err
	}
	if o, ok := a.knownOffering(shape); ok {
		return o.Offering, o.err
	}
	var o offering
	o.err = a.step(ctx, "Offering", a.times.Call, &step{}, func(ctx context.Context) (err error) {
		o.Offering, err = a.driver.Offering(ctx, spec)
		return err
	})
	if o.err != nil {
		if cloud.CodeOf(o.err) != cloud.InvalidSpec {
			return cloud.Offering{}, o.err
		}
		o.until = time.Now().Add(invalidOfferingMemory)
	}
	a.offeringsMu.Lock()
	defer a.offeringsMu.Unlock()
	if len(a.offerings) >= offeringsKept {
		clear(a.offerings)
	}
	a.offerings[shape] = o
	return o.Offering, o.err
}

func (a *Account) knownOffering(shape [sha256.Size]byte) (offering, bool) {
	a.offeringsMu.Lock()
	defer a.offeringsMu.Unlock()
	o, ok := a.offerings[shape]
	return o, ok && (o.until.IsZero() || time.Now().Before(o.until))
}

// Ensure makes the machine, or moves its creation one step on, or finds that it is there: it never
// makes a second one for the same token. It never waits for a turn or for a machine. domains are
// the allowed failure domains in the order of preference; empty means that the cloud chooses
// (within req.FailureDomain, if that is set). On a Zonal cloud there is one, the machine's on
// record. Apart from the codes of Driver.Ensure it fails with
//   - *Queued when its turn in the rate limit has not come; the turn is kept for whoever comes back
//     with the token,
//   - NoCapacity with RetryAfter: very short while another allowed failure domain is left to try,
//     else when the first of them will be asked again,
//   - *Queued, without a call, when as many creates are under way as the account may hold workers
//     for,
//   - Unavailable, without a call, until the credentials have proved the account's place, and while
//     another create waits for a cloud that has left an earlier one without an answer,
//   - Conflict when more than one instance has the token, or an instance of another cluster has it,
//     or the machine was gone or under deletion already.
func (a *Account) Ensure(ctx context.Context, req cloud.Request, domains []string) (cloud.Resource, error) {
	if req.Token == "" || req.OwnershipID == "" {
		return cloud.Resource{}, cloud.Errorf(cloud.InvalidSpec, "create machine %s/%s: it has no token or no owner, and could not be found again", req.Namespace, req.Name)
	}
	if found, err := a.inventory.adopt(req); found != nil || err != nil {
		a.limiter.Load().create.drop(req.Token)
		if err != nil {
			return cloud.Resource{}, err
		}
		return *found, nil
	}
	shape, err := shapeOf(req.Spec)
	if err != nil {
		return cloud.Resource{}, err
	}
	if a.cloud.Traits.ZonalIdempotency && len(domains) != 1 {
		return cloud.Resource{}, cloud.Errorf(cloud.InvalidSpec, "create machine %s/%s: it has no failure domain on record", req.Namespace, req.Name)
	}
	if err := a.place.admits(); err != nil {
		return cloud.Resource{}, err
	}
	if err := a.creates.enter(); err != nil {
		return cloud.Resource{}, err
	}
	defer a.creates.leave()
	if len(domains) == 0 {
		domains = []string{req.FailureDomain}
	}
	if a.cloud.Traits.ZonalIdempotency { // what others were told there says nothing of this machine, which may have been made
		req.FailureDomain = domains[0]
	} else if req.FailureDomain, err = a.capacity.choose(shape, domains); err != nil {
		a.limiter.Load().create.drop(req.Token)
		return cloud.Resource{}, err
	}
	after, waited := a.limiter.Load().create.turn(req.Token)
	if after > 0 {
		return cloud.Resource{}, &cloud.Queued{After: after}
	}
	a.meter.waited(cloud.ClassCreate, waited)
	return a.create(ctx, req, shape, domains)
}

// Domain returns the first of the failure domains, in the order of preference, that is not known to
// lack capacity for this kind of machine; else NoCapacity with RetryAfter. It makes no call.
func (a *Account) Domain(spec *infrav1.CloudMachineFields, domains []string) (string, error) {
	shape, err := shapeOf(spec)
	if err != nil {
		return "", err
	}
	return a.capacity.choose(shape, domains)
}

// create asks the driver, once the turn has come.
func (a *Account) create(ctx context.Context, req cloud.Request, shape [sha256.Size]byte, domains []string) (cloud.Resource, error) {
	var made cloud.Resource
	s := &step{prepaid: true}
	asked := time.Now()
	err := a.step(ctx, "Ensure", a.times.Call, s, func(ctx context.Context) (err error) {
		made, err = a.driver.Ensure(ctx, req)
		return err
	})
	a.creates.answered(err == nil || time.Since(asked) < a.times.Call)
	if s.unused() {
		a.limiter.Load().create.giveBack()
	}
	if err != nil {
		if cloud.CodeOf(err) == cloud.NoCapacity {
			return cloud.Resource{}, a.capacity.remember(shape, req.FailureDomain, domains, err)
		}
		return cloud.Resource{}, err
	}
	if made.OwnershipID != req.OwnershipID {
		return cloud.Resource{}, foreign(req.Token, []cloud.Resource{made})
	}
	if made = tame(made); !fits(made.ProviderID, maxProviderID) {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "create machine %s/%s: the cloud answers with a provider ID of %d bytes, which can't be recorded: is it a cloud?",
			req.Namespace, req.Name, len(made.ProviderID))
	}
	a.inventory.made(req, made)
	return made, nil
}

// Observe returns what is known of the machine, and registers interest in it until Forget:
// OnMachines tells of changes. seen says that the machine's object records that its instance was
// seen before. It never calls the cloud.
func (a *Account) Observe(ref cloud.Reference, seen bool) Observation {
	o := a.inventory.observe(ref, seen)
	a.news.wake()
	a.changes.wake()
	return o
}

// Joined says that the machine is at work, as a Node of its cluster, while Observe still shows it
// Pending. When that is so of all machines that start, the account is listed at once instead of a
// little later. It never calls the cloud.
func (a *Account) Joined(token string) { a.inventory.joins(token) }

// Recorded says that the Notice and the Ending of the machine's instance, as Observe has returned
// it, are on record, so that the cloud need not tell them again. It never calls the cloud.
func (a *Account) Recorded(token string, seen *cloud.Resource) { a.inventory.record(token, seen) }

// Delete asks for the deletion of the machine and all that belongs to it, and returns how far it
// is. It never calls the cloud and never blocks: the deletion goes on by itself, together with
// those of other machines, until Forget, and OnMachines tells when it is done.
//
// asked is when the deletion was asked for, as the machine's object records. What was asked for
// before this process began is not collected any longer.
func (a *Account) Delete(ref cloud.Reference, asked time.Time) Deletion {
	a.limiter.Load().create.drop(ref.Token)
	defer a.changes.wake() // this may have been the last that is followed
	return a.inventory.delete(ref, asked)
}

// Forget ends the interest in a machine, and its deletion if one is under way.
func (a *Account) Forget(token string) {
	a.limiter.Load().create.drop(token)
	a.inventory.forget(token)
	a.changes.wake()
}

// Confirm believes that the machines are gone whose absence is in doubt, if they are still those of
// the digest. It is a person's word, see Doubt.
func (a *Account) Confirm(digest string) bool { return a.inventory.confirm(digest) }

// createHorizon is how long a create of which no answer came may still take effect.
func (a *Account) createHorizon() time.Duration {
	return cmp.Or(a.cloud.Traits.CreateHorizon, a.times.Settle)
}

// Settled tells whether live reads have proved that a create which an earlier process may have sent
// has made nothing, and will not. It has the account look, and OnMachines tells when it is so. It
// never calls the cloud itself.
func (a *Account) Settled(ref cloud.Reference) bool { return a.inventory.settle(ref) }

// Listing returns everything in the account that carries Drover's tags, of any cluster, as the last
// complete listing had it, and when that began; zero before the first. It never calls the cloud,
// but has it listed at least so often from then on, also while no machine is observed.
func (a *Account) Listing(atLeast time.Duration) (began time.Time, all []cloud.Resource) {
	defer a.changes.wake()
	return a.inventory.listing(atLeast)
}

// Living counts the machine's instances that live, as far as they are known. It never calls the
// cloud.
func (a *Account) Living(token string) int { return len(living(a.inventory.known(token))) }

// Inventory says how much the inventory is worth.
func (a *Account) Inventory() InventoryState {
	s := a.inventory.state()
	if s.Deaf = a.news.failure(); s.Deaf == nil {
		s.Deaf = a.changes.failure()
	}
	return s
}

// list is a complete listing within a time limit.
func (a *Account) list(ctx context.Context, limit time.Duration) ([]cloud.Resource, error) {
	var all []cloud.Resource
	err := a.step(ctx, "List", limit, &step{}, func(ctx context.Context) (err error) {
		all, err = a.driver.List(ctx)
		return err
	})
	return tameAll(all), err
}

// Read is a live read of everything that carries the tokens of any number of references. It returns
// what was found by token, and for each token that could not be read, why. Where the cloud refuses
// a batch because of something in it, the batch is halved until the culprit is alone, so that it
// does not hold up the others.
func (a *Account) Read(ctx context.Context, refs []cloud.Reference) (found map[string][]cloud.Resource, failed map[string]error) {
	found, failed = map[string][]cloud.Resource{}, map[string]error{}
	// A machine whose creation was never recorded may not be readable yet, and must not hold up the
	// others.
	var recorded, unrecorded []cloud.Reference
	for _, ref := range refs {
		if ref.ProviderID != "" {
			recorded = append(recorded, ref)
		} else {
			unrecorded = append(unrecorded, ref)
		}
	}
	var batches [][]cloud.Reference
	for _, kind := range [][]cloud.Reference{recorded, unrecorded} {
		for batch := range slices.Chunk(kind, max(a.cloud.Batch.Read, 1)) {
			batches = append(batches, batch)
		}
	}
	for len(batches) > 0 {
		batch := batches[0]
		batches = batches[1:]
		var read []cloud.Resource
		err := a.step(ctx, "Describe", a.times.Call, &step{}, func(ctx context.Context) (err error) {
			read, err = a.driver.Describe(ctx, batch)
			return err
		})
		code := cloud.CodeOf(err)
		answered := code == cloud.Unavailable && retryAfter(err) > 0 // the cloud says when it can answer
		if len(batch) > 1 && (code == cloud.InvalidSpec || code == cloud.NotFound || answered && batch[0].ProviderID == "") {
			batches = append(batches, batch[:len(batch)/2], batch[len(batch)/2:])
			continue
		}
		for _, ref := range batch {
			if err != nil {
				failed[ref.Token] = err
			}
		}
		for _, r := range tameAll(read) {
			found[r.Token] = append(found[r.Token], r)
		}
		if code == cloud.Unavailable && !answered { // nor would it answer the others
			for _, ref := range slices.Concat(batches...) {
				failed[ref.Token] = err
			}
			break
		}
	}
	return found, failed
}

// Remove moves the deletion of any number of resources one step on, whatever they belong to, and
// returns an error or nil for each.
func (a *Account) Remove(ctx context.Context, resources []cloud.Resource) []error {
	var all []error
	for batch := range slices.Chunk(resources, max(a.cloud.Batch.Delete, 1)) {
		var errs []error
		err := a.step(ctx, "Delete", a.times.Call, &step{}, func(ctx context.Context) error {
			errs = a.driver.Delete(ctx, batch)
			return worst(errs)
		})
		for i := range batch {
			switch {
			case len(errs) == len(batch):
				all = append(all, typed("Delete", errs[i]))
			case err != nil:
				all = append(all, err)
			default:
				all = append(all, cloud.Errorf(cloud.Unknown, "Delete: the driver answered for %d of %d resources", len(errs), len(batch)))
			}
		}
		if cloud.CodeOf(err) == cloud.Unavailable && len(all) < len(resources) { // nor would it answer the others
			for range len(resources) - len(all) {
				all = append(all, err)
			}
			break
		}
	}
	return all
}

// worst is the error that stands for a batch in the rate limit and the metrics: a Throttled one if
// there is any.
func worst(errs []error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return cloud.CodeOf(err) == cloud.Throttled }); i >= 0 {
		return errs[i]
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}

// step is do, provided that the credentials lead to the account's place.
func (a *Account) step(ctx context.Context, method string, limit time.Duration, s *step, call func(context.Context) error) error {
	if err := a.place.admits(); err != nil {
		return err
	}
	return a.do(ctx, method, limit, s, call)
}

// maxRetryAfter bounds how long a cloud's wish to be left alone is respected: a maintenance page
// that asks for a day may be gone in a minute, and need not be the cloud's own.
const maxRetryAfter = 5 * time.Minute

// do is one call of a driver's method: bounded in time, its error typed and counted, and respected
// by the rate limit.
func (a *Account) do(ctx context.Context, method string, limit time.Duration, s *step, call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return typed(method, err)
	}
	ctx, cancel := context.WithTimeout(withStep(ctx, s), limit)
	defer cancel()
	err := typed(method, call(ctx))
	var e *cloud.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.RetryAfter > maxRetryAfter {
		capped := *e
		capped.RetryAfter = maxRetryAfter
		e, err = &capped, &capped
	}
	a.meter.failed(method, e.Code)
	if e.Code == cloud.Throttled {
		a.limiter.Load().of(s.lastClass()).throttled(e.RetryAfter)
	}
	return err
}

// typed makes every error one of this package. A foreign one's text is not shown: it may hold
// anything.
func typed(method string, err error) error {
	var queued *cloud.Queued
	var e *cloud.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &queued):
		return queued
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return &cloud.Error{Code: cloud.Unavailable, Message: method + ": no answer in time", Err: err}
	case errors.Is(err, context.Canceled):
		return &cloud.Error{Code: cloud.Unavailable, Message: method + ": cut off before its answer", Err: err}
	default:
		return &cloud.Error{Code: cloud.Unknown, Message: method + ": failed in a way that its driver does not know", Err: err}
	}
}

// retryAfter is how long the cloud, or the rate limit, asked to wait.
func retryAfter(err error) time.Duration {
	var queued *cloud.Queued
	var e *cloud.Error
	switch {
	case errors.As(err, &queued):
		return queued.After
	case errors.As(err, &e):
		return e.RetryAfter
	default:
		return 0
	}
}

// foreign is the error for resources that have a machine's token and another cluster's ownership.
func foreign(token string, resources []cloud.Resource) error {
	ids := make([]string, 0, len(resources))
	for _, r := range resources {
		ids = append(ids, string(r.Kind)+" "+r.ID)
	}
	slices.Sort(ids)
	return cloud.Errorf(cloud.Conflict, "token %s: %v carries it and belongs to another cluster; it is left alone", token, ids)
}

// shapeOf tells kinds of machines apart: by what the cloud is asked for, whichever account's name
// was used.
func shapeOf(spec *infrav1.CloudMachineFields) ([sha256.Size]byte, error) {
	fields := *spec
	fields.AccountRef = infrav1.LocalReference{}
	text, err := json.Marshal(fields)
	if err != nil {
		return [sha256.Size]byte{}, &cloud.Error{Code: cloud.InvalidSpec, Message: "the machine's fields can't be read", Err: err}
	}
	return sha256.Sum256(text), nil
}

// capacity remembers which failure domains had no capacity for which kind of machine.
type capacity struct {
	memory time.Duration
	mu     sync.Mutex
	until  map[shortage]time.Time
}

type shortage struct {
	domain string
	shape  [sha256.Size]byte
}

// choose returns the first domain that is not known to lack capacity.
func (c *capacity) choose(shape [sha256.Size]byte, domains []string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, d := range domains {
		if !now.Before(c.until[shortage{d, shape}]) {
			return d, nil
		}
	}
	return "", c.none(shape, domains, now, nil)
}

// remember notes that a domain had none, and returns the error for its caller.
func (c *capacity) remember(shape [sha256.Size]byte, domain string, domains []string, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for s, until := range c.until {
		if !now.Before(until) {
			delete(c.until, s)
		}
	}
	c.until[shortage{domain, shape}] = now.Add(c.memory)
	return c.none(shape, domains, now, cause)
}

func (c *capacity) none(shape [sha256.Size]byte, domains []string, now time.Time, cause error) error {
	wait := c.memory
	for _, d := range domains {
		wait = min(wait, max(c.until[shortage{d, shape}].Sub(now), nextDomainDelay))
	}
	var e *cloud.Error
	if errors.As(cause, &e) {
		return &cloud.Error{Code: cloud.NoCapacity, Message: e.Message, RetryAfter: wait, Err: cause}
	}
	if len(domains) == 1 && domains[0] == "" {
		return &cloud.Error{Code: cloud.NoCapacity, Message: "the cloud had no capacity for this kind of machine a short while ago", RetryAfter: wait}
	}
	e = cloud.Errorf(cloud.NoCapacity, "none of the failure domains %v had capacity for this kind of machine a short while ago", domains)
	e.RetryAfter = wait
	return e
}

// FailureDomains returns the failure domains that a machine's own fields allow; none: all of the
// account's. It asks the driver each time, which remembers what it has looked up.
func (a *Account) FailureDomains(ctx context.Context, spec *infrav1.CloudMachineFields) ([]string, error) {
	driver, able := a.driver.(cloud.Placer)
	if !able {
		return nil, nil
	}
	var allowed []string
	err := a.step(ctx, "FailureDomains", a.times.Call, &step{}, func(ctx context.Context) (err error) {
		allowed, err = driver.FailureDomains(ctx, spec)
		return err
	})
	return allowed, err
}
