// SPDX-License-Identifier: Apache-2.0

// Package takeover runs "drover import" on machines of a stand-in for EC2 that another system has
// made, with real API servers, Cluster API and Drover's manager. The other system itself does not
// run: its objects are made by hand. The stages are also for the tests of other clouds.
package takeover
