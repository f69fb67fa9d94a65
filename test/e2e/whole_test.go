// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	utilyaml "sigs.k8s.io/cluster-api/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/whole"
)

// These are the specs of clusters whose control planes are on machines of Drover's. They have a
// management cluster of their own, with Cluster API's kubeadm providers.
var _ = Describe("A whole cluster", Label("whole"), Ordered, func() {
	var (
		proxy    framework.ClusterProxy
		token    string
		settings clusterctl.E2EConfig
	)
	BeforeAll(func(ctx SpecContext) {
		if missing := whole.Missing(); missing != "" {
			Skip(missing)
		}
		s, err := whole.Start(ctx, whole.Options{Dir: GinkgoT().TempDir(), Progress: os.Stderr, Releases: []string{whole.LastPatch},
			Args: []string{"--feature-gates=MachineTaintPropagation=true"}})
		DeferCleanup(s.Stop)
		Expect(err).NotTo(HaveOccurred())
		proxy, token = framework.NewClusterProxy("whole", s.Management.AdminKubeconfig(), shared.scheme), s.Cloud.Token
		DeferCleanup(proxy.Dispose)
		url, err := s.Management.Expose(whole.Address)
		Expect(err).NotTo(HaveOccurred())
		publish(ctx, proxy, url, s.Management.CA())

		settings = *shared.settings
		settings.Variables = maps.Clone(settings.Variables)
		maps.Copy(settings.Variables, map[string]string{
			e2e.KubernetesVersionUpgradeFrom: whole.LastPatch, e2e.KubernetesVersionUpgradeTo: kubernetes,
			e2e.CPMachineTemplateUpgradeTo: nextControlPlane, e2e.WorkersMachineTemplateUpgradeTo: nextWorkers,
		})
		settings.Intervals = map[string][]string{}
		for name := range shared.settings.Intervals {
			settings.Intervals[name] = []string{"10m", "1s"}
		}
		for _, name := range []string{"wait-machine-upgrade", "wait-nodes-ready", "wait-deployment-available", "wait-machine-deleted",
			"wait-machines", "wait-machine-provisioned"} {
			settings.Intervals["default/"+name] = []string{"10m", "1s"}
		}
		settings.Intervals["default/check-machines-stable"] = []string{"10s", "1s"}
	})

	credentials := func(proxy framework.ClusterProxy, namespace string) {
		Expect(scenario.Create(context.Background(), proxy.GetClient(),
			scenario.Credentials(metav1.ObjectMeta{Namespace: namespace, Name: "simulated-credentials"}, "simulated",
				map[string][]byte{"token": []byte(token)}))).To(Succeed())
	}

	for _, flavor := range []string{"kubeadm", "topology-kubeadm"} {
		Context("of the flavor "+flavor, func() {
			e2e.QuickStartSpec(context.Background(), func() e2e.QuickStartSpecInput {
				return e2e.QuickStartSpecInput{
					E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
					InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To(flavor), PostNamespaceCreated: credentials,
				}
			})
		})
	}

	Context("is upgraded", func() {
		e2e.ClusterUpgradeConformanceSpec(context.Background(), func() e2e.ClusterUpgradeConformanceSpecInput {
			return e2e.ClusterUpgradeConformanceSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), PostNamespaceCreated: credentials,
				ControlPlaneMachineCount: ptr.To[int64](3), WorkerMachineCount: ptr.To[int64](1),
				ClusterctlVariables: map[string]string{"DROVER_SIMULATED_IMAGE": whole.ImageName(whole.LastPatch)}, SkipConformanceTests: true,
			}
		})
	})

	Context("is changed in place, and rolled", func() {
		e2e.KCPAndMachineDeploymentRolloutSpec(context.Background(), func() e2e.KCPAndMachineDeploymentRolloutSpecInput {
			return e2e.KCPAndMachineDeploymentRolloutSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: "taints", PostNamespaceCreated: credentials,
			}
		})
	})

	Context("has its control plane remediated", func() {
		e2e.KCPRemediationSpec(context.Background(), func() e2e.KCPRemediationSpecInput {
			return e2e.KCPRemediationSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), PostNamespaceCreated: credentials,
			}
		})
	})

	Context("has its control plane adopted", func() {
		e2e.KCPAdoptionSpec(context.Background(), func() e2e.KCPAdoptionSpecInput {
			return e2e.KCPAdoptionSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), PostNamespaceCreated: credentials,
			}
		})
	})

	Context("follows its ClusterClass", func() {
		e2e.ClusterClassChangesSpec(context.Background(), func() e2e.ClusterClassChangesSpecInput {
			return e2e.ClusterClassChangesSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: "topology-kubeadm", PostNamespaceCreated: credentials,
				ModifyControlPlaneFields: map[string]any{
					"spec.machineTemplate.spec.deletion.nodeDrainTimeoutSeconds": int64(10)},
				ModifyMachineDeploymentBootstrapConfigTemplateFields:       map[string]any{"spec.template.spec.verbosity": int64(4)},
				ModifyMachineDeploymentInfrastructureMachineTemplateFields: map[string]any{"spec.template.spec.cloud.simulated.zone": "sim-1a"},
			}
		})
	})

	Context("is rolled by its ClusterClass", func() {
		e2e.ClusterClassRolloutSpec(context.Background(), func() e2e.ClusterClassRolloutSpecInput {
			return e2e.ClusterClassRolloutSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: "topology-taints", PostNamespaceCreated: credentials,
				FilterMetadataBeforeValidation: func(o client.Object) clusterv1.ObjectMeta {
					annotations := maps.Clone(o.GetAnnotations())
					delete(annotations, infrav1.EndpointHook)
					return clusterv1.ObjectMeta{Labels: o.GetLabels(), Annotations: annotations}
				},
			}
		})
	})

	Context("has its machines drained", func() {
		e2e.NodeDrainTimeoutSpec(context.Background(), func() e2e.NodeDrainTimeoutSpecInput {
			return e2e.NodeDrainTimeoutSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To("topology-kubeadm"), PostNamespaceCreated: credentials,
			}
		})
	})
})

