// SPDX-License-Identifier: Apache-2.0

package driverkit

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/drover-io/drover/cloud"
)

// maxPages and maxItems bound a listing that does not end.
const (
	maxPages = 10_000
	maxItems = 100_000
	// maxListing bounds a listing in bytes.
	maxListing = 256 << 20
)

// listingKey is the key of a listing's bytes in the contexts of its calls.
type listingKey struct{}

// Pages reads a listing to its end. page returns the items after a mark, and the next mark; "" ends
// the listing. The first mark is "". A listing that does not end, or has more than maxItems, is
// Unknown.
func Pages[T any](ctx context.Context, operation string,
	page func(ctx context.Context, cursor string) (items []T, next string, err error)) ([]T, error) {
	var all []T
	cursor := ""
	ctx = context.WithValue(ctx, listingKey{}, &atomic.Int64{})
	seen := map[[sha256.Size]byte]bool{} // digests, because a cloud chooses how long a mark is
	for range maxPages {
		items, next, err := page(ctx, cursor)
		if err != nil {
			return nil, err
		}
		if len(all)+len(items) > maxItems {
			return nil, cloud.Errorf(cloud.Unknown, "%s: the listing has more than %d items: check the endpoint, or use several accounts", operation,
				maxItems)
		}
		if all = append(all, items...); next == "" {
			return all, nil
		}
		digest := sha256.Sum256([]byte(next))
		if seen[digest] {
			break
		}
		seen[digest] = true
		cursor = next
	}
	return nil, cloud.Errorf(cloud.Unknown, "%s: the listing does not end", operation)
}

// PageSizes remembers which listings have smaller pages than others, because a page exceeded a
// bound. An honest page does so if its resources are large.
type PageSizes struct {
	mu     sync.Mutex
	halved map[string]int // how often, by operation
}

// get returns a page's size.
func (p *PageSizes) get(operation string, most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return most >> p.halved[operation]
}

// halve halves an operation's pages, unless they have not this size anymore.
func (p *PageSizes) halve(operation string, most, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if most>>p.halved[operation] != size {
		return
	}
	if p.halved == nil {
		p.halved = map[string]int{}
	}
	p.halved[operation]++
}

// SizedPages is Pages for a listing that has a page size between least and most. If a page exceeds
// a bound, it starts the listing over with half the size, and keeps that for later listings.
func SizedPages[T any](ctx context.Context, operation string, sizes *PageSizes, least, most int,
	page func(ctx context.Context, cursor string, size int) (items []T, next string, err error)) ([]T, error) {
	for {
		size := sizes.get(operation, most)
		all, err := Pages(ctx, operation, func(ctx context.Context, cursor string) ([]T, string, error) { return page(ctx, cursor, size) })
		if !errors.Is(err, ErrTooLarge) || size/2 < least {
			return all, err
		}
		sizes.halve(operation, most, size)
	}
}
