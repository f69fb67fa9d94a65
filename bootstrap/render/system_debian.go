// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

// Docker's repository has containerd 2 for all of these except Ubuntu 20.04, where 1.7 is the last.

func ubuntu() []system {
	return []system{
		withCgroupV1(withAPT("ubuntu-20.04", "ubuntu", "focal", "1.7")),
		withAPT("ubuntu-22.04", "ubuntu", "jammy", "2.2"),
		withAPT("ubuntu-24.04", "ubuntu", "noble", "2.2"),
	}
}

func debian() []system {
	return []system{
		withAPT("debian-12", "debian", "bookworm", "2.2"),
		withAPT("debian-13", "debian", "trixie", "2.2"),
	}
}

func withCgroupV1(s system) system {
	s.cgroupV1 = true
	return s
}

// withAPT returns a system of the Debian family. distribution and release are the folders in
// Docker's repository.
func withAPT(name bootstrapv1.OperatingSystem, distribution, release, containerd string) system {
	const periodic = `printf 'APT::Periodic::Update-Package-Lists "%s";\nAPT::Periodic::Unattended-Upgrade "%s";\n' `
	return system{
		name:     name,
		format:   bootstrapv1.FormatCloudConfig,
		programs: "/usr/local/bin",
		caFile:   "/usr/local/share/ca-certificates/drover.crt",
		caUpdate: "update-ca-certificates",
		packages: apt(),
		repositories: &repositories{containerd: containerd, setUp: func(n *node, spec *bootstrapv1.PackagesInstall, want software) {
			aptRepositories(n, spec, distribution, release, want)
		}},
		upgradesOn: append(apt().install("unattended-upgrades"),
			periodic+"1 1 >/etc/apt/apt.conf.d/20auto-upgrades",
			"systemctl enable --now apt-daily.timer apt-daily-upgrade.timer"),
		upgradesOff: []string{
			periodic + "0 0 >/etc/apt/apt.conf.d/20auto-upgrades",
			"systemctl disable --now apt-daily.timer apt-daily-upgrade.timer",
		},
	}
}
