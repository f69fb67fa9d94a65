// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
)

// clusterctl is the real program with a release as its only repository, no cluster and no network.
type clusterctl struct {
	path, config string
	env          []string
}

func newClusterctl(t *testing.T) clusterctl {
	t.Helper()
	path := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "clusterctl")))
	home := t.TempDir()
	config := filepath.Join(home, "clusterctl.yaml")
	content := fmt.Sprintf("providers:\n- name: drover\n  type: InfrastructureProvider\n  url: %s/infrastructure-components.yaml\n", release(t))
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	const nowhere = "http://127.0.0.1:1"
	return clusterctl{path: path, config: config, env: []string{
		"HOME=" + home, "XDG_CONFIG_HOME=" + home, "KUBECONFIG=" + home + "/none", "CLUSTERCTL_DISABLE_VERSIONCHECK=true",
		"DROVER_VSPHERE_SERVER=vcenter.example.com", "DROVER_VSPHERE_DATACENTER=dc1", `DROVER_VSPHERE_CA_BUNDLE=first\nsecond`,
		"DROVER_VSPHERE_TEMPLATE=templates/ubuntu", "DROVER_VSPHERE_RESOURCE_POOL=cluster-a/Resources", "DROVER_VSPHERE_DATASTORE=san-a",
		"DROVER_KUBEVIRT_NAMESPACE=blue-machines", "DROVER_KUBEVIRT_IMAGE_URL=docker://registry.example.com/node:1",
		"HTTP_PROXY=" + nowhere, "HTTPS_PROXY=" + nowhere, "http_proxy=" + nowhere, "https_proxy=" + nowhere,
	}}
}

func (c clusterctl) run(t *testing.T, args ...string) []byte {
	t.Helper()
	return run(t, c.env, c.path, append(args, "--config", c.config)...)
}

func TestClusterctl(t *testing.T) {
	ctl := newClusterctl(t)

	t.Run("generate provider", func(t *testing.T) {
		all := objects(t, ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version))
		clusterctlRules(t, all)
		for _, e := range only[appsv1.Deployment](t, all, "Deployment")[0].Spec.Template.Spec.Containers[0].Env {
			if e.ValueFrom == nil && e.Value != "" {
				t.Errorf("%s is %q by default, want nothing", e.Name, e.Value)
			}
		}
		for _, o := range all {
			if data, _ := yaml.Marshal(o); strings.Contains(string(data), "${") {
				t.Errorf("%s %s has a variable that nobody set", o.GetKind(), o.GetName())
			}
		}
	})

	t.Run("generate provider in another namespace", func(t *testing.T) {
		out := ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version, "--target-namespace", "elsewhere")
		if strings.Contains(string(out), namespace) {
			t.Errorf("%s is left over in:\n%s", namespace, grep(out, namespace))
		}
	})

	ctl.env = append(ctl.env, "DROVER_AWS_REGION=eu-central-1", "DROVER_AWS_IMAGE_ID=ami-0a1b",
		"DROVER_AWS_SUBNETS=subnet-0a1b, subnet-0c2d", "DROVER_AWS_SECURITY_GROUPS=sg-0a1b")
	ctl.env = append(ctl.env, "DROVER_OPENSTACK_AUTH_URL=https://keystone.example.com/v3", "DROVER_OPENSTACK_PROJECT_ID=8fe3a5a1c1f04e0b",
		"DROVER_OPENSTACK_FLAVOR=m1.large", "DROVER_OPENSTACK_IMAGE=ubuntu-24.04", "DROVER_OPENSTACK_NETWORKS=nodes, storage")
	for _, flavor := range []string{"adopted", "aws", "kubevirt", "openstack", "vsphere", ""} {
		t.Run("generate cluster, flavor '"+flavor+"'", func(t *testing.T) {
			out := ctl.run(t, "generate", "cluster", "blue", "--infrastructure", "drover:"+version, "--flavor", flavor,
				"--target-namespace", "team-a", "--kubernetes-version", "v1.36.3", "--worker-machine-count", "3")
			adoptedRules(t, out)
		})
	}
}

// adoptedRules decodes the flavour strictly, so that a field that no kind has is an error.
func adoptedRules(t *testing.T, out []byte) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var kinds []string
	for _, o := range objects(t, out) {
		if o.GetNamespace() != "team-a" {
			t.Errorf("%s %s is in namespace %q", o.GetKind(), o.GetName(), o.GetNamespace())
		}
		data, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		typed, _, err := decoder.Decode(data, nil, nil)
		if err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
			continue
		}
		if a, ok := typed.(*infrav1.CloudAccount); ok && a.Spec.VSphere != nil && a.Spec.VSphere.CABundle != "first\nsecond" {
			t.Errorf("the CA bundle became %q", a.Spec.VSphere.CABundle)
		}
		if md, ok := typed.(*clusterv1.MachineDeployment); ok && (md.Spec.Replicas == nil || *md.Spec.Replicas != 3) {
			t.Errorf("want 3 replicas, got %v", md.Spec.Replicas)
		}
		kinds = append(kinds, o.GetKind())
	}
	for _, kind := range []string{"Cluster", "CloudCluster", "AdoptedControlPlane", "CloudAccount", "MachineDeployment",
		"CloudMachineTemplate", "CloudInitConfigTemplate", "MachineHealthCheck"} {
		if !strings.Contains(" "+strings.Join(kinds, " ")+" ", " "+kind+" ") {
			t.Errorf("there is no %s among %v", kind, kinds)
		}
	}
}

// grep returns the lines that hold s.
func grep(out []byte, s string) string {
	var lines []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, s) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
