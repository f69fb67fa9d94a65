// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// The annotations that tell the autoscaler what the machines of an empty pool will have besides
// their size.
const (
	labelsAnnotation    = "capacity.cluster-autoscaler.kubernetes.io/labels"
	taintsAnnotation    = "capacity.cluster-autoscaler.kubernetes.io/taints"
	provisionAnnotation = "cluster.x-k8s.io/autoscaling-options-maxnodeprovisiontime"
)

// TestAutoscaler runs several scenes on one cluster. Each starts and ends without machines.
func TestAutoscaler(t *testing.T) {
	s := start(t, rig.Start)
	small := s.newGroup("small", 4, func(g *group) {
		g.Machine.InstanceType = "small"
		g.annotations[provisionAnnotation] = gaveUp.String()
	})
	large := s.newGroup("large", 2, func(g *group) { g.Machine.InstanceType = "large" })
	arm := s.newGroup("arm", 2, func(g *group) {
		g.Machine.InstanceType, g.Machine.Image = "small-arm", "node-image-arm64"
		special(g)
	})
	s.startAutoscaler()
	for _, scene := range []struct {
		name string
		play func(s *stage)
	}{
		{"pods bring machines, and machines that nobody needs go", func(s *stage) { s.fromZeroAndBack(small, large, arm) }},
		{"a pool without capacity gives way", func(s *stage) { s.shortage(small, large) }},
		{"a frozen pool makes nothing", func(s *stage) { s.freeze(large) }},
	} {
		t.Run(strings.NewReplacer(" ", "-", ",", "").Replace(scene.name), func(t *testing.T) {
			scene.play(&stage{Stage: &rig.Stage{T: t, Tenant: s.Tenant, House: s.House, Ctx: s.Ctx}, groups: s.groups})
		})
	}
}

// TestOnAWS tests that pools of EC2 instance types, whose sizes EC2 reports, scale from zero and
// back.
func TestOnAWS(t *testing.T) {
	s := start(t, rig.StartOnAWS)
	of := func(instanceType, image string) func(*infrav1.DroverMachineFields) {
		return func(m *infrav1.DroverMachineFields) {
			m.Cloud.AWS.InstanceType, m.Cloud.AWS.Image.ID = instanceType, image
		}
	}
	small := s.newGroup("small", 4, func(g *group) { g.fields = of("t3.small", ec2stub.KeepingImage) })
	large := s.newGroup("large", 2, func(g *group) { g.fields = of("p4d.24xlarge", ec2stub.KeepingImage) })
	arm := s.newGroup("arm", 2, func(g *group) {
		g.fields = of("m7g.large", "ami-0c")
		special(g)
	})
	s.startAutoscaler()
	s.fromZeroAndBack(small, large, arm)
	s.Logf("calls of EC2: %v", s.AWS.Calls())
}

// TestOnAzure tests the same with Azure's sizes, which its catalog describes.
func TestOnAzure(t *testing.T) {
	s := start(t, rig.StartOnAzure)
	of := func(size, image string) func(*infrav1.DroverMachineFields) {
		return func(m *infrav1.DroverMachineFields) { m.Cloud.Azure.VMSize, m.Cloud.Azure.Image.ID = size, image }
	}
	small := s.newGroup("small", 4, func(g *group) { g.fields = of("Standard_D2s_v5", armstub.Image) })
	large := s.newGroup("large", 2, func(g *group) { g.fields = of("Standard_D32s_v5", armstub.Image) })
	arm := s.newGroup("arm", 2, func(g *group) {
		g.fields = of("Standard_D2ps_v5", armstub.ArmImage)
		special(g)
	})
	s.startAutoscaler()
	s.fromZeroAndBack(small, large, arm)
	s.Logf("calls of Azure: %v", s.Azure.Calls())
}

// TestOnGCP tests the same with Google's machine types, which its API describes.
func TestOnGCP(t *testing.T) {
	s := start(t, rig.StartOnGCP)
	of := func(machineType string) func(*infrav1.DroverMachineFields) {
		return func(m *infrav1.DroverMachineFields) { m.Cloud.GCP.MachineType = machineType }
	}
	small := s.newGroup("small", 4, func(g *group) { g.fields = of("e2-standard-2") })
	large := s.newGroup("large", 2, func(g *group) { g.fields = of("e2-standard-32") })
	arm := s.newGroup("arm", 2, func(g *group) {
		g.fields = of("t2a-standard-2")
		special(g)
	})
	s.startAutoscaler()
	s.fromZeroAndBack(small, large, arm)
	s.Logf("calls of Compute Engine: %v", s.GCP.Calls())
}

