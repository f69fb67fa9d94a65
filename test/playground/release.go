// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ServeDrover has the managers that StartDrover runs answer the webhooks of a Drover that someone else has installed, as
// clusterctl does. In a cluster that is the work of cert-manager and of Services. Call it again after an upgrade.
func (m *Management) ServeDrover(ctx context.Context) error {
	if m.drover == nil {
		s, err := newService()
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
