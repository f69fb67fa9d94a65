// SPDX-License-Identifier: Apache-2.0

// Package faultproxy places a test between the manager and its peers: the API servers of a
// management and a workload cluster, and a cloud. A Proxy numbers and records every call. A Rule
// decides about each call twice, before it is forwarded and after it was answered: pass, wait, hang
// up, send another answer, or kill the caller. Watches can lag, so that caches are stale. The
// package is for tests only, and knows nothing of Drover except the wire API of the simulated
// cloud.
package faultproxy
