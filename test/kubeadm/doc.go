// SPDX-License-Identifier: Apache-2.0

// Package kubeadm has machines of an adopted cluster set up by Cluster API's own kubeadm bootstrap provider, in place of Drover's. There is
// nothing here but tests.
package kubeadm
