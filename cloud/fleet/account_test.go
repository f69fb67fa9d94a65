// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestEnsureOnce: a repeated Ensure, also after a lost answer and in a new process, makes no second
// instance. If the inventory knows the instance, it costs no call.
func TestEnsureOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		c.setFault(func(string) fault { return fault{cut: true} })
		if _, err := a.Ensure(t.Context(), request("m"), nil); cloud.CodeOf(err) != cloud.Unavailable {
			t.Fatalf("a lost answer: %v", err)
		}
		c.setFault(nil)
		ref := ensure(t, a, "m")
		if again := ensure(t, a, "m"); again != ref {
			t.Errorf("%v, then %v", ref, again)
		}
		if n := c.count("run"); n != 2 {
			t.Errorf("%d creates, want the lost and the repeated one", n)
		}
		s.end()

		s = c.begin(t)
		a = s.account(t)
		a.Observe(cloud.Reference{Token: "m", OwnershipID: "own"}, true)
		until(t, time.Second, "listed", func() bool { return !a.Inventory().LastComplete.IsZero() })
		if again := ensure(t, a, "m"); again != ref || c.count("run") != 2 {
			t.Errorf("after a restart: %v, %d creates", again, c.count("run"))
		}
		if ids := c.alive("m"); len(ids) != 1 {
			t.Errorf("alive: %v", ids)
		}
	})
}

// TestEnsureZonal: if tokens are valid for one zone only, a machine is made in its recorded zone,
// even if that had no capacity for others. Without a recorded zone, it is made in none.
func TestEnsureZonal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.zonal, c.noCapacity["a"] = true, true
		a := c.begin(t).account(t)
		attempt := func(token string, zones ...string) error {
			_, err := a.Ensure(t.Context(), request(token), zones)
			return err
		}
		for _, zones := range [][]string{nil, {"a", "b"}} {
			if err := attempt("m", zones...); cloud.CodeOf(err) != cloud.InvalidSpec || c.count("run") != 0 {
				t.Errorf("zones %v: %v, %d creates", zones, err, c.count("run"))
			}
		}
		c.setFault(func(string) fault { return fault{cut: true} })
		c.with(func() { c.noCapacity["a"] = false })
		if err := attempt("m", "a"); cloud.CodeOf(err) != cloud.Unavailable {
			t.Errorf("its answer lost: %v", err)
		}
		c.setFault(nil)
		c.with(func() { c.noCapacity["a"] = true })
		if err := attempt("other", "a"); cloud.CodeOf(err) != cloud.NoCapacity {
			t.Errorf("another machine: %v", err)
		}
		if zone, err := a.Domain(request("x").Spec, []string{"a", "b"}); zone != "b" || err != nil {
			t.Errorf("a new machine goes to %q, %v", zone, err)
		}
		if err := attempt("m", "a"); err != nil {
			t.Errorf("asked again where it was made: %v", err)
		}
		if ids := c.alive("m"); len(ids) != 1 {
			t.Errorf("alive: %v", ids)
		}
	})
}

// TestEnsureConflicts: two instances with one token, or another cluster's, stop the creation.
func TestEnsureConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		c.with(func() {
			c.make("two", "own", "a")
			c.make("two", "own", "a")
			c.make("theirs", "foreign", "a")
		})
		two := cloud.Reference{Token: "two", OwnershipID: "own"}
		a.Observe(two, true)
		until(t, time.Second, "listed", func() bool { return !a.Inventory().LastComplete.IsZero() })
		_, err := a.Ensure(t.Context(), request("two"), nil)
		if cloud.CodeOf(err) != cloud.Conflict || !strings.Contains(err.Error(), "i-0001, i-0002") {
			t.Errorf("two with one token: %v", err)
		}
		if o := a.Observe(two, true); !slices.Equal(o.Duplicates, []string{"i-0001", "i-0002"}) || o.Instance == nil {
			t.Errorf("observed: %+v", o)
		}
		if _, err := a.Ensure(t.Context(), request("theirs"), nil); cloud.CodeOf(err) != cloud.Conflict {
			t.Errorf("another cluster's: %v", err)
		}
		if o := a.Observe(cloud.Reference{Token: "theirs", OwnershipID: "own"}, true); o.Instance != nil || o.Gone {
			t.Errorf("another cluster's is observed as ours: %+v", o)
		}
		nobodys := request("nobodys")
		nobodys.OwnershipID = ""
		if _, err := a.Ensure(t.Context(), nobodys, nil); cloud.CodeOf(err) != cloud.InvalidSpec {
			t.Errorf("without an owner: %v", err)
		}
		if n := c.count("run"); n != 0 {
			t.Errorf("%d creates", n)
		}
		a.Delete(two, time.Now())
		if _, err := a.Ensure(t.Context(), request("two"), nil); cloud.CodeOf(err) != cloud.Conflict {
			t.Errorf("one under deletion: %v", err)
		}
	})
}

