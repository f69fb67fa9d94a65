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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// AccountConfig is what an Account is made from.
type AccountConfig struct {
	Spec infrav1.DroverAccountSpec
	// Credentials is the Secret's data; nil: ambient credentials, which the caller has permitted.
	Credentials map[string][]byte
	// Place is the account's recorded place; empty if none is recorded yet. See cloud.Info.
	Place string
}

// Account is one place where machines are made: a driver, and what its machines share. Its methods
// may be called concurrently. Errors are *Error, or *Queued.
type Account struct {
	key     types.NamespacedName
	cloud   cloud.Cloud
	config  AccountConfig // what the driver was made from
	driver  cloud.Driver
	limiter atomic.Pointer[limiter]
	times   Times
	meter   *meter
	*accountState
	place place
	// onPlaceProved is called when the credentials are proved to lead to the account's place.
	onPlaceProved func(*Account)
	console       sync.Mutex               // held while a console is read
	settings      atomic.Pointer[settings] // they may change while the driver stays
}

// accountState is what is known of an account's machines. It outlives the credentials: an Account
// that replaces another one takes it over. None of its methods calls the cloud.
type accountState struct {
	current   atomic.Pointer[Account] // the loops use its driver
	inventory *inventory
	turns     wakeup // of runTurns
	events    *source
	watch     *source
	capacity  *capacity
	stop      context.CancelFunc // ends the loops; nil while they do not run
	hangs     atomic.Bool        // the last call was not answered in time
}

// InventoryState says how current an account's inventory is.
type InventoryState struct {
	// LastComplete is when the last complete listing began; zero before the first.
	LastComplete time.Time
	// Err is why the latest listing failed; nil if it did not fail.
	Err error
	// Fresh is false if a complete listing is overdue. Then no machine's absence or state can be
	// trusted. An account without observed machines is not listed, and is fresh.
	Fresh bool
	// Instances counts the instances with Drover's tags, of any cluster, without terminated ones.
	Instances int
	// HasSource is true if the driver is an EventSource or Watcher, Received once it has reported.
	HasSource, Received bool
	ReceiveErr          error // why nothing is received; nil if the cloud reports or need not
	// MassAbsence is set while more machines are missing than the engine accepts as gone; else nil.
	MassAbsence *MassAbsence
}

// Observation is what is known of one machine without a call to the cloud.
type Observation struct {
	// Instance is the machine's instance as last seen; nil if none was seen yet. That it is
	// Terminated does not alone mean Gone.
	Instance *cloud.Resource
	// Gone is true if live reads confirmed that the recorded instance no longer exists. It becomes
	// false again if the instance is seen again.
	Gone bool
	// NeverSeen is true if live reads found nothing, and nothing of the machine was ever seen.
	// Perhaps its instance lacks the tags.
	NeverSeen bool
	// Duplicates are the IDs of the machine's living instances if there are several, or if the only
	// one is not the recorded one.
	Duplicates []string
	// Balancer is the load balancer that has the token; nil if none has.
	Balancer *cloud.Resource
	// Err is set while the recorded instance exists without the machine's tags: Conflict. Drover
	// then neither deletes it nor takes it for gone.
	Err error

	nothingCreated bool // what ConfirmNothingCreated returns, so that OnMachines reports it
}

// Deletion is the progress of a deletion.
type Deletion struct {
	// Gone is true if a live read found nothing left: no living instance and no dependant. It stays
	// true until Forget.
	Gone bool
	// Remaining is what the last live read found that must still be deleted; nil before the first.
	Remaining []cloud.Resource
	// Instance is the machine's instance as last seen; nil if none was seen. If the creation was
	// not recorded, this is the only way to learn the provider ID. Nothing is deleted then until
	// the Reference carries it.
	Instance *cloud.Resource
	// Err is why the latest attempt failed; nil if it did not fail. The engine retries by itself.
	Err error
}

// Cloud returns the account's row of the registry.
func (a *Account) Cloud() cloud.Cloud { return a.cloud }

// Probed reports whether a Probe of this process has proved the account's place.
func (a *Account) Probed() bool { return a.place.check() == nil }

