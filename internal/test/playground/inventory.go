// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// clusterctl keeps, in each management cluster, a list of the providers that it installed there.
// The playground writes the same list, so that "clusterctl move", "describe" and "upgrade plan"
// work on what it started.

// installInventory installs the CRD of clusterctl's list.
func (m *Management) installInventory(ctx context.Context, module string) error {
	crds, err := read(filepath.Join(module, "cmd", "clusterctl", "config", "manifest", "clusterctl-api.yaml"))
	if err != nil {
		return err
	}
	if err := apply(ctx, m.client, crds...); err != nil {
		return err
	}
	return established(ctx, m.client, crds)
}

// enroll adds a provider to clusterctl's list. The label holds kind and name, as in
// "infrastructure-drover". Only the label of Cluster API's core has no kind.
func (m *Management) enroll(ctx context.Context, label, namespace, version string) error {
	kind, name := "CoreProvider", label
	for prefix, k := range map[string]string{
		"bootstrap-": "BootstrapProvider", "control-plane-": "ControlPlaneProvider", "infrastructure-": "InfrastructureProvider",
	} {
		if rest, ok := strings.CutPrefix(label, prefix); ok {
			kind, name = k, rest
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Provider",
		"providerName": name, "type": kind, "version": version,
	}}
	o.SetName(label)
	o.SetNamespace(namespace)
	o.SetLabels(map[string]string{
		"clusterctl.cluster.x-k8s.io": "", "clusterctl.cluster.x-k8s.io/core": "inventory", "cluster.x-k8s.io/provider": label,
	})
	return apply(ctx, m.client, o)
}
