// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/preflight"
	"github.com/drover-io/drover/cloud/tagging"
)

// callTime is how long one method may wait, by the clock of its bubble, and watchTime a watch.
const (
	callTime  = time.Minute
	watchTime = time.Second
)

// life calls all methods of a driver.
type life struct {
	driver cloud.Driver
	target *Target
	// random varies requests. nil does not.
	random *rand.Rand
	// steps is how often the life tries to get a machine or a load balancer, and pause the time
	// between two steps.
	steps int
	pause time.Duration
	// try calls one method, which may wait for limit.
	try func(ctx context.Context, method string, limit time.Duration, do func(context.Context) error)

	made    []cloud.Resource
	updates int // that a watch has reported
}

// live calls all methods, in the order of a machine's life.
func (l *life) live(ctx context.Context) {
	l.create(ctx)
	l.read(ctx)
	l.readMore(ctx)
	l.tag(ctx)
	for range 2 {
		l.try(ctx, "Delete", callTime, func(ctx context.Context) error {
			var last error
			for _, err := range l.driver.Delete(ctx, l.made) {
				if err != nil {
					last = err
				}
			}
			return last
		})
		l.wait(ctx)
	}
}

func (l *life) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(l.pause):
	}
}

func (l *life) coin() bool { return l.random != nil && l.random.IntN(2) == 0 }

// until takes steps until one succeeds, and another step.
func (l *life) until(ctx context.Context, method string, step func(context.Context) error) {
	done := false
	for range l.steps {
		last := done
		l.try(ctx, method, callTime, func(ctx context.Context) error {
			err := step(ctx)
			done = err == nil
			return err
		})
		if last {
			return
		}
		l.wait(ctx)
	}
}

func (l *life) create(ctx context.Context) {
	l.try(ctx, "Probe", callTime, func(ctx context.Context) error { _, err := l.driver.Probe(ctx); return err })
	add := func(one cloud.Resource, err error) error {
		if err == nil {
			l.made = append(l.made, one)
		}
		return err
	}
	l.until(ctx, "Ensure", func(ctx context.Context) error {
		req := l.target.Machine
		req.MaybeSent = l.coin()
		return add(l.driver.Ensure(ctx, req))
	})
	if b, able := l.driver.(cloud.Balancer); able && l.target.Balancer.Spec != nil {
		l.until(ctx, "EnsureBalancer", func(ctx context.Context) error {
			req := l.target.Balancer
			req.MaybeSent, req.Recorded = l.coin(), l.coin()
			return add(b.EnsureBalancer(ctx, req))
		})
	}
}

func (l *life) read(ctx context.Context) {
	add := func(all []cloud.Resource, err error) error {
		l.made = append(l.made, all...)
		return err
	}
	l.try(ctx, "List", callTime, func(ctx context.Context) error { return add(l.driver.List(ctx)) })
	refs := []cloud.Reference{
		{Token: l.target.Machine.Token, OwnershipID: l.target.Machine.OwnershipID},
		{Token: l.target.Balancer.Token, OwnershipID: l.target.Balancer.OwnershipID},
	}
	for _, r := range l.made {
		refs = append(refs, cloud.Reference{Token: r.Token, OwnershipID: r.OwnershipID, ProviderID: r.ProviderID})
	}
	l.try(ctx, "Describe", callTime, func(ctx context.Context) error { return add(l.driver.Describe(ctx, refs)) })
	l.try(ctx, "Offering", callTime, func(ctx context.Context) error { _, err := l.driver.Offering(ctx, l.target.Machine.Spec); return err })
}

// readMore calls what only some drivers have.
func (l *life) readMore(ctx context.Context) {
	if p, able := l.driver.(cloud.Placer); able {
		l.try(ctx, "FailureDomains", callTime, func(ctx context.Context) error {
			_, err := p.FailureDomains(ctx, l.target.Machine.Spec)
			return err
		})
	}
	if p, able := l.driver.(preflight.DryRunner); able {
		l.try(ctx, "DryRun", callTime, func(ctx context.Context) error { return p.DryRun(ctx, l.target.Machine) })
	}
	if c, able := l.driver.(cloud.Console); able {
		l.try(ctx, "Console", callTime, func(ctx context.Context) error { _, err := c.Console(ctx, l.instance()); return err })
	}
	if e, able := l.driver.(cloud.EventSource); able {
		l.try(ctx, "Receive", callTime, func(ctx context.Context) error {
			events, err := e.Receive(ctx)
			if err != nil {
				return err
			}
			return e.Ack(ctx, events)
		})
	}
	if w, able := l.driver.(cloud.Watcher); able {
		l.try(ctx, "Watch", watchTime, func(ctx context.Context) error {
			return w.Watch(ctx, func(cloud.Update) { l.updates++ })
		})
	}
}

// instance returns an instance that the driver has shown, or one that does not exist.
func (l *life) instance() cloud.Resource {
	for _, r := range l.made {
		if r.Kind == cloud.KindInstance {
			return r
		}
	}
	return cloud.Resource{Kind: cloud.KindInstance, ID: "i-1", ProviderID: "none", Token: l.target.Machine.Token}
}

func (l *life) tag(ctx context.Context) {
	tagger, able := l.driver.(tagging.Tagger)
	if !able {
		return
	}
	id := l.instance().ID
	tags := map[string]string{cloud.TagToken: l.target.Machine.Token, cloud.TagOwnership: l.target.Machine.OwnershipID}
	l.try(ctx, "Tagged", callTime, func(ctx context.Context) error { _, err := tagger.Tagged(ctx, []string{cloud.TagToken}); return err })
	l.until(ctx, "Tag", func(ctx context.Context) error { return tagger.Tag(ctx, id, tags, nil) })
	l.try(ctx, "Untag", callTime, func(ctx context.Context) error { return tagger.Untag(ctx, []string{id}, []string{"team"}) })
}
