// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// capa is Cluster API with its provider for AWS.
var capa = ClusterAPI("AWS", "v1beta2", nil)

// installAWS installs the kinds of Cluster API's provider for AWS from its module.
func installAWS(ctx context.Context, c client.Client) error {
	aws, _, err := playground.FindModule(ctx, "hack/tools/cluster-api-provider-aws", "sigs.k8s.io/cluster-api-provider-aws/v2")
	for _, kind := range []string{"awsclusters", "awsmachines", "awsmachinetemplates"} {
		if err == nil {
			err = installFile(ctx, c, capa, filepath.Join(aws, "config/crd/bases/infrastructure.cluster.x-k8s.io_"+kind+".yaml"), "v1beta1")
		}
	}
	return err
}

// uids returns the UIDs of the objects of the old system.
func (o *Old) uids() map[string]string {
	o.Helper()
	all := map[string]string{}
	for _, kind := range o.kinds {
		list := o.list(kind)
		o.Do(o.Rig.Client.List(o.Ctx, list, client.InNamespace(o.namespace)))
		for _, item := range list.Items {
			all[kind+" "+item.GetName()] = fmt.Sprint(item.GetUID(), item.GetDeletionTimestamp())
		}
	}
	return all
}

// TestClusterAPI takes a pool of Cluster API's provider for AWS over, with the command killed after
// each of its writes: there, back, and there again. Cluster API runs all the time. After the way
// back, the old Cluster goes on; after the commit, it has no pool, and makes no machine.
func TestClusterAPI(t *testing.T) {
	s := startEmpty(t, capa, "capi", provided)
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	s.Old.AddCluster()
	s.Old.AddCAPI(Pool{Name: "a", Replicas: 2})
	plane, _ := s.AWS.Launch(map[string]string{"Name": "control-plane", s.Old.Role: "owned"})
	refuses := func(step, why string) {
		t.Helper()
		out, errs, code := s.Run(step)
		g.Expect(out + errs).To(MatchRegexp(why))
		g.Expect(code).To(Equal(1))
	}
	refuses("plan", `Refused +Cluster old +spec.paused +it is not paused`)
	refuses("stage", `Refused +Cluster old +spec.paused`)
	g.Expect(s.Count(&clusterv1.MachineDeploymentList{})).To(Equal(0))
	uids := s.Old.uids()
	s.Old.Pause(true)
	before, began := s.Picture(), s.AWS.Calls()

	out, errs, code := s.Run("plan")
	g.Expect(code).To(Equal(0), out+errs)
	g.Expect(s.Picture()).To(Equal(before), "a plan changes nothing")
	s.Done("stage")
	s.Done("switch")
	s.Still(before, 2)
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before))
	s.Old.Pause(false)
	g.Expect(s.Old.uids()).To(Equal(uids), "the old Cluster goes on")
	s.Old.Pause(true)
	before = s.Picture() // the pause has changed versions

	s.Done("stage")
	s.Old.Pause(false)
	refuses("check", `Refused +Cluster old +spec.paused`)
	refuses("switch", `Refused +Cluster old +spec.paused`)
	s.Old.Pause(true)
	before.Old = s.Old.versions()
	s.Done("switch")
	s.Still(before, 2)
	s.servingCertificate(slices.Sorted(maps.Keys(before.Nodes))[0])
	s.Old.Pause(false)
	refuses("commit", `Cluster old: it is not paused`)
	s.Old.Pause(true)
	stray := s.Old.stray()
	refuses("commit", `the old Machine stray of MachineSet capi-a-[a-z0-9]+ is not staged`)
	s.Old.eraseStray(stray)
	s.Done("commit")
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(s.AWS.Calls()[op]).To(Equal(began[op]), op)
	}
	s.Committed(before)
	g.Expect(s.AWS.Books()).To(ContainElement(And(
		HaveField("ID", plane), HaveField("State", "running"),
		HaveField("Tags", Equal(map[string]string{"Name": "control-plane", s.Old.Role: "owned"})),
	)), "the control plane stays the provider's")
	s.AWS.Vanish(plane)
	checks := &clusterv1.MachineHealthCheckList{}
	s.Do(s.Rig.Client.List(s.Ctx, checks, client.InNamespace(s.Namespace)))
	g.Expect(checks.Items).To(HaveLen(1))
	g.Expect(checks.Items[0].Spec.Checks.UnhealthyNodeConditions).To(ConsistOf(HaveField("TimeoutSeconds", HaveValue(BeEquivalentTo(3600)))))
	out, _, _ = s.Run("status")
	g.Expect(out).To(HaveSuffix("it is complete\n"))

	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.Old.namespace, Name: oldCluster}}
	s.Old.Pause(false)
	s.Do(s.Rig.Client.Delete(s.Ctx, cluster))
	s.Until("the old Cluster is gone", func(ctx context.Context) (string, error) {
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
	g.Expect(s.Old.versions()).To(BeEmpty(), "it has made no machine")
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "capi-a"}}
	scale := func(n int32) {
		t.Helper()
		s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(d), d))
		s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To(n) }))
	}
	scale(3)
	s.Until("a new machine is available", func(ctx context.Context) (string, error) {
		err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(d), d)
		if n := ptr.Deref(d.Status.AvailableReplicas, 0); n != 3 {
			return fmt.Sprintf("%d are available", n), err
		}
		return "", err
	})
	g.Expect(s.AWS.Calls()["TerminateInstances"]).To(Equal(began["TerminateInstances"]))
	scale(0)
	s.Empty()
}

// stray makes a Machine of the pool that the plan does not know.
func (o *Old) stray() *clusterv1.Machine {
	o.Helper()
	sets := &clusterv1.MachineSetList{}
	o.Do(o.Rig.Client.List(o.Ctx, sets, client.InNamespace(o.namespace)))
	set := &sets.Items[0]
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: "stray", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set,
				clusterv1.GroupVersion.WithKind("MachineSet"))},
		},
		Spec: *set.Spec.Template.Spec.DeepCopy(),
	}
	m.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To("stray")}
	m.Spec.InfrastructureRef.Kind, m.Spec.InfrastructureRef.Name = "AWSMachine", "stray"
	o.Do(o.Rig.Client.Create(o.Ctx, m))
	o.Until("the pause of the stray Machine is seen", func(ctx context.Context) (string, error) {
		err := o.Rig.Client.Get(ctx, client.ObjectKeyFromObject(m), m)
		return map[bool]string{false: "it is not"}[conditions.IsTrue(m, clusterv1.PausedCondition)], err
	})
	return m
}

func (o *Old) eraseStray(m *clusterv1.Machine) {
	o.Helper()
	o.Do(o.Rig.Client.Delete(o.Ctx, m))
	o.Until("the stray Machine is gone", func(ctx context.Context) (string, error) {
		err := o.Rig.Client.Get(ctx, client.ObjectKeyFromObject(m), m)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err == nil {
			err = scenario.Patch(ctx, o.Rig.Client, m, func() { m.Finalizers = nil })
		}
		return "it is there", client.IgnoreNotFound(err)
	})
}
