// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strconv"
	"strings"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

const (
	containerdConfigPath = "/etc/containerd/config.toml"
	registriesPath       = "/etc/containerd/certs.d"
	// credentialsPath is where a kubelet reads the credentials for all Pods
	// (k8s.io/kubernetes/pkg/credentialprovider).
	credentialsPath = "/var/lib/kubelet/config.json"
)

// containerd sets up the runtime. A prebuilt image has its own configuration, which reads the
// registries' folder if image-builder made the image.
func (n *node) containerd(in Input) {
	settings := in.Spec.Containerd
	for _, r := range settings.Registries {
		n.add(file{path: registriesPath + "/" + r.Host + "/hosts.toml", content: hostsTOML(r)})
	}
	if settings.Credentials.Name != "" {
		n.add(file{path: credentialsPath, permissions: "0600", content: string(in.Secrets[credentials(in.Spec)])})
	}
	switch {
	case Installs(in.Spec):
		n.add(file{path: containerdConfigPath, content: containerdConfig(settings.PauseImage)})
		n.do("Starting containerd", "systemctl daemon-reload", "systemctl enable containerd", "systemctl restart containerd")
	case proxied(in.Spec) || in.Spec.Host.CABundle != "":
		n.do("Restarting containerd", "systemctl daemon-reload", "systemctl restart containerd")
	}
}

// containerdConfig returns a configuration of version 2, which both containerd 1 and 2 read.
// containerd 2 migrates it.
func containerdConfig(pause string) string {
	const plugin = `[plugins."io.containerd.grpc.v1.cri"`
	var b strings.Builder
	b.WriteString("version = 2\n")
	if pause != "" {
		fmt.Fprintf(&b, "\n%s]\n  sandbox_image = %s\n", plugin, strconv.Quote(pause))
	}
	fmt.Fprintf(&b, "\n%s.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n", plugin)
	fmt.Fprintf(&b, "\n%s.containerd.runtimes.runc.options]\n  SystemdCgroup = true\n", plugin)
	fmt.Fprintf(&b, "\n%s.registry]\n  config_path = \"%s\"\n", plugin, registriesPath)
	return b.String()
}

// hostsTOML returns a registry's mirrors in the format of containerd's docs/hosts.md. Hosts and
// addresses contain no characters that need escaping.
func hostsTOML(r bootstrapv1.Registry) string {
	var b strings.Builder
	switch r.Host {
	case "_default":
	case "docker.io":
		b.WriteString("server = \"https://registry-1.docker.io\"\n")
	default:
		fmt.Fprintf(&b, "server = %s\n", strconv.Quote("https://"+r.Host))
	}
	for _, m := range r.Mirrors {
		fmt.Fprintf(&b, "\n[host.%s]\n  capabilities = [\"pull\", \"resolve\"]\n", strconv.Quote(m.URL))
		if strings.Contains(m.URL+"/", "/v2/") { // the mirror's own path in the registry API: containerd must add nothing
			b.WriteString("  override_path = true\n")
		}
	}
	return b.String()
}
