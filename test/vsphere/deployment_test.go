// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestMachineDeployment tests that the machines of a MachineDeployment become Ready Nodes with the
// data from their guestinfo variables, roll and are deleted. A VM that somebody destroys is
// replaced. In the end nothing is left. Each VM has the tag and the custom attribute of its
// template. The test was seen to fail without the attribute.
func TestMachineDeployment(t *testing.T) {
	s := start(t, "blue")
	s.Do(s.VCenter.MakeTag(s.Ctx, "team", "blue"))
	s.Do(s.VCenter.MakeAttribute(s.Ctx, "cost-center"))
	dress := s.Dress
	s.Dress = func(o client.Object) {
		dress(o)
		if template, ok := o.(*infrav1.DroverMachineTemplate); ok {
			m := template.Spec.Template.Spec.Cloud.VSphere
			m.Tags = []infrav1.VSphereTag{{Category: "team", Name: "blue"}}
			m.CustomAttributes = []infrav1.VSphereAttribute{{Name: "cost-center", Value: "4711"}}
		}
	}
	s.Life(s.NewPool("md", 3), scenario.All(s.nodes(3), s.marked), func(id string) { s.Do(s.VCenter.Destroy(id)) })
	calls := map[string]int{}
	for _, c := range s.Cloud.Calls() {
		calls[c.Verb]++
	}
	t.Logf("calls of vCenter: %v", calls)
	if calls["Login"] != 1 || calls["CloneVM_Task"] != 7 {
		t.Errorf("%d logins and %d clones, want one login for all, and 7 machines: three, three that took their places, and one", calls["Login"], calls["CloneVM_Task"])
	}
}

// marked checks that each VM has its tag and its custom attribute.
func (s *stage) marked(ctx context.Context) (string, error) {
	tagged, err := s.VCenter.Tagged(ctx, "blue")
	if err != nil {
		return "", err
	}
	for _, vm := range s.VCenter.VMs() {
		if !vm.Gone && (!slices.Contains(tagged, vm.UUID) || vm.Attributes["cost-center"] != "4711") {
			return fmt.Sprintf("%s lacks its tag or its attribute: it has %v", vm.Name, vm.Attributes), nil
		}
	}
	return "", nil
}

// nodes checks that n Nodes are Ready, and that no other instance is running.
func (s *stage) nodes(n int) scenario.Check { return s.Nodes(n, "vsphere://") }
