// SPDX-License-Identifier: Apache-2.0

// Package scenario does in Go what a user does with Drover: it describes an adopted cluster with
// its worker pools, creates and changes those objects, and waits by watch for a state. The demo,
// the benchmark and the tests share it. It uses only the API: package playground starts the
// processes.
package scenario
