// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"

	"github.com/drover-io/drover/cloud"
)

// maxConsoleBytes is how many bytes of a console are kept: the most that EC2 returns.
const maxConsoleBytes = 64 << 10

// Console returns the end of what the machine's instance has written to its console. It returns
// nothing if the cloud has none (yet), or if the machine does not have exactly one living instance.
// It costs a call, and is meant for failed machines: it reads one console of the account at a time,
// and returns *Queued to other callers.
func (a *Account) Console(ctx context.Context, ref cloud.Reference) ([]byte, error) {
	driver, able := a.driver.(cloud.Console)
	alive := liveInstances(ownedBy(a.inventory.resources(ref.Token), ref.OwnershipID))
	if !able || len(alive) != 1 {
		return nil, nil
	}
	if !a.console.TryLock() {
		return nil, &cloud.Queued{After: time.Second}
	}
	defer a.console.Unlock()
	text, err := ask(ctx, a, "Console", driver.Console, alive[0])
	return text[max(0, len(text)-maxConsoleBytes):], err
}
