// SPDX-License-Identifier: Apache-2.0

// Package crash kills the manager at every step of a machine's life. The steps are not listed by
// hand: a run without faults records each write of Drover's to either cluster and each of its calls
// to the cloud, and every one of them is two points to die at, before it is sent and after it was
// done. Then, for each point, a machine is brought there, the manager is killed by SIGKILL while
// the call is held, and started again; in the end there must be exactly one VM per Machine, and
// nothing of it after its deletion. The machines are made in the simulated cloud, with -cloud aws
// in a stand-in for EC2, or with -cloud vsphere in govmomi's vCenter. There is nothing here but
// tests.
package crash
