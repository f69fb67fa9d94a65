// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
)

func TestDNSAddress(t *testing.T) {
	for block, want := range map[string]string{
		"": "", "10.96.0.0/12": "10.96.0.10", "10.96.7.0/16": "10.96.0.10", "fd00:1::/112": "fd00:1::a", "10.0.0.0/29": "", "ten": "",
	} {
		cluster := &clusterv1.Cluster{}
		if block != "" {
			cluster.Spec.ClusterNetwork.Services.CIDRBlocks = []string{block, "fd00::/108"}
		}
		NewWithT(t).Expect(dnsAddress(cluster)).To(Equal(want), block)
	}
}

func TestTTL(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{0: 30 * time.Minute, 600: 10 * time.Minute, 86400: 24 * time.Hour} {
		config := &bootstrapv1.DroverConfig{Spec: bootstrapv1.DroverConfigSpec{TokenTTLSeconds: seconds}}
		NewWithT(t).Expect(ttl(config)).To(Equal(want))
	}
}

// TestFormatWord: other programs read Cluster API's words in the data Secret.
func TestFormatWord(t *testing.T) {
	for spec, want := range map[*bootstrapv1.DroverConfigSpec]string{
		{}:                                   "cloud-config",
		{OperatingSystem: "rhel-9"}:          "cloud-config",
		{OperatingSystem: "flatcar"}:         "ignition",
		{Format: bootstrapv1.FormatIgnition}: "ignition",
	} {
		NewWithT(t).Expect(string(formatWord(spec))).To(Equal(want))
	}
}

// TestVersionNewerThanAPIServer: an Event says that a Machine's version is newer than its adopted
// API server's, where the kubelet is the image's. Where Drover installs it, TestVersions has the
// refusals.
func TestVersionNewerThanAPIServer(t *testing.T) {
	for name, c := range map[string]struct {
		version, server string
		mode            bootstrapv1.InstallMode
		kind            string
		warned          bool
	}{
		"newer":            {"v1.37.0", "v1.36.3", "", "AdoptedControlPlane", true},
		"a patch newer":    {"v1.36.4", "v1.36.3", "", "AdoptedControlPlane", false},
		"older":            {"v1.35.0", "v1.36.3+k3s1", "", "AdoptedControlPlane", false},
		"no version":       {"", "v1.36.3", "", "AdoptedControlPlane", false},
		"not reported yet": {"v1.37.0", "", "", "AdoptedControlPlane", false},
		"Drover refuses":   {"v1.37.0", "v1.36.3", bootstrapv1.InstallPackages, "AdoptedControlPlane", false},
		"CAPI refuses":     {"v1.37.0", "v1.36.3", "", "KubeadmControlPlane", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			adopted := &controlplanev1.AdoptedControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "blue"}}
			adopted.Status.Version = c.server
			recorder := events.NewFakeRecorder(10)
			r := &ConfigReconciler{Client: fakeClient(t, interceptor.Funcs{}, adopted), Recorder: recorder}
			s := &scope{
				config: &bootstrapv1.DroverConfig{}, machine: &clusterv1.Machine{Spec: clusterv1.MachineSpec{Version: c.version}},
				cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "blue"}},
			}
			s.config.Spec.Install.Mode = c.mode
			s.cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{
				APIGroup: controlplanev1.GroupVersion.Group, Kind: c.kind, Name: "blue"}
			g.Expect(r.warnOfVersion(t.Context(), s)).To(Succeed())
			if c.warned {
				g.Expect(recorder.Events).To(Receive(And(ContainSubstring("Warning VersionNewerThanAPIServer"), ContainSubstring("v1.37.0"))))
			}
			g.Expect(recorder.Events).NotTo(Receive())
		})
	}
}
