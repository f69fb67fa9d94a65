// SPDX-License-Identifier: Apache-2.0

// Package cluster tests whole clusters: machines of Drover's become control planes by Cluster API's
// own KubeadmControlPlane, with the real kubeadm, etcd and Kubernetes programs. It needs Linux and
// root. This package holds only tests.
package cluster
