// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

const (
	infrastructureAPI = "infrastructure.cluster.x-k8s.io/v1beta2"
	kubeadmAPI        = "bootstrap.cluster.x-k8s.io/v1beta2"
	controlPlaneAPI   = "controlplane.cluster.x-k8s.io/v1beta2"
	awsFinalizer      = "awsmachine.infrastructure.cluster.x-k8s.io"
)

// capa is Cluster API with its provider for AWS. Cluster API itself runs; the test plays the
// provider, and the bootstrap provider.
var capa = System{
	name: "cluster-api", page: "cluster-api-providers", group: clusterv1.GroupVersion.Group,
	kinds: []string{"MachineDeployment", "MachineSet", "Machine", "AWSMachine", "KubeadmConfig"},
	apis: map[string]string{
		"MachineDeployment": clusterv1.GroupVersion.String(), "MachineSet": clusterv1.GroupVersion.String(), "Machine": clusterv1.GroupVersion.String(),
		"AWSMachine": infrastructureAPI, "AWSMachineTemplate": infrastructureAPI, "AWSCluster": infrastructureAPI,
		"KubeadmConfig": kubeadmAPI, "KubeadmConfigTemplate": kubeadmAPI, "KubeadmControlPlane": controlPlaneAPI,
	},
}

// installProviders installs the kinds of Cluster API's providers for AWS and for kubeadm from their
// modules.
func installProviders(ctx context.Context, c client.Client) error {
	aws, _, err := playground.FindModule(ctx, "hack/tools/cluster-api-provider-aws", "sigs.k8s.io/cluster-api-provider-aws/v2")
	if err != nil {
		return err
	}
	core, _, err := playground.FindModule(ctx, ".", "sigs.k8s.io/cluster-api")
	if err != nil {
		return err
	}
	kubeadm := func(folder, kind string) string {
		return filepath.Join(core, folder, "kubeadm/config/crd/bases", kind+".yaml")
	}
	for file, contract := range map[string]string{
		filepath.Join(aws, "config/crd/bases/infrastructure.cluster.x-k8s.io_awsclusters.yaml"):         "v1beta1",
		filepath.Join(aws, "config/crd/bases/infrastructure.cluster.x-k8s.io_awsmachines.yaml"):         "v1beta1",
		filepath.Join(aws, "config/crd/bases/infrastructure.cluster.x-k8s.io_awsmachinetemplates.yaml"): "v1beta1",
		kubeadm("bootstrap", "bootstrap.cluster.x-k8s.io_kubeadmconfigs"):                               "v1beta2",
		kubeadm("bootstrap", "bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates"):                       "v1beta2",
		kubeadm("controlplane", "controlplane.cluster.x-k8s.io_kubeadmcontrolplanes"):                   "v1beta2",
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		metav1.SetMetaDataLabel(&crd.ObjectMeta, "cluster.x-k8s.io/"+contract, "v1beta2") // as the releases do
		err = errors.Join(c.Create(ctx, crd), served(ctx, c, capa.list(crd.Spec.Names.Kind)))
		if err != nil {
			return err
		}
	}
	return nil
}

// addCluster makes the old Cluster, with a control plane that is as it should be.
func (o *Old) addCluster() {
	o.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: oldCluster}
	o.Do(o.Rig.Client.Create(o.Ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: oldCluster + "-kubeconfig", Labels: labels},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": o.Kubeconfig},
	}))
	endpoint := map[string]any{"host": "127.0.0.1", "port": int64(6443)}
	infrastructure := o.make("AWSCluster", oldCluster, nil, map[string]any{"spec": map[string]any{
		"region": "us-east-1", "controlPlaneEndpoint": endpoint,
		"network": map[string]any{"subnets": []any{map[string]any{"id": "subnet-0a1", "availabilityZone": "us-east-1a", "isPublic": false}}},
	}})
	group := map[string]any{"id": "sg-01", "name": "nodes"}
	o.status(infrastructure, map[string]any{
		"ready": true, "networkStatus": map[string]any{"securityGroups": map[string]any{"node": group, "lb": group}},
	})
	reference := func(api, kind, name string) map[string]any {
		group, _, _ := strings.Cut(api, "/")
		return map[string]any{"apiGroup": group, "kind": kind, "name": name}
	}
	plane := o.make("KubeadmControlPlane", oldCluster, nil, map[string]any{"spec": map[string]any{
		"version": body.DefaultKubeletVersion, "replicas": int64(1),
		"machineTemplate":   map[string]any{"spec": map[string]any{"infrastructureRef": reference(infrastructureAPI, "AWSMachineTemplate", "control-plane")}},
		"kubeadmConfigSpec": map[string]any{"format": "cloud-config"},
	}})
	o.status(plane, map[string]any{ // Cluster API makes no worker before the control plane has its version
		"initialization": map[string]any{"controlPlaneInitialized": true}, "version": body.DefaultKubeletVersion,
		"replicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1), "upToDateReplicas": int64(1),
	})
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: oldCluster},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443},
			InfrastructureRef:    clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(infrastructureAPI), Kind: "AWSCluster", Name: oldCluster},
			ControlPlaneRef:      clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(controlPlaneAPI), Kind: "KubeadmControlPlane", Name: oldCluster},
		},
	}
	o.Do(o.Rig.Client.Create(o.Ctx, cluster))
}

