// SPDX-License-Identifier: Apache-2.0

// Package clouds tests machines of the stand-ins for EC2, Azure, Compute Engine and vCenter: with
// Cluster API and Drover's manager, where they read their user data and become Nodes, and with the
// engine alone. -cloud chooses one. What every cloud has is tested by one test, which reads what
// differs from a table; what only one has is in the files that begin with its name. The package
// holds only tests.
package clouds
