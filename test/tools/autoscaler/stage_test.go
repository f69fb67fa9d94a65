// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	// examples are the files that the book tells users to apply.
	examples = "../../../docs/examples/autoscaler"
	// team is the namespace in those files.
	team = "team-a"
	// quiet is how long tests check that nothing happens: several loops of the autoscaler and of
	// Drover.
	quiet = 6 * time.Second
	// gaveUp is the time after which the autoscaler considers a machine of a pool as failed. It
	// applies to one pool only, because machines may take longer on a busy computer.
	gaveUp = 15 * time.Second
)

// stage is a cluster with an autoscaler.
type stage struct {
	*rig.Stage
	// groups holds all pools created so far.
	groups []*group
}

// group is a pool that the autoscaler may scale.
type group struct {
	scenario.Pool
	annotations map[string]string
	// fields changes the machines on other clouds than the simulated one. nil keeps the defaults of
	// the rig.
	fields func(*infrav1.DroverMachineFields)
}

func start(t *testing.T, begin rig.Begin) *stage {
	house := &rig.House{Patience: 4 * time.Minute, Args: []string{"--machine-safety-overshooting-period=1s"}}
	house.Own(t, begin)
	s := &stage{Stage: house.Stage(t, team)}
	t.Cleanup(s.Close)
	s.Do(s.Rig.Workload.StartScheduler(s.Ctx))
	return s
}

// startAutoscaler starts the autoscaler with the permissions, arguments and environment from the
// book.
func (s *stage) startAutoscaler() {
	s.Helper()
	s.create(s.Rig.Client, s.example("management.yaml")...)
	s.create(s.Rig.Nodes, s.example("workload.yaml")...)
	management, err := s.Rig.Management.ServiceAccountKubeconfig(s.Ctx, team, "cluster-autoscaler")
	if err != nil {
		s.Fatal(err)
	}
	workload, err := s.Rig.Workload.ServiceAccountKubeconfig(s.Ctx, metav1.NamespaceSystem, "cluster-autoscaler")
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.Rig.Workload.StartAutoscaler(s.Ctx, playground.AutoscalerOptions{
		Management: management, Workload: workload, Namespace: s.Namespace, Cluster: s.Namespace,
	}); err != nil {
		s.Fatal(err)
	}
}

// example reads objects from one of the book's files.
func (s *stage) example(name string) (all []client.Object) {
	s.Helper()
	data, err := os.ReadFile(filepath.Join(examples, name))
	if err != nil {
		s.Fatal(err)
	}
	for _, doc := range strings.Split("\n"+string(data), "\n---") {
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(doc), &o.Object); err != nil {
			s.Fatalf("%s: %v", name, err)
		}
		all = append(all, o)
	}
	return all
}

func (s *stage) create(c client.Client, objects ...client.Object) {
	s.Helper()
	s.Do(scenario.Create(s.Ctx, c, objects...))
}

// newGroup creates a pool with no machines and at most most. It sets no replicas, as recommended
// for a pool with an autoscaler.
func (s *stage) newGroup(suffix string, most int, change func(*group)) *group {
	s.Helper()
	g := &group{Pool: s.NewPool(suffix, 0), annotations: map[string]string{
		clusterv1.AutoscalerMinSizeAnnotation: "0",
		clusterv1.AutoscalerMaxSizeAnnotation: fmt.Sprint(most),
	}}
	change(g)
	md := g.Deployment()
	md.Annotations, md.Spec.Replicas = g.annotations, nil
	template := g.Template(g.Name, g.Machine)
	if g.fields != nil {
		g.fields(&template.Spec.Template.Spec)
	}
	s.create(s.Rig.Client, template, g.ConfigTemplate(), md)
	s.groups = append(s.groups, g)
	return g
}

// app creates an application of several pods, each of which requests cpu thousandths of a CPU.
func (s *stage) app(name string, replicas int32, cpu int64, change func(*corev1.PodSpec)) *appsv1.Deployment {
	s.Helper()
	labels := map[string]string{"app": name}
	pod := corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{{Name: name, Image: name, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI)},
		}}},
	}
	if change != nil {
		change(&pod)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
	}}
	s.create(s.Rig.Nodes, d)
	return d
}

