// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// provider is one of Cluster API's managers as its release installs it from the manifests in its
// module: in its own namespace, with its own service account and roles, and with a prefix before
// its names.
type provider struct {
	tool      string // in hack/tool
	folder    string // in the module
	prefix    string
	namespace string
	label     string // the value of its label cluster.x-k8s.io/provider
	aggregate string // the label of ClusterRoles that are aggregated into its own, if there are any
	// contracts are the labels that the release puts on its CRDs: each contract version and its API
	// versions.
	contracts map[string]string
	args      []string
}

func coreProvider() provider {
	return provider{
		tool: "capi-core", folder: "core", prefix: "capi-", namespace: "capi-system", label: "cluster-api",
		aggregate: "cluster.x-k8s.io/aggregate-to-manager",
		contracts: map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"},
		// The default of a hundred Machines at once takes two cores from the API server's watches.
		// Each patch is then based on a cache that is many seconds old, fails with a conflict, and
		// is retried.
		args: []string{"--feature-gates=ClusterTopology=true,MachinePool=true", "--machine-concurrency=10"},
	}
}

func kubeadmBootstrapProvider() provider {
	p := coreProvider()
	p.tool, p.folder, p.label = "capi-kubeadm-bootstrap", "bootstrap/kubeadm", "bootstrap-kubeadm"
	p.prefix, p.namespace, p.aggregate = "capi-kubeadm-bootstrap-", "capi-kubeadm-bootstrap-system", ""
	p.args = []string{"--feature-gates=MachinePool=true"}
	return p
}

func kubeadmControlPlaneProvider() provider {
	p := kubeadmBootstrapProvider()
	p.tool, p.folder, p.label = "capi-kubeadm-controlplane", "controlplane/kubeadm", "control-plane-kubeadm"
	p.prefix, p.namespace = "capi-kubeadm-control-plane-", "capi-kubeadm-control-plane-system"
	p.args = []string{"--feature-gates=ClusterTopology=true,MachinePool=true"}
	p.aggregate = "kubeadm.controlplane.cluster.x-k8s.io/aggregate-to-manager"
	return p
}

// StartKubeadmBootstrap adds Cluster API's kubeadm bootstrap provider, and returns once it serves.
// args are appended to its command line.
func (m *Management) StartKubeadmBootstrap(ctx context.Context, args ...string) (*Process, error) {
	return m.startFurther(ctx, kubeadmBootstrapProvider(), args...)
}

// StartKubeadmControlPlane adds Cluster API's kubeadm control plane provider, and returns once it
// serves. args are appended to its command line.
func (m *Management) StartKubeadmControlPlane(ctx context.Context, args ...string) (*Process, error) {
	return m.startFurther(ctx, kubeadmControlPlaneProvider(), args...)
}

// StartOperator adds the cluster-api-operator, and returns once it serves. It may do everything, as
// its release allows it.
func (m *Management) StartOperator(ctx context.Context) (_ *Process, err error) {
	p := provider{
		tool: "cluster-api-operator", folder: ".", prefix: "capi-operator-", namespace: "capi-operator-system", label: "capi-operator",
		args: []string{"--profiler-address="},
	}
	if m.opts.Tools, err = m.opts.Tools.with(ctx, m.opts.Progress, p.tool); err != nil {
		return nil, err
	}
	module, _, err := FindModule(ctx, "hack/tools/cluster-api-operator", "sigs.k8s.io/cluster-api-operator")
	if err != nil {
		return nil, err
	}
	process, err := m.startProvider(ctx, module, p)
	if err != nil {
		return nil, fmt.Errorf("start the cluster-api-operator: %w", err)
	}
	return process, nil
}

// startFurther adds a provider to a running management cluster.
func (m *Management) startFurther(ctx context.Context, p provider, args ...string) (_ *Process, err error) {
	if m.opts.Tools, err = m.opts.Tools.with(ctx, m.opts.Progress, p.tool); err != nil {
		return nil, err
	}
	module, version, err := FindModule(ctx, ".", "sigs.k8s.io/cluster-api")
	if err != nil {
		return nil, err
	}
	return m.addProvider(ctx, module, version, p, args...)
}

// addProvider installs a provider, starts its manager, and adds it to clusterctl's inventory.
func (m *Management) addProvider(ctx context.Context, module, version string, p provider, args ...string) (*Process, error) {
	process, err := m.startProvider(ctx, module, p, args...)
	if err != nil {
		return nil, fmt.Errorf("start Cluster API's %s: %w", p.tool, err)
	}
	return process, m.enroll(ctx, p.label, p.namespace, version)
}

