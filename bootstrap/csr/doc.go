// SPDX-License-Identifier: Apache-2.0

// Package csr judges requests for kubelets' certificates. It is pure: it gets a request and what is
// known of the machine and its cluster, and returns why the request must not be approved. It reads
// nothing and knows no Kubernetes client.
package csr