// on checks that all pods of an application run on machines of the pool.
func (s *stage) on(g *group, app *appsv1.Deployment) scenario.Check {
	return func(ctx context.Context) (string, error) {
		pods := &corev1.PodList{}
		if err := s.Rig.Nodes.List(ctx, pods, client.InNamespace(app.Namespace),
			client.MatchingLabels(app.Spec.Selector.MatchLabels)); err != nil {
			return "", err
		}
		running := int32(0)
		for _, p := range pods.Items {
			switch {
			case p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning:
			case !strings.HasPrefix(p.Spec.NodeName, g.Name+"-"):
				return fmt.Sprintf("pod %s runs on %s", p.Name, p.Spec.NodeName), nil
			default:
				running++
			}
		}
		if running != *app.Spec.Replicas {
			return fmt.Sprintf("%d of %d pods run on machines of %s", running, *app.Spec.Replicas, g.Name), nil
		}
		return "", nil
	}
}

// made returns the number of VMs created for the pool so far, from the cloud's own records,
// including terminated ones.
func (s *stage) made(g *group) int {
	s.Helper()
	snapshot, err := s.Rig.Snapshot(s.Ctx)
	if err != nil {
		s.Fatal(err)
	}
	n := 0
	for _, i := range s.Instances(snapshot) {
		if strings.HasPrefix(i.Tags[cloud.TagMachine], s.Namespace+"/"+g.Name+"-") {
			n++
		}
	}
	return n
}

// asked returns the requested number of machines of the pool.
func (s *stage) asked(g *group) int32 {
	s.Helper()
	md := g.Deployment()
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(md), md))
	return ptr.Deref(md.Spec.Replicas, -1)
}

// empty ends a scene: no application, no machine, nothing in the cloud, and no VM was created
// twice. It scales each pool from 1 to 0 itself, because this version of the autoscaler sends a
// scale request that omits 0 (kubernetes/autoscaler#8538).
func (s *stage) empty(apps ...*appsv1.Deployment) {
	s.Helper()
	for _, app := range apps {
		s.Do(scenario.Delete(s.Ctx, s.Rig.Nodes, app))
	}
	for _, g := range s.groups {
		s.Until(g.Name+" has one machine at most", func(context.Context) (string, error) {
			if n := s.asked(g); n > 1 {
				return fmt.Sprintf("%d are asked for", n), nil
			}
			return "", nil
		})
		s.Do(g.Scale(s.Ctx, s.Rig.Client, 0))
	}
	s.Empty()
}

// capacity limits how many instances of a type fit in each zone. -1 means no limit.
func (s *stage) capacity(instanceType string, n int) {
	s.Helper()
	for _, zone := range []string{"sim-1a", "sim-1b", "sim-1c"} {
		change := simulator.CapacityChange{Region: "sim-1", Zone: zone, InstanceType: instanceType, Instances: n}
		s.Do(s.Rig.Admin.SetCapacity(s.Ctx, change))
	}
}

// clones creates VMs with the token of a running machine, and returns their IDs.
func (s *stage) clones(of simulator.SnapshotResource, n int) (ids []string) {
	s.Helper()
	for range n {
		vm, err := s.Rig.Admin.Run(s.Ctx, s.Namespace, wire.RunInstancesRequest{
			Region: of.Region, InstanceType: of.InstanceType, Image: of.Image,
			Tags: map[string]string{cloud.TagOwnership: of.Tags[cloud.TagOwnership], cloud.TagToken: of.Tags[cloud.TagToken]},
		})
		if err != nil {
			s.Fatal(err)
		}
		ids = append(ids, vm.ID)
	}
	return ids
}

// watch checks for the duration quiet that check returns "".
func (s *stage) watch(what string, check func() string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Ctx, quiet)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		if wrong := check(); wrong != "" {
			s.Errorf("%s: %s", what, wrong)
			return true, nil
		}
		return false, nil
	})
}
