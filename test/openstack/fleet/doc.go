// SPDX-License-Identifier: Apache-2.0

// Package fleet has Cluster API and Drover's manager make machines of a real OpenStack, whose
// servers read their user data from Nova's metadata service and become Nodes. "make test-openstack"
// starts that OpenStack. There is nothing here but tests.
package fleet
