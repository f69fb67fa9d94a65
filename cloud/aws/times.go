// SPDX-License-Identifier: Apache-2.0

package aws

import "time"

// All durations of the driver, each with its reason.
const (
	// consistency: EC2 documents no limit for how long a new instance may be missing from its
	// answers. It is usually seconds; two minutes exceed what is reported for bad days.
	consistency = 2 * time.Minute

	// shutdown: EC2 documents no limit. A kubelet with its containers takes half a minute or more
	// to stop, but one read shows hundreds of instances, so early reads cost little.
	shutdown = 15 * time.Second

	// resolvedTTL is how long the driver caches images, subnets and security groups: long enough
	// that a thousand machines of one template ask once, short enough that a changed tag is seen
	// while a user waits for it.
	resolvedTTL = 5 * time.Minute

	// fullSubnetTTL is how long a subnet without a free address is not tried again, as long as the
	// account does not try a zone without capacity. EC2's count of free addresses lags behind.
	fullSubnetTTL = 3 * time.Minute

	// nextSubnetDelay is the delay before the next subnet of the zone after a full one.
	nextSubnetDelay = 10 * time.Millisecond

	// placeTTL is how long the driver caches the AWS account of the credentials. Other credentials
	// make another driver. One day limits how long an error lasts.
	placeTTL = 24 * time.Hour

	// typeTTL is how long the driver caches an instance type's description, which never changes.
	// One day limits how long an error lasts.
	typeTTL = 24 * time.Hour

	// leftoversTTL is how long a listing of leftover volumes, network interfaces and addresses is
	// cached. They are rare, cost little, and a live read confirms them. Listing them every minute
	// would be three quarters of an idle account's calls. For this long after a delete, every
	// listing includes them.
	leftoversTTL = 5 * time.Minute

	// noticesTTL is how long the driver caches EC2's notices about instances. AWS announces
	// maintenance days ahead.
	noticesTTL = 5 * time.Minute

	// partsInUse is how long a deleted load balancer may use its security group, as far as the driver
	// assumes. AWS documents no limit, and usually needs some minutes. After that, something else
	// may use the group, which a person must know.
	partsInUse = 10 * time.Minute

	// partsRecheck is how often a part that is in use is tried again, with one call for the group.
	partsRecheck = 10 * time.Second

	// longPoll is SQS's longest poll: an idle account with a queue makes three SQS calls a minute.
	longPoll = 20 * time.Second

	// hiddenFor is how long SQS hides a received message: longer than a reconcile takes to record
	// it, and a quarter of EC2's two-minute notice.
	hiddenFor = 30 * time.Second

	// credentialsEarly is how long before expiry temporary credentials are renewed: longer than the
	// slowest call.
	credentialsEarly = 5 * time.Minute
)
