// SPDX-License-Identifier: Apache-2.0

// Package fleet runs the drivers. It gives every account one client, one rate limit, one inventory,
// and batched reads and deletes. It knows no cloud by name, and no Kubernetes client. It must not
// import controllers, bootstrap or a driver.
package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/budget"
)

// Options are what all accounts share.
type Options struct {
	// Clouds are the registry's rows.
	Clouds []cloud.Cloud
	// Times are the result of TimesFor with the operator's bound of one call.
	Times Times
	// Metrics is where the accounts' metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	// Transport carries all calls; nil: a new one, which uses the proxy from the environment.
	Transport http.RoundTripper
	// Ambient carries the calls of accounts with ambient credentials; nil: Transport. Such accounts
	// name no endpoint, and may need the metadata services that Transport denies.
	Ambient http.RoundTripper
	// Workers is how many workers the controller of machines has. Calls that wait for a cloud hold
	// at most half of them, and one more for each account that holds none; 0: as many as there are.
	Workers int
	// OnMachines is called when these machines have changed, or when a turn has come, see
	// Account.Admit. It must not block.
	OnMachines func(account types.NamespacedName, tokens []string)
	// OnAccount is called when a state of the account begins or ends: a stale inventory, refused
	// credentials, a mass absence, or events that can't be received. It must not block.
	OnAccount func(account types.NamespacedName)

	// random returns a number from 0 to 1, for jitter. Tests fix it.
	random func() float64
}

// Accounts holds the Account of each DroverAccount.
type Accounts struct {
	options Options
	metrics *metrics

	mu       sync.Mutex
	accounts map[types.NamespacedName]*Account
	running  context.Context // context of the loops; nil before Start
	ended    bool
	loops    cloud.Group

	limiters limiters
	states   sync.Map // types.NamespacedName → *accountState, of the same accounts
	memory   *memory
	records  *budget.Budget // of bytes that inventories keep
}

// NewAccounts returns an empty set of accounts. It panics if its metrics are already registered.
func NewAccounts(o Options) *Accounts {
	if o.Transport == nil {
		o.Transport = NewTransport(nil)
	}
	if o.Ambient == nil {
		o.Ambient = o.Transport
	}
	if o.OnMachines == nil {
		o.OnMachines = func(types.NamespacedName, []string) {}
	}
	if o.OnAccount == nil {
		o.OnAccount = func(types.NamespacedName) {}
	}
	if o.random == nil {
		o.random = rand.Float64
	}
	s := &Accounts{
		options:  o,
		metrics:  newMetrics(),
		accounts: map[types.NamespacedName]*Account{},
		memory:   newMemory(),
		records:  budget.New(maxRecords),
	}
	s.limiters.workers.all = o.Workers
	if o.Metrics != nil {
		o.Metrics.MustRegister(append(s.metrics.collectors(), s)...)
	}
	return s
}

