// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestSettingsKeepDriver: an edit makes another driver only if a driver is made from what it
// changes: its cloud's fields and its credentials. Otherwise a driver would lose what it remembers,
// such as creates that may still take effect. What it learns of the settings changes with them.
func TestSettingsKeepDriver(t *testing.T) {
	slow := &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "0.5", Burst: 3}}
	for name, c := range map[string]struct {
		edit   func(*AccountConfig)
		keeps  bool
		active time.Duration
	}{
		"rate limits":       {func(c *AccountConfig) { c.Spec.RateLimits = slow }, true, 5 * time.Second},
		"pace of listings":  {func(c *AccountConfig) { c.Spec.Inventory.ActiveSeconds = 2 }, true, 2 * time.Second},
		"nothing":           {func(*AccountConfig) {}, true, 5 * time.Second},
		"empty rate limits": {func(c *AccountConfig) { c.Spec.RateLimits = &infrav1.RateLimits{} }, true, 5 * time.Second},
		"orphan policy":     {func(c *AccountConfig) { c.Spec.OrphanPolicy = infrav1.OrphanPolicyDelete }, true, 5 * time.Second},
		"a copy of the Secret": {func(c *AccountConfig) { c.Spec.CredentialsRef = infrav1.LocalReference{Name: "copy"} }, true,
			5 * time.Second},
		"the Secret's data": {func(c *AccountConfig) { c.Credentials = map[string][]byte{"token": []byte("other")} }, false,
			5 * time.Second},
		"a key of the Secret": {func(c *AccountConfig) { c.Credentials["more"] = []byte("x") }, false, 5 * time.Second},
		"the cloud's fields":  {func(c *AccountConfig) { c.Spec.Cloud.Simulated.Region = "s" }, false, 5 * time.Second},
		"the endpoint":        {func(c *AccountConfig) { c.Spec.Cloud.Simulated.Endpoint = "https://other" }, false, 5 * time.Second},
		"limits and credentials": {func(c *AccountConfig) { c.Spec.RateLimits, c.Credentials["more"] = slow, []byte("x") }, false,
			5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var made []cloud.Config
				s := newTestCloud(t).begin(t, func(o *Options) {
					row := o.Clouds[0]
					o.Clouds = []cloud.Cloud{row}
					o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
						made = append(made, cfg)
						return row.New(cfg)
					}
				})
				before := s.account(t)
				ensure(t, before, "m")
				for range 2 { // the second time, it is no edit
					after := s.account(t, c.edit)
					if (after == before) != c.keeps {
						t.Errorf("the account is the same: %t, want %t", after == before, c.keeps)
					}
				}
				if want := map[bool]int{true: 1, false: 2}[c.keeps]; len(made) != want {
					t.Errorf("%d drivers were made, want %d", len(made), want)
				}
				if active := made[0].ActiveInterval(); active != c.active {
					t.Errorf("the active interval is %s, want %s", active, c.active)
				}
			})
		})
	}
}

// TestRaisedLimitEndsWaits: machines that wait for a turn need not wait for as long as they were
// told, once the rate limit allows more.
func TestRaisedLimitEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCloud(t).begin(t)
		rate := func(perSecond string, burst int32) func(*AccountConfig) {
			return func(cfg *AccountConfig) {
				cfg.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: perSecond, Burst: burst}}
			}
		}
		a := s.account(t, rate("0.01", 1))
		ensure(t, a, "first")
		var queued *cloud.Queued
		for _, token := range []string{"second", "third"} {
			if _, err := a.Ensure(t.Context(), request(token), nil); !errors.As(err, &queued) || queued.After < time.Minute {
				t.Fatalf("%s: %v", token, err)
			}
		}
		told := func() bool { return s.count("second") > 0 && s.count("third") > 0 }
		time.Sleep(10 * time.Second)
		if told() {
			t.Error("their turn has not come")
		}
		s.account(t, rate("2", 5))
		until(t, 5*time.Second, "told of their turns", told)
		for _, token := range []string{"second", "third"} {
			if _, err := a.Ensure(t.Context(), request(token), nil); err != nil {
				t.Errorf("%s: %v", token, err)
			}
		}
	})
}

// TestSettingsApplyAtOnce: rate limits and the pace of listings hold from the edit on, before the
// account's place is proved and after it.
func TestSettingsApplyAtOnce(t *testing.T) {
	for name, place := range map[string]string{"place not recorded": "", "place proved": testPlace} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				s := c.begin(t)
				at := func(cfg *AccountConfig) { cfg.Place = place }
				a := s.account(t, at)
				s.account(t, at, func(cfg *AccountConfig) {
					cfg.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "7", Burst: 9}}
					cfg.Spec.Inventory.IdleSeconds = 7
				})
				if got, want := a.limiter.Load().create.bucket.limit, withHeadroom(cloud.Limit{PerSecond: 7, Burst: 9}); got != want {
					t.Errorf("the limit is %v, want %v", got, want)
				}
				if got, want := a.limiter.Load().read.bucket.limit, withHeadroom(c.row().Limits.Read); got != want {
					t.Errorf("the limit of reads is %v, want %v", got, want)
				}
				if place == "" {
					return
				}
				a.Observe(cloud.Reference{Token: "m", OwnershipID: "own"}, false)
				until(t, 10*time.Second, "listed", func() bool { return c.count("list") > 0 })
				before := c.count("list")
				time.Sleep(time.Minute)
				if n := c.count("list") - before; n < 7 {
					t.Errorf("%d listings in a minute, want one every 7 seconds", n)
				}
			})
		})
	}
}
