// SPDX-License-Identifier: Apache-2.0

// Package takeover makes running machines of another system Drover's. It reads the other system's
// objects, the Nodes and the cloud, and plans which objects of Cluster API and Drover would stand
// for the same VMs, and what can't be carried over.
//
// It lies above the controllers, and only "drover import" uses it, with its user's credentials: the
// manager has no part in a takeover. What it reads, it never changes. It knows the other system's
// objects as data, and imports no module of it.
package takeover