// TestNoCapacity: a failure domain without capacity is not tried again for a while, by any machine
// of the same kind.
func TestNoCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		c.with(func() { c.noCapacity["a"], c.noCapacity["b"] = true, true })
		try := func(token string) error {
			_, err := a.Ensure(t.Context(), request(token), []string{"a", "b"})
			return err
		}
		var e *cloud.Error
		if err := try("1"); !errors.As(err, &e) || e.Code != cloud.NoCapacity || e.RetryAfter != minWait {
			t.Fatalf("with b left: %v", err)
		}
		if err := try("2"); !errors.As(err, &e) || e.Code != cloud.NoCapacity || e.RetryAfter < 2*time.Minute {
			t.Fatalf("with none left: %v", err)
		}
		for i := range 100 {
			if err := try(fmt.Sprint(i)); !errors.As(err, &e) || e.Code != cloud.NoCapacity || e.RetryAfter < 2*time.Minute {
				t.Fatalf("while remembered: %v", err)
			}
		}
		if n := c.count("run"); n != 2 {
			t.Errorf("%d creates for two domains without capacity", n)
		}
		large := request("large")
		large.Spec.Cloud.Simulated.InstanceType = "large"
		if _, err := a.Ensure(t.Context(), large, []string{"a"}); cloud.CodeOf(err) != cloud.NoCapacity || c.count("run") != 3 {
			t.Errorf("another kind of machine was not tried: %v", err)
		}
		c.with(func() { c.noCapacity["a"] = false })
		time.Sleep(a.times.NoCapacityMemory)
		if err := try("1"); err != nil {
			t.Errorf("after the memory ended: %v", err)
		}
		if last := c.log()[len(c.log())-1]; last.op != "run" || last.zone != "a" {
			t.Errorf("the preferred domain was not asked first: %+v", last)
		}
	})
}

// TestNoCapacityLater: an instance that the cloud accepted, and then had no capacity for, makes its
// Machine be replaced. The successor is made in another failure domain. What failed can be deleted
// as any other, and its domain is tried again after a while.
func TestNoCapacityLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.dependants = 1
		s := c.begin(t)
		a := s.account(t)
		c.with(func() { c.failsLater["a"] = true })
		failed := ensure(t, a, "1", "a", "b")
		if o := a.Observe(failed, false); o.Instance == nil || o.Instance.Reclaim != "" {
			t.Fatalf("before it fails: %+v", o.Instance)
		}
		var o Observation
		until(t, time.Minute, "it failed", func() bool {
			o = a.Observe(failed, true)
			return o.Instance.State == cloud.StateFailed
		})
		if o.Instance.Reclaim != cloud.ReclaimCertain || o.Instance.Code != cloud.NoCapacity || o.Gone {
			t.Errorf("failed: %+v", o)
		}
		ensure(t, a, "2", "a", "b")
		if last := c.log()[len(c.log())-1]; last.op != "run" || last.zone != "b" {
			t.Errorf("the successor went to %+v", last)
		}
		large := request("large")
		large.Spec.Cloud.Simulated.InstanceType = "large"
		if zone, err := a.Domain(large.Spec, []string{"a", "b"}); zone != "a" || err != nil {
			t.Errorf("another kind of machine goes to %q, %v", zone, err)
		}
		time.Sleep(a.times.NoCapacityMemory)
		if a.Observe(failed, true); len(a.capacity.noneUntil) != 1 {
			t.Errorf("remembered: %v", a.capacity.noneUntil)
		}
		if zone, err := a.Domain(request("3").Spec, []string{"a", "b"}); zone != "a" || err != nil {
			t.Errorf("after the memory ended, a machine goes to %q, %v", zone, err)
		}
		until(t, time.Minute, "deleted", func() bool { return a.Delete(failed, time.Now()).Gone })
		if left := c.alive("1"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestDriverKnowsNamespace: a driver is told the account's namespace.
func TestDriverKnowsNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		var namespaces []string
		c.begin(t, func(o *Options) {
			connect := o.Clouds[0].New
			o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
				namespaces = append(namespaces, cfg.Namespace)
				return connect(cfg)
			}
		}).account(t)
		if len(namespaces) == 0 || namespaces[0] != testKey.Namespace {
			t.Errorf("the driver was told %q", namespaces)
		}
	})
}

