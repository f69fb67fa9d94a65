// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-io/drover/cloud"
)

// finder is the driver of a testCloud that tells which IDs exist.
type finder struct{ *testDriver }

func (d finder) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	out, err := d.call(ctx, "find", wireRequest{IDs: []string{strings.TrimPrefix(ref.ProviderID, "test:///")}})
	if err != nil || len(out.Resources) == 0 {
		return nil, err
	}
	r := toResource(out.Resources[0])
	return &r, nil
}

// withFind makes the cloud's driver a Finder.
func withFind(o *Options) {
	connect := o.Clouds[0].New
	o.Clouds[0].New = func(cfg cloud.Config) (cloud.Driver, error) {
		d, err := connect(cfg)
		if err != nil {
			return nil, err
		}
		return finder{d.(*testDriver)}, nil
	}
}

// retag changes the tags of a machine's instance.
func (c *testCloud) retag(token, newToken, newOwner string) {
	c.with(func() {
		for _, r := range c.resources {
			if r.Token == token && r.Kind == cloud.KindInstance {
				r.Token, r.OwnershipID = newToken, newOwner
			}
		}
	})
}

// TestUntaggedIsNotGone: a recorded VM whose tags were taken off or changed is neither gone nor
// deleted, and nothing that belongs to it is deleted. Its machine says what to do. When the tags
// are back, all is as before; when the VM is deleted, its machine is gone.
func TestUntaggedIsNotGone(t *testing.T) {
	for name, tags := range map[string][2]string{
		"no tags": {"", ""}, "no token": {"", "own"}, "another token": {"another", "own"}, "another owner": {"m-00", "another"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.lag, c.dependants = 2*time.Second, 1
				s := c.begin(t, withFind)
				a := s.account(t)
				refs := fleetOf(t, a, 2)
				if n := c.count("find"); n != 0 {
					t.Errorf("%d looks by ID for machines whose tags show them", n)
				}
				told := s.count("m-00")
				c.retag("m-00", tags[0], tags[1])
				time.Sleep(10 * time.Minute)
				o := a.Observe(refs[0], true)
				if o.Gone || o.NeverSeen || o.Instance == nil || cloud.CodeOf(o.Err) != cloud.Conflict ||
					!strings.Contains(o.Err.Error(), cloud.TagToken+"=m-00") {
					t.Fatalf("%+v: %v", o, o.Err)
				}
				if s.count("m-00") == told {
					t.Error("nobody was told")
				}
				if o := a.Observe(refs[1], true); o.Gone || o.Err != nil {
					t.Errorf("another machine: %+v", o)
				}
				before := c.count("find")
				time.Sleep(time.Hour)
				if n := c.count("find") - before; n > 61 {
					t.Errorf("%d looks by ID in an hour", n)
				}

				a.Delete(refs[0], time.Now())
				time.Sleep(10 * time.Minute)
				d := a.Delete(refs[0], time.Now())
				if d.Gone || cloud.CodeOf(d.Err) != cloud.Conflict || c.count("terminate") != 0 {
					t.Fatalf("%+v, %d deletions", d, c.count("terminate"))
				}
				s.end()
				a = c.begin(t, withFind).account(t) // another process
				began := time.Now()
				a.Delete(refs[0], began.Add(-time.Hour))
				time.Sleep(10 * time.Minute)
				if d := a.Delete(refs[0], began); d.Gone || cloud.CodeOf(d.Err) != cloud.Conflict || c.count("terminate") != 0 {
					t.Fatalf("after a restart: %+v, %d deletions", d, c.count("terminate"))
				}
				if name == "another token" {
					c.with(func() {
						for id, r := range c.resources {
							if r.Token == "another" {
								delete(c.resources, id)
							}
						}
					})
				} else {
					c.with(func() {
						for _, r := range c.resources {
							if r.Kind == cloud.KindInstance && r.Token != "m-01" {
								r.Token, r.OwnershipID = "m-00", "own"
							}
						}
					})
				}
				until(t, 10*time.Minute, "the deletion ends", func() bool { return a.Delete(refs[0], began).Gone })
				if left := c.alive("m-00"); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// TestManyVanish: any number of recorded VMs that the cloud denies are known to be gone within two
// listings. Nobody confirms it.
func TestManyVanish(t *testing.T) {
	for _, n := range []struct{ of, gone int }{{10, 4}, {100, 40}, {10, 10}} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.lag = 2 * time.Second
				a := c.begin(t, withFind).account(t)
				refs := fleetOf(t, a, n.of)
				vanish := func(refs []cloud.Reference) {
					c.with(func() {
						for _, ref := range refs {
							for id, r := range c.resources {
								if r.Token == ref.Token {
									delete(c.resources, id)
								}
							}
						}
					})
				}
				vanish(refs[:n.gone])
				until(t, 2*time.Minute, "all are gone", func() bool { return goneOf(a, refs) == n.gone })
				if state := a.Inventory(); state.MassAbsence != nil || !state.Fresh {
					t.Errorf("%+v", state)
				}
				if looks := c.count("find"); looks != 2*n.gone {
					t.Errorf("%d looks by ID for %d machines", looks, n.gone)
				}
				vanish(refs)
				a.Delete(refs[n.of-1], time.Now())
				until(t, time.Minute, "a machine that is deleted meanwhile is gone", func() bool { return a.Delete(refs[n.of-1], time.Now()).Gone })
			})
		})
	}
}

