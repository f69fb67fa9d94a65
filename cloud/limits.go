// SPDX-License-Identifier: Apache-2.0

package cloud

import "context"

// Class is the kind of a call for the rate limit. Each class has its own bucket, so that none
// starves another.
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

// Limits holds the size of one bucket for each class.
type Limits struct {
	Create, Delete, Read Limit
	// AtOnce is how many creates may run at once, if the cloud works on them after it has accepted
	// them; 0: as many as were accepted. A create runs until reads show that its instance is not
	// StatePending. The engine counts them, because it knows the accounts that share the cloud, and
	// in which order their machines wait: so a driver needs no queue. If an account sets the burst
	// of its creates, that is how many run at once.
	AtOnce int
}

type operationKey struct{}

// Operation is one call on the wire, as the driver named it.
type Operation struct {
	Name  string
	Class Class
	// Stream is true if the call stays open for up to StreamTime, and Poll is true if it then has
	// one answer: the cloud waits until there is something to say.
	Stream, Poll bool
}

// WithOperation names the calls made under the returned context, for rate limit and metrics. A
// driver calls it once for each call, with the cloud's own name for it. Example: "RunInstances".
func WithOperation(ctx context.Context, name string, class Class) context.Context {
	return context.WithValue(ctx, operationKey{}, Operation{Name: name, Class: class})
}

// WithStream is WithOperation for a call that the cloud keeps open for up to StreamTime.
func WithStream(ctx context.Context, name string, class Class) context.Context {
	return context.WithValue(ctx, operationKey{}, Operation{Name: name, Class: class, Stream: true})
}

// WithPoll is WithStream for a call with one answer.
func WithPoll(ctx context.Context, name string, class Class) context.Context {
	return context.WithValue(ctx, operationKey{}, Operation{Name: name, Class: class, Stream: true, Poll: true})
}

// OperationOf returns what WithOperation, WithStream or WithPoll put into ctx; else the zero
// Operation.
func OperationOf(ctx context.Context) Operation {
	op, _ := ctx.Value(operationKey{}).(Operation)
	return op
}