// taints are those that the specs of rollouts expect of all machines.
const taints = `      taints:
      - {key: pre-existing-always-taint, value: always-value, effect: PreferNoSchedule, propagation: Always}
      - {key: pre-existing-on-initialization-taint, value: on-initialization-value, effect: PreferNoSchedule, propagation: OnInitialization}
`

// tainted returns the flavor kubeadm with the taints.
func tainted(kubeadm string) string {
	kubeadm = insert(kubeadm, "  machineTemplate:\n    spec:\n", taints)
	return insert(kubeadm, "      version: ${KUBERNETES_VERSION}\n", taints)
}

// taintedTopology returns the flavor topology-kubeadm with the taints.
func taintedTopology(topology string) string {
	topology = insert(topology, "    controlPlane:\n", taints)
	return insert(topology, "        name: md-0\n", strings.ReplaceAll(taints, "      ", "        "))
}

// insert adds text after other text, which must be there once.
func insert(to, after, text string) string { return replace(to, after, after+text) }

// replace replaces text, which must be there once.
func replace(in, old, now string) string {
	Expect(strings.Count(in, old)).To(Equal(1), old)
	return strings.Replace(in, old, now, 1)
}

// held returns the flavor kubeadm whose control plane machines wait for the signal of the spec of
// remediation before they run kubeadm. Its MachineHealthCheck replaces only what the spec labels.
func held(kubeadm string) string {
	kubeadm = insert(kubeadm, "  kubeadmConfigSpec:\n", `    preKubeadmCommands:
    - |
      signal() { curl -ks -H 'Authorization: Bearer ${TOKEN}' "$@" ${SERVER}/api/v1/namespaces/${NAMESPACE}/configmaps/mhc-test; }
      until signal | grep -q '"signal": "pass"'; do sleep 1; done
      signal -X PATCH -H 'Content-Type: application/strategic-merge-patch+json' -d '{"data":{"signal":"ack-pass"}}'
`)
	const all = `      cluster.x-k8s.io/control-plane: ""
  checks:
    nodeStartupTimeoutSeconds: 900
    unhealthyNodeConditions:
`
	const labeled = `      cluster.x-k8s.io/control-plane: ""
      mhc-test: fail
  checks:
    nodeStartupTimeoutSeconds: 30
    unhealthyNodeConditions:
    - {type: e2e.remediation.condition, status: "False", timeoutSeconds: 10}
`
	return replace(kubeadm, all, labeled)
}

