// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	kcpv1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// clusterctl is the real program, with a local folder as its only repository and no network.
type clusterctl struct {
	path, config string
	env          []string
	ca           string // a PEM certificate for the flavors
}

// clouds are the real clouds. Each has a flavor of its name, and one with a ClusterClass.
var clouds = []string{"aws", "azure", "gcp", "kubevirt", "openstack", "vsphere"}

// wholeClouds are those with flavors of whole clusters.
var wholeClouds = []string{"aws", "azure", "gcp", "kubevirt", "openstack", "vsphere"}

// flavors returns the flavors in templates/. The last one, "", is the default.
func flavors() []string {
	all := []string{"adopted", "autoscaled", "mixed", "topology", "aws-eks", "aws-spot", "azure-spot", "gcp-spot", "kubeadm",
		"topology-kubeadm"}
	for _, cloud := range wholeClouds {
		all = append(all, cloud+"-kubeadm", "topology-"+cloud+"-kubeadm")
	}
	for _, cloud := range clouds {
		all = append(all, cloud, "topology-"+cloud)
	}
	return append(all, "")
}

// kinds returns the kinds that a flavor must have besides the Cluster and the account: the parts
// of a cluster, or the class that holds them.
func kinds(flavor string) []string {
	switch {
	case strings.HasPrefix(flavor, "topology") && strings.HasSuffix(flavor, "kubeadm"):
		return []string{"ClusterClass", "KubeadmControlPlaneTemplate", "DroverClusterTemplate", "DroverMachineTemplate", "KubeadmConfigTemplate"}
	case strings.HasPrefix(flavor, "topology"):
		return []string{"ClusterClass", "AdoptedControlPlaneTemplate", "DroverClusterTemplate", "DroverMachineTemplate", "DroverConfigTemplate"}
	case strings.HasSuffix(flavor, "-eks"):
		return []string{"DroverCluster", "AdoptedControlPlane", "MachineDeployment", "DroverMachineTemplate", "Secret", "MachineHealthCheck"}
	case strings.HasSuffix(flavor, "kubeadm"):
		return []string{"DroverCluster", "KubeadmControlPlane", "MachineDeployment", "DroverMachineTemplate", "KubeadmConfigTemplate",
			"MachineHealthCheck"}
	}
	return []string{"DroverCluster", "AdoptedControlPlane", "MachineDeployment", "DroverMachineTemplate", "DroverConfigTemplate",
		"MachineHealthCheck"}
}

func newClusterctl(t *testing.T) clusterctl {
	t.Helper()
	return newClusterctlFor(t, release(t))
}

