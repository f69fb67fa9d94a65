// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/cloud/tagging"
)

// capiWorld is what a plan for Cluster API is made from.
type capiWorld struct {
	*CAPI
	vms    []tagging.Instance
	target *Target
}

func newCAPIWorld(t *testing.T) *capiWorld {
	t.Helper()
	w := &capiWorld{CAPI: &CAPI{}, target: newTarget()}
	var clusters []unstructured.Unstructured
	w.Nodes = readFixture(t, "capi", map[string]*[]unstructured.Unstructured{
		"Cluster": &clusters, "MachineDeployment": &w.Deployments, "MachineSet": &w.Sets, "Machine": &w.Machines, "MachineHealthCheck": &w.Checks,
		"AWSCluster": &w.Infrastructure, "AWSMachineTemplate": &w.Templates, "AWSMachine": &w.VMs, "KubeadmConfigTemplate": &w.Configs,
	})
	w.Cluster = clusters[0]
	w.vms = vmsOf(w.Machines, func(*unstructured.Unstructured) map[string]string {
		return map[string]string{"sigs.k8s.io/cluster-api-provider-aws/cluster/old": "owned"}
	})
	for i := range w.vms {
		w.vms[i].Tags["Name"] = w.VMs[i].GetName()
	}
	return w
}

func (w *capiWorld) plan(drop ...string) *Plan {
	return planOf(w.CAPI, w.vms, w.target, drop)
}

