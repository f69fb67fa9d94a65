// SPDX-License-Identifier: Apache-2.0

package render

import (
	"testing"

	. "github.com/onsi/gomega"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// TestContainerdStarts: each system gets an archive of containerd that starts with its glibc.
// containerd's release notes: the usual one is dynamically linked with glibc 2.35, and the static
// one is for distributions that do not have it.
func TestContainerdStarts(t *testing.T) {
	const usual, static = "containerd-2.2.1-linux-", "containerd-static-2.2.1-linux-"
	want := map[bootstrapv1.OperatingSystem]string{
		"ubuntu-22.04": usual, "ubuntu-24.04": usual, "debian-12": usual, "debian-13": usual, "flatcar": usual,
		"rhel-8": static, "rocky-8": static, // 2.28
		"rhel-9": static, "rocky-9": static, "amazon-linux-2023": static, // 2.34
	}
	for _, row := range Matrix() {
		for _, arch := range []bootstrapv1.Architecture{bootstrapv1.ArchitectureAMD64, bootstrapv1.ArchitectureARM64} {
			in := full(t, row.System, bootstrapv1.InstallBinaries)
			in.Spec.Install.Binaries.Mirror = ""
			in.Spec.Install.Binaries.Architecture = arch
			in.Spec.Install.Binaries.Containerd.Version = "2.2.1"
			g := NewWithT(t)
			data, err := UserData(in)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(want).To(HaveKey(row.System), "say which glibc this system has")
			g.Expect(readBack(g, FormatOf(in.Spec), data).files[ScriptPath].content).To(ContainSubstring(
				"https://github.com/containerd/containerd/releases/download/v2.2.1/"+want[row.System]+string(arch)+".tar.gz"), "%s", row.System)
		}
	}
}

// TestContainerdThatDoesNotStart: the script says why, and starts nothing.
func TestContainerdThatDoesNotStart(t *testing.T) {
	in := full(t, "debian-13", bootstrapv1.InstallBinaries)
	web := webOf(NewWithT(t), &in.Spec.Install.Binaries)
	broken := archive(NewWithT(t), "bin/containerd", "#!/bin/sh\necho \"/lib64/libc.so.6: version 'GLIBC_2.34' not found\" >&2\nexit 1\n")
	web["containerd-2.2.1-linux-amd64.tar.gz"], in.Spec.Install.Binaries.Containerd.SHA256 = broken, sum(broken)
	s := newSandbox(t, in)
	s.serve(web)
	said, ok := s.run()
	s.Expect(ok).To(BeFalse())
	s.Expect(said).To(ContainSubstring("drover: containerd does not start on this system: /lib64/libc.so.6: version 'GLIBC_2.34' not found\n"))
	s.Expect(s.read("/calls")).NotTo(ContainSubstring("systemctl restart containerd"))
}
