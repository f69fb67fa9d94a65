// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	infrastructureAPI = "infrastructure.cluster.x-k8s.io/"
	kubeadmAPI        = "bootstrap.cluster.x-k8s.io/v1beta2"
	controlPlaneAPI   = "controlplane.cluster.x-k8s.io/v1beta2"
)

// ClusterAPI is Cluster API with the infrastructure provider whose kinds begin with this prefix,
// and are in this version of the API. more are the API versions of further kinds that it has for
// each machine. Cluster API itself runs; the tests play the providers.
func ClusterAPI(prefix, version string, more map[string]string) System {
	s := System{
		name: "cluster-api", page: "cluster-api-providers", group: clusterv1.GroupVersion.Group, prefix: prefix,
		kinds: []string{"MachineDeployment", "MachineSet", "Machine", prefix + "Machine", "KubeadmConfig"},
		apis: map[string]string{
			"MachineDeployment": clusterv1.GroupVersion.String(), "MachineSet": clusterv1.GroupVersion.String(),
			"Machine":          clusterv1.GroupVersion.String(),
			prefix + "Machine": infrastructureAPI + version, prefix + "MachineTemplate": infrastructureAPI + version, prefix +
				"Cluster": infrastructureAPI + version,
			"KubeadmConfig": kubeadmAPI, "KubeadmConfigTemplate": kubeadmAPI, "KubeadmControlPlane": controlPlaneAPI,
		},
	}
	for kind, version := range more {
		s.kinds, s.apis[kind] = append(s.kinds, kind), infrastructureAPI+version
	}
	return s
}

// InstallKubeadm installs the kinds of Cluster API's providers for kubeadm from its module.
func InstallKubeadm(ctx context.Context, c client.Client) error {
	core, _, err := playground.FindModule(ctx, ".", "sigs.k8s.io/cluster-api")
	for _, file := range []string{
		"bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigs.yaml",
		"bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates.yaml",
		"controlplane/kubeadm/config/crd/bases/controlplane.cluster.x-k8s.io_kubeadmcontrolplanes.yaml",
	} {
		if err == nil {
			err = installFile(ctx, c, ClusterAPI("", "", nil), filepath.Join(core, file), "v1beta2")
		}
	}
	return err
}

// installFile installs a kind of Cluster API's from a file of its module, for a contract.
func installFile(ctx context.Context, c client.Client, of System, file, contract string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	metav1.SetMetaDataLabel(&crd.ObjectMeta, "cluster.x-k8s.io/"+contract, "v1beta2") // as the releases do
	if err := c.Create(ctx, crd); err != nil {
		return err
	}
	return served(ctx, c, of.list(crd.Spec.Names.Kind))
}

// InstallProvider installs the kinds of an infrastructure provider, with any fields.
func InstallProvider(ctx context.Context, c client.Client, of System) error {
	for kind, api := range of.apis {
		if groupOf(api) != groupOf(infrastructureAPI) {
			continue
		}
		if err := installKind(ctx, c, of, kind); err != nil {
			return err
		}
	}
	return nil
}

// AddCluster makes the old Cluster, with a control plane that is as it should be.
func (o *Old) AddCluster() {
	o.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: oldCluster}
	o.Do(o.Rig.Client.Create(o.Ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: oldCluster + "-kubeconfig", Labels: labels},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": o.Kubeconfig},
	}))
	endpoint := map[string]any{"host": "127.0.0.1", "port": int64(6443)}
	spec, status := with(o.ClusterSpec, "controlPlaneEndpoint", endpoint), with(o.ClusterStatus, "ready", true)
	o.status(o.make(o.prefix+"Cluster", oldCluster, nil, map[string]any{"spec": spec}), status)
	plane := o.make("KubeadmControlPlane", oldCluster, nil, map[string]any{"spec": map[string]any{
		"version": body.DefaultKubeletVersion, "replicas": int64(1),
		"machineTemplate": map[string]any{"spec": map[string]any{"infrastructureRef": map[string]any{
			"apiGroup": groupOf(infrastructureAPI), "kind": o.prefix + "MachineTemplate", "name": "control-plane",
		}}},
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
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(infrastructureAPI), Kind: o.prefix + "Cluster",
				Name: oldCluster},
			ControlPlaneRef: clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(controlPlaneAPI), Kind: "KubeadmControlPlane",
				Name: oldCluster},
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

// AddCAPI makes a pool of Cluster API's, whose machines run.
func (o *Old) AddCAPI(p Pool) {
	o.Helper()
	name := o.Tenant.Name + "-" + p.Name
	o.pools++
	template := func(spec map[string]any) map[string]any {
		return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec}}}
	}
	o.make(o.prefix+"MachineTemplate", name, nil, template(o.Spec))
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
					Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(kubeadmAPI),
						Kind: "KubeadmConfigTemplate", Name: name}},
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: groupOf(infrastructureAPI), Kind: o.prefix + "MachineTemplate",
						Name: name},
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
		made = o.list(o.prefix + "Machine")
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
			Namespace: o.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(config,
				config.GroupVersionKind())},
		},
		Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": []byte("#cloud-config")},
	}))
	o.status(config, map[string]any{"dataSecretName": name, "initialization": map[string]any{"dataSecretCreated": true}})
	own, node := o.launch(name, o.Tags)
	o.Do(scenario.Patch(o.Ctx, o.Rig.Client, vm, func() {
		vm.SetFinalizers([]string{strings.ToLower(o.prefix) + "machine.infrastructure.cluster.x-k8s.io"})
		o.complete(vm, own)
	}))
	o.status(vm, map[string]any{"ready": true})
	o.node(name, node, "")
}

// Pause pauses the old Cluster or ends its pause, and waits until Cluster API has seen it for all.
func (o *Old) Pause(paused bool) {
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