// TestFindingsOfClusterAPI tests each reason that stops a takeover, and each change that a plan
// notes: it is the only finding more than those of the fixture.
func TestFindingsOfClusterAPI(t *testing.T) {
	t.Parallel()
	const (
		pool, first, one = "MachineDeployment workers", "MachineSet workers-6d4f5", "Machine workers-6d4f5-abcde"
		check            = "MachineHealthCheck nodes"
		template, config = "AWSMachineTemplate workers-v2", "KubeadmConfigTemplate workers"
		deleted, at      = "2026-11-01T10:00:00Z", "spec.template.spec"
		paused           = "cluster.x-k8s.io/paused"
	)
	cluster := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Cluster, path, value) }
	}
	deployment := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Deployments[0], path, value) }
	}
	both := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) {
			set(&w.Deployments[0], at+"."+path, value)
			set(&w.Sets[0], at+"."+path, value)
		}
	}
	machine := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Machines[0], path, value) }
	}
	aws := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Templates[0], at+"."+path, value) }
	}
	kubeadm := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Configs[0], at+"."+path, value) }
	}
	file := func(key string, value any) func(*capiWorld) {
		return kubeadm("files", []any{map[string]any{"path": "/etc/motd", "content": "blue", key: value}})
	}
	arg := func(name, value string) func(*capiWorld) {
		return kubeadm("joinConfiguration.nodeRegistration.kubeletExtraArgs", []any{map[string]any{"name": name, "value": value}})
	}
	annotation := func(key string) map[string]any { return map[string]any{key: "x"} }
	testFindings(t, newCAPIWorld, []finding[*capiWorld]{
		// the Cluster
		{"not paused", cluster("spec.paused", false), Refused, "Cluster old", "spec.paused", "leave it paused"},
		{"cluster deleted", cluster("metadata.deletionTimestamp", deleted), Refused, "Cluster old", "metadata.deletionTimestamp",
			"being deleted"},
		{"unknown field of the cluster", cluster("spec.surprise", "x"), Refused, "Cluster old", "spec", `unknown field "surprise"`},
		{"topology", cluster("spec.topology", map[string]any{"version": "v1.35.1", "classRef": map[string]any{"name": "x"}}), Refused,
			"Cluster old", "spec.topology", "make the pools again"},
		{"managed", cluster("spec.controlPlaneRef.kind", "AWSManagedControlPlane"), Refused, "Cluster old", "spec.controlPlaneRef",
			"AWSManagedControlPlane"},
		{"pool of the cloud", func(w *capiWorld) {
			w.Pools = append(w.Pools, *w.Deployments[0].DeepCopy())
			w.Pools[0].SetKind("MachinePool")
		}, Refused, "MachinePool workers", "", "replace it by a MachineDeployment"},
		{"no AWSCluster", func(w *capiWorld) { w.Infrastructure = nil }, Refused, "Cluster old", "spec.infrastructureRef", "no AWSCluster old"},
		{"region", func(w *capiWorld) { set(&w.Infrastructure[0], "spec.region", "eu-west-1") }, Refused, "AWSCluster old", "spec.region",
			`"eu-west-1"`},
		{"no groups", func(w *capiWorld) {
			set(&w.Infrastructure[0], "status.networkStatus.securityGroups", map[string]any{"node": map[string]any{"id": "sg-08"}})
			set(&w.Templates[1], at+".securityGroupOverrides.lb", "sg-11")
		}, Refused, template, at + ".securityGroupOverrides", "for the role lb"},
		{"no subnet in the zone", func(w *capiWorld) {
			subnets, _, _ := unstructured.NestedSlice(w.Infrastructure[0].Object, "spec", "network", "subnets")
			set(&w.Infrastructure[0], "spec.network.subnets", subnets[:3])
		}, Refused, "AWSMachineTemplate spot", at + ".subnet", "no subnet for it"},
		// pools
		{"unknown field", deployment("spec.surprise", "x"), Refused, pool, "spec", `unknown field "surprise"`},
		{"deleted", deployment("metadata.deletionTimestamp", deleted), Refused, pool, "metadata.deletionTimestamp", "being deleted"},
		{"paused alone", deployment("metadata.annotations", annotation(paused)), Refused, pool, "metadata.annotations", paused},
		{"another template", deployment(at+".version", "v1.36.0"), Refused, pool, "spec.template", "rolled out"},
		{"two sets", func(w *capiWorld) { set(&w.Sets[1], "spec.replicas", int64(1)) }, Refused, pool, "", "2 MachineSets"},
		{"unknown field of a set", func(w *capiWorld) { set(&w.Sets[1], "spec.surprise", "x") }, Refused, "MachineSet workers-85c9b", "spec",
			`unknown field "surprise"`},
		{"set deleted", func(w *capiWorld) { set(&w.Sets[0], "metadata.deletionTimestamp", deleted) }, Refused, first,
			"metadata.deletionTimestamp", "being deleted"},
		{"set of nobody", func(w *capiWorld) { w.Sets[1].SetOwnerReferences(nil) }, Refused, "MachineSet workers-85c9b", "",
			"belongs to no MachineDeployment"},
		{"scaling", func(w *capiWorld) { set(&w.Sets[0], "spec.replicas", int64(3)) }, Refused, pool, "spec.replicas", "3 in MachineSet"},
		{"a machine more", func(w *capiWorld) {
			set(&w.Deployments[0], "spec.replicas", int64(3))
			set(&w.Sets[0], "spec.replicas", int64(3))
		}, Refused, pool, "spec.replicas", "has 2 Machines"},
		{"another bootstrap provider", both("bootstrap.configRef.kind", "RKE2ConfigTemplate"), Lost, pool, at + ".bootstrap",
			"RKE2ConfigTemplate"},
		{"user data of its own", both("bootstrap", map[string]any{"dataSecretName": "data"}), Lost, pool, at + ".bootstrap", "Secret data"},
		{"no bootstrap template", both("bootstrap.configRef.name", "x"), Refused, pool, at + ".bootstrap", "x does not exist"},
		{"another cloud", both("infrastructureRef.kind", "AzureMachineTemplate"), Refused, pool, at + ".infrastructureRef",
			"AzureMachineTemplate"},
		{"no template", both("infrastructureRef.name", "x"), Refused, pool, at + ".infrastructureRef", "x does not exist"},
		// its MachineHealthCheck
		{"unknown field of a check", func(w *capiWorld) {
			again := w.Checks[0].DeepCopy()
			again.SetName("other")
			set(again, "spec.surprise", "x")
			w.Checks = append(w.Checks, *again)
		}, Refused, "MachineHealthCheck other", "spec", `unknown field "surprise"`},
		{"selector", func(w *capiWorld) {
			again := w.Checks[0].DeepCopy()
			again.SetName("other")
			set(again, "spec.selector", map[string]any{"matchExpressions": []any{map[string]any{"key": "x", "operator": "x"}}})
			w.Checks = append(w.Checks, *again)
		}, Refused, "MachineHealthCheck other", "spec.selector", "not a valid"},
		{"remediation elsewhere", func(w *capiWorld) {
			set(&w.Checks[0], "spec.remediation.templateRef", map[string]any{"apiVersion": "x/v1", "kind": "X", "name": "x"})
		}, Lost, check, "spec.remediation.templateRef", "are replaced"},
		// machines
		{"unknown field of a machine", machine("spec.surprise", "x"), Refused, one, "spec", `unknown field "surprise"`},
		{"machine deleted", machine("metadata.deletionTimestamp", deleted), Refused, one, "metadata.deletionTimestamp", "being deleted"},
		{"machine paused alone", machine("metadata.annotations", annotation(paused)), Refused, one, "metadata.annotations", paused},
		{"label of its own", machine("metadata.labels", map[string]any{"node-role.kubernetes.io/x": ""}), Lost, one, "metadata.labels",
			"node-role.kubernetes.io/x"},
		{"failed", machine("status.phase", "Failed"), Refused, one, "status.phase", `"Failed"`},
		{"next", machine("metadata.annotations", annotation("cluster.x-k8s.io/delete-machine")), Refused, one, "metadata.annotations",
			"next to be deleted"},
		{"held", machine("metadata.annotations", annotation("pre-drain.delete.hook.machine.cluster.x-k8s.io/x")), Noted, one,
			"metadata.annotations", "hook.machine.cluster.x-k8s.io/x on the new Machine"},
		{"no Node", machine("status.nodeRef", nil), Refused, one, "status.nodeRef", "does not exist"},
		{"Node not Ready", func(w *capiWorld) { w.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, Refused, one, "",
			"is not Ready"},
		{"provider ID of no cloud", func(w *capiWorld) { w.Nodes[0].Spec.ProviderID = "x" }, Refused, one, "", "names no VM of this cloud"},
		{"not the same VM", machine("spec.providerID", "aws:///eu-central-1a/i-0000000000000000e"), Refused, one, "spec.providerID",
			"not the same VM"},
		{"no machine of the provider", func(w *capiWorld) { w.VMs[0].SetOwnerReferences(nil) }, Refused, one, "spec.infrastructureRef",
			"owns no AWSMachine"},
		{"machine of the provider deleted", func(w *capiWorld) { now := metav1.Now(); w.VMs[0].SetDeletionTimestamp(&now) }, Refused,
			"AWSMachine workers-6d4f5-abcde", "metadata.deletionTimestamp", "being deleted"},
		{"machine of nobody", func(w *capiWorld) {
			stray := w.Machines[0].DeepCopy()
			stray.SetName("stray")
			stray.SetOwnerReferences(nil)
			w.Machines = append(w.Machines, *stray)
		}, Refused, "Machine stray", "", "belongs to no MachineSet"},
		// VMs
		{"no VM", func(w *capiWorld) { w.vms = w.vms[1:] }, Refused, one, "", "no VM i-0000000000000000a"},
		{"another name", func(w *capiWorld) { w.vms[2].Tags["Name"] = "x" }, Refused, "Machine spot-7f8d9-klmno", "", `has the name "x"`},
		{"not owned", func(w *capiWorld) {
			w.vms[0].Tags["sigs.k8s.io/cluster-api-provider-aws/cluster/old"] = "shared"
		}, Refused, one, "", `"shared"`},
		// AWSMachineTemplate
		{"unknown field of AWS", aws("surprise", "x"), Refused, template, at, `unknown field "surprise"`},
		{"image lookup", aws("ami.id", nil), Noted, pool, "", "it names no image"},
		{"filters", aws("subnet.filters", []any{
			map[string]any{"name": "tag:role", "values": []any{"nodes"}}, map[string]any{"name": "vpc-id", "values": []any{"vpc-1"}},
		}), Refused, template, at + ".subnet.filters", "filter by vpc-id"},
		{"groups by tags", aws("additionalSecurityGroups", []any{map[string]any{"filters": []any{}}}), Lost, template, at +
			".additionalSecurityGroups.filters", "with an ID"},
		{"address pool", aws("elasticIpPool", map[string]any{"publicIpv4Pool": "amazon"}), Lost, template, at + ".elasticIpPool",
			"nobody releases"},
		{"interfaces", aws("networkInterfaces", []any{"eni-0"}), Lost, template, at + ".networkInterfaces", "interfaces that exist"},
		{"names", aws("privateDnsName", map[string]any{"hostnameType": "ip-name"}), Lost, template, at + ".privateDnsName", "the subnet"},
		{"root device", aws("rootVolume.deviceName", "/dev/sda1"), Noted, template, at + ".rootVolume.deviceName", "the image says"},
		{"affinity", aws("hostAffinity", "host"), Lost, template, at + ".hostAffinity", "not bound"},
		{"hosts", aws("dynamicHostAllocation", map[string]any{}), Lost, template, at + ".dynamicHostAllocation", "nobody releases"},
		{"no metadata", aws("instanceMetadataOptions.httpEndpoint", "disabled"), Lost, template, at + ".instanceMetadataOptions.httpEndpoint",
			"reach the instance metadata"},
		{"secrets manager", aws("cloudInit.insecureSkipSecretsManager", false), Noted, template, at + ".cloudInit", "in the instance metadata"},
		{"Ignition", aws("ignition", map[string]any{"storageType": "ClusterObjectStore"}), Noted, template, at + ".ignition",
			"in the instance metadata"},
		{"compression", aws("uncompressedUserData", true), Noted, template, at + ".uncompressedUserData", "compressed"},
		// KubeadmConfigTemplate
		{"unknown field of kubeadm", kubeadm("surprise", "x"), Refused, config, at, `unknown field "surprise"`},
		{"mounts", kubeadm("mounts", []any{[]any{"a", "b"}}), Lost, config, at + ".mounts", "do without"},
		{"boot commands", kubeadm("bootCommands", []any{"x"}), Lost, config, at + ".bootCommands", "do without"},
		{"disks", kubeadm("diskSetup", map[string]any{"filesystems": []any{map[string]any{"device": "/dev/x", "filesystem": "ext4",
			"label": "x"}}}), Lost, config, at + ".diskSetup", "do without"},
		{"container linux", kubeadm("ignition", map[string]any{"containerLinuxConfig": map[string]any{"strict": true}}), Lost, config, at +
			".ignition", "do without"},
		{"verbosity", kubeadm("verbosity", int64(4)), Noted, config, at + ".verbosity", "kubeadm's"},
		{"control planes", kubeadm("clusterConfiguration", map[string]any{"imageRepository": "x"}), Noted, config, at, "workers ignore them"},
		{"command of jinja", kubeadm("preKubeadmCommands", []any{"systemctl restart systemd-sysctl", "echo {{ ds.meta_data.hostname }}"}), Lost,
			config, at + ".preKubeadmCommands", "template of cloud-init"},
		{"command for kubeadm's file", kubeadm("preKubeadmCommands", []any{"envsubst < /etc/kubeadm.yml > /etc/kubeadm.yml.tmp"}), Lost, config,
			at + ".preKubeadmCommands", "for kubeadm"},
		{"command for its configuration", kubeadm("preKubeadmCommands", []any{"sed -i s/a/b/ /run/kubeadm/kubeadm-join-config.yaml"}), Lost,
			config, at + ".preKubeadmCommands", "kubeadm-join-config"},
		{"command that runs it", kubeadm("postKubeadmCommands", []any{"kubeadm join phase kubelet-start"}), Lost, config, at +
			".postKubeadmCommands", "join phase"},
		{"script", kubeadm("preKubeadmCommands", []any{"set -e\necho a\n  cat /tmp/kubeadm.yaml # x\necho b"}), Lost, config, at +
			".preKubeadmCommands", `do not run "cat /tmp/kubeadm.yaml # x": it`},
		{"command that names it", kubeadm("postKubeadmCommands", []any{"apt-mark hold kubeadm"}), Noted, config, at + ".postKubeadmCommands",
			"if it fails"},
		{"Drover's own file", kubeadm("files", []any{map[string]any{"path": "/etc/motd", "content": "blue"},
			map[string]any{"path": "/etc/kubernetes/kubelet.conf", "content": "x"}}), Lost, config, at + ".files", "/etc/kubernetes/kubelet.conf"},
		{"file below nothing", kubeadm("files", []any{map[string]any{"path": "etc/motd", "content": "blue"}}), Lost, config, at + ".files",
			"must be absolute"},
		{"file of a user", kubeadm("files", []any{map[string]any{"path": "/etc/motd", "content": "blue", "owner": "root"}}), Lost, config, at +
			".files", "user:group"},
		{"permissions", kubeadm("files", []any{map[string]any{"path": "/etc/motd", "content": "blue", "permissions": "644"}}), Lost, config, at +
			".files", "/etc/motd"},
		{"another system's format", kubeadm("format", "ignition"), Refused, config, at + ".format", "images of ubuntu-24.04 read CloudConfig"},
		{"name of a user", kubeadm("users", []any{map[string]any{"name": "Alice"}}), Lost, config, at + ".users", "Alice"},
		{"not in base64", kubeadm("files", []any{map[string]any{"path": "/x", "encoding": "base64", "content": "%"}}), Refused, config, at +
			".files.content", "base64"},
		{"compressed", file("encoding", "gzip"), Lost, config, at + ".files.encoding", "compressed"},
		{"secret in base64", kubeadm("files", []any{map[string]any{"path": "/etc/motd", "content": "blue"},
			map[string]any{"path": "/x", "encoding": "base64", "contentFrom": map[string]any{"secret": map[string]any{"name": "x", "key": "x"}}}}),
			Lost, config, at + ".files.encoding", "decode it in the copy"},
		{"appended", file("append", true), Lost, config, at + ".files.append", "appended"},
		{"template", file("contentFormat", "Template"), Lost, config, at + ".files.content", "a template"},
		{"jinja", file("content", "{{ ds }}"), Lost, config, at + ".files.content", "a template"},
		{"groups", kubeadm("users", []any{map[string]any{"name": "alice", "groups": "docker"}}), Lost, config, at + ".users", "alice"},
		{"name", kubeadm("joinConfiguration.nodeRegistration.name", "x"), Lost, config, at + ".joinConfiguration.nodeRegistration.name",
			"name of their Machine"},
		{"argument", arg("v", "4"), Lost, config, at + ".joinConfiguration.nodeRegistration.kubeletExtraArgs", "--v"},
		{"no number", arg("max-pods", "x"), Refused, config, at + ".joinConfiguration.nodeRegistration.kubeletExtraArgs", "no number"},
		{"short name", kubeadm("joinConfiguration.nodeRegistration.name", "{{ local_hostname }}"), Lost, config, at +
			".joinConfiguration.nodeRegistration.name", "not the short one"},
		{"socket", kubeadm("joinConfiguration.nodeRegistration.criSocket", "unix:///var/run/crio/crio.sock"), Lost, config, at +
			".joinConfiguration.nodeRegistration.criSocket", "containerd"},
		{"pulls", kubeadm("joinConfiguration.nodeRegistration.imagePullPolicy", "Always"), Noted, config, at +
			".joinConfiguration.nodeRegistration.imagePullPolicy", "pulls no images"},
		{"phases", kubeadm("joinConfiguration.skipPhases", []any{"preflight"}), Lost, config, at + ".joinConfiguration.skipPhases", "skip none"},
		{"patches", kubeadm("joinConfiguration.patches", map[string]any{"directory": "/x"}), Lost, config, at + ".joinConfiguration.patches",
			"patch nothing"},
		{"discovery", kubeadm("joinConfiguration.timeouts", map[string]any{"discoverySeconds": int64(60)}), Noted, config, at +
			".joinConfiguration.discovery", "join with"},
		{"control plane", kubeadm("joinConfiguration.controlPlane", map[string]any{}), Refused, config, at + ".joinConfiguration.controlPlane",
			"for a control plane"},
	})
	t.Run("two checks", func(t *testing.T) {
		t.Parallel()
		w := newCAPIWorld(t)
		again := w.Checks[0].DeepCopy()
		again.SetName("other")
		w.Checks = append(w.Checks, *again)
		NewWithT(t).Expect(w.plan().Findings).To(ContainElement(And(
			HaveField("Severity", Refused), HaveField("Object", pool), HaveField("Message", ContainSubstring("2 MachineHealthChecks")),
		)))
	})
}

