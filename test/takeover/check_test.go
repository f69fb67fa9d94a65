// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestCheck makes one mistake after another in what is staged, each of which would make or delete
// machines once the pause ends, and has "check" find it.
func TestCheck(t *testing.T) {
	s := start(t, "check", Pool{Name: "a", Replicas: 2})
	g := NewWithT(t)
	finds := func(why, line string) {
		t.Helper()
		out, errs, code := s.Run("check")
		g.Expect(out).To(MatchRegexp(`Refused +`+line), "%s: %s", why, errs)
		g.Expect(code).To(Equal(1), why)
	}
	passes := func(why string, args ...string) {
		t.Helper()
		out, errs, code := s.Run("check", args...)
		g.Expect(code).To(Equal(0), "%s: %s%s", why, out, errs)
	}
	finds("nothing is staged", `Cluster check +spec.paused +no takeover has paused it`)
	finds("nothing is staged", `MachineDeployment check/check-a +it is not staged`)
	s.staged()
	finds("nobody knows whether the other system runs", `Namespace check-old +it has no Lease and no Deployment`)
	passes("the user says that it does not run", "--stopped")
	old := s.deployment("mcm", "machine-controller-manager:v0.63.0")
	finds("the other system runs", `Deployment mcm +spec.replicas +it runs machine-controller-manager`)
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, old, func() { old.Spec.Replicas = ptr.To[int32](0) }))
	s.Old.Lease(time.Now().Add(-time.Hour))
	passes("it does not run")

	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
	}
	deployment := &clusterv1.MachineDeployment{ObjectMeta: meta("check-a")}
	set := &clusterv1.MachineSet{ObjectMeta: meta("check-a-6d4f5")}
	machine := &clusterv1.Machine{ObjectMeta: meta("check-a-6d4f5-0")}
	vm := &infrav1.DroverMachine{ObjectMeta: meta("check-a-6d4f5-0")}
	account := s.Account()
	const machineLine = `Machine check/check-a-6d4f5-0 +`
	for _, c := range []struct {
		name    string
		object  client.Object
		mistake func()
		line    string
	}{
		{"scaled", deployment, func() { deployment.Spec.Replicas = ptr.To[int32](3) }, `MachineDeployment check/check-a +spec.replicas +it is 3`},
		{"set scaled", set, func() { set.Spec.Replicas = ptr.To[int32](3) }, `MachineSet check/check-a-6d4f5 +spec.replicas +it is 3`},
		{"set outdated", set, func() { set.Spec.Template.Spec.Version = "v1.30.0" },
			`MachineSet check/check-a-6d4f5 +spec.template.spec +it differs`},
		{"set without hash", set, func() { delete(set.Labels, clusterv1.MachineDeploymentUniqueLabel) },
			`MachineSet check/check-a-6d4f5 +metadata.labels`},
		{"set of another", set, func() { set.Labels[clusterv1.MachineDeploymentNameLabel] = "b" },
			`MachineDeployment check/check-a +it must have one MachineSet`},
		{"not of the set", machine, func() { machine.Labels[clusterv1.MachineSetNameLabel] = "b" },
			`MachineSet check/check-a-6d4f5 +it has 1 Machines`},
		{"not selected", machine, func() { delete(machine.Labels, clusterv1.MachineDeploymentUniqueLabel) }, machineLine +
			`metadata.labels +its MachineSet does not select it`},
		{"not held", machine, func() {
			delete(machine.Annotations, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/import")
		}, machineLine + `metadata.annotations`},
		{"another's VM", machine, func() { machine.Spec.ProviderID = "aws:///us-east-1a/i-0" }, machineLine +
			`spec.providerID +it is not the Node's`},
		{"not owned", vm, func() { vm.OwnerReferences = nil }, machineLine + `it does not own`},
		{"orphans deleted", account, func() { account.Spec.OrphanPolicy = infrav1.OrphanPolicyDelete },
			`DroverAccount check +spec.orphanPolicy +it is Delete`},
	} {
		s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(c.object), c.object))
		right := c.object.DeepCopyObject().(client.Object)
		s.Do(scenario.Patch(s.Ctx, s.Rig.Client, c.object, c.mistake))
		finds(c.name, c.line)
		undo := c.object.DeepCopyObject().(client.Object)
		right.SetResourceVersion(c.object.GetResourceVersion())
		s.Do(s.Rig.Client.Patch(s.Ctx, right, client.MergeFrom(undo)))
	}
	passes("all is as it was staged")

	s.AWS.Launch(map[string]string{cloud.TagOwnership: s.ownershipID(), cloud.TagToken: "of-nobody-at-all-0"})
	finds("a VM of nobody", `VM i-[0-9a-f]+ +it has the tags of Cluster check, and no DroverMachine`)
	s.AWS.Vanish(s.Old.vms[0])
	finds("a VM is gone", machineLine+`0 VMs have its token`)
	s.Do(s.Rig.Client.Delete(s.Ctx, machine))
	finds("a Machine is deleted", machineLine+`metadata.deletionTimestamp`)
	s.Do(s.Rig.Client.Delete(s.Ctx, vm))
}

// staged runs "stage".
func (s *Stage) staged() {
	s.Helper()
	if out, errs, code := s.Run("stage"); code != 0 {
		s.Fatal(out, errs)
	}
}

func (s *Stage) ownershipID() string {
	s.Helper()
	c := &infrav1.DroverCluster{}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Tenant.Name}, c))
	return c.Spec.Creation.OwnershipID
}
