// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/tagging"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/virt"
)

// image is the URL from which the VMs of other systems are filled.
const image = "https://images.example.com/node.qcow2"

// foreign makes a VM as machine-controller and machine-controller-manager make theirs: with a
// volume of its name, and then the Secret that it owns. It waits until the VM runs.
func (c *cluster) foreign(t testing.TB, name string, labels map[string]string, change func(*kubevirtv1.VirtualMachineSpec)) {
	t.Helper()
	g := NewWithT(t)
	secret := "userdata-" + name + "-1764200000"
	disk := func(name string) kubevirtv1.Disk {
		return kubevirtv1.Disk{Name: name, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}}
	}
	inTemplate := map[string]string{"kubevirt.io/vm": name}
	ofVM := map[string]string{"kubevirt.io/vm": name}
	for key, value := range labels {
		ofVM[key] = value
	}
	vm := &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: ofVM},
		Spec: kubevirtv1.VirtualMachineSpec{
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: inTemplate},
				Spec: kubevirtv1.VirtualMachineInstanceSpec{
					Networks: []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()},
					Domain: kubevirtv1.DomainSpec{
						CPU:       &kubevirtv1.CPU{Cores: 1},
						Resources: kubevirtv1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}},
						Devices: kubevirtv1.Devices{
							Interfaces: []kubevirtv1.Interface{*kubevirtv1.DefaultBridgeNetworkInterface()},
							Disks:      []kubevirtv1.Disk{disk("datavolumedisk"), disk("cloudinitdisk")},
						},
					},
					TerminationGracePeriodSeconds: ptr.To(int64(30)),
					Volumes: []kubevirtv1.Volume{
						{Name: "datavolumedisk", VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: name}}},
						{Name: "cloudinitdisk", VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: &kubevirtv1.CloudInitNoCloudSource{
							UserDataSecretRef: &corev1.LocalObjectReference{Name: secret},
						}}},
					},
				},
			},
			DataVolumeTemplates: []kubevirtv1.DataVolumeTemplateSpec{{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: cdiv1.DataVolumeSpec{
					Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: image}},
					PVC: &corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(virt.StandardStorage),
						Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
					},
				},
			}},
		},
	}
	change(&vm.Spec)
	g.Expect(c.Admin.Create(t.Context(), vm)).To(Succeed())
	g.Expect(c.Admin.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: secret, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm,
				kubevirtv1.VirtualMachineGroupVersionKind)},
		},
		Data: map[string][]byte{"userdata": []byte("#cloud-config\n")},
	})).To(Succeed())
	t.Cleanup(func() { _ = client.IgnoreNotFound(c.Admin.Delete(withoutEnd(t), vm)) })
	until(t, name+" runs", func() bool {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		err := c.Admin.Get(t.Context(), client.ObjectKeyFromObject(vm), vmi)
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		return vmi.Status.Phase == kubevirtv1.Running
	})
}

// once and running are how machine-controller's and machine-controller-manager's VMs run.
func once(spec *kubevirtv1.VirtualMachineSpec) { spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyOnce) }

func running(spec *kubevirtv1.VirtualMachineSpec) { spec.Running = ptr.To(true) }

// sight returns what there is of a VM: it, its instance, its volumes, claims and Secrets, by name.
// Of each it has what a takeover may change, or must not.
func (c *cluster) sight(t testing.TB, name string) (found []string) {
	t.Helper()
	g := NewWithT(t)
	for _, list := range []client.ObjectList{
		&kubevirtv1.VirtualMachineList{}, &kubevirtv1.VirtualMachineInstanceList{}, &cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{},
		&corev1.SecretList{}, &corev1.PodList{},
	} {
		g.Expect(c.Admin.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		g.Expect(meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			if !strings.Contains(o.GetName(), name) {
				return nil
			}
			delete(o.GetAnnotations(), "kubevirt.io/vm-generation") // KubeVirt counts the changes of the VM
			is := map[string]any{"uid": o.GetUID(), "labels": o.GetLabels(), "annotations": o.GetAnnotations(), "owners": o.GetOwnerReferences()}
			if vm, ok := o.(*kubevirtv1.VirtualMachine); ok {
				is["spec"] = vm.Spec
				for _, condition := range vm.Status.Conditions {
					g.Expect(condition.Type).NotTo(Equal(kubevirtv1.VirtualMachineRestartRequired), condition.Message)
				}
			}
			text, err := json.Marshal(is)
			found = append(found, fmt.Sprintf("%T %s %s", o, o.GetName(), text))
			return err
		})).To(Succeed())
	}
	return found
}

