// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
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

func withCgroupV1(s system) system {
	s.cgroupV1 = true
	return s
}

// withDNF returns a system of the Red Hat family. folder is its folder in Docker's repository.
// Those that derive from RHEL 8 have glibc 2.28, the others 2.34.
func withDNF(name bootstrapv1.OperatingSystem, folder string) system {
	return system{
		name:     name,
		format:   bootstrapv1.FormatCloudConfig,
		programs: "/usr/local/bin",
		oldGlibc: true,
		caFile:   "/etc/pki/ca-trust/source/anchors/drover.crt",
		caUpdate: "update-ca-trust extract",
		packages: rpm(),
		repositories: &repositories{containerd: "2.2", setUp: func(n *node, spec *bootstrapv1.PackagesInstall, want software) {
			dockerRPMs(n, spec, folder)
			kubernetesRPMs(n, spec, want, "containerd.io")
		}},
		upgradesOn:  append(rpm().install("dnf-automatic"), "systemctl enable --now dnf-automatic-install.timer"),
		upgradesOff: []string{"systemctl disable --now dnf-automatic.timer dnf-automatic-install.timer || say 'There are no unattended upgrades to switch off'"},
	}
}