// Probe proves the credentials, and that they lead to the account's place. Until it has succeeded,
// the account makes no other call. If they lead elsewhere, the error is Conflict. The failure
// domains that it returns are sorted and unique. It is not admitted: the controller of accounts has
// workers of its own, of which its queue lets an account that hangs hold one. Behind a bound for
// all of an account's calls, nothing would find out that its cloud answers again.
func (a *Account) Probe(ctx context.Context) (cloud.Info, error) {
	var info cloud.Info
	err := a.callAnywhere(ctx, "Probe", a.times.Call, &driverCall{}, func(ctx context.Context) (err error) {
		info, err = a.driver.Probe(ctx)
		return err
	})
	if err != nil {
		return cloud.Info{}, err
	}
	if !fits(info.Place, maxPlace) {
		return cloud.Info{}, cloud.Errorf(cloud.Unknown,
			"the response does not identify where the credentials lead: check the account's endpoint")
	}
	if info.FailureDomains, err = zones(info.FailureDomains); err != nil {
		return cloud.Info{}, err
	}
	return info, a.recordPlace(info.Place)
}

// recordPlace records where a Probe has led, and continues the account if that is its place.
func (a *Account) recordPlace(to string) error {
	proved, err := a.place.prove(to)
	if proved {
		a.onPlaceProved(a)
	}
	return err
}

// Offering returns what a machine of this kind will be as a Node. It calls the driver each time;
// the driver caches its lookups.
func (a *Account) Offering(ctx context.Context, spec *infrav1.DroverMachineFields) (cloud.Offering, error) {
	return ask(ctx, a, "Offering", a.driver.Offering, spec)
}

// Ensure creates the machine, takes the next step of its creation, or returns it if it exists. It
// never makes a second one for the same token. It never waits for a turn or for a machine. domains
// are the allowed failure domains in order of preference; if empty, the cloud chooses (within
// req.FailureDomain, if that is set). On a cloud with ZonalIdempotency there is one: the machine's
// recorded one. It wraps the errors of Driver.Ensure in *Unfinished if something may exist. Apart
// from those, it returns
//   - *Queued if its turn has not come, see Admit; its place is kept for the token,
//   - NoCapacity with RetryAfter: very short while another allowed failure domain is left to try,
//     otherwise until the first of them is tried again,
//   - Unavailable, without a call, until the credentials have proved the account's place, and while
//     another create is under way after the cloud has left one without an answer,
//   - Conflict if several instances have the token, if an instance of another cluster has it, or if
//     the machine is already gone or being deleted.
func (a *Account) Ensure(ctx context.Context, req cloud.Request, domains []string) (cloud.Resource, error) {
	if req.Token == "" || req.OwnershipID == "" {
		return cloud.Resource{}, cloud.Invalid("create machine %s/%s: spec.creation.token or its DroverCluster's spec.creation.ownershipID is empty", req.Namespace, req.Name)
	}
	if found, err := a.inventory.findExisting(req); found != nil || err != nil {
		a.countCreate(req.Token, found)
		a.dropTurn(req.Token)
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
		return cloud.Resource{}, cloud.Invalid("create machine %s/%s: spec.creation.failureDomain is empty", req.Namespace, req.Name)
	}
	if err := a.place.check(); err != nil {
		return cloud.Resource{}, err
	}
	if len(domains) == 0 {
		domains = []string{req.FailureDomain}
	}
	if a.cloud.Traits.ZonalIdempotency { // a lack of capacity for others says nothing of this machine, which may exist
		req.FailureDomain = domains[0]
	} else if req.FailureDomain, err = a.capacity.choose(shape, domains); err != nil {
		a.dropTurn(req.Token)
		return cloud.Resource{}, err
	}
	t, err := a.takeTurn(req.Token)
	if err != nil {
		return cloud.Resource{}, err
	}
	return a.create(ctx, t, req, shape, domains)
}

