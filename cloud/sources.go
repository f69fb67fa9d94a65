// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"time"
)

const (
	// StreamTime is how long a driver may have its cloud keep one call open (WithStream). A cloud
	// that does not end it by itself is left after the time of a common call more.
	StreamTime = 5 * time.Minute
	// RestTimes is how long a cloud is left alone after a frequent listing, in times of how long
	// that took: one that works for seconds at an answer, or whose account reads at its limit, is
	// not to work at listings all the time. No longer than between two that are not frequent.
	// Drivers that look more often than an account lists do the same.
	RestTimes = 9
)

// Herald is a Driver whose cloud tells by itself what becomes of instances, at a place that the
// account names. It is asked while machines of the account are observed. Nothing depends on it but
// how soon something is known.
type Herald interface {
	Driver

	// Hear waits for news, in one call and for less than ctx allows; that none came is not an
	// error. What is not dismissed comes again within a minute.
	Hear(ctx context.Context) ([]News, error)

	// Dismiss has them come no more. That some do all the same is harmless.
	Dismiss(ctx context.Context, news []News) error
}

// News is what a cloud tells of one instance.
type News struct {
	// InstanceID is the Resource's ID; "" where there is nothing to be done.
	InstanceID string
	// At is when it was told, by the cloud's clock.
	At time.Time
	// Notice is for people, as a Resource's; "" for none.
	Notice string
	// Ending is true when the cloud is about to take the instance back. It is believed of an
	// instance that is Interruptible.
	Ending bool
	// Imminent is as a Resource's.
	Imminent bool
	// Changed is true when the instance's state has become another, and is to be read.
	Changed bool
	// Receipt is what the driver dismisses it by.
	Receipt string
}

// Follower is a Driver whose cloud tells of every change by itself. While it does, the account is
// not listed.
type Follower interface {
	Driver

	// Follow reads everything, as List does, and tells it as one Change; then it tells each change,
	// until ctx ends or nothing more can be told, which is an error. It resumes by itself where
	// nothing can have been missed, and tells everything anew where something can. It gives a sign
	// of life each minute or so. tell is not called at the same time as itself, nor after Follow
	// has returned.
	Follow(ctx context.Context, tell func(Change)) error
}

// Change is what a Follower tells: everything, or all that one machine has now, or with neither All
// nor a Token a sign of life.
type Change struct {
	// At is as of when it is true, by this computer's clock: when the listing began, or when it was
	// heard. Whatever changed before a sign of life has been told.
	At time.Time
	// All says that Resources are everything, as List returns it.
	All bool
	// Token is whose Resources are told otherwise, instances and dependants: all that carry it, or
	// none.
	Token     string
	Resources []Resource
}

// Console is a Driver whose cloud keeps what its instances write to their consoles.
type Console interface {
	Driver

	// Console returns the end of what an instance has written, as far as its cloud shows it now;
	// nothing where that has nothing yet. It may hold anything: it is the instance's own.
	Console(ctx context.Context, instance Resource) ([]byte, error)
}
