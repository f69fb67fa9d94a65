// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"time"
)

const (
	// StreamTime is how long a cloud may keep one call open (WithStream). A longer call is cut off.
	StreamTime = 5 * time.Minute
	// CooldownFactor is how long the engine waits after a frequent listing, as a multiple of its
	// duration, so that a slow cloud is not busy with listings all the time. The wait is never
	// longer than between infrequent listings. Drivers that read more often do the same.
	CooldownFactor = 9
)

// EventSource is a Driver whose cloud reports by itself what happens to instances, in a queue that
// the account names. It only makes the engine learn things sooner.
type EventSource interface {
	Driver
	// Receive waits for events in one call, for less time than ctx allows. No event is not an
	// error. An event that is not acknowledged is returned again within a minute. Called without a
	// pause while machines of the account are observed.
	Receive(ctx context.Context) ([]Event, error)

	// Ack stops the delivery of the events. If one of them comes again, that is harmless. Called
	// when what they say is recorded, or concerns no machine.
	Ack(ctx context.Context, events []Event) error
}

// Event is what a cloud reports of one instance.
type Event struct {
	// InstanceID is the Resource's ID; "" if there is nothing to do.
	InstanceID string
	// At is when the cloud reported it, by the cloud's clock.
	At time.Time
	// Notice is a text for people, as in Resource; "" for none.
	Notice string
	// Reclaim has the same meaning as in Resource. The engine ignores it if the instance is not
	// Interruptible.
	Reclaim Reclaim
	// Changed is true if the instance's state has changed and must be read.
	Changed bool
	// Receipt identifies the event to Ack.
	Receipt string
}

// Watcher is a Driver whose cloud reports every change by itself. While it does, nothing is listed.
type Watcher interface {
	Driver
	// Watch reads everything, as List does, and reports it as one Update. Then it reports each
	// change until ctx ends, or until it can report no more, which is an error. It resumes by
	// itself if it can't have missed anything, and otherwise reports everything again. It sends a
	// heartbeat about once a minute. It never calls report concurrently, or after its return.
	// Called when an account is connected, and again after it has returned.
	Watch(ctx context.Context, report func(Update)) error
}

// Update is what a Watcher reports: everything (All), all that one machine has now (Token), or a
// heartbeat (neither).
type Update struct {
	// At is the time as of which it is true, by this computer's clock: when the listing began, or
	// when the change arrived. All changes before a heartbeat are reported before it.
	At time.Time
	// All is true if Resources are everything, as List returns it.
	All bool
	// Token is the machine to which Resources belong otherwise: all instances and dependants that
	// carry it, or none.
	Token     string
	Resources []Resource
	// Stored is how many bytes the Watcher keeps in memory for its next reports; 0 if that is no
	// more than it has reported.
	Stored int64
}

// Finder is a Driver whose cloud tells an instance that does not exist from one that the
// credentials may not see. For such a cloud, a machine is gone when the cloud says so of its
// recorded ID. For others, reads that find nothing have to do, and a person must confirm them if
// there are many.
type Finder interface {
	Driver
	// Find is a live read of the instance that has ref.ProviderID, whatever its tags are ("find").
	// Called for a machine of which Describe has just found no instance. The Resource has the Token
	// and OwnershipID that its tags say. nil without an error means that the cloud says that it has
	// no such instance: of the instance itself, or of a group that the same credentials see to be
	// gone. A place that is not found (a subscription, project, region or zone) is an error.
	Find(ctx context.Context, ref Reference) (*Resource, error)
}

// Console is a Driver whose cloud keeps what its instances write to their consoles.
type Console interface {
	Driver
	// Console returns the end of what an instance has written, as far as its cloud shows it now;
	// nothing if the cloud has nothing yet. The instance writes it, so it may hold anything
	// ("console"). Called when a machine is late to become a Node.
	Console(ctx context.Context, instance Resource) ([]byte, error)
}
