// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

const (
	// downloads is the folder for files that are not yet verified and installed.
	downloads = "/var/cache/drover/"
	// configuredPath is created just before the kubelet starts. Debian's packages start their
	// services, and a machine may lose power half-way. Neither may start the kubelet before the
	// user's commands have run.
	configuredPath = "/etc/kubernetes/drover-configured"
)

// containerdVersion returns the containerd version that Drover would install, or "" if Drover does
// not know it.
func containerdVersion(spec *bootstrapv1.DroverConfigSpec) string {
	switch repositories := systemOf(spec).repositories; {
	case modeOf(spec) == bootstrapv1.InstallBinaries:
		return spec.Install.Binaries.Containerd.Version
	case modeOf(spec) == bootstrapv1.InstallPackages && repositories != nil:
		return cmp.Or(spec.Install.Packages.ContainerdVersion, repositories.containerd)
	}
	return ""
}

// install installs containerd and the kubelet, and the kubelet's unit. The unit is the same for
// both modes, and overrides the unit of a package.
func (n *node) install(in Input) {
	s := systemOf(in.Spec)
	version, err := in.version()
	if err != nil || !Installs(in.Spec) {
		return
	}
	kubelet := fmt.Sprintf("%d.%d.%d", version.Major(), version.Minor(), version.Patch()) // without a vendor's suffix
	if pre := version.PreRelease(); pre != "" {
		kubelet += "-" + pre
	}
	programs := "/usr/bin"
	if modeOf(in.Spec) == bootstrapv1.InstallPackages {
		s.repositories.setUp(n, &in.Spec.Install.Packages, software{kubelet, containerdVersion(in.Spec), joinsByKubeadm(in.Spec)})
	} else {
		programs = s.programs
		n.binaries(s, &in.Spec.Install.Binaries, kubelet)
		n.units = append(n.units, unit{"containerd.service", strings.ReplaceAll(containerdUnitText, "PROGRAMS", programs)})
	}
	n.units = append(n.units, unit{"kubelet.service", strings.ReplaceAll(kubeletUnitText, "PROGRAMS", programs)})
}

// fetchFunction is the part of the script that downloads files.
const fetchFunction = `# fetch SHA256 URL FILE: a file that is there and right is kept, a part of one is continued, a wrong one is thrown away.
right() { echo "$1  $2" | sha256sum -c --status; }
fetch() {
  if [ -f "$3" ] && right "$1" "$3"; then return 0; fi
  why=$(curl -fsSL --connect-timeout 20 -C - -o "$3.part" "$2" 2>&1) || {
    code=$?
    # 22: the server refused, 33: it can't continue. A part would be in the way.
    if [ "$code" = 22 ] || [ "$code" = 33 ]; then rm -f "$3.part"; fi
    say "$2 could not be fetched: $(echo "$why" | head -n 1)"
    return 1
  }
  if ! right "$1" "$3.part"; then
    rm -f "$3.part"
    say "$2 has not the SHA-256 that was given"
    return 1
  fi
  mv "$3.part" "$3"
}`

