// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"

	"github.com/drover-io/drover/cloud"
)

// Tagged calls the Tagger, for "drover import". A driver that is none is InvalidSpec.
func (a *Account) Tagged(ctx context.Context, keys []string) (found []cloud.Tagged, err error) {
	err = a.tagger(ctx, "Tagged", func(ctx context.Context, t cloud.Tagger) (err error) {
		found, err = t.Tagged(ctx, keys)
		return err
	})
	return found, err
}

// Tag calls the Tagger.
func (a *Account) Tag(ctx context.Context, id string, tags map[string]string, own []string) error {
	return a.tagger(ctx, "Tag", func(ctx context.Context, t cloud.Tagger) error { return t.Tag(ctx, id, tags, own) })
}

// Untag calls the Tagger.
func (a *Account) Untag(ctx context.Context, ids, keys []string) error {
	return a.tagger(ctx, "Untag", func(ctx context.Context, t cloud.Tagger) error { return t.Untag(ctx, ids, keys) })
}

func (a *Account) tagger(ctx context.Context, method string, call func(context.Context, cloud.Tagger) error) error {
	driver, able := a.driver.(cloud.Tagger)
	if !able {
		return cloud.Invalid("Drover can't tag VMs that others have made on the cloud %q", a.cloud.Name)
	}
	return a.call(ctx, method, a.times.Call, &driverCall{}, func(ctx context.Context) error { return call(ctx, driver) })
}
