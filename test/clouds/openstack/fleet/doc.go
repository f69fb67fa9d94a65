// SPDX-License-Identifier: Apache-2.0

// Package fleet tests machines of a real OpenStack with Cluster API and Drover's manager. The
// servers read their user data from Nova's metadata service and become Nodes. "make test-openstack"
// starts this OpenStack. The package holds only tests.
package fleet