// TestNotAllowedToFind: an answer that is not about the instance itself says nothing of it.
func TestNotAllowedToFind(t *testing.T) {
	for _, code := range []cloud.Code{cloud.Unauthorized, cloud.NotFound, cloud.Unavailable, cloud.InvalidSpec, cloud.Throttled} {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				a := c.begin(t, withFind).account(t)
				refs := fleetOf(t, a, 3)
				c.with(func() {
					c.resources = map[string]*testResource{}
					c.fault = func(op string) fault {
						if op == "find" {
							return fault{code: string(code)}
						}
						return fault{}
					}
				})
				time.Sleep(10 * time.Minute)
				a.Delete(refs[0], time.Now())
				time.Sleep(10 * time.Minute)
				if d := a.Delete(refs[0], time.Now()); d.Gone || cloud.CodeOf(d.Err) != code {
					t.Errorf("%+v", d)
				}
				if n := goneOf(a, refs[1:]); n != 0 {
					t.Errorf("%d machines are gone", n)
				}
				c.with(func() { c.fault = nil })
				until(t, 10*time.Minute, "gone", func() bool { return a.Delete(refs[0], time.Now()).Gone && goneOf(a, refs[1:]) == 2 })
			})
		})
	}
}

// TestYoungInstanceIsNotGone: what the cloud denies soon after the create may be too young to be
// shown.
func TestYoungInstanceIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.lag = 5 * time.Minute
		a := c.begin(t, withFind).account(t)
		ref := ensure(t, a, "m")
		for range 12 * 10 {
			time.Sleep(5 * time.Second)
			if o := a.Observe(ref, true); o.Gone {
				t.Fatalf("%+v", o)
			}
		}
	})
}

// TestNameOfAnother: on a cloud whose names are free again, what has the name with another token is
// another machine.
func TestNameOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		c.named = true
		a := c.begin(t, withFind).account(t)
		refs := fleetOf(t, a, 1)
		c.retag("m-00", "another", "own")
		until(t, 2*time.Minute, "gone", func() bool { return goneOf(a, refs) == 1 })
		a.Delete(refs[0], time.Now())
		until(t, time.Minute, "deleted", func() bool { return a.Delete(refs[0], time.Now()).Gone })
		if left := c.alive("another"); len(left) != 1 {
			t.Error("the other machine's VM was deleted")
		}
	})
}

// TestOtherInstanceIsNotTheMachine: the recorded instance is gone, and another one has its tags.
func TestOtherInstanceIsNotTheMachine(t *testing.T) {
	for name, change := range map[string][]func(*Options){"by tags": nil, "by ID": {withFind}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				a := c.begin(t, change...).account(t)
				ref := running(t, a, "one")
				c.with(func() {
					for id := range c.resources {
						delete(c.resources, id)
					}
					c.make("one", "own", "a")
				})
				time.Sleep(3 * time.Minute)
				o := a.Observe(ref, true)
				if !o.Gone || o.Instance != nil && o.Instance.ProviderID != ref.ProviderID || len(o.Duplicates) != 1 {
					t.Errorf("%+v", o)
				}
				a.Delete(ref, time.Now())
				until(t, time.Minute, "what has its tags goes with it", func() bool { return a.Delete(ref, time.Now()).Gone })
				if left := c.alive("one"); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// TestProviderIDInAnotherForm: a provider ID that names the instance with another place or in
// another case is still the machine's, as after a change of an account's regionalProviderIDs.
func TestProviderIDInAnotherForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		a := c.begin(t, withFind).account(t)
		ref := ensure(t, a, "one")
		ref.ProviderID = "test://Region/" + strings.ToUpper(strings.TrimPrefix(ref.ProviderID, "test:///"))
		a.Observe(ref, true)
		time.Sleep(2 * time.Minute)
		if o := a.Observe(ref, true); o.Gone || o.Instance == nil || o.Instance.State != cloud.StateRunning || len(o.Duplicates) > 0 ||
			c.count("find") > 0 {
			t.Errorf("observed %+v, want a running machine", o)
		}
	})
}

// TestTaggedIsNotLookedFor: the life of machines whose tags show them costs no look by ID, whether
// or not the cloud records their end.
func TestTaggedIsNotLookedFor(t *testing.T) {
	for name, forgets := range map[string]time.Duration{"recorded": 0, "forgotten": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestCloud(t)
				c.lag, c.dependants, c.forgetsAfter = 2*time.Second, 1, forgets
				a := c.begin(t, withFind).account(t)
				refs := fleetOf(t, a, 5)
				for _, ref := range refs {
					a.Delete(ref, time.Now())
				}
				for _, ref := range refs {
					until(t, 5*time.Minute, "gone", func() bool { return a.Delete(ref, time.Now()).Gone })
				}
				if n := c.count("find"); n != 0 {
					t.Errorf("%d looks by ID", n)
				}
			})
		})
	}
}
