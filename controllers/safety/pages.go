// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects are in memory at a time. A Node has 20 to 60 KB, and up to ten
// clusters may be read at once.
const pageSize = 200

// eachItem lists page by page and calls visit for each item. All pages show the same point in time.
// An API server that can't continue from it returns an error. visit must not keep the item.
func eachItem(ctx context.Context, reader client.Reader, list client.ObjectList, visit func(runtime.Object),
	options ...client.ListOption) error {
	for next := ""; ; {
		page := list.DeepCopyObject().(client.ObjectList)
		if err := reader.List(ctx, page, append(slices.Clip(options), client.Limit(pageSize), client.Continue(next))...); err != nil {
			return err
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error { visit(o); return nil }); err != nil {
			return err
		}
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}
