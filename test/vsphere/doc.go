// SPDX-License-Identifier: Apache-2.0

// Package vsphere has Cluster API and Drover's manager make machines of govmomi's vCenter, whose
// VMs read their user data as the guest of one would and become Nodes. There is nothing here but
// tests.
package vsphere
