// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/preflight"
	"github.com/drover-io/drover/cloud/tagging"
)

// DryRun tries a create for "drover check", see preflight.DryRunner. able is false if the driver
// can't.
func (a *Account) DryRun(ctx context.Context, req cloud.Request) (able bool, err error) {
	driver, able := a.driver.(preflight.DryRunner)
	if !able {
		return false, nil
	}
	return true, a.call(ctx, "DryRun", a.times.Call, &driverCall{}, func(ctx context.Context) error { return driver.DryRun(ctx, req) })
}

// Tagged calls the Tagger, for "drover import". A driver that is none is InvalidSpec.
func (a *Account) Tagged(ctx context.Context, keys []string) (found []tagging.Instance, err error) {
	err = callTagger(ctx, a, "Tagged", func(ctx context.Context, t tagging.Tagger) (err error) {
		found, err = t.Tagged(ctx, keys)
		return err
	})
	return found, err
}

// Tag calls the Tagger.
func (a *Account) Tag(ctx context.Context, id string, tags map[string]string, own []string) error {
	return callTagger(ctx, a, "Tag", func(ctx context.Context, t tagging.Tagger) error { return t.Tag(ctx, id, tags, own) })
}

// Untag calls the Tagger.
func (a *Account) Untag(ctx context.Context, ids, keys []string) error {
	return callTagger(ctx, a, "Untag", func(ctx context.Context, t tagging.Tagger) error { return t.Untag(ctx, ids, keys) })
}

func callTagger(ctx context.Context, a *Account, method string, call func(context.Context, tagging.Tagger) error) error {
	driver, able := a.driver.(tagging.Tagger)
	if !able {
		return cloud.Invalid("Drover can't tag VMs that others have made on the cloud %q", a.cloud.Name)
	}
	return a.call(ctx, method, a.times.Call, &driverCall{}, func(ctx context.Context) error { return call(ctx, driver) })
}
