// SPDX-License-Identifier: Apache-2.0

// Package armstub is a stand-in for Azure Resource Manager, as far as Drover uses it: the token
// service, virtual machines with everything that is made inline, their parts, load balancers with
// their public addresses, the catalog, boot diagnostics, and what a dry run reads. It grants what
// the caller's role assignments do, and has quotas. It speaks HTTPS. Each body of Microsoft.Compute
// that it receives or sends is held to the models of the Azure SDK for Go, which Microsoft
// generates from its API definitions. The SDK's client reads load balancers (hack/tools). Only
// tests import it.
package armstub
