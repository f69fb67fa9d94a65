// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"

	"github.com/drover-io/drover/cloud"
)

// maxConsole is how much of a console is kept, in bytes: what EC2 answers at most.
const maxConsole = 64 << 10

// Console returns the end of what the machine's instance has written to its console; nothing where
// its cloud keeps none or has none yet, or where there is not one instance that is known to live.
// It costs a call, and is there for machines that went wrong: one is read at a time, and others are
// *Queued.
func (a *Account) Console(ctx context.Context, ref cloud.Reference) ([]byte, error) {
	driver, able := a.driver.(cloud.Console)
	alive := living(ownedBy(a.inventory.known(ref.Token), ref.OwnershipID))
	if !able || len(alive) != 1 {
		return nil, nil
	}
	if !a.console.TryLock() {
		return nil, &cloud.Queued{After: time.Second}
	}
	defer a.console.Unlock()
	var text []byte
	err := a.step(ctx, "Console", a.times.Call, &step{}, func(ctx context.Context) (err error) {
		text, err = driver.Console(ctx, alive[0])
		return err
	})
	return text[max(0, len(text)-maxConsole):], err
}
