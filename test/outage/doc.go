// SPDX-License-Identifier: Apache-2.0

// Package outage takes a workload cluster's API server away while machines run, for longer than their MachineHealthCheck
// would bear, and gives it back: no machine is replaced that is not ill for a reason of its own. There is nothing here but
// tests.
package outage
