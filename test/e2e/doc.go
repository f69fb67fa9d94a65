// SPDX-License-Identifier: Apache-2.0

// Package e2e runs Cluster API's own specs, as its infrastructure providers do, with Cluster API's
// test framework and ginkgo, on machines of the simulated cloud: making a cluster, by templates and
// by a ClusterClass, and many at once; scaling, healing, autoscaling, and deleting in order. Those
// that want a KubeadmControlPlane (node drain, self-hosted) or a release of before (clusterctl's
// upgrade) are written anew, for clusters that are adopted. The management cluster adopts itself.
// By default it is one of processes, the real API server and the real Cluster API, without Docker;
// with -kind it is a kind cluster that clusterctl sets up, with Drover as Pods.
//
// There is nothing here but tests.
package e2e
