// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud"
)

// WaitFor asks every pace whether something is so, until it is. Tests of real clouds wait for
// minutes, and not longer than ctx.
func WaitFor(ctx context.Context, t testing.TB, pace time.Duration, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		case <-time.After(pace):
		}
	}
}

// Clean deletes machines with everything that belongs to them.
func Clean(ctx context.Context, t testing.TB, d cloud.Driver, refs []cloud.Reference, pace time.Duration) {
	t.Helper()
	began := time.Now()
	WaitFor(ctx, t, pace, "everything is gone", func() bool {
		found, err := d.Describe(ctx, refs)
		if err != nil {
			t.Logf("Describe: %v", err)
			return false
		}
		for _, err := range d.Delete(ctx, instancesFirst(found)) {
			if err != nil {
				t.Logf("Delete: %v", err)
			}
		}
		return len(found) == 0 && time.Since(began) > 3*pace // a listing may lag
	})
	t.Logf("gone after %s", time.Since(began).Round(time.Millisecond))
}
