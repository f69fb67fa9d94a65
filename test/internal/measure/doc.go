// SPDX-License-Identifier: Apache-2.0

// Package measure brings a fleet of machines up and down, on the simulated cloud or a stand-in for
// EC2 or vSphere, and measures the cost: cloud calls from the cloud's own counters, Kubernetes
// writes from the API server's audit log, reconciles from Drover's metrics, CPU and memory from the
// kernel. The benchmark prints the results, and the test of package budget compares the counts with
// their goals.
package measure
