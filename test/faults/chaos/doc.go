// SPDX-License-Identifier: Apache-2.0

// Package chaos runs random schedules of faults, restarts, user actions and attacks by guests
// against Drover, and checks what must never happen: two VMs for one Machine, a change to a foreign
// VM, a certificate or a provider ID for a guest that claims to be another machine. After the
// faults, the state that the users asked for must be reached, no VM may be without an owner, and
// after the deletion nothing may be left.
//
// A schedule is a pure function of its seed. Several run side by side, each in its own namespace
// and with its own account (a wave). Faults of the shared processes (managers killed, stopped or
// frozen; API servers restarted; lagging caches; the cloud down) are the wave's own schedule, a
// function of its first seed. The machines are created in the simulated cloud, in a stand-in for
// EC2 with -cloud aws, in govmomi's vCenter with -cloud vsphere, or in KubeVirt with -cloud
// kubevirt. The package contains only tests.
package chaos
