// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

const (
	proxyPath     = "/etc/default/drover-proxy"
	modulesPath   = "/etc/modules-load.d/drover.conf"
	sysctlsPath   = "/etc/sysctl.d/99-drover.conf"
	timesyncdPath = "/etc/systemd/timesyncd.conf.d/drover.conf"
	chronyPath    = "/etc/kubernetes/drover-chrony.conf"
	sudoersPath   = "/etc/sudoers.d/90-drover"
)

// host sets up the operating system. Each part can use the parts before it.
func (n *node) host(in Input) {
	n.proxy(in)
	n.trust(in.Spec)
	n.subscription(in)
	n.kernel(in.Spec)
	n.time(in.Spec.Host.NTPServers)
	n.sudo(in.Spec.Host.Users)
	s := systemOf(in.Spec)
	switch in.Spec.Host.UnattendedUpgrades {
	case bootstrapv1.UpgradesOn:
		n.do("Switching unattended upgrades on", s.upgradesOn...)
	case bootstrapv1.UpgradesOff:
		n.do("Switching unattended upgrades off", s.upgradesOff...)
	}
}

func proxied(spec *bootstrapv1.DroverConfigSpec) bool {
	return spec.Host.Proxy.HTTPProxy+spec.Host.Proxy.HTTPSProxy != ""
}

// proxy writes one file that the script, containerd and the kubelet read. An address may contain a
// password.
func (n *node) proxy(in Input) {
	if !proxied(in.Spec) {
		return
	}
	p := in.Spec.Host.Proxy
	without := []string{"localhost", "127.0.0.1", "::1", ".svc", "." + cmp.Or(in.Spec.ClusterDomain, in.ClusterDomain, "cluster.local")}
	without = append(without, metadataServices()...)
	if u, err := url.Parse(in.Server); err == nil && u.Hostname() != "" {
		without = append(without, u.Hostname())
	}
	var lines []string
	for _, v := range []struct{ name, value string }{
		{"HTTP_PROXY", p.HTTPProxy}, {"HTTPS_PROXY", p.HTTPSProxy}, {"NO_PROXY", strings.Join(append(without, p.NoProxy...), ",")},
	} {
		if v.value != "" { // curl and apt read lower case, Go reads both
			lines = append(lines, v.name+"='"+v.value+"'", strings.ToLower(v.name)+"='"+v.value+"'")
		}
	}
	n.add(file{path: proxyPath, permissions: "0600", content: strings.Join(lines, "\n") + "\n"})
	for _, service := range []string{"containerd", "kubelet"} {
		n.add(file{path: unitFolder + service + ".service.d/50-drover-proxy.conf", content: "[Service]\nEnvironmentFile=" + proxyPath + "\n"})
	}
	n.do("Using the proxy", "set -a", "# shellcheck disable=SC1091 # it is written beside this script", ". "+proxyPath, "set +a")
}

// metadataServices returns where clouds tell a machine what it is, and whose credentials it has.
// The kubelet's credential plugins and the machine's own commands ask there. A proxy can't reach
// them, or reaches those of its own machine.
func metadataServices() []string {
	return []string{
		"169.254.169.254", "metadata.google.internal",
		"fd00:ec2::254", // https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
		"fd20:ce::254",  // https://cloud.google.com/compute/docs/metadata/querying-metadata
		"168.63.129.16", // https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
	}
}

// trust makes the system trust additional certificates before anything is downloaded.
func (n *node) trust(spec *bootstrapv1.DroverConfigSpec) {
	if spec.Host.CABundle == "" {
		return
	}
	s := systemOf(spec)
	bundle, err := ParseCA([]byte(spec.Host.CABundle))
	if err != nil {
		return // Validate has reported it
	}
	n.add(file{path: s.caFile, content: string(bundle)})
	n.do("Trusting the CA bundle", s.caUpdate)
}

// kernel loads modules before it sets their parameters. Images of image-builder already have what
// every node needs.
func (n *node) kernel(spec *bootstrapv1.DroverConfigSpec) {
	modules, sysctls := slices.Clone(spec.Host.KernelModules), map[string]string{}
	swap := spec.Host.Swap
	if Installs(spec) {
		modules = append([]string{"overlay", "br_netfilter"}, modules...)
		sysctls = map[string]string{
			"net.bridge.bridge-nf-call-iptables": "1", "net.bridge.bridge-nf-call-ip6tables": "1",
			"net.ipv4.ip_forward": "1",
		}
		if family := spec.Kubelet.NodeIPFamily; family == bootstrapv1.NodeIPv6 || family == bootstrapv1.NodeDualStack {
			// A router ignores router advertisements by default.
			sysctls["net.ipv6.conf.all.forwarding"], sysctls["net.ipv6.conf.all.accept_ra"], sysctls["net.ipv6.conf.default.accept_ra"] = "1",
				"2", "2"
		}
		swap = cmp.Or(swap, bootstrapv1.SwapOff)
	}
	maps.Copy(sysctls, spec.Host.Sysctls)
	if len(modules) > 0 {
		slices.Sort(modules)
		n.add(file{path: modulesPath, content: strings.Join(slices.Compact(modules), "\n") + "\n"})
		n.do("Loading kernel modules", "systemctl restart systemd-modules-load")
	}
	if len(sysctls) > 0 {
		var lines []string
		for _, name := range slices.Sorted(maps.Keys(sysctls)) {
			lines = append(lines, name+" = "+sysctls[name])
		}
		n.add(file{path: sysctlsPath, content: strings.Join(lines, "\n") + "\n"})
		n.do("Setting the kernel's parameters", "sysctl -p "+sysctlsPath)
	}
	if swap == bootstrapv1.SwapOff {
		n.do("Switching swap off", "swapoff -a",
			"if [ -f /etc/fstab ]; then",
			`  sed -i -E '/^[^#[:space:]]+[[:space:]]+[^[:space:]]+[[:space:]]+swap[[:space:]]/s/^/#/' /etc/fstab`,
			"fi")
	}
}

// time sets the time servers of chrony or systemd-timesyncd, whichever the image has.
func (n *node) time(servers []string) {
	if len(servers) == 0 {
		return
	}
	n.add(file{path: timesyncdPath, content: "[Time]\nNTP=" + strings.Join(servers, " ") + "\n"})
	chrony := ""
	for _, s := range servers {
		chrony += "server " + s + " iburst\n"
	}
	n.add(file{path: chronyPath, content: chrony + "driftfile /var/lib/chrony/drift\nmakestep 1.0 3\nrtcsync\n"})
	n.do("Setting the time servers",
		"if [ -f /etc/chrony/chrony.conf ]; then",
		"  cp "+chronyPath+" /etc/chrony/chrony.conf",
		"  systemctl restart chrony",
		"elif [ -f /etc/chrony.conf ]; then",
		"  cp "+chronyPath+" /etc/chrony.conf",
		"  systemctl restart chronyd",
		"else",
		"  systemctl restart systemd-timesyncd",
		"fi")
}

func (n *node) sudo(users []bootstrapv1.User) {
	content := ""
	for _, u := range users {
		if u.Sudo == bootstrapv1.SudoAllowed {
			content += u.Name + " ALL=(ALL) NOPASSWD:ALL\n"
		}
	}
	if content != "" {
		n.add(file{path: sudoersPath, permissions: "0440", content: content})
	}
}