// TestClusterAPIChoices tests what the provider for AWS decides from several fields.
func TestClusterAPIChoices(t *testing.T) {
	t.Parallel()
	const at = "spec.template.spec."
	printed := func(t *testing.T, w *capiWorld) string {
		t.Helper()
		var out strings.Builder
		if err := w.target.PrintYAML(&out, w.plan()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	t.Run("no processor options", func(t *testing.T) {
		t.Parallel()
		w := newCAPIWorld(t)
		g := NewWithT(t)
		g.Expect(printed(t, w)).To(ContainSubstring("cpuOptions"))
		set(&w.Templates[0], at+"cpuOptions", map[string]any{"nestedVirtualization": "disabled", "confidentialCompute": "Disabled"})
		g.Expect(printed(t, w)).NotTo(ContainSubstring("cpuOptions"))
	})
	t.Run("Ignition's proxy", func(t *testing.T) {
		t.Parallel()
		w := newCAPIWorld(t)
		set(&w.Templates[0], at+"ignition", map[string]any{"proxy": map[string]any{}, "tls": map[string]any{}})
		for _, field := range []string{"proxy", "tls"} {
			NewWithT(t).Expect(w.plan().Findings).To(ContainElement(And(HaveField("Severity", Lost), HaveField("Field", at+"ignition."+field))))
		}
	})
	for _, c := range []struct {
		name   string
		change func(*capiWorld)
		want   string
	}{
		{"subnet by ID", func(w *capiWorld) { set(&w.Templates[0], at+"subnet.id", "subnet-0e") }, "ids:\n            - subnet-0e"},
		{"key of nobody", func(w *capiWorld) {
			set(&w.Infrastructure[0], "spec.sshKeyName", nil)
			set(&w.Templates[0], at+"sshKeyName", nil)
		}, "keyName: default"},
		{"public subnet", func(w *capiWorld) {
			set(&w.Templates[1], at+"publicIP", true)
		}, "ids:\n            - subnet-01"},
		{"capacity block", func(w *capiWorld) {
			set(&w.Templates[0], at+"marketType", "CapacityBlock")
			set(&w.Templates[0], at+"capacityReservationId", "cr-0")
		}, "capacityReservation:\n            id: cr-0"},
		{"not managed", func(w *capiWorld) {
			w.Infrastructure[0].SetAnnotations(map[string]string{"cluster.x-k8s.io/managed-by": "x"})
		}, "securityGroups:\n            ids:\n            - sg-09\n"},
		{"IPv6", func(w *capiWorld) { set(&w.Templates[0], at+"assignPrimaryIPv6", "enabled") }, "primaryIPv6: Enabled"},
		{"EFA", func(w *capiWorld) { set(&w.Templates[0], at+"networkInterfaceType", "efa") }, "efa: Enabled"},
		{"key without encryption", func(w *capiWorld) {
			set(&w.Templates[0], at+"nonRootVolumes", []any{map[string]any{"deviceName": "/dev/sdf", "size": int64(200),
				"encryptionKey": "alias/data"}})
		}, "deviceName: /dev/sdf\n            encryption: Enabled"},
		{"encrypted memory", func(w *capiWorld) {
			set(&w.Templates[0], at+"cpuOptions.confidentialCompute", "AMDEncryptedVirtualizationNestedPaging")
		}, "amdSEVSNP: Enabled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newCAPIWorld(t)
			g := NewWithT(t)
			g.Expect(printed(t, w)).NotTo(ContainSubstring(c.want))
			c.change(w)
			g.Expect(w.plan().Blocked()).To(Equal(0))
			g.Expect(printed(t, w)).To(ContainSubstring(c.want))
		})
	}
}

// TestKeyOfAnExternalCluster: the provider has no default key where it does not manage the cluster.
func TestKeyOfAnExternalCluster(t *testing.T) {
	t.Parallel()
	w := newCAPIWorld(t)
	set(&w.Infrastructure[0], "spec.sshKeyName", nil)
	set(&w.Templates[0], "spec.template.spec.sshKeyName", nil)
	w.Infrastructure[0].SetAnnotations(map[string]string{"cluster.x-k8s.io/managed-by": "x"})
	for _, pool := range w.plan().Pools {
		NewWithT(t).Expect(pool.Machine.Cloud.AWS.KeyName).NotTo(Equal("default"))
	}
}

// TestFormatOfUserData tests that Cluster API's words for the format become Drover's.
func TestFormatOfUserData(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]bootstrapv1.Format{
		"": "", "ignition": bootstrapv1.FormatIgnition, "cloud-config": bootstrapv1.FormatCloudConfig,
	} {
		w := newCAPIWorld(t)
		w.target.Bootstrap.Spec.Template.Spec.OperatingSystem = ""
		for i := range w.Configs {
			set(&w.Configs[i], "spec.template.spec.format", word)
		}
		for _, pool := range w.plan().Pools {
			NewWithT(t).Expect(pool.Config.Format).To(Equal(want))
		}
	}
}
