// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

func ubuntu() []system {
	return []system{withAPT("ubuntu-22.04", "ubuntu", "jammy"), withAPT("ubuntu-24.04", "ubuntu", "noble")}
}

func debian() []system {
	return []system{withAPT("debian-12", "debian", "bookworm"), withAPT("debian-13", "debian", "trixie")}
}

// withAPT returns a system of the Debian family. distribution and release are the folders in
// Docker's repository.
func withAPT(name bootstrapv1.OperatingSystem, distribution, release string) system {
	const periodic = `printf 'APT::Periodic::Update-Package-Lists "%s";\nAPT::Periodic::Unattended-Upgrade "%s";\n' `
	return system{
		name:     name,
		format:   bootstrapv1.FormatCloudConfig,
		programs: "/usr/local/bin",
		caFile:   "/usr/local/share/ca-certificates/drover.crt",
		caUpdate: "update-ca-certificates",
		packages: apt(),
		repositories: &repositories{containerd: "2.2", setUp: func(n *node, spec *bootstrapv1.PackagesInstall, want software) {
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
