// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

// amazon has containerd in its own repositories. Those of Amazon Linux 2 have no version that newer
// kubelets accept, so only single files work there.
func amazon() []system {
	two := withDNF("amazon-linux-2", "")
	two.cgroupV1, two.repositories, two.packages = true, nil, rpm("yum")
	two.upgradesOn = append(rpm("yum").install("yum-cron"),
		"sed -i 's/^apply_updates = .*/apply_updates = yes/' /etc/yum/yum-cron.conf",
		"systemctl enable --now yum-cron")
	two.upgradesOff = []string{"systemctl disable --now yum-cron || say 'There are no unattended upgrades to switch off'"}

	newer := withDNF("amazon-linux-2023", "")
	newer.repositories = &repositories{setUp: func(n *node, spec *bootstrapv1.PackagesInstall, want software) {
		kubernetesRPMs(n, spec, want, "containerd")
	}}
	newer.packages = rpm("dnf")
	return []system{two, newer}
}
