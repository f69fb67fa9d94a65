// SPDX-License-Identifier: Apache-2.0

// Package render writes what makes a node of a machine image. It is pure: the same input gives the
// same bytes, and it reads nothing but its input. It knows the kinds of api/bootstrap and no
// Kubernetes client.
//
// One description of a node (files, units, users, and the steps of a script) is made of the spec,
// the operating system and the mode of installation; two writers turn it into bytes: cloud-config
// for cloud-init, and Ignition. What the systems share is written once; a system is a row in a file
// system_*.go. docs/bootstrap.md says how to add one.
//
// The layout is kubeadm's, so that images made by image-builder work unchanged: their kubelet unit
// reads /etc/kubernetes/bootstrap-kubelet.conf, /var/lib/kubelet/config.yaml and
// /etc/default/kubelet (/etc/sysconfig/kubelet on systems with RPM). Where Drover installs the
// kubelet, its unit reads the same files.
//
// Input stays data. A cloud-config is a jinja template, because some clouds tell a machine its
// identity only through cloud-init's instance data; therefore everything that a user may write into
// is base64-encoded there, and what can't be is refused when it holds jinja's delimiters. Ignition
// carries contents as data URLs. In the script, a user's text is one quoted word.
package render