// newClusterctlFor returns a clusterctl that installs Drover from the folder of a release. The
// other lines are added to its configuration.
func newClusterctlFor(t *testing.T, release string, more ...string) clusterctl {
	t.Helper()
	path := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "clusterctl")))
	home := t.TempDir()
	config := filepath.Join(home, "clusterctl.yaml")
	content := fmt.Sprintf("providers:\n- name: drover\n  type: InfrastructureProvider\n  url: %s/infrastructure-components.yaml\n", release)
	if err := os.WriteFile(config, []byte(content+strings.Join(more, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	tls := httptest.NewTLSServer(nil)
	tls.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw}))
	const nowhere = "http://127.0.0.1:1"
	return clusterctl{path: path, config: config, ca: ca, env: []string{
		"HOME=" + home, "XDG_CONFIG_HOME=" + home, "KUBECONFIG=" + home + "/none", "CLUSTERCTL_DISABLE_VERSIONCHECK=true",
		"HTTP_PROXY=" + nowhere, "HTTPS_PROXY=" + nowhere, "http_proxy=" + nowhere, "https_proxy=" + nowhere,
		// Variables for which the flavors have no default.
		"DROVER_SIMULATED_ENDPOINT_A=http://one.example.com", "DROVER_SIMULATED_ENDPOINT_B=http://two.example.com",
		"DROVER_AWS_REGION=eu-central-1", "DROVER_AWS_IMAGE_ID=ami-0a1b",
		"DROVER_SPOT_QUEUE_URL=https://sqs.eu-central-1.amazonaws.com/123456789012/drover",
		"DROVER_AWS_SUBNETS=subnet-0a1b, subnet-0c2d", "DROVER_AWS_SECURITY_GROUPS=sg-0a1b",
		"DROVER_EKS_CLUSTER=green", "DROVER_EKS_ENDPOINT=https://0A1B.gr7.eu-central-1.eks.amazonaws.com",
		"DROVER_EKS_SERVICE_CIDR=10.100.0.0/16",
		"DROVER_EKS_CA=" + base64.StdEncoding.EncodeToString([]byte(ca)), "DROVER_EKS_INSTANCE_PROFILE=nodes",
		"DROVER_AZURE_SUBSCRIPTION_ID=00000000-1111-2222-3333-444444444444", "DROVER_AZURE_LOCATION=westeurope",
		"DROVER_AZURE_RESOURCE_GROUP=nodes",
		"DROVER_GCP_PROJECT_ID=nodes-4711", "DROVER_GCP_REGION=europe-west4", "DROVER_GCP_IMAGE=node", "DROVER_GCP_SUBNETWORK=nodes",
		"DROVER_GCP_NETWORK=vpc",
		"DROVER_AZURE_IMAGE_ID=/subscriptions/s/images/node", "DROVER_AZURE_SUBNET_ID=/subscriptions/s/virtualNetworks/vnet/subnets/nodes",
		"DROVER_CONTROL_PLANE_ADDRESS=192.0.2.100", "DROVER_LOAD_BALANCER_SUBNET=nodes-v4", "DROVER_LOAD_BALANCER_FLOATING_NETWORK=public",
		"DROVER_OPENSTACK_AUTH_URL=https://keystone.example.com/v3", "DROVER_OPENSTACK_PROJECT_ID=8fe3a5a1c1f04e0b",
		"DROVER_OPENSTACK_FLAVOR=m1.large", "DROVER_OPENSTACK_IMAGE=ubuntu-24.04", "DROVER_OPENSTACK_NETWORK=nodes",
		"DROVER_VSPHERE_SERVER=vcenter.example.com", "DROVER_VSPHERE_DATACENTER=dc1", "DROVER_VSPHERE_CA_BUNDLE=" +
			strings.ReplaceAll(ca, "\n", `\n`),
		"DROVER_VSPHERE_TEMPLATE=templates/ubuntu", "DROVER_VSPHERE_RESOURCE_POOL=cluster-a/Resources", "DROVER_VSPHERE_DATASTORE=san-a",
		"DROVER_KUBEVIRT_NAMESPACE=blue-machines", "DROVER_KUBEVIRT_IMAGE_URL=docker://registry.example.com/node:1",
	}}
}

// generate returns the objects of a cluster with three machines.
func (c clusterctl) generate(t *testing.T, flavor, name, namespace string) []byte {
	t.Helper()
	return c.run(t, "generate", "cluster", name, "--infrastructure", "drover:"+version, "--flavor", flavor,
		"--target-namespace", namespace, "--kubernetes-version", "v1.36.3", "--worker-machine-count", "3")
}

func (c clusterctl) run(t *testing.T, args ...string) []byte {
	t.Helper()
	return run(t, c.env, c.path, append(args, "--config", c.config)...)
}

// refuses runs a command that clusterctl must refuse with a message that contains why.
func (c clusterctl) refuses(t *testing.T, why string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.path, append(args, "--config", c.config)...)
	cmd.Env = append(os.Environ(), c.env...)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), why) {
		t.Errorf("clusterctl %s: %v, and says %s", strings.Join(args, " "), err, out)
	}
}

