// SPDX-License-Identifier: Apache-2.0

// Package whole makes whole clusters on the simulated cloud: machines of Drover's become control
// planes by Cluster API's own KubeadmControlPlane, with the real kubeadm, etcd and Kubernetes
// programs. It needs Linux, root and the program ip. test/cluster, test/e2e, test/clouds/vm and the
// demo use it.
package whole