// binaries downloads and installs each program.
func (n *node) binaries(s system, spec *bootstrapv1.BinariesInstall, kubelet string) {
	arch := string(cmp.Or(spec.Architecture, bootstrapv1.ArchitectureAMD64))
	github := func(project, version, name string) string {
		return "https://github.com/" + project + "/releases/download/v" + version + "/" + name
	}
	if s.packages != nil {
		n.tools(s, "Installing the tools that the installation needs", slices.Sorted(maps.Keys(s.packages.tools))...)
	}
	n.do("Fetching containerd and the kubelet", fetchFunction, "mkdir -p "+downloads+" "+s.programs+" /opt/cni/bin")
	part := func(name, sha256, origin string, put ...string) {
		n.extend("retry fetch " + sha256 + " " + quote(mirrored(spec.Mirror, origin)) + " " + downloads + name)
		n.extend(put...)
	}
	unpack := func(name, folder string) string {
		return "tar -xzf " + downloads + name + " -C " + folder + " --no-same-owner"
	}
	place := func(name string) string { return "install -m 0755 " + downloads + name + " " + s.programs + "/" + name }

	part("containerd.tgz", spec.Containerd.SHA256, github("containerd/containerd", spec.Containerd.Version,
		s.containerdArchive()+"-"+spec.Containerd.Version+"-linux-"+arch+".tar.gz"), unpack("containerd.tgz", s.programs)+" --strip-components=1",
		"why=$("+s.programs+"/containerd --version 2>&1) || {",
		`  say "containerd does not start on this system: $(echo "$why" | head -n 1)"`,
		"  exit 1",
		"}")
	part("runc", spec.Runc.SHA256, github("opencontainers/runc", spec.Runc.Version, "runc."+arch), place("runc"))
	part("cni-plugins.tgz", spec.CNIPlugins.SHA256, github("containernetworking/plugins", spec.CNIPlugins.Version,
		"cni-plugins-linux-"+arch+"-v"+spec.CNIPlugins.Version+".tgz"), unpack("cni-plugins.tgz", "/opt/cni/bin"))
	if c := spec.Crictl; c.Version != "" {
		part("crictl.tgz", c.SHA256, github("kubernetes-sigs/cri-tools", c.Version, "crictl-v"+c.Version+"-linux-"+arch+".tar.gz"),
			unpack("crictl.tgz", s.programs))
	}
	for _, program := range []struct{ name, sha256 string }{{"kubelet", spec.Kubelet.SHA256}, {"kubeadm", spec.Kubeadm.SHA256}} {
		if program.sha256 != "" { // kubeadm only if it is used to join
			part(program.name, program.sha256, "https://dl.k8s.io/release/v"+kubelet+"/bin/linux/"+arch+"/"+program.name, place(program.name))
		}
	}
}

// containerdArchive returns the name of the archive in containerd's releases that starts on the
// system, without version and architecture. The statically linked one is meant for systems that do
// not have glibc 2.35, see https://github.com/containerd/containerd/releases/tag/v2.2.1.
func (s system) containerdArchive() string {
	if s.oldGlibc {
		return "containerd-static"
	}
	return "containerd"
}

// tools installs the packages of missing programs.
func (n *node) tools(s system, name string, programs ...string) {
	n.do(name, "missing=")
	for _, program := range programs {
		n.extend("command -v " + program + " >/dev/null || missing=\"$missing " + s.packages.tools[program] + "\"")
	}
	n.extend("# shellcheck disable=SC2086 # words are meant", "if [ -n \"$missing\" ]; then")
	for _, line := range s.packages.install("MISSING") {
		n.extend("  " + strings.ReplaceAll(line, "'MISSING'", "$missing"))
	}
	n.extend("fi")
}

// mirrored returns the URL to download a file from: its host and path under the mirror, if there is
// one.
func mirrored(mirror, origin string) string {
	if mirror == "" {
		return origin
	}
	u, err := url.Parse(origin)
	if err != nil {
		return origin
	}
	return mirror + "/" + u.Host + u.Path
}

const kubeletUnitText = `[Unit]
Description=kubelet, the agent of Kubernetes on each node
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target containerd.service
ConditionPathExists=` + configuredPath + `

[Service]
EnvironmentFile=-` + kubeadmFlagsPath + `
EnvironmentFile=-` + KubeletDefaultsPath + `
ExecStart=PROGRAMS/kubelet --bootstrap-kubeconfig=` + BootstrapKubeconfigPath + ` --kubeconfig=/etc/kubernetes/kubelet.conf --config=` +
	KubeletConfigPath + ` $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=10

[Install]
WantedBy=multi-user.target
`

const containerdUnitText = `[Unit]
Description=containerd, the container runtime
Documentation=https://containerd.io
After=network.target local-fs.target
ConditionFileIsExecutable=PROGRAMS/containerd

[Service]
Type=notify
Environment=PATH=PROGRAMS:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=PROGRAMS/containerd
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`
