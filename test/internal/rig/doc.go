// SPDX-License-Identifier: Apache-2.0

// Package rig is a test bench for whole machines. It has a management cluster, a workload cluster
// and a simulated cloud, as real processes. Instead of the simulated cloud it can have a stand-in
// for EC2, Azure, Compute Engine or vCenter, a real OpenStack, or a cluster with KubeVirt. Drover
// managers start and stop as processes, and a faultproxy sits on each connection. Tenants run side
// by side on it, each with its own namespace, cloud account and proxies.
package rig
