// SPDX-License-Identifier: Apache-2.0

package cloud

import "context"

// Class is the kind of a call for the rate limit. Each has a bucket of its own, so that none starves another.
type Class string

// The classes.
const (
	ClassCreate Class = "create"
	ClassDelete Class = "delete"
	ClassRead   Class = "read"
)

// Limit is a token bucket.
type Limit struct {
	PerSecond float64
	Burst     int
}

// Limits holds one bucket's size for each class.
type Limits struct {
	Create, Delete, Read Limit
}

type operationKey struct{}

type operation struct {
	name   string
	class  Class
	stream bool // it stays open for up to StreamTime
}

// WithOperation names the calls made under the returned context, for the rate limit and the metrics. A driver calls it
// once for each call that it makes, with the cloud's own name of the operation. Example: "RunInstances".
func WithOperation(ctx context.Context, name string, class Class) context.Context {
	return context.WithValue(ctx, operationKey{}, operation{name: name, class: class})
}

// WithStream is WithOperation for a call that the cloud keeps open for up to StreamTime.
func WithStream(ctx context.Context, name string, class Class) context.Context {
	return context.WithValue(ctx, operationKey{}, operation{name: name, class: class, stream: true})
}

func operationOf(ctx context.Context) operation {
	if op, ok := ctx.Value(operationKey{}).(operation); ok {
		return op
	}
	return operation{name: "other", class: ClassRead}
}

// OperationOf returns what WithOperation put into ctx, for a transport that counts calls. ok is false when the driver did
// not name the call.
func OperationOf(ctx context.Context) (name string, class Class, ok bool) {
	op, ok := ctx.Value(operationKey{}).(operation)
	return op.name, op.class, ok
}
