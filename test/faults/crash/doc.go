// SPDX-License-Identifier: Apache-2.0

// Package crash kills the manager at every step of a machine's life. The steps are not listed by
// hand: a run without faults records each write of Drover to either cluster and each of its calls
// to the cloud. Each of them gives two points to crash at, before the call is sent and after it was
// executed. For each point the test brings a machine there, kills the manager with SIGKILL while
// the call is held, and restarts it. In the end there must be exactly one VM per Machine, and
// nothing may be left of it after its deletion. The machines are created in the simulated cloud, in
// a stand-in for EC2 with -cloud aws, in govmomi's vCenter with -cloud vsphere, or in KubeVirt with
// -cloud kubevirt. The package contains only tests.
package crash
