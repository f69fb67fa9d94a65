// SPDX-License-Identifier: Apache-2.0

// Package orphans lets random schedules of mistakes, faults and restarts loose on the orphan
// collector, with its periods scaled down: the real manager (--run=safety) with the real API
// server, Cluster API and the simulated cloud. The test plays who makes and deletes machines,
// because that is who errs here; so it knows at each moment what has an owner.
//
// What must never happen is that the collector deletes what belongs to a machine, to no cluster of
// ours, or to objects that were lost in a mass and are not given up. When the schedule is over and
// a person has answered what was asked, every true orphan must be gone. A schedule is a function of
// its seed; several run side by side, each in a namespace and with an account of its own (a wave).
// There is nothing here but tests.
package orphans