// TestSlowDriverHoldsNobodyElse: while one account's driver is being made, the others can be used and
// changed. What happened to the account meanwhile does not come back.
func TestSlowDriverHoldsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		slow, release := types.NamespacedName{Namespace: "slow", Name: "account"}, make(chan struct{})
		s := c.begin(t, func(o *Options) {
			connect := o.Clouds[0].New
			o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
				if cfg.Namespace == slow.Namespace {
					<-release
				}
				return connect(cfg)
			}
		})
		config := s.account(t).config
		set := func(region string) <-chan *Account {
			cfg, made := copyOf(config), make(chan *Account, 1)
			cfg.Spec.Cloud.Simulated.Region = region
			go func() {
				a, err := s.Set(slow, cfg)
				if err != nil {
					t.Error(err)
				}
				made <- a
			}()
			synctest.Wait()
			return made
		}
		first := set("r")
		a := s.account(t, func(cfg *AccountConfig) { cfg.Credentials = map[string][]byte{"token": []byte("other")} })
		if s.Get(testKey) != a || s.Get(slow) != nil || len(s.all()) != 1 {
			t.Error("the other account is not in use")
		}
		s.Remove(slow) // there is nothing to remove yet
		release <- struct{}{}
		one := <-first
		if s.Get(slow) != one {
			t.Error("the account was not made")
		}
		second := set("r2")
		if s.Get(slow) != one {
			t.Error("the account does not stay while its next driver is being made")
		}
		s.Remove(slow)
		release <- struct{}{}
		two := <-second
		if s.Get(slow) != two || two.accountState == one.accountState {
			t.Error("the account has the state of one that was removed")
		}
		s.Remove(slow)
		if _, ok := s.states.Load(slow); ok || s.Get(slow) != nil {
			t.Error("something is left")
		}
	})
}

// TestThrottledCreates: creates that the cloud throttles delay later ones, and all machines are
// made.
func TestThrottledCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		// The cloud gives less than the row promises.
		c.buckets = map[cloud.Class]*plainBucket{cloud.ClassCreate: newPlainBucket(cloud.Limit{PerSecond: 1.5, Burst: 3})}
		a := c.begin(t).account(t)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for {
					_, err := a.Ensure(t.Context(), request(fmt.Sprint(i)), nil)
					if err == nil {
						return
					}
					if code := cloud.CodeOf(err); code == cloud.Throttled {
						time.Sleep(time.Second)
					} else {
						time.Sleep(retryAfter(err))
					}
				}
			})
		}
		wg.Wait()
		throttled := 0
		for _, call := range c.log() {
			if call.code == string(cloud.Throttled) {
				throttled++
			}
		}
		if throttled == 0 || throttled > 15 {
			t.Errorf("%d of %d calls were throttled", throttled, c.count("run"))
		}
	})
}

