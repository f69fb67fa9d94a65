// SPDX-License-Identifier: Apache-2.0

// Package e2e runs Cluster API's own specs, as its infrastructure providers do, with Cluster API's test framework and ginkgo, on
// machines of the simulated cloud: making a cluster, by templates and by a ClusterClass, and many at once; scaling, healing, and
// deleting in order. The management cluster adopts itself. By default it is one of processes, the real API server and the real
// Cluster API, without Docker; with -kind it is a kind cluster that clusterctl sets up, with Drover as Pods.
//
// Cluster API's other specs (self-hosted, node drain, autoscaler, upgrades) want a KubeadmControlPlane and Pods on its machines,
// which the simulated cloud does not run; what they try is tried in test/packaging, test/move, test/lifecycle and test/autoscaler.
// There is nothing here but tests.
package e2e
