// SPDX-License-Identifier: Apache-2.0

// Package faultproxy puts a test between the manager and what it talks to: a management cluster's
// API server, a workload cluster's, a cloud. A Proxy numbers and records every call, and a Rule
// decides over each of them, once before it is forwarded and once when it was answered: pass, wait,
// hang up, answer something else, or kill the caller. Watches can be made to lag behind, so that
// caches are stale. It serves tests alone and knows nothing of Drover but the wire API of the
// simulated cloud.
package faultproxy