func TestClusterctl(t *testing.T) {
	folder := release(t)
	ctl := newClusterctlFor(t, folder)

	t.Run("generate provider", func(t *testing.T) {
		all := objects(t, ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version))
		clusterctlRules(t, all)
		for _, e := range only[appsv1.Deployment](t, all, "Deployment")[0].Spec.Template.Spec.Containers[0].Env {
			if e.ValueFrom == nil && e.Value != "" && e.Name != "GOMEMLIMIT" {
				t.Errorf("%s is %q by default, want nothing", e.Name, e.Value)
			}
		}
		for _, o := range all {
			if data, _ := yaml.Marshal(o); strings.Contains(string(data), "${") {
				t.Errorf("%s %s has a variable that nobody set", o.GetKind(), o.GetName())
			}
		}
	})

	t.Run("the manifest without variables", func(t *testing.T) { defaults(t, ctl, folder) })

	t.Run("generate provider in another namespace", func(t *testing.T) {
		out := ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version, "--target-namespace", "elsewhere")
		if strings.Contains(string(out), namespace) {
			t.Errorf("%s is left over in:\n%s", namespace, grep(out, namespace))
		}
	})

	for _, flavor := range flavors() {
		t.Run("generate cluster, flavor '"+flavor+"'", func(t *testing.T) {
			out := ctl.generate(t, flavor, "blue", "team-a")
			flavorRules(t, out, ctl.ca, kinds(flavor))
			if flavor == "vsphere-kubeadm" && grep(out, "/etc/kubernetes/manifests/kube-vip.yaml") == "" {
				t.Error("nothing answers for the API server's address")
			}
		})
	}
	t.Run("bad input is told", func(t *testing.T) { badInput(t, ctl) })
	t.Run("every template is a flavor that is tested", func(t *testing.T) {
		files, err := filepath.Glob(root(t) + "/templates/cluster-template*.yaml")
		if err != nil || len(files) != len(flavors()) {
			t.Errorf("there are %d templates, and %d flavors (%v)", len(files), len(flavors()), err)
		}
	})
}

// TestAdoptPage: docs/adopt-a-cluster.md shows the objects of its flavor as they are.
func TestAdoptPage(t *testing.T) {
	page := string(read(t, root(t)+"/docs/adopt-a-cluster.md"))
	_, page, _ = strings.Cut(page, "\n## What the flavor contains\n")
	_, page, _ = strings.Cut(page, "```yaml\n")
	shown, _, _ := strings.Cut(page, "```\n")
	made := objects(t, newClusterctl(t).generate(t, "adopted", "blue", "team-a"))
	made = slices.DeleteFunc(made, func(o *unstructured.Unstructured) bool { return o.GetKind() == "MachineHealthCheck" })
	if want := objects(t, []byte(shown)); !reflect.DeepEqual(made, want) {
		t.Errorf("the flavor is %v\nand the page shows %v", made, want)
	}
}

// badInput tests that clusterctl's error names the wrong input as the user knows it.
func badInput(t *testing.T, ctl clusterctl) {
	generate := func(version, flavor string, more ...string) []string {
		return append([]string{"generate", "cluster", "blue", "--infrastructure", "drover:" + version, "--flavor", flavor, "--target-namespace",
			"team-a",
			"--worker-machine-count", "3"}, more...)
	}
	kubernetes := "--kubernetes-version=v1.36.3"
	ctl.refuses(t, "cluster-template-none.yaml", generate(version, "none", kubernetes)...)
	ctl.refuses(t, "v9.9.9", generate("v9.9.9", "aws", kubernetes)...)
	ctl.refuses(t, "KUBERNETES_VERSION", generate(version, "adopted")...)
	ctl.refuses(t, "invalid KubernetesVersion", generate(version, "adopted", "--kubernetes-version=newest")...)

	flavorOf := map[string]string{ // by the beginning of the variables' names; the longest one decides
		"DROVER_SIMULATED_": "mixed", "DROVER_AWS_": "aws", "DROVER_AZURE_": "azure", "DROVER_GCP_": "gcp", "DROVER_GCP_NETWORK": "gcp-kubeadm",
		"DROVER_EKS_": "aws-eks", "DROVER_SPOT_": "aws-spot", "DROVER_CONTROL_PLANE_": "vsphere-kubeadm",
		"DROVER_LOAD_BALANCER_": "openstack-kubeadm",
		"DROVER_OPENSTACK_":     "openstack", "DROVER_VSPHERE_": "vsphere", "DROVER_KUBEVIRT_": "kubevirt",
	}
	missing := 0
	for _, set := range ctl.env {
		name, _, _ := strings.Cut(set, "=")
		best := ""
		for prefix := range flavorOf {
			if strings.HasPrefix(name, prefix) && len(prefix) > len(best) {
				best = prefix
			}
		}
		if best == "" {
			continue
		}
		missing++
		without := ctl
		without.env = slices.DeleteFunc(slices.Clone(ctl.env), func(e string) bool { return strings.HasPrefix(e, name+"=") })
		without.refuses(t, name, generate(version, flavorOf[best], kubernetes)...)
	}
	if missing < 10 {
		t.Errorf("%d variables without a default were left out, one by one", missing)
	}
}

