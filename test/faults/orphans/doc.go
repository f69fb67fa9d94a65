// SPDX-License-Identifier: Apache-2.0

// Package orphans runs random schedules of mistakes, faults and restarts against the orphan
// collector, with its periods scaled down: the real manager (--run=safety) with the real API
// server, Cluster API and the simulated cloud. The test itself creates and deletes machines,
// because those are the actors that make the mistakes here. So it always knows what has an owner.
//
// The collector must never delete what belongs to a machine, or what belongs to no cluster of ours.
// If many objects were lost at once, it must not delete what belongs to them before a person has
// confirmed it. When the schedule is over and a person has answered all questions, every true
// orphan must be gone. A schedule is a function
// of its seed. Several run side by side, each in its own namespace and with its own account (a
// wave). The package contains only tests.
package orphans
