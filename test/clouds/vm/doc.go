// SPDX-License-Identifier: Apache-2.0

// Package vm tests, by booting real guests, that images become Nodes. The guests run under QEMU
// with Debian's kernel, systemd and cloud-init, a real containerd and a real kubelet. Their user
// data come from DroverConfigs through a running Drover and the simulated cloud, which uses
// these guests as its instances. One guest each gets its user data through the real OpenStack of
// hack/openstack, through KubeVirt's own programs, on the node of test/internal/virt, and through the
// stand-ins for Azure and Compute Engine. One guest becomes the control plane of a whole cluster,
// by Cluster API's kubeadm providers. The guests download files from a mirror on this computer.
//
// The tests need root, to build the images (hack/vm/install), and the program ip. Run them with
// "make test-vm".
package vm