// TestTagger tests that VMs that others have made become the driver's, and theirs again, with the
// connection cut after each write, and that nothing is left of them in the end. The guests run on.
func TestTagger(t *testing.T) {
	g := NewWithT(t)
	undo, err := infra.AllowTakeover(t.Context(), namespace)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(undo(withoutEnd(t))).To(Succeed()) })
	owner := newOwner(t)
	driver, calls := connect(t, account())
	d := driver.(tagging.Tagger)
	keys := []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}
	const role = "mcm.gardener.cloud/role"
	for name, of := range map[string]struct {
		labels map[string]string
		change func(*kubevirtv1.VirtualMachineSpec)
	}{
		"mc-6d4f5-abcde":  {map[string]string{"md": "mc"}, once},
		"mcm-6d4f5-abcde": {map[string]string{"mcm.gardener.cloud/cluster": "blue", role: "node"}, running},
	} {
		infra.foreign(t, name, of.labels, of.change)
		before, token := infra.sight(t, name), "1a2b3c4d-"+name
		tags := map[string]string{cloud.TagOwnership: owner, cloud.TagToken: token, cloud.TagMachine: "blue/" + name}
		ref := cloud.Reference{Token: token, OwnershipID: owner, ProviderID: "kubevirt://" + name}
		cut := func(do func() error) (n int) {
			for {
				wrote := false
				calls.after = func(op string) error {
					if !strings.HasPrefix(op, "Patch") || wrote {
						return nil
					}
					wrote = true
					return errors.New("cut")
				}
				err := do()
				calls.after = nil
				if !wrote {
					g.Expect(err).NotTo(HaveOccurred())
					return n
				}
				g.Expect(err).To(HaveOccurred())
				n++
				g.Expect(n).To(BeNumerically("<", 5))
			}
		}
		find := func(keys ...string) []tagging.Instance {
			found, err := d.Tagged(t.Context(), keys)
			g.Expect(err).NotTo(HaveOccurred())
			return found
		}
		one := And(HaveField("ID", name), HaveField("Type", "1 CPUs, 128 MiB"), HaveField("ImageID", image),
			HaveField("State", cloud.StateRunning), HaveField("Partial", false))
		g.Expect(find(append(keys, "Name")...)).To(BeEmpty())
		g.Expect(find("Name")).To(ContainElement(one))
		g.Expect(cut(func() error { return d.Tag(t.Context(), name, tags, nil) })).To(Equal(2))
		g.Expect(find(keys...)).To(ConsistOf(one))
		g.Expect(listed(t, d, owner)).To(ConsistOf(And(HaveField("ProviderID", ref.ProviderID), HaveField("State", cloud.StateRunning))))
		g.Expect(cut(func() error { return d.Untag(t.Context(), []string{name}, keys) })).To(Equal(2))
		g.Expect(infra.sight(t, name)).To(Equal(before), "all is as it was")
		g.Expect(listed(t, d, owner)).To(BeEmpty())

		g.Expect(d.Tag(t.Context(), name, tags, nil)).To(Succeed())
		if of.labels[role] != "" {
			g.Expect(d.Untag(t.Context(), []string{name}, []string{role})).To(Succeed())
			g.Expect(find(role)).To(BeEmpty())
		}
		until(t, "it is gone, by its token", func() bool {
			found, err := d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(errors.Join(d.Delete(t.Context(), found)...)).To(Succeed())
			return len(found) == 0
		})
		until(t, "nothing is left of it", func() bool { return len(infra.sight(t, name)) == 0 })
	}
	g.Expect(undo(t.Context())).To(Succeed())
	infra.foreign(t, "mc-6d4f5-fghij", nil, once)
	err = d.Tag(t.Context(), "mc-6d4f5-fghij", map[string]string{cloud.TagToken: "1a2b3c4d-mc-6d4f5-fghij"}, nil)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "the manager's own rights allow nothing of this")
	found, err := d.Tagged(t.Context(), []string{cloud.TagToken})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).NotTo(ContainElement(HaveField("ID", "mc-6d4f5-fghij")))
}

// system is what another system calls its objects, and has on a Node.
type system struct {
	name, group string
	kinds       []string
	finalizers  []string
	// key is the label that VMs lose in the end, if the system knows them by it.
	key string
}

