// SPDX-License-Identifier: Apache-2.0

// Package chaos lets random schedules of faults, restarts and user actions loose on Drover, and
// watches what must never happen: two VMs for one Machine, a foreign VM touched. When the faults
// have stopped, what the users asked for must come true, no VM may be without an owner, and after
// the deletion nothing may be left.
//
// A schedule is a pure function of its seed. Several run side by side, each in a namespace and with
// an account of its own (a wave); what befalls the processes that they share (managers killed,
// stopped, frozen; API servers restarted; caches that lag; the cloud down) is a schedule too, the
// wave's, and a function of its first seed. The machines are made in the simulated cloud, with
// -cloud aws in a stand-in for EC2, or with -cloud vsphere in govmomi's vCenter. There is nothing
// here but tests.
package chaos
