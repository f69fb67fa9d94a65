// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"sync"

	"github.com/drover-io/drover/cloud"
)

// maxParallelFinds is how many instances are looked for by ID at the same time.
const maxParallelFinds = 8

// findByIDs looks for recorded instances by their IDs, and adds what it learns to a live read: what
// has the machine's tags or has ended is found, and what has not is an error.
func (a *Account) findByIDs(ctx context.Context, refs []cloud.Reference, to answer) {
	var mu sync.Mutex
	var group cloud.Group
	group.SetLimit(maxParallelFinds)
	for _, ref := range refs {
		group.Go(func() error {
			r, err := a.find(ctx, ref)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				to.failed[ref.Token] = err
			case r != nil:
				to.found[ref.Token] = append(to.found[ref.Token], *r)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // a panic
		for _, ref := range refs {
			to.failed[ref.Token] = typed("Find", err)
		}
	}
}

// find returns the recorded instance if it is the machine's or has ended, and nil if the cloud says
// that it does not exist. If it exists without the machine's tags, the error is Conflict.
func (a *Account) find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	r, err := ask(ctx, a, "Find", a.driver.(cloud.Finder).Find, ref)
	if err != nil || r == nil {
		return nil, err
	}
	*r = sanitize(*r)
	tagged := r.Token == ref.Token && (ref.OwnershipID == "" || r.OwnershipID == ref.OwnershipID)
	switch {
	case tagged, r.State == cloud.StateTerminated:
		r.ProviderID, r.Token = ref.ProviderID, ref.Token
		if ref.OwnershipID != "" {
			r.OwnershipID = ref.OwnershipID
		}
		return r, nil
	case a.cloud.Traits.Named && r.Token != "" && r.Token != ref.Token:
		return nil, nil // the name is another machine's by now
	}
	return nil, cloud.Errorf(cloud.Conflict, "instance %s exists, but its tags do not say that it is this machine's, so Drover neither deletes it nor takes it for gone: "+
		"set its tags %s=%s and %s=%s again, or delete it", cloud.Clip(r.ID, 256), cloud.TagToken, ref.Token, cloud.TagOwnership, ref.OwnershipID)
}
