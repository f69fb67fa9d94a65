// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
)

// disturbance is a fault of a connection.
type disturbance struct {
	action
	seed  uint64
	until time.Time
}

// lines are a tenant's connections to the management cluster, the workload cluster and the cloud.
type lines struct {
	mu    sync.Mutex
	list  []disturbance
	rules []*faultproxy.Rule // for the connection to the cloud; they come first, and apply to watches too
}

// inject adds a rule for calls to the cloud until undo is called.
func (l *lines) inject(rule faultproxy.Rule) (undo func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rules = append(slices.Clone(l.rules), &rule)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.rules = slices.DeleteFunc(slices.Clone(l.rules), func(r *faultproxy.Rule) bool { return r == &rule })
	}
}

func (l *lines) disturb(a action, seed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, disturbance{a, seed, time.Now().Add(a.lasts)})
}

func (l *lines) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}

// rule applies the current disturbances to a call. They do not affect watches: the storm does.
func (l *lines) rule(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
	l.mu.Lock()
	now, rules := l.list, l.rules
	l.mu.Unlock()
	for _, rule := range rules {
		if c.Proxy != "cloud" {
			break
		}
		if v := (*rule)(ctx, c, at); v != (faultproxy.Verdict{}) {
			return v
		}
	}
	if c.Verb == "watch" {
		return faultproxy.Verdict{}
	}
	line := c.Proxy
	if strings.HasPrefix(line, "manager-") {
		line = "management"
	}
	for _, d := range now {
		if d.line != line || time.Now().After(d.until) || !d.hits(c, at) {
			continue
		}
		switch d.what {
		case "cut":
			return faultproxy.Verdict{Cut: true}
		case "conflict":
			if c.Write() && rig.Ours(c) && c.Verb != "create" && c.Verb != "delete" {
				return faultproxy.Refuse(apierrors.NewConflict(schema.GroupResource{Group: c.Group, Resource: c.Resource}, c.Name,
					errors.New("the object has been modified")))
			}
		case "slow":
			faultproxy.Delay(ctx, d.delay)
		case "hang":
			faultproxy.Delay(ctx, d.delay)
			return faultproxy.Verdict{Cut: true}
		}
	}
	return faultproxy.Verdict{}
}

// hits decides whether the disturbance hits the call at this point. The decision depends only on
// the seed and the call's number.
func (d *disturbance) hits(c faultproxy.Call, at faultproxy.Point) bool {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.Proxy + d.what))
	r := rand.New(rand.NewPCG(d.seed^h.Sum64(), uint64(c.Number)))
	if r.Float64() >= d.chance {
		return false
	}
	return one(r, faultproxy.Before, faultproxy.After) == at
}
