// SPDX-License-Identifier: Apache-2.0

// Package security attacks the real manager, with its shipped roles, as a tenant who may write
// Clusters, Drover's kinds and Secrets in one namespace, and whose API server is the tenant's own
// program. The package contains only tests.
package security
