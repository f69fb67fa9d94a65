// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// topology is a cluster created from the ClusterClass: the user sets a few fields of the Cluster,
// and Cluster API creates the other objects.
type topology struct {
	*life
	namespace, name string
}

// classTemplates is the name of the templates that the ClusterClass itself refers to. All others
// are copies that Cluster API made.
const classTemplates = "drover-adopted-worker"

func (l *life) topology(t *testing.T) {
	s := topology{life: l, namespace: "team-b", name: "green"}
	kubeconfig, err := l.management.Kubeconfig("drover")
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.namespace, Name: name} }
	if err := scenario.Create(t.Context(), l.admin,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}},
		&corev1.Secret{ObjectMeta: meta("adopted-kubeconfig"), Data: map[string][]byte{"value": kubeconfig}},
		scenario.Credentials(meta("simulated-credentials"), "simulated", map[string][]byte{"token": []byte(l.cloud.Token)}),
	); err != nil {
		t.Fatal(err)
	}
	l.create(t, "topology", s.name, s.namespace)
	until(t, s.machinesAre(3, "small"))

	first := s.facts(t)
	s.patch(t, `{"metadata":{"annotations":{"touched":"yes"}}}`)
	s.stays(t, "a Cluster that was touched", first)

	// Another class, whose templates have other names but the same content, replaces nothing.
	s.copyClass(t)
	s.patch(t, `{"spec":{"topology":{"classRef":{"name":"drover-copy"}}}}`)
	s.stays(t, "a Cluster that has another class with the same content", first)

	// Another size, set by a variable, leads to a new template and new machines.
	s.setVariable(t, "instanceType", `"medium"`)
	until(t, s.machinesAre(3, "medium"))
	until(t, func(context.Context) (string, error) { // Cluster API deletes the old template a moment after the last machine
		for key := range s.facts(t) {
			if _, old := first[key]; old && key != "generation" {
				return key + " is there", nil
			}
		}
		return "", nil
	})

	s.patch(t, `{"spec":{"topology":{"workers":{"machineDeployments":[{"class":"default-worker","name":"md-0","replicas":1}]}}}}`)
	until(t, s.machinesAre(1, "medium"))

	if err := s.tryVariable(t, "diskGiB", `"much"`); err == nil {
		t.Error("diskGiB may be a word")
	}
	if err := s.tryVariable(t, "color", `"blue"`); err == nil {
		t.Error("the class takes a variable that it does not have")
	}

	// The existing control plane does not have this version yet, so the workers wait for it.
	third := s.facts(t)
	s.patch(t, `{"spec":{"topology":{"version":"v1.36.4"}}}`)
	s.stays(t, "a Cluster whose control plane is older than it should be", third)

	if err := l.admin.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: meta(s.name)}); err != nil {
		t.Fatal(err)
	}
	for _, list := range []client.ObjectList{&clusterv1.ClusterList{}, &clusterv1.MachineList{}, &infrav1.DroverMachineList{},
		&infrav1.DroverClusterList{}} {
		until(t, scenario.Empty(l.admin, list, s.namespace))
	}
	if err := l.admin.Delete(t.Context(), &infrav1.DroverAccount{ObjectMeta: meta("simulated")}); err != nil {
		t.Error(err)
	}
	until(t, scenario.Empty(l.admin, &infrav1.DroverAccountList{}, s.namespace))
	if err := scenario.Delete(t.Context(), l.admin, nodes(t, l.admin)...); err != nil { // Nodes stay when a whole Cluster is deleted
		t.Error(err)
	}
}

// machinesAre checks that there are n machines, all of them ready and of the given size.
func (s topology) machinesAre(n int32, size string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		mds := &clusterv1.MachineDeploymentList{}
		if err := s.admin.List(ctx, mds, client.InNamespace(s.namespace)); err != nil {
			return "", err
		}
		if len(mds.Items) != 1 {
			return fmt.Sprintf("there are %d MachineDeployments", len(mds.Items)), nil
		}
		pool := scenario.Pool{Cluster: scenario.Adopted{Namespace: s.namespace, Name: s.name}, Name: mds.Items[0].Name}
		if missing, err := scenario.All(pool.Ready(s.admin, n), pool.Current(s.admin))(ctx); missing != "" || err != nil {
			return missing, err
		}
		machines := &infrav1.DroverMachineList{}
		if err := s.admin.List(ctx, machines, client.InNamespace(s.namespace)); err != nil {
			return "", err
		}
		if len(machines.Items) != int(n) {
			return fmt.Sprintf("there are %d DroverMachines", len(machines.Items)), nil
		}
		for i := range machines.Items {
			if is := machines.Items[i].Spec.Cloud.Simulated.InstanceType; is != size {
				return fmt.Sprintf("%s is %s", machines.Items[i].Name, is), nil
			}
		}
		return "", nil
	}
}