var (
	kubermatic = system{
		name: "machine-controller", group: "cluster.k8s.io", kinds: []string{"MachineDeployment", "MachineSet", "Machine"},
		finalizers: []string{"machine-delete-finalizer", "machine-node-delete-finalizer"},
	}
	gardener = system{
		name: "machine-controller-manager", group: "machine.sapcloud.io",
		kinds:      []string{"MachineClass", "MachineDeployment", "MachineSet", "Machine"},
		finalizers: []string{"machine.sapcloud.io/machine-controller-manager"}, key: "mcm.gardener.cloud/role",
	}
)

// old is what another system has of one pool, with its VMs and their Nodes.
type old struct {
	system
	t          *testing.T
	c          client.Client
	kubeconfig string
	binary     string
	pool       string
	vms        []string
}

// install makes the kinds of another system, and its Lease, which nobody renews.
func install(t *testing.T, of system, c client.Client, kubeconfig []byte, pool string) *old {
	t.Helper()
	g := NewWithT(t)
	o := &old{system: of, t: t, c: c, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), pool: pool}
	g.Expect(os.WriteFile(o.kubeconfig, kubeconfig, 0o600)).To(Succeed())
	var err error
	o.binary, err = playground.BuildCommand(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.name}})).To(Succeed())
	g.Expect(c.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.name, Name: "machine-controller"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-time.Hour)))},
	})).To(Succeed())
	for _, kind := range o.kinds {
		o.installKind(kind)
	}
	return o
}

// addMC makes a pool of n machines as machine-controller has it.
func (o *old) addMC(n int) {
	o.t.Helper()
	machine := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"cluster.x-k8s.io/cluster-namespace": namespace}},
		"versions": map[string]any{"kubelet": strings.TrimPrefix(body.DefaultKubeletVersion, "v")},
		"providerSpec": map[string]any{"value": map[string]any{
			"cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "cloudProviderSpec": map[string]any{
				"clusterName": "blue", "virtualMachine": map[string]any{"template": map[string]any{
					"vcpus": map[string]any{"cores": int64(1)}, "memory": "128Mi",
					"primaryDisk": map[string]any{"osImage": image, "size": "1Gi", "storageClassName": virt.StandardStorage,
						"storageAccessType": "ReadWriteOnce"},
				}},
			},
		}},
	}
	o.add(n, machine, map[string]string{"md": o.pool}, once)
}

// addMCM makes a pool of n machines as machine-controller-manager has it.
func (o *old) addMCM(n int) {
	o.t.Helper()
	labels := map[string]string{"mcm.gardener.cloud/cluster": "blue", o.key: "node"}
	tags := map[string]any{}
	for key, value := range labels {
		tags[key] = value
	}
	o.make("MachineClass", o.pool, nil, map[string]any{"providerSpec": map[string]any{
		"region": "default", "zone": "default", "resources": map[string]any{"requests": map[string]any{"cpu": "1", "memory": "128Mi"}},
		"tags": tags,
		"rootVolume": map[string]any{
			"source": map[string]any{"http": map[string]any{"url": image}},
			"pvc": map[string]any{
				"accessModes": []any{"ReadWriteOnce"}, "storageClassName": virt.StandardStorage,
				"resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}},
			},
		},
	}})
	o.add(n, map[string]any{"class": map[string]any{"apiGroup": o.group, "kind": "MachineClass", "name": o.pool}}, labels, running)
}

// add makes a pool with its machines, which run.
func (o *old) add(n int, machine map[string]any, ofVMs map[string]string, change func(*kubevirtv1.VirtualMachineSpec)) {
	o.t.Helper()
	labels := map[string]any{"machine": o.pool}
	spec := map[string]any{"spec": map[string]any{
		"replicas": int64(n), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": machine},
	}}
	set := o.make("MachineSet", o.pool+"-6d4f5", o.make("MachineDeployment", o.pool, nil, spec), spec)
	for i := range n {
		name := fmt.Sprintf("%s-6d4f5-old%d", o.pool, i)
		infra.foreign(o.t, name, ofVMs, change)
		own := map[string]any{"providerID": "kubevirt://" + name}
		for key, value := range machine {
			own[key] = value
		}
		m := o.make("Machine", name, set, map[string]any{"metadata": map[string]any{"labels": map[string]any{"node": name}}, "spec": own,
			"status": map[string]any{
				"nodeRef": map[string]any{"kind": "Node", "name": name}, "currentStatus": map[string]any{"phase": "Running"},
			}})
		o.vms = append(o.vms, name)
		o.node(name, string(m.GetUID()))
	}
}

