// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/internal/scenario"
)

// System is an old system: its command, its objects, and what it leaves on VMs and Nodes.
type System struct {
	name, group string
	// page is that of the book, if it has not the system's name, and apis the API versions of those
	// kinds that are not in v1alpha1 of the group.
	page       string
	apis       map[string]string
	kinds      []string
	finalizers []string
	// label is that of the Nodes.
	label string
	// prefix begins the kinds of an infrastructure provider of Cluster API.
	prefix string
}

// MachineControllerManager is Gardener's.
func MachineControllerManager() System {
	return System{
		name: "machine-controller-manager", group: "machine.sapcloud.io",
		kinds:      []string{"MachineClass", "MachineDeployment", "MachineSet", "Machine"},
		finalizers: []string{"machine.sapcloud.io/machine-controller-manager"},
		label:      "node.gardener.cloud/machine-name",
	}
}

// MachineController is Kubermatic's.
func MachineController() System {
	return System{
		name: "machine-controller", group: "cluster.k8s.io", kinds: []string{"MachineDeployment", "MachineSet", "Machine"},
		finalizers: []string{"machine-delete-finalizer", "machine-node-delete-finalizer"},
		label:      "machine-controller/owned-by",
	}
}

// Place is a cloud, as one of the old systems sees it.
type Place struct {
	// Cloud is its name in the old system's objects, and Spec what they say of a machine.
	Cloud string
	Spec  map[string]any
	// Tags are those that machine-controller-manager gives its VMs. UID is the key with the
	// Machine's UID, which machine-controller gives them; "": none. Role is the key that the VMs
	// lose in the end; "": they keep all.
	Tags      map[string]string
	UID, Role string
	// Launch makes a VM as the old system does. IDs are the cloud's own, and the provider IDs of
	// the old Machine and of the Node.
	Launch func(name string, tags map[string]string) (id, own, node string)
	// Complete completes the object of a machine whose VM has this ID, for machine-controller and
	// for Cluster API's provider; nil: it is complete.
	Complete func(machine *unstructured.Unstructured, id string)
	// ClusterSpec and ClusterStatus are what Cluster API's provider has of the cluster.
	ClusterSpec, ClusterStatus map[string]any
	// VMs returns what the cloud has, or had, by ID.
	VMs func() map[string]VM
	// Calls returns the numbers of calls that make, change or delete something.
	Calls func() map[string]int
}

// VM is what a takeover may change of a VM.
type VM struct {
	State string
	Tags  map[string]string
}

// running is the state of a VM that runs.
const running = "running"

const (
	// credentials is the Secret that all classes share, and anothers a finalizer that another
	// program has put on all Secrets of classes.
	credentials, anothers = "cloudprovider", "example.com/backup"
	// oldCluster is the Cluster that has the pools of Cluster API's provider.
	oldCluster = "old"
)

// InstallKinds installs the kinds of machine-controller-manager and machine-controller, with any
// fields.
func InstallKinds(ctx context.Context, c client.Client) error {
	if err := apiextensionsv1.AddToScheme(c.Scheme()); err != nil {
		return err
	}
	for _, of := range []System{MachineControllerManager(), MachineController()} {
		for _, kind := range of.kinds {
			if err := installKind(ctx, c, of, kind); err != nil {
				return err
			}
		}
	}
	return nil
}

func installKind(ctx context.Context, c client.Client, of System, kind string) error {
	plural := strings.ToLower(kind) + map[bool]string{true: "es", false: "s"}[strings.HasSuffix(kind, "s")]
	group, version, _ := strings.Cut(of.api(kind), "/")
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: plural + "." + group, Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved"}, // cluster.k8s.io needs it
	}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: ptr.To(true),
			}},
		}},
	}}
	if of.prefix != "" {
		crd.Labels = map[string]string{"cluster.x-k8s.io/v1beta1": version} // of the contract
		crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	}
	if err := c.Create(ctx, crd); err != nil {
		return err
	}
	return served(ctx, c, of.list(kind))
}

