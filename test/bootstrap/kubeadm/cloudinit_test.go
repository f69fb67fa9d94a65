// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestDroverConfig tests that machines that Drover makes join with kubeadm become Ready Nodes
// with the described properties. Drover alone approves the requests of their tokens, and needs no
// more permissions in the cluster than the book lists. If one of kubeadm's roles is missing, the
// condition names it, and bootstrapping continues once the role exists.
func TestDroverConfig(t *testing.T) {
	s := stage{house.Stage(t, "teal")}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm:kubelet-config"}}
	s.Do(s.Rig.Nodes.Get(s.Ctx, client.ObjectKeyFromObject(role), role))
	s.Do(s.Rig.Nodes.Delete(s.Ctx, role))
	role.UID, role.ResourceVersion = "", ""

	pool := s.NewPool("joined", 2)
	pool.Config = bootstrapv1.DroverConfigSpec{
		Join:       bootstrapv1.Join{Method: bootstrapv1.JoinKubeadm},
		NodeLabels: map[string]string{"pool": "batch"},
		NodeTaints: []corev1.Taint{{Key: "dedicated", Value: "batch", Effect: corev1.TaintEffectNoSchedule}},
	}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("each config names the role that is missing", s.waitFor(2, role.Name))
	s.Do(s.Rig.Nodes.Create(s.Ctx, role))

	s.Until("two machines are ready", scenario.All(pool.Ready(s.Rig.Client, 2), s.Nodes(2, "simulated://"), s.described))
	s.Until("their certificates are approved", s.approved("DroverApproved"))
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}

// waitFor checks that n configs wait for the control plane, with the words in their conditions.
func (s stage) waitFor(n int, words string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &bootstrapv1.DroverConfigList{}
		if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		missing, said := n, []string(nil)
		for i := range list.Items {
			ready := conditions.Get(&list.Items[i], clusterv1.ReadyCondition)
			if ready != nil && ready.Reason == bootstrapv1.WaitingForControlPlaneReason && strings.Contains(ready.Message, words) {
				missing--
			} else if ready != nil {
				said = append(said, ready.Message)
			}
		}
		if missing != 0 {
			return strings.Join(said, "; ") + " and not yet what is waited for", nil
		}
		return "", nil
	}
}