// Domain returns the first of the failure domains, in order of preference, that is not known to
// lack capacity for this kind of machine; otherwise NoCapacity with RetryAfter.
func (s *accountState) Domain(spec *infrav1.DroverMachineFields, domains []string) (string, error) {
	shape, err := shapeOf(spec)
	if err != nil {
		return "", err
	}
	return s.capacity.choose(shape, domains)
}

// create calls the driver, after the turn has come.
func (a *Account) create(ctx context.Context, t *turn, req cloud.Request, shape [sha256.Size]byte,
	domains []string) (cloud.Resource, error) {
	var created cloud.Resource
	asked := time.Now()
	err := a.call(ctx, "Ensure", a.times.Call, &driverCall{turn: t}, func(ctx context.Context) (err error) {
		created, err = a.driver.Ensure(ctx, req)
		return err
	})
	end := result{asked: asked, answered: a.times.answered(asked, err), err: err, running: err == nil && a.settings.Load().runs(created)}
	defer func() { t.end(end) }() // with the machine's record, which shows whether the create runs
	shortOf := shortage{req.FailureDomain, shape}
	if e, none := errors.AsType[*cloud.Error](err); none && e.Code == cloud.NoCapacity {
		err = a.capacity.refused(shortOf, domains, e)
	}
	if err != nil && t.mayHaveMade() {
		return cloud.Resource{}, &Unfinished{err}
	}
	if err != nil {
		return cloud.Resource{}, err
	}
	if created.OwnershipID != req.OwnershipID {
		return cloud.Resource{}, otherOwnerError(req.Token, []cloud.Resource{created})
	}
	if created = sanitize(created); !fits(created.ProviderID, maxProviderID) {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown,
			"create machine %s/%s: the response holds a provider ID of %d bytes, which is too long: check the account's endpoint",
			req.Namespace, req.Name, len(created.ProviderID))
	}
	a.inventory.locked(func(now time.Time) { a.inventory.records.recordCreate(req, created, shortOf, now) })
	a.watch.wake()
	return created, nil
}

// Observe returns what is known of the machine, and tracks it until Forget: OnMachines reports
// changes. seen means that the machine's object records that its instance was seen before.
func (s *accountState) Observe(ref cloud.Reference, seen bool) Observation {
	if checkToken(ref.Token) != nil {
		return Observation{}
	}
	o := under(s.inventory, func(now time.Time) Observation { return s.inventory.records.observe(ref, seen, now) })
	s.countCreate(ref.Token, o.Instance)
	s.events.wake()
	s.watch.wake()
	return o
}

// NodeJoined records that the machine works as a Node of its cluster while Observe still shows it
// Pending. When all starting machines have joined, the account is listed at once instead of a
// little later.
func (s *accountState) NodeJoined(token string) {
	s.inventory.locked(func(time.Time) { s.inventory.records.nodeJoined(token) })
}

// AckEvent records that the controller has stored the instance's Notice and Reclaim, as
// Observe returned them, so the cloud need not report them again.
func (s *accountState) AckEvent(token string, seen *cloud.Resource) {
	s.inventory.locked(func(time.Time) { s.inventory.records.ackEvent(token, seen) })
}

// Delete starts the deletion of the machine and all that belongs to it, and returns its progress.
// It never blocks. The deletion continues in the background, batched with those of other machines,
// until Forget. OnMachines reports when it is done.
//
// asked is when the deletion was requested, as the machine's object records it. A deletion
// requested before this process began does not wait again to be collected into a batch.
func (s *accountState) Delete(ref cloud.Reference, asked time.Time) Deletion {
	if err := checkToken(ref.Token); err != nil {
		return Deletion{Err: err}
	}
	s.dropTurn(ref.Token)
	d := under(s.inventory, func(now time.Time) Deletion { return s.inventory.deletions.delete(ref, asked, now) })
	s.watch.wake() // it may have been the last machine that needed the Watcher
	return d
}

// CreateRefused states, before Delete, that the cloud has refused each create of the machine: none
// can still take effect, so the deletion need not wait for that.
func (s *accountState) CreateRefused(token string) {
	s.inventory.locked(func(time.Time) {
		m := s.inventory.records.machine(token)
		m.creation = max(m.creation, refused)
	})
}

