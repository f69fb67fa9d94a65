// SPDX-License-Identifier: Apache-2.0

// Package e2e runs Cluster API's own specs on machines of the simulated cloud, with Cluster API's
// test framework and ginkgo, as infrastructure providers do. The specs create clusters, from
// templates and a ClusterClass, one by one and many at once; they scale, heal, autoscale, and
// delete in order. The specs of node drain, self-hosted clusters and clusterctl's upgrade are
// rewritten for adopted clusters; those with the label "whole" make control planes, too, as package
// whole can. The management cluster adopts itself. By default it consists of processes, with the
// real API server and the real Cluster API, without Docker. With -kind it is a kind cluster that
// clusterctl sets up, with Drover as Pods.
//
// This package holds only tests.
package e2e
