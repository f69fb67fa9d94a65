// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/scenario"
)

// system is an old system: its command, its objects, and what it leaves on VMs and Nodes.
type system struct {
	name, group string
	// page is that of the book, if it has not the system's name, and apis the API versions of those
	// kinds that are not in v1alpha1 of the group.
	page       string
	apis       map[string]string
	kinds      []string
	finalizers []string
	// key is the tag key that the VMs lose in the end, and label that of the Nodes.
	key, label string
}

var (
	gardener = system{
		name: "machine-controller-manager", group: "machine.sapcloud.io",
		kinds:      []string{"MachineClass", "MachineDeployment", "MachineSet", "Machine"},
		finalizers: []string{"machine.sapcloud.io/machine-controller-manager"},
		key:        "kubernetes.io/role/node", label: "node.gardener.cloud/machine-name",
	}
	kubermatic = system{
		name: "machine-controller", group: "cluster.k8s.io", kinds: []string{"MachineDeployment", "MachineSet", "Machine"},
		finalizers: []string{"machine-delete-finalizer", "machine-node-delete-finalizer"},
		key:        "Machine-UID", label: "machine-controller/owned-by",
	}
)

const (
	// credentials is the Secret that all classes share, and anothers a finalizer that another
	// program has put on all Secrets of classes.
	credentials, anothers = "cloudprovider", "example.com/backup"
)

// installKinds installs the kinds of all systems: those of machine-controller-manager and
// machine-controller with any fields, those of Cluster API's providers as they have them.
func installKinds(ctx context.Context, c client.Client) error {
	if err := apiextensionsv1.AddToScheme(c.Scheme()); err != nil {
		return err
	}
	for _, of := range []system{gardener, kubermatic} {
		for _, kind := range of.kinds {
			if err := installKind(ctx, c, of, kind); err != nil {
				return err
			}
		}
	}
	return installProviders(ctx, c)
}

func installKind(ctx context.Context, c client.Client, of system, kind string) error {
	plural := strings.ToLower(kind) + map[bool]string{true: "es", false: "s"}[strings.HasSuffix(kind, "s")]
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: plural + "." + of.group, Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved"}, // cluster.k8s.io needs it
	}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: of.group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1alpha1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: ptr.To(true),
			}},
		}},
	}}
	if err := c.Create(ctx, crd); err != nil {
		return err
	}
	return served(ctx, c, of.list(kind))
}

// served waits until an API server has a kind.
func served(ctx context.Context, c client.Client, list *unstructured.UnstructuredList) error {
	_, err := scenario.Wait(ctx, house.Patience, func(ctx context.Context) (string, error) {
		if err := c.List(ctx, list); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	return err
}

func (s system) list(kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(s.api(kind))
	list.SetKind(kind + "List")
	return list
}

func (s system) api(kind string) string { return cmp.Or(s.apis[kind], s.group+"/v1alpha1") }

// pool is a pool of the old system.
type pool struct {
	name     string
	replicas int
	labels   map[string]any // of its Nodes
}

// old is what the old system has, and its VMs and Nodes.
type old struct {
	*stage
	system
	namespace string
	vms       []string
	pools     int
}

// tags are those by which the old system recognizes its VMs.
func (o *old) tags() map[string]string {
	return map[string]string{"kubernetes.io/cluster/" + o.Tenant.Name: "1", "kubernetes.io/role/node": "1"}
}

// add makes a pool with its machines, which run.
func (o *old) add(p pool) {
	o.Helper()
	name := o.Tenant.Name + "-" + p.name
	o.pools++
	tags := map[string]any{}
	for key, value := range o.tags() {
		tags[key] = value
	}
	secrets := map[string]any{}
	for field, secret := range map[string]string{"secretRef": name, "credentialsSecretRef": credentials} {
		secrets[field] = map[string]any{"namespace": o.namespace, "name": secret}
		err := o.Rig.Client.Create(o.Ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: secret, Finalizers: []string{o.group + "/machine-controller", anothers},
		}})
		o.Do(client.IgnoreAlreadyExists(err)) // pools share the credentials
	}
	o.make("MachineClass", name, nil, map[string]any{"secretRef": secrets["secretRef"], "credentialsSecretRef": secrets["credentialsSecretRef"], "provider": "AWS", "providerSpec": map[string]any{
		"ami": "ami-0a", "machineType": "t3.small", "region": "us-east-1", "iam": map[string]any{"name": "nodes"}, "tags": tags,
		"blockDevices":      []any{map[string]any{"ebs": map[string]any{"volumeSize": int64(20), "volumeType": "gp3", "encrypted": true}}},
		"networkInterfaces": []any{map[string]any{"subnetID": "subnet-0a1", "securityGroupIDs": []any{"sg-01"}}},
	}})
	machine := map[string]any{
		"class": map[string]any{"apiGroup": o.group, "kind": "MachineClass", "name": name}, "drainTimeout": "10s",
		"nodeTemplate": map[string]any{"metadata": map[string]any{"labels": p.labels}},
	}
	labels := map[string]any{"name": name}
	spec := func(machine map[string]any) map[string]any {
		return map[string]any{"spec": map[string]any{
			"replicas": int64(p.replicas), "selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": machine},
		}}
	}
	deployment := o.make("MachineDeployment", name, nil, spec(machine))
	set := o.make("MachineSet", name+"-6d4f5", deployment, spec(machine))
	for i := range p.replicas {
		name := fmt.Sprintf("%s-%d", set.GetName(), i)
		tags := o.tags()
		tags["Name"] = name
		id, _ := o.AWS.Launch(tags)
		o.vms = append(o.vms, id)
		own := map[string]any{"providerID": "aws:///us-east-1/" + id}
		for key, value := range machine {
			own[key] = value
		}
		m := o.make("Machine", name, set, map[string]any{"spec": own, "status": map[string]any{"currentStatus": map[string]any{"phase": "Running"}}})
		m.SetLabels(map[string]string{"name": name, "node": name})
		o.Do(o.Rig.Client.Update(o.Ctx, m))
		o.node(name, "aws:///us-east-1a/"+id, name, "node."+o.group+"/machine-controller")
	}
	o.run()
}

