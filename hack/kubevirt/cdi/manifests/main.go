// SPDX-License-Identifier: Apache-2.0

// Command manifests writes, as one JSON list, what CDI's operator installs for cdi-controller:
// custom resource definitions, and its service account with its permissions.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/cluster"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/namespaced"
	"sigs.k8s.io/yaml"
)

// namespace is the namespace of CDI, which its programs assume outside of a pod.
const namespace = "cdi"

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func write() error {
	list := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Items      []any  `json:"items"`
	}{APIVersion: "v1", Kind: "List"}
	for name, text := range resources.CDICRDs {
		var crd map[string]any
		if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
			return fmt.Errorf("read CDI's %s: %w", name, err)
		}
		list.Items = append(list.Items, crd)
	}
	everywhere, err := cluster.CreateStaticResourceGroup("controller-rbac", &cluster.FactoryArgs{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("make the controller's rights in the cluster: %w", err)
	}
	own, err := namespaced.CreateResourceGroup("controller", &namespaced.FactoryArgs{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("make the controller's rights in its namespace: %w", err)
	}
	for _, o := range append(everywhere, own...) {
		switch o := o.(type) {
		case *rbacv1.RoleBinding:
			for i := range o.Subjects {
				o.Subjects[i].Namespace = namespace // as the operator does in the end
			}
			list.Items = append(list.Items, o)
		default:
			if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "Deployment" && kind != "Service" {
				list.Items = append(list.Items, o)
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(list)
}