// Forget stops tracking a machine, and stops its deletion if one is under way.
func (s *accountState) Forget(token string) {
	s.dropTurn(token)
	s.inventory.locked(func(time.Time) { s.inventory.records.forget(token) })
	s.turns.wake()
	s.watch.wake()
}

// Confirm accepts that the missing machines are gone, and reports whether their set still has
// this digest; if not, it does nothing. Only a person may decide this, see MassAbsence.
func (s *accountState) Confirm(digest string) bool { return s.inventory.confirm(digest) }

// facts returns what the account determines for its records.
func (a *Account) facts() facts {
	_, findsByID := a.driver.(cloud.Finder)
	_, watches := a.driver.(cloud.Watcher)
	spec := a.settings.Load().inventory
	return facts{
		traits: a.cloud.Traits, batch: a.cloud.Batch, times: a.times, findsByID: findsByID, watches: watches, probed: a.Probed(),
		createHorizon: cmp.Or(a.cloud.Traits.CreateHorizon, a.times.CreateHorizon),
		idle:          time.Duration(cmp.Or(max(spec.IdleSeconds, 0), 60)) * time.Second,
		active:        time.Duration(cmp.Or(max(spec.ActiveSeconds, 0), 5)) * time.Second,
	}
}

// ConfirmNothingCreated reports whether live reads have confirmed that a create, which an earlier
// process may have sent, made nothing and never will. It starts those reads, and OnMachines reports
// when they have confirmed it.
func (s *accountState) ConfirmNothingCreated(ref cloud.Reference) bool {
	return checkToken(ref.Token) == nil &&
		under(s.inventory, func(now time.Time) bool { return s.inventory.presence.confirmNothingCreated(ref, now) })
}

// Listing returns everything in the account that carries Drover's tags, of any cluster, as of the
// last complete listing, and when that began; zero before the first. From then on, the account is
// listed at least this often, even while no machine is observed.
func (s *accountState) Listing(maxInterval time.Duration) (began time.Time, all []cloud.Resource) {
	defer s.watch.wake()
	return s.inventory.listing(maxInterval)
}

// Living counts the machine's known instances that are not terminated.
func (s *accountState) Living(token string) int {
	return len(liveInstances(s.inventory.resources(token)))
}

// CreatedAt returns when the cloud created the machine's VM, by the cloud's clock; zero if the cloud
// does not say, or the VM was not seen yet. It never calls the cloud.
func (s *accountState) CreatedAt(token string) time.Time {
	if instances := liveInstances(s.inventory.resources(token)); len(instances) == 1 {
		return instances[0].CreatedAt
	}
	return time.Time{}
}

// Inventory returns how current the inventory is.
func (s *accountState) Inventory() InventoryState {
	state := under(s.inventory, s.inventory.schedule.inventoryState)
	a := s.current.Load()
	events, eventsErr := s.events.state(a)
	watched, watchErr := s.watch.state(a)
	state.HasSource = s.events.isSupported(a.driver) || s.watch.isSupported(a.driver)
	state.Received, state.ReceiveErr = events || watched, cmp.Or(eventsErr, watchErr)
	return state
}

// List makes a complete listing within a time limit.
func (a *Account) List(ctx context.Context, timeout time.Duration) ([]cloud.Resource, error) {
	var all []cloud.Resource
	err := a.call(ctx, "List", timeout, &driverCall{}, func(ctx context.Context) (err error) {
		all, err = a.driver.List(ctx)
		return err
	})
	return sanitizeAll(all), err
}