// kindsPatience is how long an API server may take to serve a kind.
const kindsPatience = 2 * time.Minute

// served waits until an API server has a kind.
func served(ctx context.Context, c client.Client, list *unstructured.UnstructuredList) error {
	_, err := scenario.Wait(ctx, kindsPatience, func(ctx context.Context) (string, error) {
		if err := c.List(ctx, list); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	return err
}

func (s System) list(kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(s.api(kind))
	list.SetKind(kind + "List")
	return list
}

func (s System) api(kind string) string { return cmp.Or(s.apis[kind], s.group+"/v1alpha1") }

// Pool is a pool of the old system.
type Pool struct {
	Name     string
	Replicas int
	Labels   map[string]any // of its Nodes
}

// Old is what the old system has, and its VMs and Nodes.
type Old struct {
	*Stage
	System
	Place
	namespace string
	vms       []string
	pools     int
}

// AddMCM makes a pool of machine-controller-manager's with its machines, which run.
func (o *Old) AddMCM(p Pool) {
	o.Helper()
	name := o.Tenant.Name + "-" + p.Name
	o.pools++
	secrets := map[string]any{}
	for field, secret := range map[string]string{"secretRef": name, "credentialsSecretRef": credentials} {
		secrets[field] = map[string]any{"namespace": o.namespace, "name": secret}
		err := o.Rig.Client.Create(o.Ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: secret, Finalizers: []string{o.group + "/machine-controller", anothers},
		}})
		o.Do(client.IgnoreAlreadyExists(err)) // pools share the credentials
	}
	o.make("MachineClass", name, nil, map[string]any{
		"secretRef": secrets["secretRef"], "credentialsSecretRef": secrets["credentialsSecretRef"], "provider": o.Cloud, "providerSpec": o.Spec,
	})
	machine := map[string]any{
		"class": map[string]any{"apiGroup": o.group, "kind": "MachineClass", "name": name}, "drainTimeout": "10s",
		"nodeTemplate": map[string]any{"metadata": map[string]any{"labels": p.Labels}},
	}
	set := o.set(name, "name", p, machine)
	for i := range p.Replicas {
		name := fmt.Sprintf("%s-%d", set.GetName(), i)
		own, node := o.launch(name, o.Tags)
		m := o.make("Machine", name, set, map[string]any{
			"spec": with(machine, "providerID", own), "status": map[string]any{"currentStatus": map[string]any{"phase": "Running"}},
		})
		m.SetLabels(map[string]string{"name": o.Tenant.Name + "-" + p.Name, "node": name})
		o.Do(o.Rig.Client.Update(o.Ctx, m))
		o.node(name, node, name, "node."+o.group+"/machine-controller")
	}
	o.run()
}

// AddMC is AddMCM for machine-controller.
func (o *Old) AddMC(p Pool) {
	o.Helper()
	name := o.Tenant.Name + "-" + p.Name
	o.pools++
	machine := map[string]any{
		"metadata": map[string]any{"labels": p.Labels},
		"versions": map[string]any{"kubelet": strings.TrimPrefix(body.DefaultKubeletVersion, "v")},
		"providerSpec": map[string]any{"value": map[string]any{"cloudProvider": o.Cloud, "operatingSystem": "ubuntu",
			"cloudProviderSpec": o.Spec}},
	}
	set := o.set(name, "machine", p, machine)
	for i := range p.Replicas {
		name := fmt.Sprintf("%s-%d", set.GetName(), i)
		m := o.make("Machine", name, set, map[string]any{
			"spec": with(machine, "name", name), "status": map[string]any{"nodeRef": map[string]any{"kind": "Node", "name": name}},
		})
		tags := maps.Clone(o.Tags)
		if o.UID != "" {
			tags = map[string]string{o.UID: string(m.GetUID())}
		}
		own, node := o.launch(name, tags)
		o.complete(m, own)
		o.Do(o.Rig.Client.Update(o.Ctx, m))
		o.node(name, node, string(m.GetUID()))
	}
	o.run()
}

