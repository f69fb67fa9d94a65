// SPDX-License-Identifier: Apache-2.0

// Package bootstrap tests package bootstrap against a real API server, which is both management and
// workload cluster: it authenticates the tokens, its RBAC and NodeRestriction limit them, and
// kube-controller-manager signs approved requests. The tests take the roles of Cluster API, by
// writing Machines, and of kubelets.
package bootstrap
