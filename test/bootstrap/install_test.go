// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_3"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
)

func message(config *bootstrapv1.DroverConfig) string {
	for _, c := range config.Status.Conditions {
		if c.Type == clusterv1.ReadyCondition {
			return c.Message
		}
	}
	return ""
}

// versions checks that Drover reads the API server's version before it installs a kubelet, and that
// it installs the Machine's version.
func (e *environment) versions(t *testing.T, cluster *clusterv1.Cluster) {
	g := NewWithT(t)
	server, err := must(discovery.NewDiscoveryClientForConfig(e.AdminConfig()))(g).ServerVersion()
	g.Expect(err).NotTo(HaveOccurred())
	sum := strings.Repeat("0", 64)
	spec := bootstrapv1.DroverConfigSpec{OperatingSystem: "flatcar", Install: bootstrapv1.Install{
		Mode: bootstrapv1.InstallBinaries, Binaries: bootstrapv1.BinariesInstall{
			Kubelet: bootstrapv1.Checksum{SHA256: sum}, Containerd: bootstrapv1.Release{Version: "2.2.1", SHA256: sum},
			Runc: bootstrapv1.Release{Version: "1.4.0", SHA256: sum}, CNIPlugins: bootstrapv1.Release{Version: "1.9.1", SHA256: sum},
		}}}
	_, config := e.machineWith(t, cluster, "install-1", "v1.20.0", spec)
	e.eventually(g, config, func(g Gomega) {
		g.Expect(reason(config)).To(Equal(bootstrapv1.InvalidSpecReason))
		g.Expect(message(config)).To(ContainSubstring("behind the API server's " + strings.TrimPrefix(server.GitVersion, "v")))
	})
	_, config = e.machineWith(t, cluster, "install-2", server.GitVersion, spec)
	data := e.data(t, config)
	g.Expect(string(data.Data["format"])).To(Equal("ignition"))
	_, report, err := v3_3.Parse(data.Data["value"])
	g.Expect(err).NotTo(HaveOccurred(), report.String())
}

// unknownSystem checks that the API accepts a system that Drover does not know, and that the config
// says which ones it knows.
func (e *environment) unknownSystem(t *testing.T, cluster *clusterv1.Cluster) {
	g := NewWithT(t)
	for machine, spec := range map[string]bootstrapv1.DroverConfigSpec{
		"system-1": {OperatingSystem: "ubuntu-26.04"},
		"system-2": {OperatingSystem: "beos", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages}},
	} {
		_, config := e.machineWith(t, cluster, machine, "", spec)
		e.eventually(g, config, func(g Gomega) {
			g.Expect(reason(config)).To(Equal(bootstrapv1.InvalidSpecReason))
			for _, row := range render.Matrix() {
				g.Expect(message(config)).To(ContainSubstring(string(row.System)))
			}
		})
	}
	_, config := e.machineWith(t, cluster, "system-3", "", bootstrapv1.DroverConfigSpec{})
	for _, odd := range []bootstrapv1.OperatingSystem{"Ubuntu 24.04", "-", bootstrapv1.OperatingSystem(strings.Repeat("a", 64))} {
		changed := config.DeepCopy()
		changed.Spec.OperatingSystem = odd
		g.Expect(e.Update(t.Context(), changed, client.DryRunAll)).To(MatchError(ContainSubstring("spec.operatingSystem")))
	}
}

// secrets checks that a config waits for a Secret, and that it does not use the Secret without
// permission.
func (e *environment) secrets(t *testing.T, cluster *clusterv1.Cluster) {
	g := NewWithT(t)
	_, config := e.machineWith(t, cluster, "secret-1", "", bootstrapv1.DroverConfigSpec{Files: []bootstrapv1.File{{
		Path: "/etc/motd", ContentFrom: bootstrapv1.FileSource{Secret: bootstrapv1.SecretKey{Name: "motd", Key: "text"}},
	}}})
	expect := func(text string) {
		e.eventually(g, config, func(g Gomega) {
			g.Expect(reason(config)).To(Equal(bootstrapv1.WaitingForSecretReason))
			g.Expect(message(config)).To(ContainSubstring(text))
		})
	}
	again := func(why string) { // triggers a reconcile before the next retry
		e.patch(g, config, func() { metav1.SetMetaDataAnnotation(&config.ObjectMeta, "test", why) })
	}
	expect(`Secret "motd" to exist`)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "motd"},
		StringData: map[string]string{"text": "marked"}}
	g.Expect(e.Create(t.Context(), secret)).To(Succeed())
	again("made")
	expect(bootstrapv1.MachineSecretLabel)
	e.patch(g, secret, func() { metav1.SetMetaDataLabel(&secret.ObjectMeta, bootstrapv1.MachineSecretLabel, "") })
	again("permitted")
	g.Expect(string(e.data(t, config).Data["value"])).To(ContainSubstring("bWFya2Vk"), "the text, encoded")
}