// facts returns what a rollout would change: the machines, their templates, and the generation of
// the pool.
func (s topology) facts(t *testing.T) map[string]string {
	t.Helper()
	facts := map[string]string{}
	for _, list := range []client.ObjectList{&clusterv1.MachineList{}, &infrav1.DroverMachineTemplateList{},
		&clusterv1.MachineDeploymentList{}} {
		if err := s.admin.List(t.Context(), list, client.InNamespace(s.namespace)); err != nil {
			t.Fatal(err)
		}
		switch l := list.(type) {
		case *clusterv1.MachineList:
			for _, m := range l.Items {
				facts["Machine "+m.Name] = string(m.UID)
			}
		case *infrav1.DroverMachineTemplateList:
			for _, m := range l.Items {
				if m.Name != classTemplates && m.Name != classTemplates+"-copy" {
					facts["template "+m.Name] = string(m.UID)
				}
			}
		case *clusterv1.MachineDeploymentList:
			for _, m := range l.Items {
				facts["generation"] = fmt.Sprint(m.Generation)
			}
		}
	}
	return facts
}

// stays checks for a while that nothing is replaced. The topology controller reconciles the cluster
// during that time, because the cluster has just changed.
func (s topology) stays(t *testing.T, what string, before map[string]string) {
	t.Helper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}
	until(t, func(ctx context.Context) (string, error) {
		if err := s.admin.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			return "", err
		}
		for _, c := range cluster.Status.Conditions {
			if c.Type == clusterv1.ClusterTopologyReconciledCondition && c.ObservedGeneration == cluster.Generation {
				return "", nil
			}
		}
		return "the topology was not looked at", nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		if now := s.facts(t); !maps.Equal(before, now) {
			t.Errorf("%s: there were %v, and there are %v", what, before, now)
			return true, nil
		}
		return false, nil
	})
}

// copyClass creates the class drover-copy, with a machine template of another name.
func (s topology) copyClass(t *testing.T) {
	t.Helper()
	template := &infrav1.DroverMachineTemplate{}
	class := &clusterv1.ClusterClass{}
	for name, o := range map[string]client.Object{classTemplates: template, "drover-adopted": class} {
		if err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, o); err != nil {
			t.Fatal(err)
		}
		o.SetResourceVersion("")
		o.SetUID("")
		o.SetOwnerReferences(nil)
	}
	template.Name += "-copy"
	class.Name = "drover-copy"
	class.Spec.Workers.MachineDeployments[0].Infrastructure.TemplateRef.Name = template.Name
	if err := scenario.Create(t.Context(), s.admin, template, class); err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) (string, error) {
		if err := s.admin.Get(ctx, client.ObjectKeyFromObject(class), class); err != nil {
			return "", err
		}
		if class.Status.ObservedGeneration != class.Generation || len(class.Status.Variables) == 0 {
			return "the class was not looked at", nil
		}
		return "", nil
	})
}

func (s topology) patch(t *testing.T, patch string) {
	t.Helper()
	if err := s.tryPatch(t, patch); err != nil {
		t.Fatal(err)
	}
}

func (s topology) tryPatch(t *testing.T, patch string) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}
	return s.admin.Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (s topology) setVariable(t *testing.T, name, value string) {
	t.Helper()
	if err := s.tryVariable(t, name, value); err != nil {
		t.Fatal(err)
	}
}

// tryVariable sets a variable to a JSON value. Other variables keep their values.
func (s topology) tryVariable(t *testing.T, name, value string) error {
	t.Helper()
	cluster := &clusterv1.Cluster{}
	if err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: s.name}, cluster); err != nil {
		t.Fatal(err)
	}
	before := cluster.DeepCopy()
	variables := &cluster.Spec.Topology.Variables
	*variables = slices.DeleteFunc(*variables, func(v clusterv1.ClusterVariable) bool { return v.Name == name })
	v := clusterv1.ClusterVariable{Name: name}
	v.Value.Raw = []byte(value)
	*variables = append(*variables, v)
	return s.admin.Patch(t.Context(), cluster, client.MergeFrom(before))
}

// nodes returns all Nodes.
func nodes(t *testing.T, c client.Client) (all []client.Object) {
	t.Helper()
	list := &corev1.NodeList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}
