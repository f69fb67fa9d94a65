// SPDX-License-Identifier: Apache-2.0

// Package csr judges requests for kubelet certificates. It is pure: it takes a request and the
// known facts about the machine and its cluster, and returns why the request must not be approved.
// It does no I/O and uses no Kubernetes client.
package csr
