// SPDX-License-Identifier: Apache-2.0

// Command manifests writes, as one JSON list, what KubeVirt's operator installs for virt-api and
// virt-controller: custom resource definitions, service accounts and their permissions, webhooks
// and API services. The latter two refer to Services. To run the programs outside of a cluster,
// replace the Services by addresses.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

// namespace is the namespace of KubeVirt.
const namespace = "kubevirt"

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func write() error {
	var all []runtime.Object
	for _, crd := range []func() (*extv1.CustomResourceDefinition, error){
		components.NewKubeVirtCrd, components.NewMigrationPolicyCrd, components.NewPresetCrd, components.NewReplicaSetCrd,
		components.NewVirtualMachineBackupCrd, components.NewVirtualMachineBackupTrackerCrd, components.NewVirtualMachineCloneCrd,
		components.NewVirtualMachineClusterInstancetypeCrd, components.NewVirtualMachineClusterPreferenceCrd, components.NewVirtualMachineCrd,
		components.NewVirtualMachineExportCrd, components.NewVirtualMachineInstanceCrd, components.NewVirtualMachineInstanceMigrationCrd,
		components.NewVirtualMachineInstancetypeCrd, components.NewVirtualMachinePoolCrd, components.NewVirtualMachinePreferenceCrd,
		components.NewVirtualMachineRestoreCrd, components.NewVirtualMachineSnapshotContentCrd, components.NewVirtualMachineSnapshotCrd,
	} {
		made, err := crd()
		if err != nil {
			return err
		}
		made.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}
		all = append(all, made)
	}
	for _, rights := range [][]runtime.Object{rbac.GetAllApiServer(namespace), rbac.GetAllController(namespace, true),
		rbac.GetAllHandler(namespace)} {
		all = append(all, rights...)
	}
	all = append(all, rbac.GetAllCluster()...)
	all = append(all, components.NewVirtAPIValidatingWebhookConfiguration(namespace),
		components.NewVirtAPIMutatingWebhookConfiguration(namespace))
	for _, service := range components.NewVirtAPIAPIServices(namespace) {
		all = append(all, service)
	}
	list := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Items      []any  `json:"items"`
	}{APIVersion: "v1", Kind: "List"}
	for _, o := range all {
		list.Items = append(list.Items, o)
	}
	return json.NewEncoder(os.Stdout).Encode(list)
}
