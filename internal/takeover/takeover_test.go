// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestRollbackWithoutManagers: a rollback waits for a manager to see the pause, unless its
// Deployment has no replicas and the user states that it runs nowhere else.
func TestRollbackWithoutManagers(t *testing.T) {
	t.Parallel()
	core := func(spec, status int32) *appsv1.Deployment { return manager("capi", "cluster-api", spec, status) }
	drover := func(spec, status int32) *appsv1.Deployment {
		return manager("drover", "infrastructure-drover", spec, status)
	}
	for name, c := range map[string]struct {
		managers []client.Object
		assume   bool
		paused   []string // whose pause was seen
		waits    bool
	}{
		"nothing is stated":                 {managers: []client.Object{core(0, 0), drover(0, 0)}, waits: true},
		"both are stopped":                  {managers: []client.Object{core(0, 0), drover(0, 0)}, assume: true},
		"only Drover, and the rest is seen": {managers: []client.Object{core(1, 1), drover(0, 0)}, assume: true, paused: []string{"Machine"}},
		"only Drover":                       {managers: []client.Object{core(1, 1), drover(0, 0)}, assume: true, waits: true},
		"only Cluster API, the rest seen": {managers: []client.Object{core(0, 0), drover(1, 1)}, assume: true,
			paused: []string{"DroverMachine"}},
		"one still ends": {managers: []client.Object{core(0, 0), drover(0, 1)}, assume: true, waits: true},
		"a second Deployment of Drover's": {managers: []client.Object{core(0, 0), drover(0, 0),
			manager("shard", "infrastructure-drover", 1, 1)}, assume: true, waits: true},
		"none is there": {assume: true, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
				g.Expect(add(scheme)).To(Succeed())
			}
			seen := []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue}}
			s := &staged{
				machines: []*clusterv1.Machine{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}},
				vms:      []*infrav1.DroverMachine{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}},
			}
			for _, kind := range c.paused {
				if kind == "Machine" {
					s.machines[0].Status.Conditions = seen
				} else {
					s.vms[0].Status.Conditions = seen
				}
			}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.managers...).WithObjects(s.machines[0].DeepCopy(),
				s.vms[0].DeepCopy()).Build()
			takeover := &Takeover{Management: api, AssumeStopped: c.assume}
			ctx, cancel := context.WithCancel(t.Context())
			if c.waits {
				cancel()
			}
			defer cancel()
			err := takeover.untilAllPaused(ctx, s)
			g.Expect(err != nil).To(Equal(c.waits), "%v", err)
		})
	}
}

func manager(name, provider string, spec, status int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: name + "-system", Name: name, Labels: map[string]string{clusterv1.ProviderNameLabel: provider}},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To(spec)}, Status: appsv1.DeploymentStatus{Replicas: status},
	}
}