func (o *old) list(kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(o.group + "/v1alpha1")
	list.SetKind(kind + "List")
	return list
}

func (o *old) installKind(kind string) {
	o.t.Helper()
	plural := strings.ToLower(kind) + map[bool]string{true: "es", false: "s"}[strings.HasSuffix(kind, "s")]
	NewWithT(o.t).Expect(o.c.Create(o.t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + o.group, Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: o.group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
					XPreserveUnknownFields: ptr.To(true)}},
			}},
		},
	})).To(Succeed())
	until(o.t, kind+" is known", func() bool { return o.c.List(o.t.Context(), o.list(kind)) == nil })
}

// make makes an object with the other system's finalizers.
func (o *old) make(kind, name string, owner *unstructured.Unstructured, fields map[string]any) *unstructured.Unstructured {
	o.t.Helper()
	made := (&unstructured.Unstructured{Object: fields}).DeepCopy()
	made.SetAPIVersion(o.group + "/v1alpha1")
	made.SetKind(kind)
	made.SetNamespace(o.name)
	made.SetName(name)
	made.SetFinalizers(o.finalizers)
	if owner != nil {
		made.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	}
	NewWithT(o.t).Expect(o.c.Create(o.t.Context(), made)).To(Succeed())
	return made
}

// node makes the Node of a VM, and renews its Lease until the test ends, as a kubelet does.
func (o *old) node(name, uid string) {
	o.t.Helper()
	g := NewWithT(o.t)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"machine-controller/owned-by": uid}},
		Spec:       corev1.NodeSpec{ProviderID: "kubevirt://" + name},
	}
	if o.group == gardener.group {
		node.Labels, node.Finalizers = nil, []string{"node.machine.sapcloud.io/machine-controller"}
	}
	g.Expect(o.c.Create(o.t.Context(), node)).To(Succeed())
	patch := client.MergeFrom(node.DeepCopy())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	node.Status.NodeInfo.KubeletVersion = body.DefaultKubeletVersion
	for kind, is := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		node.Status.Conditions = append(node.Status.Conditions,
			corev1.NodeCondition{Type: kind, Status: is, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	}
	g.Expect(o.c.Status().Patch(o.t.Context(), node, patch)).To(Succeed())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	g.Expect(o.c.Create(o.t.Context(), lease)).To(Succeed())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for scenario.Pause(o.t.Context(), 5*time.Second) {
			before := lease.DeepCopy()
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			_ = o.c.Patch(o.t.Context(), lease, client.MergeFrom(before))
		}
	}()
	o.t.Cleanup(func() { <-done })
}

// run runs a step of the command, which must succeed.
func (o *old) run(step string) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), o.binary, "import", o.name, step, "--namespace", "team-a", "--cluster", "blue", "--bootstrap",
		"blue-md-0",
		"--from-namespace", o.name, "--confirm", "blue", "--allow-endpoints=127.0.0.0/8,::1/128")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+o.kubeconfig)
	out, err := cmd.CombinedOutput()
	NewWithT(o.t).Expect(err).NotTo(HaveOccurred(), "%s: %s", step, out)
	return string(out)
}

// sight is what there is of all VMs.
func (o *old) sight() (all []string) {
	o.t.Helper()
	for _, name := range o.vms {
		all = append(all, infra.sight(o.t, name)...)
	}
	return all
}

// TestTakeover takes VMs over that were made as machine-controller and machine-controller-manager
// make them: staged, switched and rolled back, all is as before. Then they are Drover's: rolled out
// and scaled to 0, nothing is left of VMs, volumes and Secrets.
func TestTakeover(t *testing.T) {
	g := NewWithT(t)
	c, kubeconfig := startManagement(t)
	g.Expect(apiextensionsv1.AddToScheme(c.Scheme())).To(Succeed()) // before anything runs beside it
	cluster := scenario.Adopted{Namespace: "team-a", Name: "blue", Kubeconfig: kubeconfig}
	pool := scenario.Pool{Cluster: cluster, Name: "blue-md-0"}
	g.Expect(scenario.Create(t.Context(), c, append(onKubeVirt(cluster.Objects()), pool.ConfigTemplate())...)).To(Succeed())
	until(t, "the cluster has an ownership ID", func() bool { return ownershipID(t, c) != "" })
	fleet := virt.Bodies(body.NewFleet(t.Context(), body.Options{LeaseInterval: metav1.Duration{Duration: 2 * time.Second}}))
	t.Cleanup(func() { infra.Node.Power.Store(nil) })

	const n = 2
	mc := install(t, kubermatic, c, kubeconfig, "mc")
	mc.addMC(n)
	mcm := install(t, gardener, c, kubeconfig, "mcm")
	mcm.addMCM(n)
	infra.Node.Power.Store(fleet) // of the machines that Drover makes
	for _, o := range []*old{mc, mcm} {
		t.Run(o.name, func(t *testing.T) { o.takeOver(t) })
	}
}

