// SPDX-License-Identifier: Apache-2.0

// Package autoscaler runs the real cluster-autoscaler, with the rights and arguments of
// docs/examples/autoscaler, on pools of the simulated cloud, and of a stand-in for EC2: pods that
// find no place bring machines, machines that nobody needs go, a pool without capacity gives way to
// another, and a frozen pool makes nothing. There is nothing here but tests.
package autoscaler
