// SPDX-License-Identifier: Apache-2.0

// Package playground starts, as child processes on the loopback interface, all that Drover works
// with: etcd, kube-apiserver and kube-controller-manager (a ControlPlane), Cluster API's managers
// and Drover's own kinds, roles and webhooks on top (a Management), the drover binary and the
// simulated cloud. The demo, the tests, the benchmark and the chaos runs all stand on it, so that
// they meet the real programs under the roles that Drover ships.
//
// It needs no root, no container and no address outside 127.0.0.1. Every child dies with the
// process that started it, however that ends (on Linux; elsewhere when it is stopped), and Stop
// leaves no process and no listening port behind. Several playgrounds may run at once.
//
// It is for trials only: the API server's data is not synced to disk, and nothing in production may
// import it.
package playground