func ownershipID(t *testing.T, c client.Client) string {
	t.Helper()
	owned := &infrav1.DroverCluster{}
	NewWithT(t).Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "blue"}, owned)).To(Succeed())
	return owned.Spec.Creation.OwnershipID
}

// providerIDs returns those of all DroverMachines.
func providerIDs(t *testing.T, c client.Client) (all []string) {
	t.Helper()
	machines := &infrav1.DroverMachineList{}
	NewWithT(t).Expect(c.List(t.Context(), machines)).To(Succeed())
	for _, m := range machines.Items {
		all = append(all, m.Spec.ProviderID)
	}
	return all
}

// takeOver takes the pool over, and deletes it.
func (o *old) takeOver(t *testing.T) {
	g := NewWithT(t)
	undo, err := infra.AllowTakeover(t.Context(), namespace)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(undo(withoutEnd(t))).To(Succeed()) })
	var theirs []string
	for _, name := range o.vms {
		theirs = append(theirs, "kubevirt://"+name)
	}
	before := o.sight()
	g.Expect(o.run("plan")).To(ContainSubstring("To be tagged: VM 2"))
	o.run("stage")
	g.Expect(infra.left(t, ownershipID(t, o.c))).To(HaveLen(2*len(o.vms)), "VMs and their instances")
	o.run("check")
	o.run("switch")
	g.Expect(providerIDs(t, o.c)).To(ConsistOf(theirs))
	o.run("rollback")
	g.Expect(o.sight()).To(Equal(before), "all is as it was")
	g.Expect(providerIDs(t, o.c)).To(BeEmpty())

	o.run("stage")
	o.run("switch")
	o.run("commit")
	g.Expect(undo(t.Context())).To(Succeed())
	for _, kind := range o.kinds {
		list := o.list(kind)
		g.Expect(o.c.List(t.Context(), list)).To(Succeed())
		g.Expect(list.Items).To(BeEmpty(), kind)
	}
	g.Consistently(func() []string { return o.sight() }, "5s").Should(HaveLen(len(before)), "nothing goes with the old Machines")
	g.Expect(o.sight()).To(HaveEach(Not(ContainSubstring("mcm.gardener.cloud/role"))))
	o.roll(t)
	md := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: o.pool}}
	g.Expect(scenario.Patch(t.Context(), o.c, md, func() { md.Spec.Replicas = ptr.To[int32](0) })).To(Succeed())
	until(t, "no machine is left", func() bool { return len(providerIDs(t, o.c)) == 0 })
	g.Expect(infra.left(t, ownershipID(t, o.c))).To(BeEmpty())
}

// roll gives the pool machines of another size, and waits until nothing is left of the others.
func (o *old) roll(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	template := &infrav1.DroverMachineTemplate{}
	g.Expect(o.c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: o.pool}, template)).To(Succeed())
	next := &infrav1.DroverMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: o.pool + "-next"}, Spec: template.Spec}
	next.Spec.Template.Spec.Cloud.KubeVirt.MemoryMiB = 256
	g.Expect(o.c.Create(t.Context(), next)).To(Succeed())
	md := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: o.pool}}
	g.Expect(scenario.Patch(t.Context(), o.c, md, func() {
		md.Spec.Template.Spec.InfrastructureRef.Name = next.Name
		md.Spec.Template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](1)
	})).To(Succeed())
	until(t, "the pool is rolled out", func() bool {
		g.Expect(o.c.Get(t.Context(), client.ObjectKeyFromObject(md), md)).To(Succeed())
		for _, id := range providerIDs(t, o.c) {
			if strings.HasPrefix(id, "kubevirt://"+o.pool) {
				return false
			}
		}
		n := int32(len(o.vms))
		return ptr.Deref(md.Status.AvailableReplicas, 0) == n && ptr.Deref(md.Status.Replicas, 0) == n
	})
	until(t, "nothing is left of the VMs that were taken over", func() bool { return len(o.sight()) == 0 })
}
