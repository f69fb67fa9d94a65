// SPDX-License-Identifier: Apache-2.0

// Package measure brings a fleet of machines up and down, on the simulated cloud or a stand-in for
// EC2, and counts what that cost: calls of the cloud by the cloud's own books, Kubernetes writes by
// the API server's audit log, reconciles by Drover's metrics, CPU and memory by the kernel. The
// benchmark prints what it finds, and package budget's test holds the counts to their goals.
package measure
