// SPDX-License-Identifier: Apache-2.0

// Package rig is the bench that tests of whole machines are bolted to: a management cluster, a
// workload cluster and a simulated cloud, as real processes, or a stand-in for EC2 or vCenter or a
// real OpenStack in its place; Drover managers that come and go as processes; and a faultproxy on
// each line between them. Tenants, each with a namespace, a cloud account and proxies of its own,
// run side by side on it.
package rig
