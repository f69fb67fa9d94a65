// SPDX-License-Identifier: Apache-2.0

// Package e2e runs Cluster API's own specs, as its infrastructure providers do, with Cluster API's test framework and ginkgo: on
// a management cluster with the real API server and the real Cluster API, which adopts itself, and machines of the simulated
// cloud. It holds those specs that need neither Pods, because nothing runs them here, nor control plane machines: making a cluster,
// by templates and by a ClusterClass, scaling, healing, and deleting in order. There is nothing here but tests.
package e2e
