// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// system describes an operating system. An empty field means that the system does not support it.
type system struct {
	name   bootstrapv1.OperatingSystem
	format bootstrapv1.Format
	// programs is the folder for downloaded programs.
	programs string
	// caFile is the path for additional certificates, and caUpdate the command that makes the
	// system trust them.
	caFile, caUpdate string
	// oldGlibc: glibc is older than 2.35, with which containerd's usual archive is linked.
	oldGlibc bool
	// cgroupV1: the image boots with cgroup v1, which newer kubelets refuse by default.
	cgroupV1 bool
	// subscribes: only registered machines can use the repositories.
	subscribes bool
	// packages installs software; nil if the system has no packages.
	packages *packageManager
	// repositories provide containerd and the kubelet for this system; nil if packages can't be
	// used for them.
	repositories *repositories
	// upgradesOn and upgradesOff are the commands that switch unattended upgrades.
	upgradesOn, upgradesOff []string
}

// packageManager installs packages on a family of systems.
type packageManager struct {
	// install returns script lines that install packages, which may be patterns. The lines are
	// idempotent.
	install func(packages ...string) []string
	// tools maps the programs that an installation by single files needs to their packages.
	tools map[string]string
}

// repositories are the source of a system's packages for nodes.
type repositories struct {
	// containerd is the default version prefix of containerd's package; empty if the system's
	// release decides.
	containerd string
	// setUp adds steps to the node that configure the repositories, install the software, and hold
	// its packages.
	setUp func(n *node, spec *bootstrapv1.PackagesInstall, want software)
}

// software is the software that packages must install.
type software struct {
	// kubelet is a version such as 1.36.3. containerd is a version, a version prefix, or empty.
	kubelet, containerd string
	// kubeadm: install kubeadm too, at the kubelet's version.
	kubeadm bool
}

// systems returns all supported operating systems, in the order of the documentation's matrix.
func systems() []system {
	return slices.Concat(ubuntu(), debian(), rhel(), rocky(), amazon(), flatcar())
}

// systemOf returns the spec's system. If the spec names none, the image may have any.
func systemOf(spec *bootstrapv1.DroverConfigSpec) system {
	all := systems()
	if i := slices.IndexFunc(all, func(s system) bool { return s.name == spec.OperatingSystem }); i >= 0 {
		return all[i]
	}
	return system{format: bootstrapv1.FormatCloudConfig}
}

// unknownSystem reports whether the spec names a system that this release does not know.
func unknownSystem(spec *bootstrapv1.DroverConfigSpec) bool {
	return spec.OperatingSystem != "" && systemOf(spec).name == ""
}

// modes returns the modes of installation that a system supports.
func (s system) modes() []bootstrapv1.InstallMode {
	out := []bootstrapv1.InstallMode{bootstrapv1.InstallPrebuilt}
	if s.repositories != nil {
		out = append(out, bootstrapv1.InstallPackages)
	}
	if s.programs != "" {
		out = append(out, bootstrapv1.InstallBinaries)
	}
	return out
}

// Row is a row of the matrix of operating systems in docs/bootstrap.md.
type Row struct {
	System bootstrapv1.OperatingSystem
	Format bootstrapv1.Format
	Modes  []bootstrapv1.InstallMode
	// Containerd is the default of spec.install.packages.containerdVersion; empty if the system's
	// release decides.
	Containerd string
	// CgroupV1: Drover configures the kubelet to accept cgroup v1.
	CgroupV1 bool
}

// Matrix returns what each operating system supports.
func Matrix() []Row {
	var out []Row
	for _, s := range systems() {
		row := Row{System: s.name, Format: s.format, Modes: s.modes(), CgroupV1: s.cgroupV1}
		if s.repositories != nil {
			row.Containerd = s.repositories.containerd
		}
		out = append(out, row)
	}
	return out
}