// TestUnresponsiveCloud: a cloud that does not answer holds all callers at first, and then one at a
// time.
func TestUnresponsiveCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t, func(cfg *AccountConfig) {
			cfg.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "100", Burst: 100}}
		})
		// ask sends as many creates at once as may be under way, and returns how many of them
		// waited for an answer that did not come.
		ask := func(round string, want cloud.Code) (held int) {
			var wg sync.WaitGroup
			took := make([]time.Duration, maxConcurrentCreates)
			for i := range took {
				wg.Go(func() {
					begin := time.Now()
					if err := second(a.Ensure(t.Context(), request(fmt.Sprint(round, i)), nil)); cloud.CodeOf(err) != want {
						t.Errorf("%s: %v", round, err)
					}
					took[i] = time.Since(begin)
				})
			}
			wg.Wait()
			for _, d := range took {
				if d >= a.times.Call {
					held++
				}
			}
			return held
		}
		c.with(func() { c.latency = time.Hour })
		if n := ask("first", cloud.Unavailable); n != maxConcurrentCreates {
			t.Errorf("%d creates waited for a cloud that nobody knew to be silent, want %d", n, maxConcurrentCreates)
		}
		if n := ask("second", cloud.Unavailable); n != 1 {
			t.Errorf("%d creates waited for a cloud that is known to be silent, want 1", n)
		}
		c.with(func() { c.latency = 0 })
		ensure(t, a, "healed")
		if n := ask("third", ""); n != 0 {
			t.Errorf("%d creates waited for a cloud that answers", n)
		}
	})
}

// TestCallsEndWithContext: no call starts under an ended context, and a running one ends with it.
func TestCallsEndWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range []error{
			second(a.Probe(ctx)),
			second(a.Ensure(ctx, request("m"), nil)),
			second(a.Offering(ctx, request("m").Spec)),
		} {
			if cloud.CodeOf(err) != cloud.Unavailable || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		if n := len(c.log()); n != 0 {
			t.Errorf("%d calls after the context ended", n)
		}
		c.latency = time.Hour
		start := time.Now()
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := second(a.Ensure(ctx, request("m"), nil)); cloud.CodeOf(err) != cloud.Unavailable || time.Since(start) != time.Second {
			t.Errorf("cut off: %v after %s", err, time.Since(start))
		}
		start = time.Now()
		if err := second(a.Probe(t.Context())); cloud.CodeOf(err) != cloud.Unavailable || time.Since(start) != a.times.Call {
			t.Errorf("too slow: %v after %s", err, time.Since(start))
		}
		time.Sleep(2 * time.Hour) // the server's goroutines end
	})
}

func second[T any](_ T, err error) error { return err }

// TestStartEnds: when Start has returned, no goroutine is left, whatever was under way.
func TestStartEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		synctest.Wait() // the cloud's own goroutines have started
		before, _ := goroutines()
		s := c.begin(t)
		a := s.account(t)
		ref := ensure(t, a, "m")
		a.Observe(ref, true)
		other := testKey
		other.Name = "removed"
		if _, err := s.Set(other, a.config); err != nil {
			t.Fatal(err)
		}
		s.Remove(other)
		a.Delete(ref, time.Now())
		time.Sleep(1020 * time.Millisecond) // until the delete's call is under way
		s.end()
		c.transport.CloseIdleConnections()
		time.Sleep(time.Second) // the server notices
		synctest.Wait()
		if after, stacks := goroutines(); after > before {
			t.Errorf("%d goroutines before, %d after:\n%s", before, after, stacks)
		}
		if err := s.Start(context.Background()); err == nil {
			t.Error("started twice")
		}
	})
}

// goroutines returns how many goroutines the caller's synctest bubble has, and all stacks.
// runtime.NumGoroutine would also count those of the rest of the process, and those that have
// returned but are still registered.
func goroutines() (int, string) {
	buf := make([]byte, 1<<18)
	stacks := string(buf[:runtime.Stack(buf, true)])
	_, bubble, _ := strings.Cut(stacks[:strings.IndexByte(stacks, '\n')], "synctest ")
	return strings.Count(stacks, "synctest "+bubble), stacks
}

