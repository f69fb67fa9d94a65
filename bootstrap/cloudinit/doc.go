// SPDX-License-Identifier: Apache-2.0

// Package cloudinit renders what cloud-init needs to make a node of a machine image. It is pure: the same input gives
// the same bytes, and it reads nothing but its input. It knows the kinds of api/bootstrap and no Kubernetes client.
//
// The layout is kubeadm's, so that images made by image-builder work unchanged: their kubelet unit reads
// /etc/kubernetes/bootstrap-kubelet.conf, /var/lib/kubelet/config.yaml and /etc/default/kubelet (/etc/sysconfig/kubelet
// on systems with RPM).
//
// The user data is a jinja template, because some clouds tell a machine its identity only through cloud-init's instance
// data. Therefore everything that a user may write into is base64-encoded, and what can't be is refused when it holds
// jinja's delimiters: input stays data.
package cloudinit
