// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"

	"github.com/drover-io/drover/cloud"
)

// Tagged calls the Tagger, for "drover import". A driver that is none is InvalidSpec.
func (a *Account) Tagged(ctx context.Context, keys []string) (found []cloud.Tagged, err error) {
	driver, able := a.driver.(cloud.Tagger)
	if !able {
		return nil, cloud.Errorf(cloud.InvalidSpec, "Drover can't tag VMs that others have made on the cloud %q", a.cloud.Name)
	}
	err = a.call(ctx, "Tagged", a.times.Call, &driverCall{}, func(ctx context.Context) (err error) {
		found, err = driver.Tagged(ctx, keys)
		return err
	})
	return found, err
}
