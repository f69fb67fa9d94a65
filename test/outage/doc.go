// SPDX-License-Identifier: Apache-2.0

// Package outage takes away what Drover depends on while machines run. A workload cluster's API
// server is gone for longer than a MachineHealthCheck would bear, and comes back: no machine is
// replaced that is not ill for a reason of its own. The management cluster's etcd comes back as an
// old backup: no machine's VM is taken for an orphan. There is nothing here but tests.
package outage
