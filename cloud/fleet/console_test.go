// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/drover-io/drover/cloud"
)

// consoleDriver is a driver whose cloud keeps consoles.
type consoleDriver struct {
	cloud.Driver
	console func(context.Context, cloud.Resource) ([]byte, error)
}

func (d consoleDriver) Console(ctx context.Context, instance cloud.Resource) ([]byte, error) {
	return d.console(ctx, instance)
}

func TestConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCloud(t)
		silent := c.begin(t).account(t)
		a := silent
		ref := ensure(t, a, "m")
		read := func(ref cloud.Reference) string {
			t.Helper()
			text, err := a.Console(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if got := read(ref); got != "" {
			t.Errorf("of a cloud that keeps none: %q", got)
		}
		asked, goOn := make(chan cloud.Resource, 10), make(chan struct{}, 10)
		with := func(console func(context.Context, cloud.Resource) ([]byte, error)) *Account { // it shares the loops of silent
			talks := &Account{cloud: silent.cloud, driver: consoleDriver{silent.driver, console}, times: silent.times, meter: silent.meter,
				accountState: silent.accountState,
				place:        place{pinned: testPlace, proved: testPlace}}
			talks.limiter.Store(silent.limiter.Load())
			return talks
		}
		a = with(func(ctx context.Context, instance cloud.Resource) ([]byte, error) {
			asked <- instance
			<-goOn
			return append(bytes.Repeat([]byte("."), maxConsoleBytes), "end"...), ctx.Err()
		})
		for name, other := range map[string]cloud.Reference{
			"nobody's":             {Token: "nobody"},
			"of another ownership": {Token: ref.Token, OwnershipID: "others"},
		} {
			if got := read(other); got != "" || len(asked) != 0 {
				t.Errorf("%s: %q, asked %d times", name, got, len(asked))
			}
		}
		go func() {
			<-asked
			var queued *cloud.Queued
			if _, err := a.Console(t.Context(), ref); !errors.As(err, &queued) {
				t.Errorf("a second one at a time: %v", err)
			}
			goOn <- struct{}{}
		}()
		if got := read(ref); len(got) != maxConsoleBytes || got[len(got)-3:] != "end" {
			t.Errorf("%d bytes, which end with %q", len(got), got[len(got)-3:])
		}

		a = with(func(context.Context, cloud.Resource) ([]byte, error) { return nil, errors.New("marked-secret") })
		if _, err := a.Console(t.Context(), ref); cloud.CodeOf(err) != cloud.Unknown ||
			bytes.Contains([]byte(err.Error()), []byte("marked-secret")) {
			t.Errorf("an error of nobody's: %v", err)
		}
	})
}
