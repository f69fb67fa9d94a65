// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// amazon has containerd in its own repositories.
func amazon() []system {
	out := withDNF("amazon-linux-2023", "")
	out.repositories = &repositories{setUp: func(n *node, spec *bootstrapv1.PackagesInstall, want software) {
		kubernetesRPMs(n, spec, want, "containerd")
	}}
	return []system{out}
}
