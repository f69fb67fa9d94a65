// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"time"
)

// Every duration that the driver goes by, in one place with its reason.
const (
	// consistency: Nova answers a create once the server is in its database, and finds it from then
	// on. Behind several replicas of the database (Galera) a read may lag by a moment.
	consistency = 2 * time.Second

	// openTTL is how long at least a create without an answer may still take effect: what stands
	// before Nova holds a request for some seconds, and Nova itself for one or two. Until then,
	// that no server is found does not mean that none comes.
	openTTL = 20 * time.Second

	// openTimes is the same in times of how long the answer was waited for: who is slow to answer
	// is slow to act. A Nova that was asked for 300 servers at once, on two processors, took up to
	// 160 s for one; a call ends after 30 s by default.
	openTimes = 5

	// inheritedTTL is how long a create may take effect, counted from when it was sent, whoever
	// sent it: the longest call by default, 30 s, and openTimes as long after it. The 160 s above
	// are within it.
	inheritedTTL = 3 * time.Minute

	// restMost is the most that the next look waits because of how long the last one took
	// (cloud.RestTimes), of the half minute that a call has.
	restMost = 5 * time.Second

	// resolvedTTL is how long an answer to "which flavor, image, network, security group" is
	// believed: long enough that a thousand machines of one template ask once, short enough that a
	// new image is taken up while one waits for it.
	resolvedTTL = 5 * time.Minute

	// tokenEarly is how long before its end a token is renewed: longer than the slowest call.
	tokenEarly = 2 * time.Minute
)
