// SPDX-License-Identifier: Apache-2.0

// Package kubeadm tests machines that join with kubeadm. Machines join an adopted cluster, set up
// by Cluster API's own kubeadm bootstrap provider instead of Drover's, or by Drover. Other machines
// of Drover join a cluster whose control plane comes from Cluster API's kubeadm provider. This
// package holds only tests.
package kubeadm
