// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
)

// system is what the rendering must know of an operating system. An empty part is what the system
// can't do.
type system struct {
	name   bootstrapv1.OperatingSystem
	format bootstrapv1.Format
	// programs is the folder for downloaded programs.
	programs string
	// caFile is where further certificates go, and caUpdate the command that makes the system trust
	// them.
	caFile, caUpdate string
	// cgroupV1 says that the image starts with version 1 of control groups, which newer kubelets
	// refuse unless told.
	cgroupV1 bool
	// subscribes says that repositories are only there for machines that are registered.
	subscribes bool
	// packages installs software; nil where the system takes none.
	packages *packageManager
	// repositories are those that hold containerd and the kubelet for this system; nil where
	// packages can't be used for them.
	repositories *repositories
	// upgradesOn and upgradesOff are commands that switch unattended upgrades.
	upgradesOn, upgradesOff []string
}

// packageManager is how a family of systems installs packages.
type packageManager struct {
	// install returns the lines that install packages, which may be patterns. The lines can be run
	// again.
	install func(packages ...string) []string
	// tools are the packages of the programs that an installation by single files needs, by the
	// program's name.
	tools map[string]string
}

// repositories are where a system's packages for nodes come from.
type repositories struct {
	// containerd is the default beginning of the version of containerd's package; empty where the
	// system's own release decides.
	containerd string
	// setUp adds to the node what makes the package manager know the repositories, installs what is
	// asked for, and holds it.
	setUp func(n *node, spec *bootstrapv1.PackagesInstall, want software)
}

// software is what packages are to bring.
type software struct {
	// kubelet is a version such as 1.36.3; containerd is one, a beginning of one, or empty.
	kubelet, containerd string
	// kubeadm says that it is to come too, at the kubelet's version.
	kubeadm bool
}

// systems lists all operating systems that can be named, as the book's matrix shows them.
func systems() []system {
	return slices.Concat(ubuntu(), debian(), rhel(), rocky(), amazon(), flatcar())
}

// systemOf returns the system that a spec names. Where it names none, the image can be of any.
func systemOf(spec *bootstrapv1.CloudInitConfigSpec) system {
	all := systems()
	if i := slices.IndexFunc(all, func(s system) bool { return s.name == spec.OperatingSystem }); i >= 0 {
		return all[i]
	}
	return system{format: bootstrapv1.FormatCloudConfig}
}

// modes returns the modes of installation that a system can be used with.
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

// Row is a line of the matrix of operating systems in docs/bootstrap.md.
type Row struct {
	System bootstrapv1.OperatingSystem
	Format bootstrapv1.Format
	Modes  []bootstrapv1.InstallMode
	// Containerd is the default of spec.install.packages.containerdVersion; empty where the
	// system's release decides.
	Containerd string
	// CgroupV1 says that the kubelet is told to bear version 1 of control groups.
	CgroupV1 bool
}

// Matrix tells what each operating system can do.
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
