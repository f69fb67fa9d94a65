// SPDX-License-Identifier: Apache-2.0

// Package playground starts everything that Drover works with as child processes on the loopback
// interface: etcd, kube-apiserver and kube-controller-manager (a ControlPlane), Cluster API's
// managers and Drover's own kinds, roles and webhooks on top (a Management), our programs and the
// simulated cloud. The demo, the tests, the benchmark and the chaos runs all use it, so they run
// against the real programs with the roles that Drover ships.
//
// It needs no root, no container and no address outside 127.0.0.1. Every child dies with the
// process that started it, however that process ends (on Linux; on other systems when it is
// stopped). Stop leaves no process and no listening port behind. Several playgrounds may run at
// once.
//
// It is for trials only: the API server's data are not synced to disk, and no production code may
// import it.
package playground
