// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

func rhel() []system {
	out := []system{withCgroupV1(withDNF("rhel-8", "rhel/8")), withDNF("rhel-9", "rhel/9")}
	for i := range out {
		out[i].subscribes = true
	}
	return out
}

// rocky uses Docker's packages for RHEL, because those for CentOS 8 are no longer maintained.
func rocky() []system {
	return []system{withCgroupV1(withDNF("rocky-8", "rhel/8")), withDNF("rocky-9", "rhel/9")}
}

// withDNF returns a system of the Red Hat family. folder is its folder in Docker's repository.
func withDNF(name bootstrapv1.OperatingSystem, folder string) system {
	return system{
		name:     name,
		format:   bootstrapv1.FormatCloudConfig,
		programs: "/usr/local/bin",
		caFile:   "/etc/pki/ca-trust/source/anchors/drover.crt",
		caUpdate: "update-ca-trust extract",
		packages: rpm("dnf"),
		repositories: &repositories{containerd: "2.2", setUp: func(n *node, spec *bootstrapv1.PackagesInstall, want software) {
			dockerRPMs(n, spec, folder)
			kubernetesRPMs(n, spec, want, "containerd.io")
		}},
		upgradesOn:  append(rpm("dnf").install("dnf-automatic"), "systemctl enable --now dnf-automatic-install.timer"),
		upgradesOff: []string{"systemctl disable --now dnf-automatic.timer dnf-automatic-install.timer || say 'There are no unattended upgrades to switch off'"},
	}
}
