// SPDX-License-Identifier: Apache-2.0

// Package azure tests machines of the stand-in for Azure: with Cluster API and Drover's manager,
// where they read their custom data and become Nodes, and with the engine alone. The package holds
// only tests.
package azure