// adoptable returns the flavor kubeadm in two steps, which are labels: a control plane that
// consists of one Machine, and the KubeadmControlPlane that adopts it.
func adoptable(kubeadm string) string {
	const template, name = "${CLUSTER_NAME}-control-plane", "${CLUSTER_NAME}-control-plane-0"
	var out strings.Builder
	add := func(step string, o unstructured.Unstructured) {
		labels := map[string]string{"kcp-adoption." + step: ""}
		if o.GetName() == name { // KubeadmControlPlane sees no others
			labels[clusterv1.MachineControlPlaneLabel] = ""
		}
		o.SetLabels(labels)
		text, err := yaml.Marshal(o.Object)
		Expect(err).NotTo(HaveOccurred())
		out.WriteString("---\n" + string(text))
	}
	single := func(apiVersion, kind string, spec any) {
		metadata := map[string]any{"name": name, "namespace": "${NAMESPACE}"}
		add("step1", unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata,
			"spec": spec}})
	}
	field := func(o unstructured.Unstructured, path ...string) map[string]any {
		found, there, err := unstructured.NestedMap(o.Object, path...)
		Expect(there).To(BeTrue(), "%s: %v: %v", o.GetKind(), path, err)
		return found
	}
	objects, err := utilyaml.ToUnstructured([]byte(kubeadm))
	Expect(err).NotTo(HaveOccurred())
	for _, o := range objects {
		switch kind := o.GetKind(); {
		case kind == "DroverCluster" || kind == "DroverAccount":
			add("step1", o)
		case kind == "Cluster":
			add("step2", o)
			unstructured.RemoveNestedField(o.Object, "spec", "controlPlaneRef")
			add("step1", o)
		case kind == "KubeadmControlPlane":
			add("step2", o)
			// With it, KubeadmControlPlane would take the Machine for one that joined, and
			// replace it.
			unstructured.RemoveNestedField(o.Object, "spec", "kubeadmConfigSpec", "joinConfiguration")
			single("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", field(o, "spec", "kubeadmConfigSpec"))
		case kind == "DroverMachineTemplate" && o.GetName() == template:
			add("step2", o)
			single(o.GetAPIVersion(), "DroverMachine", field(o, "spec", "template", "spec"))
		}
	}
	ref := func(group, kind string) map[string]any {
		return map[string]any{"apiGroup": group, "kind": kind, "name": name}
	}
	single(clusterv1.GroupVersion.String(), "Machine", map[string]any{
		"clusterName": "${CLUSTER_NAME}", "version": "${KUBERNETES_VERSION}",
		"bootstrap":         map[string]any{"configRef": ref("bootstrap.cluster.x-k8s.io", "KubeadmConfig")},
		"infrastructureRef": ref("infrastructure.cluster.x-k8s.io", "DroverMachine"),
	})
	return out.String()
}

// The templates that the flavor "upgrades" has for machines of the next release.
const (
	nextControlPlane = "next-control-plane"
	nextWorkers      = "next-workers"
)

// upgrades returns the flavor kubeadm with the templates that the spec upgrades to.
func upgrades(kubeadm string) string {
	for _, name := range []string{nextControlPlane, nextWorkers} {
		kubeadm += `---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DroverMachineTemplate
metadata:
  name: ` + name + `
  namespace: ${NAMESPACE}
spec:
  template:
    spec:
      accountRef:
        name: simulated
      cloud:
        simulated:
          instanceType: small
          image: ` + whole.ImageName(kubernetes) + "\n"
	}
	return kubeadm
}
