// SPDX-License-Identifier: Apache-2.0

// Package scenario is what a user does with Drover, as Go: it describes an adopted cluster with its
// worker pools, creates and changes those objects, and waits by watch until something is true of
// them. The demo, the benchmark and the tests share it. It knows the API alone: which processes
// run, and where, is package playground's.
package scenario
