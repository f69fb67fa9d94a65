// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// oneByOne deletes as most clouds do: one call for each resource.
type oneByOne struct{ *testDriver }

func (d oneByOne) Delete(ctx context.Context, resources []cloud.Resource) (errs []error) {
	for i := range resources {
		errs = append(errs, d.testDriver.Delete(ctx, resources[i:i+1])...)
	}
	return errs
}

// withSlowDeletes makes the cloud delete one by one, 5 a second.
func withSlowDeletes(o *Options) {
	connect := o.Clouds[0].New
	o.Clouds[0].Batch = cloud.Batch{Read: 300, Delete: 50}
	o.Clouds[0].Limits.Delete = cloud.Limit{PerSecond: 5, Burst: 20}
	o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
		d, err := connect(cfg)
		if err != nil {
			return nil, err
		}
		return oneByOne{d.(*testDriver)}, nil
	}
}

// TestMassDeletionBlindsNobody: while 600 deletions take two minutes, the end of another VM is
// known as soon as without them, and so are the ends of those that are deleted first.
func TestMassDeletionBlindsNobody(t *testing.T) {
	for name, c := range map[string]struct {
		forgotten, named bool
		lag              time.Duration
		limit            time.Duration
	}{
		"it ends":                           {limit: 20 * time.Second},
		"it vanishes":                       {forgotten: true, limit: 20 * time.Second},
		"it vanishes, and reads lag":        {forgotten: true, lag: 5 * time.Second, limit: 30 * time.Second},
		"each deletion needs a read before": {named: true, limit: 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := newTestCloud(t)
				fake.latency, fake.named, fake.lag = 50*time.Millisecond, c.named, c.lag
				a := fake.begin(t, withSlowDeletes).account(t, func(cfg *AccountConfig) { cfg.Spec.Inventory.IdleSeconds = 10 })
				refs := fake.observed(a, 601)
				victim := refs[600]
				time.Sleep(time.Minute)
				asked := time.Now()
				for _, ref := range refs[:600] {
					a.Delete(ref, asked)
				}
				time.Sleep(15 * time.Second)
				fake.vanish(victim.Token, c.forgotten)
				if took := until(t, time.Hour, "its end is known", func() bool { return a.Observe(victim, true).Gone }); took > c.limit {
					t.Errorf("the account is listed every 10 s, and the end of a VM is known after %s", took)
				}
				time.Sleep(time.Until(asked.Add(time.Minute)))
				ended, reads := 0, fake.count("describe")
				for _, ref := range refs[:600] {
					if a.Delete(ref, asked).Gone {
						ended++
					}
				}
				if ended < 150 {
					t.Errorf("%d of 600 deletions have ended within a minute", ended)
				}
				if reads > 40 {
					t.Errorf("%d live reads within a minute", reads)
				}
				until(t, 3*time.Minute, "all are deleted", func() bool {
					for _, ref := range refs[:600] {
						if !a.Delete(ref, asked).Gone {
							return false
						}
					}
					return true
				})
				if n := fake.count("terminate"); n != 600 {
					t.Errorf("%d calls for 600 deletions", n)
				}
			})
		})
	}
}

// TestSilentCloudFailsWaitingDeletions: if the cloud does not answer a batch of deletions, those
// that wait for the next batch fail with it, instead of waiting for an answer one after the other.
func TestSilentCloudFailsWaitingDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t, withSlowDeletes).account(t)
		refs := c.observed(a, 200)
		time.Sleep(time.Minute)
		c.with(func() {
			c.fault = func(op string) fault {
				if op == "terminate" {
					return fault{code: string(cloud.Unavailable)}
				}
				return fault{}
			}
		})
		for _, ref := range refs {
			a.Delete(ref, time.Now())
		}
		until(t, time.Minute, "all have failed", func() bool {
			for _, ref := range refs {
				if cloud.CodeOf(a.Delete(ref, time.Now()).Err) != cloud.Unavailable {
					return false
				}
			}
			return true
		})
		if n := c.count("terminate"); n > 50 {
			t.Errorf("%d calls", n)
		}
		c.setFault(nil)
		until(t, 5*time.Minute, "all are deleted", func() bool {
			for _, ref := range refs {
				if !a.Delete(ref, time.Now()).Gone {
					return false
				}
			}
			return true
		})
	})
}
