// SPDX-License-Identifier: Apache-2.0

// Package vm proves by booting that images become Nodes: real guests under QEMU with Debian's
// kernel, systemd and cloud-init, a real containerd and a real kubelet. Their user data come from
// CloudInitConfigs through a running Drover and the simulated cloud, which lends its instances
// these bodies instead of its own; those of one also through the real OpenStack of hack/openstack,
// and of one through KubeVirt's own programs, on the node of test/virt. What they fetch comes from
// a mirror on this machine.
//
// It needs root, to make the images (hack/vm/install), and is run by "make test-vm".
package vm