// flavorRules decodes the flavor strictly, so that an unknown field is an error. A certificate of
// several lines must stay unchanged.
func flavorRules(t *testing.T, out []byte, ca string, want []string) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, infrav1.AddToScheme, bootstrapv1.AddToScheme,
		controlplanev1.AddToScheme,
		kubeadmv1.AddToScheme, kcpv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var found []string
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
		if a, ok := typed.(*infrav1.DroverAccount); ok && a.Spec.Cloud.VSphere != nil && a.Spec.Cloud.VSphere.CABundle != ca {
			t.Errorf("the CA bundle became %q", a.Spec.Cloud.VSphere.CABundle)
		}
		if md, ok := typed.(*clusterv1.MachineDeployment); ok {
			replicasRules(t, md)
		}
		if kcp, ok := typed.(*kcpv1.KubeadmControlPlane); ok {
			staticPodRules(t, kcp)
		}
		found = append(found, o.GetKind())
	}
	for _, kind := range append(want, "Cluster", "DroverAccount") {
		if !strings.Contains(" "+strings.Join(found, " ")+" ", " "+kind+" ") {
			t.Errorf("there is no %s among %v", kind, found)
		}
	}
}

// staticPodRules checks that each static pod decodes strictly, and that each host path that it
// mounts is a file of the flavor, or the admin.conf that kubeadm writes.
func staticPodRules(t *testing.T, kcp *kcpv1.KubeadmControlPlane) {
	written := map[string]bool{"/etc/kubernetes/admin.conf": true}
	files := kcp.Spec.KubeadmConfigSpec.Files
	for _, f := range files {
		written[f.Path] = true
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Path, "/etc/kubernetes/manifests/") {
			continue
		}
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict([]byte(f.Content), pod); err != nil || len(pod.Spec.Containers) == 0 {
			t.Errorf("%s: %v, with %d containers", f.Path, err, len(pod.Spec.Containers))
		}
		for _, v := range pod.Spec.Volumes {
			if v.HostPath == nil || !written[v.HostPath.Path] {
				t.Errorf("%s mounts %s, which is nowhere written", f.Path, v.Name)
			}
		}
	}
}

// replicasRules checks that a pool either has the requested number of replicas, or leaves the
// number to the cluster-autoscaler and sets both bounds. With replicas and bounds, each "kubectl
// apply" would reset the number.
func replicasRules(t *testing.T, md *clusterv1.MachineDeployment) {
	_, most := md.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	_, least := md.Annotations[clusterv1.AutoscalerMinSizeAnnotation]
	switch {
	case most != least:
		t.Errorf("%s has one of the autoscaler's annotations: %v", md.Name, md.Annotations)
	case most && md.Spec.Replicas != nil:
		t.Errorf("%s is scaled by the autoscaler, and has %d replicas", md.Name, *md.Spec.Replicas)
	case !most && (md.Spec.Replicas == nil || *md.Spec.Replicas != 3):
		t.Errorf("want 3 replicas of %s, got %v", md.Name, md.Spec.Replicas)
	}
}

// grep returns the lines that contain s.
func grep(out []byte, s string) string {
	var lines []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, s) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