// startProvider installs a provider and starts its manager.
func (m *Management) startProvider(ctx context.Context, module string, p provider, args ...string) (*Process, error) {
	s, err := newService(m.address)
	if err != nil {
		return nil, err
	}
	m.services = append(m.services, s)
	config := filepath.Join(module, p.folder, "config")
	if err := m.installKinds(ctx, filepath.Join(config, "crd", "bases"), s.url(), p); err != nil {
		return nil, err
	}
	if err := m.installRoles(ctx, filepath.Join(config, "rbac"), p); err != nil {
		return nil, err
	}
	if err := m.installWebhooks(ctx, filepath.Join(config, "webhook", "manifests.yaml"), p.prefix, s.url()); err != nil {
		return nil, err
	}
	g := manager{
		name: p.tool, path: m.opts.Tools[p.tool], namespace: p.namespace, serviceAccount: p.prefix + "manager", service: s,
		args: append(p.args, args...), env: lazyGC,
	}
	m.providers = append(m.providers, g)
	return m.startManager(ctx, g)
}

// installKinds applies the CRDs with the additions of the release's kustomization: the labels and
// the conversion webhook.
func (m *Management) installKinds(ctx context.Context, dir, url string, p provider) error {
	crds, err := read(dir)
	if err != nil {
		return err
	}
	for _, crd := range crds {
		label(crd, p.contracts)
		label(crd, map[string]string{"cluster.x-k8s.io/provider": p.label, "clusterctl.cluster.x-k8s.io": ""})
		if err := convertAt(crd, url, m.ca.pem); err != nil {
			return err
		}
	}
	if err := apply(ctx, m.client, crds...); err != nil {
		return err
	}
	return established(ctx, m.client, crds)
}

// installRoles applies the service account, the roles and their bindings, with the names and
// namespace of the release.
func (m *Management) installRoles(ctx context.Context, dir string, p provider) error {
	objects, err := read(dir)
	if err != nil {
		return err
	}
	if err := apply(ctx, m.client, namespace(p.namespace, nil)); err != nil {
		return err
	}
	for _, o := range objects {
		o.SetName(p.prefix + o.GetName())
		if !strings.HasPrefix(o.GetKind(), "ClusterRole") {
			o.SetNamespace(p.namespace)
		}
		if p.aggregate != "" && o.GetName() == p.prefix+"manager-role" {
			label(o, map[string]string{p.aggregate: "true"})
		}
		if strings.HasSuffix(o.GetKind(), "Binding") {
			if err := p.rebind(o); err != nil {
				return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
	}
	return apply(ctx, m.client, objects...)
}

// rebind points a binding at the role and the service account by their released names, and at the
// aggregated role if there is one.
func (p provider) rebind(o *unstructured.Unstructured) error {
	role, _, err := unstructured.NestedString(o.Object, "roleRef", "name")
	if err != nil {
		return err
	}
	if p.aggregate != "" && role == "manager-role" {
		role = "aggregated-manager-role"
	}
	if err := unstructured.SetNestedField(o.Object, p.prefix+role, "roleRef", "name"); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(o.Object, []any{map[string]any{
		"kind": "ServiceAccount", "name": p.prefix + "manager", "namespace": p.namespace,
	}}, "subjects")
}

// installWebhooks applies webhook configurations for a server outside the cluster, with the patches
// that the release's kustomization makes.
func (m *Management) installWebhooks(ctx context.Context, file, prefix, url string, patches ...*unstructured.Unstructured) error {
	configurations, err := read(file)
	if err != nil {
		return err
	}
	for _, c := range configurations {
		for _, p := range patches {
			if p.GetKind() != c.GetKind() || p.GetName() != c.GetName() {
				continue
			}
			if c.Object, err = strategicpatch.StrategicMergeMapPatch(c.Object, p.Object, admissionv1.ValidatingWebhookConfiguration{}); err != nil {
				return fmt.Errorf("%s: patch %s: %w", file, p.GetName(), err)
			}
		}
		c.SetName(prefix + c.GetName())
		if err := serveAt(c, url, m.ca.pem); err != nil {
			return err
		}
	}
	return apply(ctx, m.client, configurations...)
}

func namespace(name string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	o.SetName(name)
	o.SetLabels(labels)
	return o
}
