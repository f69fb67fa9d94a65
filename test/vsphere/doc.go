// SPDX-License-Identifier: Apache-2.0

// Package vsphere tests machines of govmomi's vCenter with Cluster API and Drover's manager. The
// VMs read their user data as a vSphere guest would and become Nodes. The package holds only tests.
package vsphere
