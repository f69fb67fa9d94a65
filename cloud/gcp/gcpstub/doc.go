// SPDX-License-Identifier: Apache-2.0

// Package gcpstub is a stand-in for Compute Engine, as far as Drover uses it: the token services,
// instances with their operations and disks, load balancers, regions, machine types, images,
// permissions and the serial console. It speaks HTTPS under Google's names. Each request that it
// receives, and each answer that it sends, is held to Google's discovery documents. In a test,
// Google's own clients read the answers. Only tests import it.
package gcpstub