// TestSet: an equal config keeps the account. Another config replaces it and keeps what is known.
// An invalid config is an error.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		s := c.begin(t)
		a := s.account(t)
		if s.account(t) != a || s.Get(testKey) != a {
			t.Error("the same config made another account")
		}
		ensure(t, a, "m")
		b := s.account(t, func(cfg *AccountConfig) { cfg.Spec.Cloud.Simulated.Region = "s" })
		if b == a || s.Get(testKey) != b {
			t.Error("another config did not make another account")
		}
		if ensure(t, b, "m"); c.count("run") != 1 {
			t.Error("what was known is lost")
		}
		for what, change := range map[string]func(*AccountConfig){
			"no cloud": func(cfg *AccountConfig) { cfg.Spec.Cloud.Simulated = nil },
			"no key":   func(cfg *AccountConfig) { cfg.Credentials = map[string][]byte{} },
			"wrong limit": func(cfg *AccountConfig) {
				cfg.Spec.RateLimits = &infrav1.RateLimits{Read: infrav1.RateLimit{PerSecond: "x"}}
			},
		} {
			cfg := copyOf(b.config)
			change(&cfg)
			var e *cloud.Error
			if _, err := s.Set(testKey, cfg); !errors.As(err, &e) {
				t.Errorf("%s: %v", what, err)
			}
			if s.Get(testKey) != b {
				t.Errorf("%s: the account that was there is lost", what)
			}
		}
		s.account(t, func(cfg *AccountConfig) {
			cfg.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "7", Burst: 9}}
		})
		if got := b.limiter.Load().create.bucket.limit; got != withHeadroom(cloud.Limit{PerSecond: 7, Burst: 9}) {
			t.Errorf("a lone account's new limits: %v", got)
		}
		if n := len(s.limiters.all[limiterKeyOf(b)].create.lanes); n != 1 {
			t.Errorf("%d users of the limiter", n)
		}
	})
}