// set makes the MachineDeployment of a pool and its MachineSet. They select Machines by a label
// with the MachineDeployment's name.
func (o *Old) set(name, label string, p Pool, machine map[string]any) *unstructured.Unstructured {
	o.Helper()
	labels := map[string]any{label: name}
	spec := map[string]any{"spec": map[string]any{
		"replicas": int64(p.Replicas), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": machine},
	}}
	deployment := o.make("MachineDeployment", name, nil, spec)
	return o.make("MachineSet", name+"-6d4f5", deployment, spec)
}

// with returns the fields and one more.
func with(fields map[string]any, key string, value any) map[string]any {
	all := map[string]any{key: value}
	maps.Copy(all, fields)
	return all
}

func (o *Old) launch(name string, tags map[string]string) (own, node string) {
	id, own, node := o.Launch(name, tags)
	o.vms = append(o.vms, id)
	return own, node
}

// complete gives the object of a machine what it has once its VM is there, which is the last one.
func (o *Old) complete(machine *unstructured.Unstructured, providerID string) {
	o.Helper()
	o.Do(unstructured.SetNestedField(machine.Object, providerID, "spec", "providerID"))
	if o.Complete != nil {
		o.Complete(machine, o.vms[len(o.vms)-1])
	}
}

// run waits until the VMs run.
func (o *Old) run() {
	o.Helper()
	o.Until("the VMs run", func(context.Context) (string, error) {
		vms := o.VMs()
		for _, id := range o.vms {
			if vms[id].State != running {
				return id + " is " + vms[id].State, nil
			}
		}
		return "", nil
	})
}

// make makes an object of the old system with its finalizer, and with fields beside its metadata.
func (o *Old) make(kind, name string, owner *unstructured.Unstructured, fields map[string]any) *unstructured.Unstructured {
	o.Helper()
	made := &unstructured.Unstructured{Object: fields}
	made.SetAPIVersion(o.api(kind))
	made.SetKind(kind)
	made.SetNamespace(o.namespace)
	made.SetName(name)
	made.SetFinalizers(o.finalizers)
	if owner != nil {
		made.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	}
	made = made.DeepCopy() // fields are shared
	o.Do(o.Rig.Client.Create(o.Ctx, made))
	return made
}

// node makes the Node of a VM, as a kubelet and the cloud's controller manager would.
func (o *Old) node(name, providerID, label string, finalizers ...string) {
	o.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: finalizers,
		},
		Spec: corev1.NodeSpec{ProviderID: providerID},
	}
	if label != "" {
		node.Labels = map[string]string{o.label: label}
	}
	o.Do(o.Rig.Nodes.Create(o.Ctx, node))
	patch := client.MergeFrom(node.DeepCopy()) // the controller manager writes to it, too
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	node.Status.NodeInfo.KubeletVersion = body.DefaultKubeletVersion
	for kind, is := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: is, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	o.Do(o.Rig.Nodes.Status().Patch(o.Ctx, node, patch))
}

// versions returns the resource versions of all objects of the old system.
func (o *Old) versions() (all map[string]string) {
	o.Helper()
	all = map[string]string{}
	for _, kind := range o.kinds {
		list := o.list(kind)
		o.Do(o.Rig.Client.List(o.Ctx, list, client.InNamespace(o.namespace)))
		for _, item := range list.Items {
			all[kind+" "+item.GetName()] = item.GetResourceVersion()
		}
	}
	return all
}

// Renew sets when a Lease was renewed.
func (s *Stage) Renew(lease *coordinationv1.Lease, at time.Time) {
	s.Helper()
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, lease, func() { lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(at)) }))
}

// Lease makes the Lease of a controller of the old system.
func (o *Old) Lease(renewed time.Time) *coordinationv1.Lease {
	o.Helper()
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: "machine-controller"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(renewed))},
	}
	o.Do(o.Rig.Client.Create(o.Ctx, l))
	return l
}
