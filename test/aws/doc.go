// SPDX-License-Identifier: Apache-2.0

// Package aws tests machines of the stand-in for EC2 with Cluster API and Drover's manager. The
// instances read their user data and become Nodes. The package holds only tests.
package aws