// Start runs the accounts' listings and deletions until ctx ends, and returns when all of them have
// stopped.
func (s *Accounts) Start(ctx context.Context) error {
	s.mu.Lock()
	if s.running != nil {
		s.mu.Unlock()
		return errors.New("start the accounts: they are started already")
	}
	s.running = ctx
	for _, a := range s.accounts {
		s.run(a.accountState)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ended = true // run needs the lock, and starts no loops from now on
	s.mu.Unlock()
	_ = s.loops.Wait() // keep returns no error
	if t, ok := s.options.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// NeedLeaderElection tells controller-runtime that the loops may run only on the leader.
func (s *Accounts) NeedLeaderElection() bool { return true }

// Get returns the account, or nil if there is none.
func (s *Accounts) Get(key types.NamespacedName) *Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accounts[key]
}

// Hangs reports whether the last call to the account's cloud ended because it was not answered in
// time. Work queues call it with their lock held, so it takes no lock.
func (s *Accounts) Hangs(key types.NamespacedName) bool {
	state, ok := s.states.Load(key)
	return ok && state.(*accountState).hangs.Load()
}

// Set makes the account, or returns the existing one if its driver was made from an equal config.
// The driver then stays, with what it remembers, and the account gets its other settings. An
// account with another config is replaced, and its retries are due at once. What is known of its
// machines is kept, unless the cloud or place has changed. Errors are *Error; the existing account
// then stays as it is. Nobody else waits for the account's driver to be made. Calls for one account
// come one after another, Remove included.
func (s *Accounts) Set(key types.NamespacedName, cfg AccountConfig) (*Account, error) {
	if a, err := s.keepDriver(key, &cfg); a != nil || err != nil {
		return a, err
	}
	a, err := s.connect(key, cfg)
	if err != nil {
		return nil, err
	}
	s.install(a)
	return a, nil
}

// keepDriver returns the existing account with other settings, or nil if it needs another driver.
func (s *Accounts) keepDriver(key types.NamespacedName, cfg *AccountConfig) (*Account, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.accounts[key]
	if old == nil || !haveSameDriver(old.config, *cfg) || old.config.Place != "" && old.config.Place != cfg.Place {
		return nil, nil
	}
	if err := s.adjust(old, &cfg.Spec); err != nil {
		return nil, err
	}
	if old.config.Place != cfg.Place {
		old.config.Place = cfg.Place
		old.place.pin(cfg.Place)
		if old.Probed() {
			s.placeProved(old)
		}
	}
	return old, nil
}

// install replaces the account that has the key now.
func (s *Accounts) install(a *Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.accounts[a.key]
	if old != nil && (old.cloud.Name != a.cloud.Name || old.config.Place != "" && old.config.Place != a.config.Place) {
		s.remove(old) // its machines are not those of the new account
		old = nil
	}
	if old == nil {
		a.accountState = s.newState(a)
		s.states.Store(a.key, a.accountState)
	} else {
		a.accountState = old.accountState
	}
	a.current.Store(a)
	s.accounts[a.key] = a
	if old == nil {
		s.run(a.accountState)
	} else {
		a.events.wake()
		a.watch.wake()
	}
}

// adjust gives an account other settings than those of its driver. Its retries are due at once if
// they have changed.
func (s *Accounts) adjust(a *Account, spec *infrav1.DroverAccountSpec) error {
	to, err := settingsOf(a.cloud, spec)
	if err != nil || *a.settings.Load() == to {
		return err
	}
	a.settings.Store(&to)
	s.limiters.adjust(a)
	a.inventory.retry()
	a.wakeTurns() // they come earlier, or later
	return nil
}

// Remove removes the account, and stops its loops.
func (s *Accounts) Remove(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.accounts[key]; a != nil {
		s.remove(a)
	}
}

func (s *Accounts) remove(a *Account) {
	delete(s.accounts, a.key)
	s.states.Delete(a.key)
	if a.stop != nil {
		a.stop()
	}
	s.limiters.leave(a.key)
	s.records.Set(a.key.Namespace, a.inventory, 0)
	a.meter.end()
}

// connect makes the account with its driver. It calls no cloud. The caller does not hold the lock of
// all accounts, because the driver computes with what a tenant wrote.
func (s *Accounts) connect(key types.NamespacedName, cfg AccountConfig) (*Account, error) {
	cfg = copyOf(cfg)
	i := slices.IndexFunc(s.options.Clouds, func(c cloud.Cloud) bool { return c.Union.InAccount(&cfg.Spec) })
	if i < 0 {
		return nil, cloud.Invalid("connect account %s: spec names no cloud that is switched on here", key)
	}
	c := s.options.Clouds[i]
	own, err := settingsOf(c, &cfg.Spec)
	if err != nil {
		return nil, err
	}
	a := &Account{
		key: key, cloud: c, config: cfg,
		times:         s.options.Times,
		meter:         &meter{metrics: s.metrics, cloud: c.Name, account: key.String(), panicked: map[string]bool{}},
		place:         place{pinned: cfg.Place},
		onPlaceProved: s.placeProved,
	}
	a.settings.Store(&own)
	a.limiter.Store(newLimiter(own.limits, &s.limiters.workers)) // its own, until its place is proved
	transport := &transport{account: key, times: a.times, meter: a.meter, limiter: &a.limiter, memory: s.memory}
	config := cloud.Config{Namespace: key.Namespace, Account: &a.config.Spec, Credentials: a.config.Credentials,
		ActiveInterval: func() time.Duration { return time.Duration(a.settings.Load().inventory.ActiveSeconds) * time.Second },
		Connect: func(trust *tls.Config) (http.RoundTripper, error) {
			base := s.options.Transport
			if cfg.Credentials == nil {
				base = s.options.Ambient
			}
			transport.base, err = cloud.Connect(base, trust)
			return transport, err
		}}
	err = a.meter.recovered("New", func() (err error) { a.driver, err = c.New(config); return err })
	if err != nil {
		return nil, typed("connect", err)
	}
	return a, nil
}

// placeProved continues an account whose credentials are proved to lead to its place.
func (s *Accounts) placeProved(a *Account) {
	s.limiters.join(a)
	if a.accountState == nil {
		return // the account is still being made
	}
	a.inventory.retry()
	a.events.wake()
	a.watch.wake()
}

func (s *Accounts) newState(a *Account) *accountState {
	l := &accountState{turns: newWakeup(), capacity: &capacity{ttl: a.times.NoCapacityMemory, noneUntil: map[shortage]lack{}}}
	onMachinesChange := func(tokens []string) {
		l.turns.wake() // perhaps a create runs no more
		if len(tokens) > 0 {
			s.options.OnMachines(a.key, tokens)
		}
	}
	l.inventory = newInventory(l.current.Load, s.options.random)
	l.inventory.onMachinesChange, l.inventory.onHealthChange = onMachinesChange, func() { s.options.OnAccount(a.key) }
	l.inventory.onNoCapacity = func(in shortage) { l.capacity.remember(in, "", nil) }
	l.inventory.keep = func(size int64) bool { return s.records.Set(a.key.Namespace, l.inventory, size) }
	l.events, l.watch = newEventLoop(l.inventory), newWatchLoop(l.inventory)
	return l
}

// run starts the loops of one account, if Start is running.
func (s *Accounts) run(l *accountState) {
	if s.running == nil || s.ended {
		return
	}
	ctx, stop := context.WithCancel(s.running)
	l.stop = stop
	for name, run := range map[string]func(context.Context){
		"listings": reads{l.inventory}.runListings, "reads": reads{l.inventory}.runReads, "deletions": deletes{l.inventory}.run,
		"turns": l.runTurns, "events": l.events.run, "watch": l.watch.run,
	} {
		s.loops.Go(func() error { s.keep(ctx, l, name, run); return nil })
	}
}

// keep runs a loop of an account until ctx ends. A loop that panics starts again after a while, so
// that neither the process nor the account's other loops end with it.
func (s *Accounts) keep(ctx context.Context, l *accountState, name string, run func(context.Context)) {
	for panics := 1; ctx.Err() == nil; panics++ {
		began := time.Now()
		if l.current.Load().meter.recovered(name, func() error { run(ctx); return nil }) == nil {
			return
		}
		if time.Since(began) > maxBackoff {
			panics = 1
		}
		sleepUntil(ctx, time.Now().Add(backoff(panics, s.options.random())), nil)
	}
}

func (s *Accounts) all() []*Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.accounts))
}

func copyOf(cfg AccountConfig) AccountConfig {
	cfg.Spec = *cfg.Spec.DeepCopy()
	credentials := maps.Clone(cfg.Credentials)
	for k, v := range credentials {
		credentials[k] = bytes.Clone(v)
	}
	cfg.Credentials = credentials
	return cfg
}

// haveSameDriver reports whether two configs make the same driver: their cloud's members and their
// credentials are equal, in whichever Secret these are. nil and empty credentials differ: nil means
// ambient credentials.
func haveSameDriver(a, b AccountConfig) bool {
	for _, spec := range []*infrav1.DroverAccountSpec{&a.Spec, &b.Spec} {
		spec.CredentialsRef, spec.Place, spec.OrphanPolicy = infrav1.LocalReference{}, "", ""
		spec.RateLimits, spec.Inventory = nil, infrav1.InventorySpec{} // these are settings
	}
	return (a.Credentials == nil) == (b.Credentials == nil) &&
		maps.EqualFunc(a.Credentials, b.Credentials, bytes.Equal) &&
		equality.Semantic.DeepEqual(a.Spec, b.Spec)
}