func groupOf(api string) string {
	group, _, _ := strings.Cut(api, "/")
	return group
}

// status writes a part of an object's status.
func (o *Old) status(object *unstructured.Unstructured, status map[string]any) {
	o.Helper()
	before := object.DeepCopy()
	object.Object["status"] = status
	o.Do(o.Rig.Client.Status().Patch(o.Ctx, object, client.MergeFrom(before)))
}

// addCAPI makes a pool of Cluster API's, whose machines run.
func (o *Old) addCAPI(p Pool) {
	o.Helper()
	name := o.Tenant.Name + "-" + p.Name
	o.pools++
	template := func(spec map[string]any) map[string]any {
		return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec}}}
	}
	o.make("AWSMachineTemplate", name, nil, template(map[string]any{
		"instanceType": "t3.small", "iamInstanceProfile": "nodes", "ami": map[string]any{"id": "ami-0a"}, "sshKeyName": "",
		"rootVolume": map[string]any{"size": int64(20), "type": "gp3", "encrypted": true}, "cloudInit": map[string]any{"insecureSkipSecretsManager": true},
	}))
	o.make("KubeadmConfigTemplate", name, nil, template(map[string]any{
		"files":               []any{map[string]any{"path": "/etc/motd", "content": "blue"}},
		"preKubeadmCommands":  []any{"true"},
		"postKubeadmCommands": []any{"touch /run/joined"},
		"joinConfiguration": map[string]any{"nodeRegistration": map[string]any{
			"kubeletExtraArgs": []any{map[string]any{"name": "node-labels", "value": "pool=" + p.Name}},
		}},
	}))
	selector := map[string]string{"pool": name}
	d := &clusterv1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: name},
		Spec: clusterv1.MachineDeploymentSpec{
			ClusterName: oldCluster, Replicas: ptr.To(int32(p.Replicas)), Selector: metav1.LabelSelector{MatchLabels: selector},
			Template: clusterv1.MachineTemplateSpec{
				ObjectMeta: clusterv1.ObjectMeta{Labels: selector},
				Spec: clusterv1.MachineSpec{
					ClusterName: oldCluster, Version: body.DefaultKubeletVersion,
					Bootstrap:         clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(kubeadmAPI), Kind: "KubeadmConfigTemplate", Name: name}},
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(infrastructureAPI), Kind: "AWSMachineTemplate", Name: name},
				},
			},
		},
	}
	check := &clusterv1.MachineHealthCheck{
		ObjectMeta: d.ObjectMeta,
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: oldCluster, Selector: d.Spec.Selector,
			Checks: clusterv1.MachineHealthCheckChecks{UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: ptr.To[int32](3600)},
			}},
		},
	}
	o.Do(scenario.Create(o.Ctx, o.Rig.Client, d, check))
	made := &unstructured.UnstructuredList{}
	o.Until("Cluster API has made the machines", func(ctx context.Context) (string, error) {
		made = o.list("AWSMachine")
		err := o.Rig.Client.List(ctx, made, client.InNamespace(o.namespace), client.MatchingLabels(selector))
		if len(made.Items) != p.Replicas {
			return fmt.Sprintf("there are %d", len(made.Items)), err
		}
		for i := range made.Items {
			if metav1.GetControllerOf(&made.Items[i]) == nil {
				return made.Items[i].GetName() + " has no owner", nil
			}
		}
		return "", err
	})
	for i := range made.Items {
		o.provide(&made.Items[i])
	}
	o.run()
	o.Until("the machines run", func(ctx context.Context) (string, error) {
		err := o.Rig.Client.Get(ctx, client.ObjectKeyFromObject(d), d)
		if n := ptr.Deref(d.Status.AvailableReplicas, 0); n != int32(p.Replicas) {
			return fmt.Sprintf("%d are available", n), err
		}
		return "", err
	})
}

