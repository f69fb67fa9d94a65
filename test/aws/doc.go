// SPDX-License-Identifier: Apache-2.0

// Package aws has Cluster API and Drover's manager make machines of the stand-in for EC2, whose
// instances read their user data and become Nodes. There is nothing here but tests.
package aws
