// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"strings"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

const (
	kubernetesRepository = "https://pkgs.k8s.io/core:/stable:"
	dockerRepository     = "https://download.docker.com/linux"
)

// apt waits for other installers at the first boot, and keeps configuration files that Drover wrote
// before the package was installed.
func apt() *packageManager {
	const options = "-y -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confold"
	return &packageManager{
		install: func(packages ...string) []string {
			return []string{
				"export DEBIAN_FRONTEND=noninteractive",
				"retry apt-get update",
				"retry apt-get install " + options + " --allow-downgrades --allow-change-held-packages " + quoteAll(packages),
			}
		},
		tools: map[string]string{"curl": "curl", "tar": "tar", "iptables": "iptables", "conntrack": "conntrack"},
	}
}

// rpm uses dnf. The repositories exclude the node's packages, so that upgrades skip them.
func rpm() *packageManager {
	return &packageManager{
		install: func(packages ...string) []string {
			return []string{"retry dnf install -y --disableexcludes=all " + quoteAll(packages)}
		},
		tools: map[string]string{"curl": "curl", "tar": "tar", "iptables": "iptables", "conntrack": "conntrack-tools"},
	}
}

// minorFolder returns a version's folder in the Kubernetes project's repository.
func minorFolder(kubelet string) string {
	parts := strings.SplitN(kubelet, ".", 3)
	return "v" + parts[0] + "." + parts[1]
}

// packageVersion returns the pattern for a version's packages: 2.2 must not match 2.20, nor 2.2.1
// match 2.2.10.
func packageVersion(version string) string {
	if strings.Count(version, ".") < 2 {
		return version + ".*"
	}
	return version + "-*"
}

// aptRepositories configures the repositories and installs from them. apt reads keys in text form
// from files that end in .asc. The script fetches the keys over verified TLS, and apt then verifies
// the packages by them.
func aptRepositories(n *node, spec *bootstrapv1.PackagesInstall, distribution, release string, want software) {
	const keys = "/etc/apt/keyrings/"
	kubernetes := cmp.Or(spec.KubernetesRepository, kubernetesRepository) + "/" + minorFolder(want.kubelet) + "/deb/"
	docker := cmp.Or(spec.ContainerdRepository, dockerRepository) + "/" + distribution
	list := func(key, rest string) string { return quote("deb [signed-by=" + keys + key + ".asc] " + rest) }
	n.do("Fetching the keys of the package repositories",
		"mkdir -p "+keys,
		"if ! command -v curl >/dev/null; then",
		"  retry apt-get update",
		"  retry apt-get install -y -o DPkg::Lock::Timeout=600 curl ca-certificates",
		"fi",
		"retry curl -fsSL --connect-timeout 20 -o "+keys+"kubernetes.asc "+quote(kubernetes+"Release.key"),
		"retry curl -fsSL --connect-timeout 20 -o "+keys+"docker.asc "+quote(docker+"/gpg"),
		// Only after the keys exist, because apt fails without them.
		"printf '%s\\n' "+list("kubernetes", kubernetes+" /")+" "+list("docker",
			docker+" "+release+" stable")+" >/etc/apt/sources.list.d/drover.list")
	n.do("Installing containerd and the kubelet")
	packages, hold := []string{"containerd.io=" + packageVersion(want.containerd), "kubelet=" + want.kubelet + "-*", "cri-tools"}, ""
	if want.kubeadm {
		packages, hold = append(packages, "kubeadm="+want.kubelet+"-*"), " kubeadm"
	}
	n.extend(apt().install(packages...)...)
	n.extend("apt-mark hold containerd.io kubelet kubernetes-cni cri-tools" + hold)
}

func dockerRPMs(n *node, spec *bootstrapv1.PackagesInstall, folder string) {
	docker := cmp.Or(spec.ContainerdRepository, dockerRepository) + "/" + folder
	key := cmp.Or(spec.ContainerdRepository, dockerRepository) + "/" + strings.SplitN(folder, "/", 2)[0] + "/gpg"
	n.add(rpmRepository("docker", docker+"/$basearch/stable", key, "containerd.io"))
}

func kubernetesRPMs(n *node, spec *bootstrapv1.PackagesInstall, want software, containerd string) {
	kubernetes := cmp.Or(spec.KubernetesRepository, kubernetesRepository) + "/" + minorFolder(want.kubelet) + "/rpm/"
	n.add(rpmRepository("kubernetes", kubernetes, kubernetes+"repodata/repomd.xml.key", "kubelet kubeadm kubectl cri-tools kubernetes-cni"))
	if want.containerd != "" {
		containerd += "-" + packageVersion(want.containerd)
	}
	packages := []string{containerd, "kubelet-" + want.kubelet, "cri-tools"}
	if want.kubeadm {
		packages = append(packages, "kubeadm-"+want.kubelet)
	}
	n.do("Installing containerd and the kubelet")
	n.extend(rpm().install(packages...)...)
}

func rpmRepository(name, url, key, exclude string) file {
	return file{path: "/etc/yum.repos.d/drover-" + name + ".repo", content: fmt.Sprintf(
		"[drover-%[1]s]\nname=%[1]s\nbaseurl=%[2]s\nenabled=1\ngpgcheck=1\ngpgkey=%[3]s\nexclude=%[4]s\n", name, url, key, exclude)}
}

// extend adds lines to the last step.
func (n *node) extend(lines ...string) {
	last := &n.steps[len(n.steps)-1]
	last.lines = append(last.lines, lines...)
}