// provide does what the providers do for a machine.
func (o *Old) provide(vm *unstructured.Unstructured) {
	o.Helper()
	name := vm.GetName()
	config := &unstructured.Unstructured{}
	config.SetAPIVersion(kubeadmAPI)
	config.SetKind("KubeadmConfig")
	o.Do(o.Rig.Client.Get(o.Ctx, client.ObjectKey{Namespace: o.namespace, Name: name}, config))
	o.Do(o.Rig.Client.Create(o.Ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(config, config.GroupVersionKind())},
		},
		Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": []byte("#cloud-config")},
	}))
	o.status(config, map[string]any{"dataSecretName": name, "initialization": map[string]any{"dataSecretCreated": true}})
	id, _ := o.AWS.Launch(map[string]string{
		"Name": name, o.Role: "owned", "sigs.k8s.io/cluster-api-provider-aws/role": "node", "kubernetes.io/cluster/" + oldCluster: "owned",
	})
	o.vms = append(o.vms, id)
	o.Do(scenario.Patch(o.Ctx, o.Rig.Client, vm, func() {
		vm.SetFinalizers([]string{awsFinalizer})
		o.Do(unstructured.SetNestedField(vm.Object, "aws:///us-east-1a/"+id, "spec", "providerID"))
		o.Do(unstructured.SetNestedField(vm.Object, id, "spec", "instanceID"))
	}))
	o.status(vm, map[string]any{"ready": true})
	o.node(name, "aws:///us-east-1a/"+id, "")
}

// pause pauses the old Cluster or ends its pause, and waits until Cluster API has seen it for all.
func (o *Old) pause(paused bool) {
	o.Helper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: oldCluster}}
	o.Do(o.Rig.Client.Get(o.Ctx, client.ObjectKeyFromObject(cluster), cluster))
	o.Do(scenario.Patch(o.Ctx, o.Rig.Client, cluster, func() { cluster.Spec.Paused = ptr.To(paused) }))
	want := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[paused]
	o.Until("the pause is seen", func(ctx context.Context) (string, error) {
		var deployments clusterv1.MachineDeploymentList
		var sets clusterv1.MachineSetList
		var machines clusterv1.MachineList
		var checks clusterv1.MachineHealthCheckList
		for _, list := range []client.ObjectList{&deployments, &sets, &machines, &checks} {
			if err := o.Rig.Client.List(ctx, list, client.InNamespace(o.namespace)); err != nil {
				return "", err
			}
		}
		all := []conditions.Getter{cluster}
		for i := range deployments.Items {
			all = append(all, &deployments.Items[i])
		}
		for i := range sets.Items {
			all = append(all, &sets.Items[i])
		}
		for i := range machines.Items {
			all = append(all, &machines.Items[i])
		}
		for i := range checks.Items {
			all = append(all, &checks.Items[i])
		}
		if err := o.Rig.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			return "", err
		}
		for _, one := range all {
			if c := conditions.Get(one, clusterv1.PausedCondition); c == nil || c.Status != want {
				return fmt.Sprintf("%T %s", one, one.(client.Object).GetName()), nil
			}
		}
		return "", nil
	})
}

// uids returns the UIDs of the objects of the old system.
func (o *Old) uids() map[string]string {
	o.Helper()
	all := map[string]string{}
	for _, kind := range o.kinds {
		list := o.list(kind)
		o.Do(o.Rig.Client.List(o.Ctx, list, client.InNamespace(o.namespace)))
		for _, item := range list.Items {
			all[kind+" "+item.GetName()] = fmt.Sprint(item.GetUID(), item.GetDeletionTimestamp())
		}
	}
	return all
}