// special sets ARM machines with a label and a taint for a pool. The annotations describe them
// while the pool is empty.
func special(g *group) {
	g.Config.NodeLabels = map[string]string{"example.com/gpu": "yes"}
	g.Config.NodeTaints = []corev1.Taint{{Key: "example.com/gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
	g.annotations[labelsAnnotation] = "example.com/gpu=yes,kubernetes.io/arch=arm64"
	g.annotations[taintsAnnotation] = "example.com/gpu=yes:NoSchedule"
}

// fromZeroAndBack tests that the autoscaler knows the properties of machines of an empty pool. The
// size comes from the template's status; labels, taints and architecture come from the pool's
// annotations.
func (s *stage) fromZeroAndBack(small, large, arm *group) {
	// A small machine has 2 CPUs: one such pod fits, a second does not. Without this information,
	// the autoscaler would choose another pool or another number of machines.
	web := s.app("web", 3, 1500, nil)
	train := s.app("train", 1, 1000, func(p *corev1.PodSpec) {
		p.NodeSelector = map[string]string{corev1.LabelArchStable: "arm64", "example.com/gpu": "yes"}
		p.Tolerations = []corev1.Toleration{{Key: "example.com/gpu", Operator: corev1.TolerationOpExists}}
	})
	s.Until("all pods run where they should", scenario.All(s.on(small, web), s.on(arm, train)))
	for g, want := range map[*group]int{small: 3, large: 0, arm: 1} {
		if n := s.made(g); n != want {
			s.Errorf("%d VMs were made for %s, want %d", n, g.Name, want)
		}
	}

	// The remaining capacity of each machine takes one pod of another application. Without the
	// first application, all its pods fit on one machine. The other two machines are drained, while
	// at most one pod may be unavailable.
	shop := s.app("shop", 3, 300, nil)
	s.Until("there is room for the other application", s.on(small, shop))
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: shop.Namespace, Name: shop.Name}}
	budget.Spec.Selector, budget.Spec.MaxUnavailable = shop.Spec.Selector, new(intstr.FromInt32(1))
	s.create(s.Rig.Nodes, budget)
	s.Do(scenario.Delete(s.Ctx, s.Rig.Nodes, web))
	s.Until("two machines are drained and gone", scenario.All(small.Ready(s.Rig.Client, 1), s.on(small, shop)))
	if n := s.made(small); n != 3 {
		s.Errorf("%d VMs were made for %s in all, want 3", n, small.Name)
	}
	s.empty(shop, train)
}

// shortage tests that the autoscaler falls back to another pool when the best one has no capacity.
// It reverts its request, which deletes the Machine, and scales the other pool.
func (s *stage) shortage(small, large *group) {
	first := s.app("first", 1, 1500, nil)
	s.Until("there is a small machine", s.on(small, first))
	s.capacity("small", 0)
	defer s.capacity("small", -1)
	before := s.made(small)

	second := s.app("second", 1, 1500, nil)
	s.Until("a small machine waits for capacity", func(ctx context.Context) (string, error) {
		list := &infrav1.DroverMachineList{}
		if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		for i := range list.Items {
			if conditions.GetReason(&list.Items[i], clusterv1.ReadyCondition) == infrav1.NoCapacityReason {
				return "", nil
			}
		}
		return "no DroverMachine says so", nil
	})
	begin := time.Now()
	s.Until("the pod runs on a large machine", s.on(large, second))
	s.Logf("the other pool took over after %s", time.Since(begin).Round(time.Second))
	s.Until("the second small machine is asked for no more", small.Ready(s.Rig.Client, 1))
	s.watch("the small pool is left alone", func() string {
		if n := s.asked(small); n != 1 {
			return fmt.Sprintf("%d machines are asked for", n)
		}
		return ""
	})
	if n := s.made(small) - before; n != 0 {
		s.Errorf("%d small VMs were made", n)
	}
	s.empty(first, second)
}

// freeze tests that Drover freezes a pool with far more VMs than machines. This version of the
// autoscaler does not recognize this and requests machines, but none is created. After the pool is
// unfrozen, the requested machines are created once.
func (s *stage) freeze(g *group) {
	web := s.app("web", 1, 6000, nil)
	s.Until("there is a machine", s.on(g, web))
	snapshot, err := s.Rig.Admin.Snapshot(s.Ctx)
	if err != nil {
		s.Fatal(err)
	}
	var vm simulator.SnapshotResource
	for _, r := range s.Live(snapshot) {
		if r.Kind == wire.Instance {
			vm = r
		}
	}
	extra := s.clones(vm, 8)
	s.Until("the pool is frozen", s.frozen(g, true))
	before := s.made(g)

	more := s.app("more", 1, 6000, nil)
	s.Until("the autoscaler asks for one more", func(context.Context) (string, error) {
		if n := s.asked(g); n != 2 {
			return fmt.Sprintf("%d are asked for", n), nil
		}
		return "", nil
	})
	s.watch("nothing is made", func() string {
		machines := &clusterv1.MachineList{}
		if err := s.Rig.Client.List(s.Ctx, machines, client.InNamespace(s.Namespace)); err != nil {
			return err.Error()
		}
		if made := s.made(g) - before; made != 0 || len(machines.Items) != 1 {
			return fmt.Sprintf("%d VMs were made, and there are %d Machines", made, len(machines.Items))
		}
		if missing, err := s.frozen(g, true)(s.Ctx); missing != "" || err != nil {
			return fmt.Sprint("the pool is not frozen any more: ", missing, err)
		}
		return ""
	})
	for _, id := range extra {
		s.Do(s.Rig.Admin.Act(s.Ctx, id, simulator.ActVanish))
	}
	s.Until("the pool is unfrozen", s.frozen(g, false))
	s.Until("the second application runs too", scenario.All(s.on(g, web), s.on(g, more)))
	if n := s.made(g) - before; n != 1 {
		s.Errorf("%d VMs were made, want 1", n)
	}
	s.empty(web, more)
}

// frozen checks whether Drover has frozen the pool.
func (s *stage) frozen(g *group, want bool) scenario.Check {
	return func(ctx context.Context) (string, error) {
		md := g.Deployment()
		if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(md), md); err != nil {
			return "", err
		}
		_, paused := md.Annotations[clusterv1.PausedAnnotation]
		if is := paused && md.Labels[infrav1.FreezeLabel] == "True"; is != want {
			return fmt.Sprintf("it has labels %v and annotations %v", md.Labels, md.Annotations), nil
		}
		return "", nil
	}
}
