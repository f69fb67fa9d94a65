// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// oldestKubelet is how many minor releases a kubelet may be older than its API server, by
// Kubernetes' version skew policy.
const oldestKubelet = 3

// version returns the kubelet's version, or nil if it is not known, which is allowed only for a
// prebuilt image. If Drover installs the kubelet, the version must fit the API server: a version
// outside the supported skew is refused here, before it can affect Pods.
func (in Input) version() (*version.Version, error) {
	kubelet, err := version.ParseSemantic(in.Version)
	if !Installs(in.Spec) {
		if err != nil {
			return nil, nil // the image has its own
		}
		return kubelet, nil
	}
	if err != nil {
		return nil, errors.New("the Machine must have a version of Kubernetes, such as v1.36.3, where Drover installs the kubelet")
	}
	if kubelet.PreRelease() != "" && modeOf(in.Spec) == bootstrapv1.InstallPackages {
		return nil, fmt.Errorf("there are no packages of the pre-release %s", shorten(in.Version))
	}
	server, err := version.ParseSemantic(in.ControlPlaneVersion)
	if err != nil {
		return nil, errors.New("the version of the cluster's API server is not known")
	}
	switch {
	case isNewer(kubelet, server):
		return nil, fmt.Errorf("the Machine's version %s is newer than the API server's %s: upgrade the control plane first", kubelet, server)
	case kubelet.Minor()+oldestKubelet < server.Minor():
		return nil, fmt.Errorf("the Machine's version %s is more than %d minor releases behind the API server's %s", kubelet, oldestKubelet,
			server)
	}
	return kubelet, in.checkContainerd(kubelet)
}

// IsNewer reports whether a kubelet's version is of a newer minor release than its API server's. If
// one of them is no version, it is not known to be.
func IsNewer(kubelet, server string) bool {
	of, err := version.ParseSemantic(kubelet)
	than, serverErr := version.ParseSemantic(server)
	return err == nil && serverErr == nil && isNewer(of, than)
}

func isNewer(kubelet, server *version.Version) bool {
	return kubelet.Major() != server.Major() || kubelet.Minor() > server.Minor()
}

// checkContainerd checks the only version limit between a kubelet and containerd. A kubelet since
// 1.36 asks the runtime for its cgroup driver, and containerd answers since 2.0.
func (in Input) checkContainerd(kubelet *version.Version) error {
	runtime := containerdVersion(in.Spec)
	if runtime == "" {
		return nil
	}
	v, err := version.ParseGeneric(runtime)
	if err == nil && v.Major() < 2 && kubelet.AtLeast(version.MustParseGeneric("1.36.0")) {
		return fmt.Errorf("a kubelet %s needs containerd 2.0 or newer, and %s would be installed", kubelet, runtime)
	}
	return nil
}