// TestClusterAPI takes a pool of Cluster API's provider for AWS over, with the command killed after
// each of its writes: there, back, and there again. Cluster API runs all the time. After the way
// back, the old Cluster goes on; after the commit, it has no pool, and makes no machine.
func TestClusterAPI(t *testing.T) {
	s := startEmpty(t, capa, "capi", provided)
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	s.Old.addCluster()
	s.Old.addCAPI(Pool{Name: "a", Replicas: 2})
	plane, _ := s.AWS.Launch(map[string]string{"Name": "control-plane", s.Old.Role: "owned"})
	refuses := func(step, why string) {
		t.Helper()
		out, errs, code := s.Run(step)
		g.Expect(out + errs).To(MatchRegexp(why))
		g.Expect(code).To(Equal(1))
	}
	refuses("plan", `Refused +Cluster old +spec.paused +it is not paused`)
	refuses("stage", `Refused +Cluster old +spec.paused`)
	g.Expect(s.Count(&clusterv1.MachineDeploymentList{})).To(Equal(0))
	uids := s.Old.uids()
	s.Old.pause(true)
	before, began := s.Picture(), s.AWS.Calls()

	out, errs, code := s.Run("plan")
	g.Expect(code).To(Equal(0), out+errs)
	g.Expect(s.Picture()).To(Equal(before), "a plan changes nothing")
	s.Done("stage")
	s.Done("switch")
	s.Still(before, 2)
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before))
	s.Old.pause(false)
	g.Expect(s.Old.uids()).To(Equal(uids), "the old Cluster goes on")
	s.Old.pause(true)
	before = s.Picture() // the pause has changed versions

	s.Done("stage")
	s.Old.pause(false)
	refuses("check", `Refused +Cluster old +spec.paused`)
	refuses("switch", `Refused +Cluster old +spec.paused`)
	s.Old.pause(true)
	before.Old = s.Old.versions()
	s.Done("switch")
	s.Still(before, 2)
	s.servingCertificate(slices.Sorted(maps.Keys(before.Nodes))[0])
	s.Old.pause(false)
	refuses("commit", `Cluster old: it is not paused`)
	s.Old.pause(true)
	stray := s.Old.stray()
	refuses("commit", `the old Machine stray of MachineSet capi-a-[a-z0-9]+ is not staged`)
	s.Old.eraseStray(stray)
	s.Done("commit")
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(s.AWS.Calls()[op]).To(Equal(began[op]), op)
	}
	s.Committed(before)
	g.Expect(s.AWS.Books()).To(ContainElement(And(
		HaveField("ID", plane), HaveField("State", "running"), HaveField("Tags", Equal(map[string]string{"Name": "control-plane", s.Old.Role: "owned"})),
	)), "the control plane stays the provider's")
	s.AWS.Vanish(plane)
	checks := &clusterv1.MachineHealthCheckList{}
	s.Do(s.Rig.Client.List(s.Ctx, checks, client.InNamespace(s.Namespace)))
	g.Expect(checks.Items).To(HaveLen(1))
	g.Expect(checks.Items[0].Spec.Checks.UnhealthyNodeConditions).To(ConsistOf(HaveField("TimeoutSeconds", HaveValue(BeEquivalentTo(3600)))))
	out, _, _ = s.Run("status")
	g.Expect(out).To(HaveSuffix("it is complete\n"))

	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.Old.namespace, Name: oldCluster}}
	s.Old.pause(false)
	s.Do(s.Rig.Client.Delete(s.Ctx, cluster))
	s.Until("the old Cluster is gone", func(ctx context.Context) (string, error) {
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
	g.Expect(s.Old.versions()).To(BeEmpty(), "it has made no machine")
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "capi-a"}}
	scale := func(n int32) {
		t.Helper()
		s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(d), d))
		s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To(n) }))
	}
	scale(3)
	s.Until("a new machine is available", func(ctx context.Context) (string, error) {
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(d), d)
		if n := ptr.Deref(d.Status.AvailableReplicas, 0); n != 3 {
			return fmt.Sprintf("%d are available", n), err
		}
		return "", err
	})
	g.Expect(s.AWS.Calls()["TerminateInstances"]).To(Equal(began["TerminateInstances"]))
	scale(0)
	s.Empty()
}

// stray makes a Machine of the pool that the plan does not know.
func (o *Old) stray() *clusterv1.Machine {
	o.Helper()
	sets := &clusterv1.MachineSetList{}
	o.Do(o.Rig.Client.List(o.Ctx, sets, client.InNamespace(o.namespace)))
	set := &sets.Items[0]
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: "stray", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, clusterv1.GroupVersion.WithKind("MachineSet"))},
		},
		Spec: *set.Spec.Template.Spec.DeepCopy(),
	}
	m.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To("stray")}
	m.Spec.InfrastructureRef.Kind, m.Spec.InfrastructureRef.Name = "AWSMachine", "stray"
	o.Do(o.Rig.Client.Create(o.Ctx, m))
	o.Until("the pause of the stray Machine is seen", func(ctx context.Context) (string, error) {
		err := o.Rig.Client.Get(ctx, client.ObjectKeyFromObject(m), m)
		return map[bool]string{false: "it is not"}[conditions.IsTrue(m, clusterv1.PausedCondition)], err
	})
	return m
}

func (o *Old) eraseStray(m *clusterv1.Machine) {
	o.Helper()
	o.Do(o.Rig.Client.Delete(o.Ctx, m))
	o.Until("the stray Machine is gone", func(ctx context.Context) (string, error) {
		err := o.Rig.Client.Get(ctx, client.ObjectKeyFromObject(m), m)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err == nil {
			err = scenario.Patch(ctx, o.Rig.Client, m, func() { m.Finalizers = nil })
		}
		return "it is there", client.IgnoreNotFound(err)
	})
}