// TestOffering: each Offering asks the driver, so what did not exist is found once it exists.
func TestOffering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t).account(t)
		known, unknown := request("m").Spec, request("m").Spec
		unknown.Cloud.Simulated.InstanceType = "none"
		c.setFault(func(string) fault { return fault{code: string(cloud.Unavailable)} })
		if _, err := a.Offering(t.Context(), known); cloud.CodeOf(err) != cloud.Unavailable {
			t.Errorf("got %v", err)
		}
		c.setFault(nil)
		if o, err := a.Offering(t.Context(), known); err != nil || o.Architecture != "amd64" {
			t.Errorf("got %v, %v", o, err)
		}
		for range 2 {
			if _, err := a.Offering(t.Context(), unknown); cloud.CodeOf(err) != cloud.InvalidSpec {
				t.Errorf("got %v", err)
			}
		}
		if n := c.count("offering"); n != 4 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestMetrics: calls and failures are counted by account; a removed account's series are deleted.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		registry := prometheus.NewPedanticRegistry()
		s := c.begin(t, func(o *Options) { o.Metrics = registry })
		a := s.account(t)
		ref := ensure(t, a, "m")
		a.Observe(ref, true)
		time.Sleep(10 * time.Second)
		c.setFault(func(string) fault { return fault{code: string(cloud.QuotaExceeded)} })
		if _, err := a.Ensure(t.Context(), request("n"), nil); cloud.CodeOf(err) != cloud.QuotaExceeded {
			t.Errorf("got %v", err)
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
			# HELP drover_cloud_calls_total HTTP calls, by the cloud's name of the operation and the class of the response: 2xx, 3xx, 4xx, 429, 5xx, timeout, canceled or error.
			# TYPE drover_cloud_calls_total counter
			drover_cloud_calls_total{account="team/account",cloud="test",code="2xx",operation="list"} 2
			drover_cloud_calls_total{account="team/account",cloud="test",code="2xx",operation="run"} 1
			drover_cloud_calls_total{account="team/account",cloud="test",code="4xx",operation="run"} 1
			# HELP drover_cloud_errors_total Failed calls of a driver's method, by method and error code. One method may make several HTTP calls.
			# TYPE drover_cloud_errors_total counter
			drover_cloud_errors_total{account="team/account",cloud="test",code="QuotaExceeded",method="Ensure"} 1
			# HELP drover_inventory_instances Instances with Drover's tags in the account's last complete listing, without terminated ones.
			# TYPE drover_inventory_instances gauge
			drover_inventory_instances{account="team/account",cloud="test"} 1
		`), "drover_cloud_calls_total", "drover_cloud_errors_total", "drover_inventory_instances"); err != nil {
			t.Error(err)
		}
		s.Remove(testKey)
		for _, name := range []string{"drover_cloud_calls_total", "drover_cloud_errors_total", "drover_inventory_instances",
			"drover_inventory_age_seconds", "drover_cloud_limiter_queue", "drover_cloud_limiter_rate_ratio"} {
			if n, err := testutil.GatherAndCount(registry, name); n != 0 || err != nil {
				t.Errorf("%s: %d series are left (%v)", name, n, err)
			}
		}
	})
}

// TestRedirectElsewhere: credentials do not follow a redirect to another host.
func TestRedirectElsewhere(t *testing.T) {
	asked := map[string]int{}
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		asked[req.URL.Host]++
		to := "http://here/there"
		if req.URL.Path == "/there" {
			to = "http://elsewhere/"
		}
		return &http.Response{StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {to}}, Body: http.NoBody,
			Request: req}, nil
	})
	m := &meter{metrics: newMetrics()}
	var limits atomic.Pointer[limiter]
	limits.Store(newLimiter(cloud.Limits{Read: cloud.Limit{PerSecond: 10, Burst: 10}}, &workers{}))
	client := http.Client{Transport: &transport{base: base, limiter: &limits, times: TimesFor(DefaultCall), meter: m}}
	_, err := client.Get("http://here/")
	if cloud.CodeOf(err) != cloud.Unavailable || asked["here"] != 2 || asked["elsewhere"] != 0 {
		t.Errorf("got %v, asked %v", err, asked)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestUntypedErrors: an untyped error of a driver gets a type, and its text is not shown.
func TestUntypedErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want cloud.Code
	}{
		{errors.New("secret"), cloud.Unknown},
		{fmt.Errorf("secret: %w", context.DeadlineExceeded), cloud.Unavailable},
		{fmt.Errorf("secret: %w", context.Canceled), cloud.Unavailable},
		{fmt.Errorf("wrapped: %w", cloud.Errorf(cloud.QuotaExceeded, "full")), cloud.QuotaExceeded},
	} {
		got := typed("List", c.err)
		var e *cloud.Error
		if !errors.As(got, &e) || e.Code != c.want || strings.Contains(got.Error(), "secret") {
			t.Errorf("%v became %v", c.err, got)
		}
	}
	if err := typed("List", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
}

// TestErrorsAreBounded: what a cloud answers decides neither how long an error's message is nor how
// long the account waits.
func TestErrorsAreBounded(t *testing.T) {
	long := strings.Repeat("é", cloud.MaxMessage)
	for name, e := range map[string]*cloud.Error{
		"formatted":   cloud.Errorf(cloud.InvalidSpec, "location %s", long),
		"not":         {Code: cloud.InvalidSpec, Message: "location " + long},
		"not UTF-8":   {Code: cloud.Throttled, Message: "location \xff" + long},
		"a long wait": {Code: cloud.Throttled, Message: "location", RetryAfter: 24 * time.Hour},
	} {
		cause := errors.New("cause")
		e.Err = cause
		var got *cloud.Error
		if !errors.As(typed("Ensure", fmt.Errorf("wrapped: %w", e)), &got) || got.Code != e.Code || !errors.Is(got, cause) {
			t.Errorf("%s: became %v", name, got)
			continue
		}
		if len(got.Message) > cloud.MaxMessage || !utf8.ValidString(got.Message) || !strings.HasPrefix(got.Message, "location") {
			t.Errorf("%s: has the message %q", name, got.Message)
		}
		if got.RetryAfter > maxRetryAfter {
			t.Errorf("%s: waits %s", name, got.RetryAfter)
		}
	}
}
