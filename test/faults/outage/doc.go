// SPDX-License-Identifier: Apache-2.0

// Package outage takes away what Drover depends on while machines run. A workload cluster's API
// server is down for longer than a MachineHealthCheck tolerates, and comes back: only machines with
// a fault of their own are replaced. The management cluster's etcd is restored from an old backup:
// no machine's VM is taken for an orphan. The package contains only tests.
package outage
