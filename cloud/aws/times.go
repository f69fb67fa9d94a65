// SPDX-License-Identifier: Apache-2.0

package aws

import "time"

// Every duration that the driver goes by, in one place with its reason.
const (
	// consistency: EC2 promises no bound for how long a new instance may be missing from its
	// answers. It is seconds as a rule; two minutes are more than what is told of bad days.
	consistency = 2 * time.Minute

	// shutdown: EC2 gives no bound. It has the guest shut down first; one that stops a kubelet with
	// its containers takes half a minute and more.
	shutdown = 30 * time.Second

	// resolvedTTL is how long an answer to "which image, which subnets, which security groups" is
	// believed: long enough that a thousand machines of one template ask once, short enough that a
	// changed tag is seen while one waits for it.
	resolvedTTL = 5 * time.Minute

	// placeTTL is how long it is believed to which AWS account the credentials belong. Others make
	// another driver; a day bounds the memory of a mistake.
	placeTTL = 24 * time.Hour

	// typeTTL is how long an instance type's description is believed. It never changes; a day
	// bounds the memory of a mistake.
	typeTTL = 24 * time.Hour

	// leftoversTTL is how long a listing of volumes, network interfaces and addresses that were
	// left behind serves further listings. They are an exception that costs little and is confirmed
	// by a live read; listing them each minute would cost three quarters of an idle account's
	// calls. For as long after a deletion every listing looks for them.
	leftoversTTL = 5 * time.Minute

	// noticesTTL is how long it is believed what EC2 announces of instances: AWS announces its work
	// days ahead.
	noticesTTL = 5 * time.Minute

	// longPoll is SQS's longest: an idle account with a queue costs three calls of SQS a minute.
	longPoll = 20 * time.Second

	// hiddenFor is how long SQS keeps a message to itself that was handed out: longer than a
	// reconcile takes to put it on record, and a quarter of the two minutes that EC2 gives notice.
	hiddenFor = 30 * time.Second

	// credentialsEarly is how long before their end temporary credentials are renewed: longer than
	// the slowest call.
	credentialsEarly = 5 * time.Minute
)
