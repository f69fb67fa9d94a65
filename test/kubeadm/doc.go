// SPDX-License-Identifier: Apache-2.0

// Package kubeadm has machines join an adopted cluster by kubeadm: set up by Cluster API's own
// kubeadm bootstrap provider, in place of Drover's, and by Drover; and machines of Drover's join a
// cluster whose control plane is of Cluster API's kubeadm provider. There is nothing here but
// tests.
package kubeadm
