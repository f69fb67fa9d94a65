// SPDX-License-Identifier: Apache-2.0

// Package bootstrap tests package bootstrap against a real API server, which is management and
// workload cluster in one: the tokens authenticate there, its RBAC and NodeRestriction decide what
// they may do, and kube-controller-manager signs what was approved. The tests play the parts of
// Cluster API, by writing Machines, and of kubelets.
package bootstrap
