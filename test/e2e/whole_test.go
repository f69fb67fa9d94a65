// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/scenario"
	"github.com/drover-io/drover/test/whole"
)

// These are the specs of clusters whose control planes are on machines of Drover's. They have a
// management cluster of their own, with Cluster API's kubeadm providers.
var _ = Describe("A whole cluster", Label("whole"), Ordered, func() {
	var (
		proxy    framework.ClusterProxy
		cloud    simulator.Admin
		token    string
		settings clusterctl.E2EConfig
	)
	BeforeAll(func(ctx SpecContext) {
		if missing := whole.Missing(); missing != "" {
			Skip(missing)
		}
		s, err := whole.Start(ctx, whole.Options{Dir: GinkgoT().TempDir(), Progress: os.Stderr, Releases: []string{whole.LastPatch}, Args: []string{"--feature-gates=MachineTaintPropagation=true"}})
		DeferCleanup(s.Stop)
		Expect(err).NotTo(HaveOccurred())
		proxy, cloud, token = framework.NewClusterProxy("whole", s.Management.AdminKubeconfig(), shared.scheme), s.Admin, s.Cloud.Token
		DeferCleanup(proxy.Dispose)
		publish(ctx, proxy.GetClient(), s.Management)

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
		for _, name := range []string{"wait-machine-upgrade", "wait-nodes-ready", "wait-deployment-available", "wait-machine-deleted"} {
			settings.Intervals["default/"+name] = []string{"10m", "1s"}
		}
	})

	credentials := func(proxy framework.ClusterProxy, namespace string) {
		Expect(scenario.Create(context.Background(), proxy.GetClient(),
			scenario.Credentials(metav1.ObjectMeta{Namespace: namespace, Name: "simulated-credentials"}, "simulated", map[string][]byte{"token": []byte(token)}))).To(Succeed())
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
				InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To("kcp-remediation"),
				PostNamespaceCreated: func(proxy framework.ClusterProxy, namespace string) {
					credentials(proxy, namespace)
					hold(cloud, proxy.GetClient(), namespace)
				},
			}
		})
	})

	Context("has its control plane adopted", func() {
		e2e.KCPAdoptionSpec(context.Background(), func() e2e.KCPAdoptionSpecInput {
			return e2e.KCPAdoptionSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: ptr.To("kcp-adoption"), PostNamespaceCreated: credentials,
			}
		})
	})

	Context("follows its ClusterClass", func() {
		e2e.ClusterClassChangesSpec(context.Background(), func() e2e.ClusterClassChangesSpecInput {
			return e2e.ClusterClassChangesSpecInput{
				E2EConfig: &settings, ClusterctlConfigPath: shared.config, BootstrapClusterProxy: proxy, ArtifactFolder: shared.artifacts,
				InfrastructureProvider: ptr.To(infrastructure), Flavor: "topology-kubeadm", PostNamespaceCreated: credentials,
				ModifyControlPlaneFields:                                   map[string]any{"spec.machineTemplate.spec.deletion.nodeDrainTimeoutSeconds": int64(10)},
				ModifyMachineDeploymentBootstrapConfigTemplateFields:       map[string]any{"spec.template.spec.verbosity": int64(4)},
				ModifyMachineDeploymentInfrastructureMachineTemplateFields: map[string]any{"spec.template.spec.simulated.zone": "sim-1a"},
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

// tainted returns the flavor kubeadm with the taints that the spec of rollouts expects of all
// machines.
func tainted(kubeadm string) string {
	const taints = `      taints:
      - {key: pre-existing-always-taint, value: always-value, effect: PreferNoSchedule, propagation: Always}
      - {key: pre-existing-on-initialization-taint, value: on-initialization-value, effect: PreferNoSchedule, propagation: OnInitialization}
`
	for _, before := range []string{"  machineTemplate:\n    spec:\n", "      version: ${KUBERNETES_VERSION}\n"} {
		Expect(strings.Count(kubeadm, before)).To(Equal(1), before)
		kubeadm = strings.Replace(kubeadm, before, before+taints, 1)
	}
	return kubeadm
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
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: CloudMachineTemplate
metadata:
  name: ` + name + `
  namespace: ${NAMESPACE}
spec:
  template:
    spec:
      accountRef:
        name: simulated
      simulated:
        instanceType: small
        image: ` + whole.ImageName(kubernetes) + "\n"
	}
	return kubeadm
}

// failing is the MachineHealthCheck that the spec of remediation adds to the flavor kubeadm: it
// replaces only what the spec labels.
const failing = `---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata:
  name: ${CLUSTER_NAME}-failing
  namespace: ${NAMESPACE}
spec:
  clusterName: ${CLUSTER_NAME}
  selector:
    matchLabels:
      cluster.x-k8s.io/control-plane: ""
      mhc-test: fail
  checks:
    nodeStartupTimeoutSeconds: 30
    unhealthyNodeConditions:
    - type: e2e.remediation.condition
      status: "False"
      timeoutSeconds: 10
  remediation:
    triggerIf:
      unhealthyLessThanOrEqualTo: 100%
`

// hold keeps machines from booting until the spec of remediation sends its signal in a ConfigMap.
// The spec has machines run a script that waits for it before kubeadm; the simulated cloud's
// machines run no scripts.
func hold(cloud simulator.Admin, c client.Client, namespace string) {
	fault, err := cloud.AddFault(context.Background(), simulator.Fault{Kind: simulator.DeadBody, Operation: wire.RunInstances})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		for scenario.Pause(ctx, time.Second) {
			if err := passSignal(ctx, cloud, c, namespace); err != nil && ctx.Err() == nil {
				GinkgoLogr.Error(err, "Passing the signal to the machines failed")
			}
		}
	})
	DeferCleanup(func(ctx SpecContext) error {
		cancel()
		working.Wait()
		return cloud.RemoveFault(ctx, fault)
	})
}

// passSignal boots the machines that wait for the signal, and confirms it, if there is one.
func passSignal(ctx context.Context, cloud simulator.Admin, c client.Client, namespace string) error {
	signal := &corev1.ConfigMap{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "mhc-test"}, signal); err != nil {
		return client.IgnoreNotFound(err)
	}
	if signal.Data["signal"] != "pass" {
		return nil
	}
	snapshot, err := cloud.Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, vm := range snapshot.Instances() {
		if vm.State == wire.Running && vm.Body.Phase == body.PhaseOff {
			if err := cloud.Act(ctx, vm.ID, simulator.ActStart); err != nil {
				return err
			}
		}
	}
	return scenario.Patch(ctx, c, signal, func() { signal.Data["signal"] = "ack-pass" })
}

// adoptable returns the flavor kubeadm in two steps, by label: first a control plane that consists
// of a Machine of its own, then a KubeadmControlPlane that adopts it.
func adoptable(kubeadm string) string {
	documents := strings.Split(kubeadm, "---\n")
	find := func(kind, words string) string {
		at := slices.IndexFunc(documents, func(d string) bool { return strings.Contains(d, "\nkind: "+kind+"\n") && strings.Contains(d, words) })
		Expect(at).NotTo(Equal(-1), kind)
		return documents[at]
	}
	cluster, controlPlane := find("Cluster", ""), find("KubeadmControlPlane", "")
	const ref = "  controlPlaneRef:\n    apiGroup: controlplane.cluster.x-k8s.io\n    kind: KubeadmControlPlane\n    name: ${CLUSTER_NAME}\n"
	Expect(cluster).To(ContainSubstring(ref))
	_, config, _ := strings.Cut(controlPlane, "  kubeadmConfigSpec:\n")
	single := alone + strings.ReplaceAll("\n"+config, "\n  ", "\n")[1:]

	var all []string
	for step, documents := range [][]string{
		append([]string{strings.Replace(cluster, ref, "", 1), find("CloudCluster", ""), find("CloudAccount", "")}, strings.Split(single, "---\n")...),
		{cluster, find("CloudMachineTemplate", "name: ${CLUSTER_NAME}-control-plane\n"), controlPlane},
	} {
		for _, d := range documents {
			labels := fmt.Sprintf("  labels: {kcp-adoption.step%d: \"\"", step+1)
			if strings.Contains(d, "${CLUSTER_NAME}-control-plane-0\n") {
				labels += `, cluster.x-k8s.io/control-plane: ""`
			}
			all = append(all, strings.Replace(d, "metadata:\n", "metadata:\n"+labels+"}\n", 1))
		}
	}
	return strings.Join(all, "---\n")
}

// alone is a control plane without KubeadmControlPlane. The configuration of kubeadm follows.
const alone = `apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: ${CLUSTER_NAME}-control-plane-0
  namespace: ${NAMESPACE}
spec:
  clusterName: ${CLUSTER_NAME}
  version: ${KUBERNETES_VERSION}
  bootstrap:
    configRef:
      apiGroup: bootstrap.cluster.x-k8s.io
      kind: KubeadmConfig
      name: ${CLUSTER_NAME}-control-plane-0
  infrastructureRef:
    apiGroup: infrastructure.cluster.x-k8s.io
    kind: CloudMachine
    name: ${CLUSTER_NAME}-control-plane-0
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: CloudMachine
metadata:
  name: ${CLUSTER_NAME}-control-plane-0
  namespace: ${NAMESPACE}
spec:
  accountRef:
    name: simulated
  simulated:
    instanceType: small
    image: node-image
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfig
metadata:
  name: ${CLUSTER_NAME}-control-plane-0
  namespace: ${NAMESPACE}
spec:
`
