// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ServeDrover directs the webhooks of a Drover that was installed by other means, such as
// clusterctl, to the managers that StartDrover runs. In a real cluster, cert-manager and Services
// do that. Call it again after an upgrade.
func (m *Management) ServeDrover(ctx context.Context) error {
	if m.drover == nil {
		s, err := newService(m.address)
		if err != nil {
			return err
		}
		m.services = append(m.services, s)
		m.drover = s
	}
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind + "List"})
		if err := m.client.List(ctx, list, client.MatchingLabels{"cluster.x-k8s.io/provider": droverLabel}); err != nil {
			return fmt.Errorf("list the webhooks of Drover: %w", err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if err := serveAt(o, m.drover.url(), m.ca.pem); err != nil {
				return err
			}
			if err := m.client.Update(ctx, o); err != nil {
				return fmt.Errorf("point %s %s at the playground: %w", kind, o.GetName(), err)
			}
		}
	}
	return nil
}

// InstallCertManagerKinds installs the CRDs from cert-manager's own module, because a release of
// Drover contains objects of these kinds. No controller acts on them. The files are a Helm
// template, so the labels are removed.
func (m *Management) InstallCertManagerKinds(ctx context.Context) error {
	dir, _, err := FindModule(ctx, "hack/tools/cert-manager", "github.com/cert-manager/cert-manager")
	if err != nil {
		return err
	}
	crds, err := read(filepath.Join(dir, "deploy", "crds"))
	if err != nil {
		return err
	}
	for _, crd := range crds {
		crd.SetLabels(nil)
	}
	if err := apply(ctx, m.client, crds...); err != nil {
		return fmt.Errorf("install cert-manager's kinds: %w", err)
	}
	return established(ctx, m.client, crds)
}

// CoreRepository creates a local repository in folder, in which clusterctl finds the Cluster API
// that the playground runs. It holds only the metadata, because clusterctl reads nothing else of an
// installed provider. It returns the URL for clusterctl's configuration.
func CoreRepository(ctx context.Context, folder string) (string, error) {
	dir, version, err := FindModule(ctx, ".", "sigs.k8s.io/cluster-api")
	if err != nil {
		return "", err
	}
	metadata, err := os.ReadFile(filepath.Join(dir, "metadata.yaml"))
	if err != nil {
		return "", fmt.Errorf("read Cluster API's releases: %w", err)
	}
	release := filepath.Join(folder, "cluster-api", version)
	if err := writeFiles(release, map[string][]byte{"metadata.yaml": metadata}); err != nil {
		return "", err
	}
	return filepath.Join(release, "core-components.yaml"), nil
}
