// SPDX-License-Identifier: Apache-2.0

// Package render creates the user data that turns a machine image into a node. It is pure: the same
// input gives the same bytes, and it reads nothing but its input. It uses the kinds of
// api/bootstrap and no Kubernetes client.
//
// It builds one description of a node (files, units, users, and the steps of a script) from the
// spec, the operating system and the mode of installation. Two writers turn the description into
// bytes: cloud-config for cloud-init, and Ignition. Code that systems share exists once. Each
// system is a row in a file system_*.go. docs/bootstrap.md says how to add one.
//
// The layout is kubeadm's, so that images made by image-builder work unchanged. Their kubelet unit
// reads /etc/kubernetes/bootstrap-kubelet.conf, /var/lib/kubelet/config.yaml and
// /etc/default/kubelet (/etc/sysconfig/kubelet on systems with RPM). If Drover installs the
// kubelet, its unit reads the same files.
//
// Input stays data. A cloud-config is a jinja template, because some clouds tell a machine its
// identity only through cloud-init's instance data. So user input in it is base64-encoded. Input
// that can't be encoded is refused if it contains jinja's delimiters. Ignition carries contents as
// data URLs. In the script, a user's text is one quoted word.
package render
