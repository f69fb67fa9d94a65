// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	kubeadmv1beta3 "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta3"
	kubeadmv1beta4 "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstreamv1beta4"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// The files that "kubeadm join" uses. kubeadm itself writes the four files that a kubelet starts
// from. It refuses to start if two of them, BootstrapKubeconfigPath and CAPath, exist.
const (
	// JoinConfigPath holds kubeadm's JoinConfiguration.
	JoinConfigPath = "/etc/kubernetes/drover-kubeadm.yaml"
	// DiscoveryPath holds the kubeconfig with the cluster's CA and the bootstrap token. The script
	// removes it at the end.
	DiscoveryPath = "/etc/kubernetes/drover-discovery.conf"

	patchesFolder         = "/etc/kubernetes/drover-patches"
	kubeletPatchPath      = patchesFolder + "/kubeletconfiguration+strategic.yaml"
	kubeletKubeconfigPath = "/etc/kubernetes/kubelet.conf"
)

// kubeadm supports a patch of the kubelet's configuration since 1.25, and v1beta4 of its own since
// 1.31.
const (
	oldestKubeadm = "1.25.0"
	kubeadmOfV4   = "1.31.0"
)

func joinsByKubeadm(spec *bootstrapv1.DroverConfigSpec) bool {
	return spec.Join.Method == bootstrapv1.JoinKubeadm
}

// checkKubeadm refuses a version without a suitable JoinConfiguration.
func (in Input) checkKubeadm(machine *version.Version) error {
	switch {
	case !joinsByKubeadm(in.Spec):
		return nil
	case machine == nil:
		return errors.New("the Machine must have a version of Kubernetes, such as v1.36.3, where it joins by kubeadm")
	case machine.LessThan(version.MustParseGeneric(oldestKubeadm)):
		return fmt.Errorf("kubeadm %s does not know all that is asked of it: %s is the oldest that does", machine, oldestKubeadm)
	}
	return nil
}

// kubeadmFiles returns the files that "kubeadm join" uses. Discovery is by file: only the CA in it
// is trusted, and no unauthenticated answer is.
func kubeadmFiles(in Input) ([]file, error) {
	kubeconfig, err := bootstrapKubeconfig(in)
	if err != nil {
		return nil, err
	}
	patch, err := kubeletPatch(in)
	if err != nil {
		return nil, err
	}
	config, err := joinConfiguration(in, len(patch) > 0)
	if err != nil {
		return nil, err
	}
	files := []file{
		{path: DiscoveryPath, permissions: "0600", content: string(kubeconfig)},
		{path: JoinConfigPath, content: string(config), template: true},
	}
	if len(patch) > 0 {
		files = append(files, file{path: kubeletPatchPath, content: string(patch)})
	}
	return files, nil
}

// kubeletPatch returns the patch for the cluster's own KubeletConfiguration. It contains only what
// the spec sets explicitly. If Drover sets up containerd, it also sets the cgroup driver, on which
// both must agree.
func kubeletPatch(in Input) ([]byte, error) {
	config := asked(in)
	config.ClusterDomain = in.Spec.ClusterDomain
	if in.Spec.ClusterDNS != "" {
		config.ClusterDNS = []string{in.Spec.ClusterDNS}
	}
	if Installs(in.Spec) {
		config.CgroupDriver = cgroupDriver
	}
	return writeKubeletConfig(config, in.Spec.Kubelet.Configuration)
}

// joinConfiguration returns a JoinConfiguration of the version that the machine's kubeadm writes
// itself.
func joinConfiguration(in Input, patched bool) ([]byte, error) {
	v, err := in.version()
	if err != nil {
		return nil, err
	}
	var config any = joinV1Beta4(in, patched)
	if v == nil || v.LessThan(version.MustParseGeneric(kubeadmOfV4)) {
		config = joinV1Beta3(in, patched)
	}
	out, err := yaml.Marshal(config)
	if err != nil {
		return nil, errors.New("writing the JoinConfiguration failed")
	}
	return out, nil
}

func joinV1Beta4(in Input, patched bool) *kubeadmv1beta4.JoinConfiguration {
	config := &kubeadmv1beta4.JoinConfiguration{
		TypeMeta:   joinKind("v1beta4"),
		CACertPath: CAPath,
		Discovery:  kubeadmv1beta4.Discovery{File: &kubeadmv1beta4.FileDiscovery{KubeConfigPath: DiscoveryPath}},
		NodeRegistration: kubeadmv1beta4.NodeRegistrationOptions{
			Name: in.NodeName, CRISocket: runtimeEndpoint, Taints: taints(in.Spec), IgnorePreflightErrors: in.Spec.Join.IgnorePreflightErrors,
		},
	}
	flags := kubeletFlags(in)
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		config.NodeRegistration.KubeletExtraArgs = append(config.NodeRegistration.KubeletExtraArgs,
			kubeadmv1beta4.Arg{Name: name, Value: flags[name]})
	}
	if patched {
		config.Patches = &kubeadmv1beta4.Patches{Directory: patchesFolder}
	}
	return config
}

func joinV1Beta3(in Input, patched bool) *kubeadmv1beta3.JoinConfiguration {
	config := &kubeadmv1beta3.JoinConfiguration{
		TypeMeta:   joinKind("v1beta3"),
		CACertPath: CAPath,
		Discovery:  kubeadmv1beta3.Discovery{File: &kubeadmv1beta3.FileDiscovery{KubeConfigPath: DiscoveryPath}},
		NodeRegistration: kubeadmv1beta3.NodeRegistrationOptions{
			Name: in.NodeName, CRISocket: runtimeEndpoint, Taints: taints(in.Spec), IgnorePreflightErrors: in.Spec.Join.IgnorePreflightErrors,
			KubeletExtraArgs: kubeletFlags(in),
		},
	}
	if patched {
		config.Patches = &kubeadmv1beta3.Patches{Directory: patchesFolder}
	}
	return config
}

func joinKind(v string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "kubeadm.k8s.io/" + v, Kind: "JoinConfiguration"}
}

// runKubeadm makes kubeadm join. kubeadm exits if something does not answer in time, and what it
// leaves behind would block the next try. So the script removes that and tries again. Once the
// kubelet has its certificate, there is nothing left to do.
func (n *node) runKubeadm(in Input) {
	if in.Spec.Kubelet.NodeIPFamily == bootstrapv1.NodeDualStack {
		n.do("Configuring the kubelet", bothAddresses("KUBELET_EXTRA_ARGS", KubeletDefaultsPath)...)
		n.extend(copyDefaults)
	}
	n.commands(beforeKubelet, in.Spec.PreKubeletCommands)
	n.do("Joining by kubeadm",
		"# The cluster's configuration names it: a kubelet complains each second that it is not there.",
		"mkdir -p /etc/kubernetes/manifests",
		"# kubeadm refuses to begin beside what another try left.",
		"join_cluster() {",
		"  if [ -s "+kubeletKubeconfigPath+" ]; then return 0; fi",
		"  systemctl stop kubelet",
		"  rm -f "+BootstrapKubeconfigPath+" "+CAPath,
		"  kubeadm join --config "+JoinConfigPath,
		"}")
	if modeOf(in.Spec) == bootstrapv1.InstallBinaries { // kubeadm runs the kubelet by its name
		n.extend("PATH=" + systemOf(in.Spec).programs + ":$PATH")
	}
	if Installs(in.Spec) {
		n.extend("touch " + configuredPath)
	}
	n.extend("systemctl enable kubelet", "retry join_cluster", "rm -f "+DiscoveryPath)
}
