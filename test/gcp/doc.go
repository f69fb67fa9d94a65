// SPDX-License-Identifier: Apache-2.0

// Package gcp tests machines of the stand-in for Compute Engine: with Cluster API and Drover's
// manager, where they read their user data and become Nodes, and with the engine alone. The package
// holds only tests.
package gcp
