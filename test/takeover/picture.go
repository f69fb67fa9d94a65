// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Picture is what a rollback restores: tags, Nodes and the old system's objects; and that nothing
// of the target is there.
type Picture struct {
	VMs   map[string]VM
	Nodes map[string]string
	Old   map[string]string
	Made  map[string]int
}

func (s *Stage) Picture() Picture {
	s.Helper()
	p := Picture{VMs: map[string]VM{}, Nodes: s.nodesNow(), Old: s.Old.versions(), Made: map[string]int{}}
	vms := s.Old.VMs()
	for _, id := range s.Old.vms {
		p.VMs[id] = vms[id]
	}
	for kind, list := range map[string]client.ObjectList{
		"MachineDeployment": &clusterv1.MachineDeploymentList{}, "MachineSet": &clusterv1.MachineSetList{}, "Machine": &clusterv1.MachineList{},
		"MachineHealthCheck": &clusterv1.MachineHealthCheckList{},
		"DroverMachine":      &infrav1.DroverMachineList{}, "DroverMachineTemplate": &infrav1.DroverMachineTemplateList{},
	} {
		p.Made[kind] = s.Count(list)
	}
	return p
}

// nodesNow returns what only a user or a controller of machines would change of each Node. Cluster
// API writes annotations and labels of its own.
func (s *Stage) nodesNow() map[string]string {
	s.Helper()
	nodes := &corev1.NodeList{}
	s.Do(s.Rig.Nodes.List(s.Ctx, nodes))
	all := map[string]string{}
	for _, n := range nodes.Items {
		if !strings.HasPrefix(n.Name, s.Tenant.Name+"-") {
			continue
		}
		labels := maps.Clone(n.Labels)
		maps.DeleteFunc(labels, func(key, _ string) bool { return strings.Contains(key, "cluster.x-k8s.io") })
		annotations := maps.Clone(n.Annotations)
		maps.DeleteFunc(annotations, func(key, _ string) bool {
			return strings.Contains(key, "cluster.x-k8s.io") || strings.Contains(key, "ttl")
		})
		all[n.Name] = fmt.Sprint(n.UID, n.Spec.ProviderID, n.Spec.Unschedulable, n.Finalizers, labels, annotations)
	}
	return all
}

// still tests that a switch has changed no machine.
func (s *Stage) Still(before Picture, machines int) {
	s.Helper()
	g := gomega.NewWithT(s.T)
	g.Expect(s.nodesNow()).To(gomega.Equal(before.Nodes))
	g.Expect(s.Old.versions()).To(gomega.Equal(before.Old))
	g.Expect(s.Count(&clusterv1.MachineList{})).To(gomega.Equal(machines))
	g.Expect(s.Count(&infrav1.DroverMachineList{})).To(gomega.Equal(machines))
	g.Expect(s.Count(&clusterv1.MachineSetList{})).To(gomega.Equal(s.Old.pools))
	for id, vm := range s.Old.VMs() {
		g.Expect(vm.State).To(gomega.Equal(running), id)
	}
}

// committed tests that the other system has nothing left, and finds no VM.
func (s *Stage) Committed(before Picture) {
	s.Helper()
	g := gomega.NewWithT(s.T)
	g.Expect(s.Old.versions()).To(gomega.BeEmpty())
	vms := s.Old.VMs()
	for _, id := range s.Old.vms {
		g.Expect(vms[id].State).To(gomega.Equal(running))
		g.Expect(vms[id].Tags).NotTo(gomega.HaveKey(s.Old.Role))
		g.Expect(vms[id].Tags).To(gomega.HaveKey(cloud.TagOwnership))
	}
	nodes := &corev1.NodeList{}
	s.Do(s.Rig.Nodes.List(s.Ctx, nodes))
	for _, n := range nodes.Items {
		if before.Nodes[n.Name] != "" {
			g.Expect(before.Nodes[n.Name]).To(gomega.HavePrefix(string(n.UID)))
			g.Expect(n.Finalizers).To(gomega.BeEmpty())
			g.Expect(n.Labels).NotTo(gomega.HaveKey(s.Old.label))
		}
	}
	machines := &clusterv1.MachineList{}
	s.Do(s.Rig.Client.List(s.Ctx, machines, client.InNamespace(s.Namespace)))
	for _, m := range machines.Items {
		g.Expect(m.Annotations).NotTo(gomega.Or(gomega.HaveKey("drover.io/imported"), gomega.HaveKey(gomega.ContainSubstring("pre-drain"))))
	}
	s.Until("no MachineSet is marked", func(ctx context.Context) (string, error) {
		sets := &clusterv1.MachineSetList{}
		if err := s.Rig.Client.List(ctx, sets, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		for _, set := range sets.Items {
			if metav1.HasAnnotation(set.ObjectMeta, "drover.io/imported") {
				return set.Name, nil // Cluster API copies it once more from the MachineDeployment
			}
		}
		return "", nil
	})
}
