// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"time"
)

const StreamTime = 5 * time.Minute

type Follower interface {
	Driver
	Follow(ctx context.Context, tell func(Change)) error
}

type Change struct {
	At        time.Time
	All       bool
	Token     string
	Resources []Resource
}

func WithStream(ctx context.Context, name string, class Class) context.Context {
	return WithOperation(ctx, name, class)
}