// Read is a live read of everything that carries the tokens of any number of references. It returns
// the resources by token, and an error for each token that could not be read. If the cloud refuses
// a batch because of something in it, the batch is halved until the culprit is alone, so that it
// does not hold up the others.
func (a *Account) Read(ctx context.Context, refs []cloud.Reference) (found map[string][]cloud.Resource, failed map[string]error) {
	found, failed = map[string][]cloud.Resource{}, map[string]error{}
	// A machine whose creation was never recorded may not be readable yet, and a load balancer not
	// any more. Neither must hold up the others.
	var recorded, unrecorded, balancers []cloud.Reference
	for _, ref := range refs {
		err := checkToken(ref.Token)
		switch {
		case err != nil:
			failed[ref.Token] = err
		case ref.ProviderID != "":
			recorded = append(recorded, ref)
		case ref.Balancer:
			balancers = append(balancers, ref)
		default:
			unrecorded = append(unrecorded, ref)
		}
	}
	var batches [][]cloud.Reference
	for _, kind := range [][]cloud.Reference{recorded, unrecorded, balancers} {
		for batch := range slices.Chunk(kind, max(a.cloud.Batch.Read, 1)) {
			batches = append(batches, batch)
		}
	}
	for len(batches) > 0 {
		batch := batches[0]
		batches = batches[1:]
		read, err := ask(ctx, a, "Describe", a.driver.Describe, batch)
		code := cloud.CodeOf(err)
		answered := code == cloud.Unavailable && retryAfter(err) > 0 // the cloud says when it can answer
		ofOne := code == cloud.InvalidSpec || code == cloud.NotFound || code == cloud.Conflict
		if len(batch) > 1 && (ofOne || answered && batch[0].ProviderID == "") {
			batches = append(batches, batch[:len(batch)/2], batch[len(batch)/2:])
			continue
		}
		for _, ref := range batch {
			if err != nil {
				failed[ref.Token] = err
			}
		}
		for _, r := range sanitizeAll(read) {
			if checkToken(r.Token) != nil {
				continue
			}
			found[r.Token] = append(found[r.Token], r)
		}
		if code == cloud.Unavailable && !answered { // it would not answer the others either
			for _, ref := range slices.Concat(batches...) {
				failed[ref.Token] = err
			}
			break
		}
	}
	return found, failed
}

// Remove takes the next step in the deletion of any number of resources of any machines. It returns
// an error or nil for each. What has no token belongs to no machine, and is an error.
func (a *Account) Remove(ctx context.Context, resources []cloud.Resource) []error {
	all := make([]error, len(resources))
	var left []int // the resources that were not sent yet
	for i, r := range resources {
		if all[i] = checkToken(r.Token); all[i] == nil {
			left = append(left, i)
		}
	}
	for len(left) > 0 {
		batch := left[:min(max(a.cloud.Batch.Delete, 1), len(left))]
		left = left[len(batch):]
		targets := make([]cloud.Resource, len(batch))
		for n, i := range batch {
			targets[n] = resources[i]
		}
		var errs []error
		err := a.call(ctx, "Delete", a.times.Call, &driverCall{}, func(ctx context.Context) error {
			errs = a.driver.Delete(ctx, targets)
			return worst(errs)
		})
		if err == nil && len(errs) != len(batch) {
			err = cloud.Errorf(cloud.Unknown, "Delete: the driver returned %d results for %d resources", len(errs), len(batch))
		}
		for n, i := range batch {
			if all[i] = err; len(errs) == len(batch) {
				all[i] = typed("Delete", errs[n])
			}
		}
		if cloud.CodeOf(err) == cloud.Unavailable { // it would not answer the others either
			for _, i := range left {
				all[i] = err
			}
			break
		}
	}
	return all
}

// worst returns the error that represents a batch in the rate limit and the metrics: a Throttled
// one if there is any, else a panic.
func worst(errs []error) error {
	var first error
	for _, err := range errs {
		if cloud.CodeOf(err) == cloud.Throttled {
			return err
		}
		if _, panicked := errors.AsType[*cloud.PanicError](err); panicked || first == nil {
			first = err
		}
	}
	return first
}

// call calls do if the credentials are proved to lead to the account's place.
func (a *Account) call(ctx context.Context, method string, limit time.Duration, s *driverCall, call func(context.Context) error) error {
	if err := a.place.check(); err != nil {
		return err
	}
	return a.callAnywhere(ctx, method, limit, s, call)
}

// ask calls a method of the driver that returns an answer.
func ask[In, Out any](ctx context.Context, a *Account, method string, do func(context.Context, In) (Out, error),
	in In) (out Out, err error) {
	err = a.call(ctx, method, a.times.Call, &driverCall{}, func(ctx context.Context) (err error) {
		out, err = do(ctx, in)
		return err
	})
	return out, err
}

