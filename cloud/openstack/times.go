// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"time"
)

// All durations of the driver, each with its reason.
const (
	// consistency: Nova answers a create once the server is in its database, and finds it from then
	// on. With a replicated database (Galera), a read may lag for a moment.
	consistency = 2 * time.Second

	// minPending is the minimum time in which a create without an answer may still take effect: a
	// proxy holds a request for some seconds, and Nova itself for one or two. Until then, a missing
	// server may still appear.
	minPending = 20 * time.Second

	// pendingFactor is the same as a multiple of the time spent waiting for the answer, because a
	// slow cloud also acts slowly. Nova on two processors took up to 160 s for a server when it was
	// asked for 300 at once. A call ends after 30 s by default.
	pendingFactor = 5

	// inheritedPending is how long a create of any process may take effect after it was sent: the
	// longest call by default, 30 s, plus pendingFactor times that. The 160 s above are within it.
	inheritedPending = 3 * time.Minute

	// goneTTL is how long the driver remembers that a server is gone: longer than the engine asks
	// for it, and than inheritedPending.
	goneTTL = time.Hour

	// maxCooldown is the longest cooldown after a read, out of the 30 s that a call has.
	maxCooldown = 5 * time.Second

	// resolvedTTL is how long the driver caches flavors, images, networks and security groups: long
	// enough that a thousand machines of one template ask once, short enough that a new image is
	// used while a user waits for it.
	resolvedTTL = 5 * time.Minute

	// tokenEarly is how long before expiry a token is renewed: longer than the slowest call.
	tokenEarly = 2 * time.Minute
)
