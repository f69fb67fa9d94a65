// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/test/scenario"
)

// pool returns namespace and name of what a pool has become.
func (s *Stage) pool(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Tenant.Name + "-" + name}
}

// Roll gives a pool that was taken over a template that is changed, and waits until all of its
// machines are new.
func (s *Stage) Roll(p Pool, change func(*infrav1.CloudMachineFields)) {
	s.Helper()
	d := &clusterv1.MachineDeployment{ObjectMeta: s.pool(p.Name)}
	template := &infrav1.CloudMachineTemplate{ObjectMeta: d.ObjectMeta}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(template), template))
	next := &infrav1.CloudMachineTemplate{ObjectMeta: s.pool(p.Name + "-2"), Spec: *template.Spec.DeepCopy()}
	change(&next.Spec.Template.Spec)
	s.Do(s.Rig.Client.Create(s.Ctx, next))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Template.Spec.InfrastructureRef.Name = next.Name }))
	s.Until("pool "+p.Name+" has rolled", func(ctx context.Context) (string, error) {
		list := &clusterv1.MachineList{}
		if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: d.Name}); err != nil {
			return "", err
		}
		for _, m := range list.Items {
			if strings.Contains(m.Name, "-6d4f5-") {
				return m.Name + " is there", nil
			}
		}
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(d), d)
		if n := ptr.Deref(d.Status.AvailableReplicas, 0); len(list.Items) != p.Replicas || int(n) != p.Replicas {
			return fmt.Sprintf("%d machines, %d available", len(list.Items), n), err
		}
		return "", err
	})
}

// Scale sets how many machines a pool that was taken over has.
func (s *Stage) Scale(pool string, replicas int32) {
	s.Helper()
	d := &clusterv1.MachineDeployment{ObjectMeta: s.pool(pool)}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(d), d))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To(replicas) }))
}