// maxRetryAfter is the longest RetryAfter that is respected. A maintenance page that asks for a day
// may be gone in a minute, and may not be the cloud's own.
const maxRetryAfter = 5 * time.Minute

// callAnywhere makes one call of a driver's method. It sets a deadline, recovers a panic, types and
// counts the error, and reports throttling to the rate limit.
func (a *Account) callAnywhere(ctx context.Context, method string, limit time.Duration, s *driverCall,
	call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return typed(method, err)
	}
	ctx, cancel := context.WithTimeout(withDriverCall(ctx, s), limit)
	defer cancel()
	defer s.release()
	err := typed(method, a.meter.recovered(method, func() error { return call(ctx) }))
	class, late := s.latest()
	a.recordAnswer(err, late || errors.Is(ctx.Err(), context.DeadlineExceeded))
	var e *cloud.Error
	if !errors.As(err, &e) {
		return err
	}
	a.meter.failed(method, e.Code)
	if e.Code == cloud.Throttled {
		a.limiter.Load().of(class).throttled(e.RetryAfter)
	}
	return err
}

// typed turns every error into a *cloud.Error, which it bounds, or a *cloud.Queued. It does not
// show the text of any other error, which may hold anything.
func typed(method string, err error) error {
	var queued *cloud.Queued
	var e *cloud.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &queued):
		return queued
	case errors.As(err, &e):
		return bounded(e)
	case errors.Is(err, context.DeadlineExceeded):
		return &cloud.Error{Code: cloud.Unavailable, Message: method + ": no response in time", Err: err}
	case errors.Is(err, context.Canceled):
		return &cloud.Error{Code: cloud.Unavailable, Message: method + ": canceled before a response", Err: err}
	default:
		return &cloud.Error{Code: cloud.Unknown, Message: method + ": the driver returned an unexpected error", Err: err}
	}
}

// bounded returns an error whose message and RetryAfter are in bounds. The cloud decides both.
func bounded(e *cloud.Error) *cloud.Error {
	message, wait := cloud.Clip(e.Message, cloud.MaxMessage), min(e.RetryAfter, maxRetryAfter)
	if message == e.Message && wait == e.RetryAfter {
		return e
	}
	b := *e
	b.Message, b.RetryAfter = message, wait
	return &b
}

// retryAfter returns how long the cloud, or the rate limit, asked to wait.
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

// otherOwnerError returns the error for resources with the token and another cluster's ownership.
func otherOwnerError(token string, resources []cloud.Resource) error {
	ids := make([]string, 0, len(resources))
	for _, r := range resources {
		ids = append(ids, string(r.Kind)+" "+r.ID)
	}
	slices.Sort(ids)
	return cloud.Errorf(cloud.Conflict, "token %s: %v have this token and another cluster's ownership ID; Drover does not change them",
		token, ids)
}

// shapeOf returns a digest of the kind of a machine: of what the cloud is asked for, without the
// account's name.
func shapeOf(spec *infrav1.DroverMachineFields) ([sha256.Size]byte, error) {
	fields := *spec
	fields.AccountRef = infrav1.LocalReference{}
	text, err := json.Marshal(fields)
	if err != nil {
		return [sha256.Size]byte{}, &cloud.Error{Code: cloud.InvalidSpec, Final: true, Message: "the machine's fields can't be encoded", Err: err}
	}
	return sha256.Sum256(text), nil
}

// FailureDomains returns the failure domains that a machine's fields allow; none: all of the
// account's. It calls the driver each time; the driver caches its lookups. It returns *Queued,
// without a call, while lookups of the account hold as many workers as they may.
func (a *Account) FailureDomains(ctx context.Context, spec *infrav1.DroverMachineFields) (domains []string, err error) {
	driver, able := a.driver.(cloud.Placer)
	if !able {
		return nil, nil
	}
	err = a.admitted("", func() (err error) {
		domains, err = ask(ctx, a, "FailureDomains", driver.FailureDomains, spec)
		return err
	})
	return domains, err
}
