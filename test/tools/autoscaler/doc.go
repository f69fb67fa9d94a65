// SPDX-License-Identifier: Apache-2.0

// Package autoscaler runs the real cluster-autoscaler, with the permissions and arguments of
// docs/examples/autoscaler, on pools of the simulated cloud and of stand-ins for EC2, Azure and
// Compute Engine. Pending pods lead to new machines, unused machines are deleted, a pool without
// capacity is replaced by another, and a frozen pool creates nothing. This package holds only
// tests.
package autoscaler