// addMC is add for machine-controller.
func (o *old) addMC(p pool) {
	o.Helper()
	name := o.Tenant.Name + "-" + p.name
	o.pools++
	machine := map[string]any{
		"metadata": map[string]any{"labels": p.labels}, "versions": map[string]any{"kubelet": strings.TrimPrefix(body.DefaultKubeletVersion, "v")},
		"providerSpec": map[string]any{"value": map[string]any{
			"cloudProvider": "aws", "operatingSystem": "ubuntu", "cloudProviderSpec": map[string]any{
				"region": "us-east-1", "subnetId": "subnet-0a1", "securityGroupIDs": []any{"sg-01"}, "instanceProfile": "nodes",
				"instanceType": "t3.small", "diskSize": int64(20), "diskType": "gp3", "ebsVolumeEncrypted": true,
			},
		}},
	}
	labels := map[string]any{"machine": name}
	spec := map[string]any{"spec": map[string]any{
		"replicas": int64(p.replicas), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": machine},
	}}
	deployment := o.make("MachineDeployment", name, nil, spec)
	set := o.make("MachineSet", name+"-6d4f5", deployment, spec)
	for i := range p.replicas {
		name := fmt.Sprintf("%s-%d", set.GetName(), i)
		own := map[string]any{"name": name}
		for key, value := range machine {
			own[key] = value
		}
		m := o.make("Machine", name, set, map[string]any{"spec": own, "status": map[string]any{"nodeRef": map[string]any{"kind": "Node", "name": name}}})
		id, _ := o.AWS.Launch(map[string]string{"Name": name, o.key: string(m.GetUID())})
		o.vms = append(o.vms, id)
		o.Do(unstructured.SetNestedField(m.Object, "aws:///us-east-1a/"+id, "spec", "providerID"))
		o.Do(o.Rig.Client.Update(o.Ctx, m))
		o.node(name, "aws:///us-east-1a/"+id, string(m.GetUID()))
	}
	o.run()
}

// run waits until the VMs run.
func (o *old) run() {
	o.Helper()
	o.Until("the VMs run", func(context.Context) (string, error) {
		for _, e := range o.AWS.Books() {
			if slices.Contains(o.vms, e.ID) && e.State != "running" {
				return e.ID + " is " + e.State, nil
			}
		}
		return "", nil
	})
}

// make makes an object of the old system with its finalizer, and with fields beside its metadata.
func (o *old) make(kind, name string, owner *unstructured.Unstructured, fields map[string]any) *unstructured.Unstructured {
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
func (o *old) node(name, providerID, label string, finalizers ...string) {
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

// victims returns what the other system would delete if it were started now, by its rules: a VM
// with both of its tags whose name is of no Machine with that VM, and a Machine whose Node is gone.
// A class counts as there even if it is not.
func (o *old) victims() (all []string) {
	o.Helper()
	machines := o.list("Machine")
	o.Do(o.Rig.Client.List(o.Ctx, machines, client.InNamespace(o.namespace)))
	ids := map[string]string{}
	for _, m := range machines.Items {
		ids[m.GetName()], _, _ = unstructured.NestedString(m.Object, "spec", "providerID")
		if err := o.Rig.Nodes.Get(o.Ctx, client.ObjectKey{Name: m.GetLabels()["node"]}, &corev1.Node{}); apierrors.IsNotFound(err) {
			all = append(all, m.GetName())
		} else {
			o.Do(err)
		}
	}
	for _, e := range o.AWS.Books() {
		has := 0
		for key := range o.tags() {
			if _, is := e.Tags[key]; is {
				has++
			}
		}
		if has == len(o.tags()) && e.State == "running" && ids[e.Tags["Name"]] != "aws:///us-east-1/"+e.ID {
			all = append(all, e.ID)
		}
	}
	return all
}

// versions returns the resource versions of all objects of the old system.
func (o *old) versions() (all map[string]string) {
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
