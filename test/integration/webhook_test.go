// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// TestAdmissionRefuses tests that invalid objects are refused on creation, with the field and the
// remedy. Users can't tell whether the CRD or the webhook refuses.
func TestAdmissionRefuses(t *testing.T) {
	s := newTenant(t)
	machine := func(edit func(*infrav1.DroverMachineFields)) *infrav1.DroverMachine {
		fields := infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "prod"},
			Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{}}}
		edit(&fields)
		return &infrav1.DroverMachine{ObjectMeta: s.meta("x"), Spec: infrav1.DroverMachineSpec{DroverMachineFields: fields}}
	}
	openStack := func(edit func(*infrav1.OpenStackMachine)) *infrav1.DroverMachine {
		return machine(func(f *infrav1.DroverMachineFields) {
			f.Cloud.Simulated = nil
			f.Cloud.OpenStack = &infrav1.OpenStackMachine{Flavor: "small", Image: infrav1.OpenStackImage{Name: "node"},
				RootVolume: infrav1.OpenStackVolume{SizeGiB: 9},
				Volumes:    []infrav1.OpenStackVolume{{SizeGiB: 1}}}
			edit(f.Cloud.OpenStack)
		})
	}
	account := func(edit func(*infrav1.DroverAccountSpec)) *infrav1.DroverAccount {
		a := s.Account()
		edit(&a.Spec)
		return a
	}
	tests := map[string]struct {
		object client.Object
		want   string
	}{
		"machine without a cloud": {machine(func(f *infrav1.DroverMachineFields) { f.Cloud.Simulated = nil }), "spec.cloud: Required value"},
		"machine without account": {machine(func(f *infrav1.DroverMachineFields) { f.AccountRef.Name = "" }), "spec.accountRef: Required value"},
		"account by path":         {machine(func(f *infrav1.DroverMachineFields) { f.AccountRef.Name = "other/prod" }), "spec.accountRef.name"},
		"negative disk": {machine(func(f *infrav1.DroverMachineFields) { f.Cloud.Simulated.DiskGiB = -1 }),
			"spec.cloud.simulated.diskGiB"},
		"negative data disk": {machine(func(f *infrav1.DroverMachineFields) {
			f.Cloud.Simulated.DataDisks = []infrav1.SimulatedDataDisk{{SizeGiB: -1}}
		}), "spec.cloud.simulated.dataDisks[0].sizeGiB"},
		"volume's zone without ports": {openStack(func(m *infrav1.OpenStackMachine) { m.Volumes[0].AvailabilityZone = "nova" }), "needs ports"},
		"root's zone without ports": {openStack(func(m *infrav1.OpenStackMachine) { m.RootVolume.InMachineZone = infrav1.FeatureEnabled }),
			"needs ports"},
		"volume's zone twice": {openStack(func(m *infrav1.OpenStackMachine) {
			m.Volumes[0] = infrav1.OpenStackVolume{SizeGiB: 1, AvailabilityZone: "nova", InMachineZone: infrav1.FeatureEnabled}
		}), "availabilityZone and inMachineZone exclude each other"},
		"account without a cloud": {account(func(a *infrav1.DroverAccountSpec) { a.Cloud.Simulated = nil }), "spec.cloud: Required value"},
		"own endpoint, no own Secret": {account(func(a *infrav1.DroverAccountSpec) { a.CredentialsRef = infrav1.LocalReference{} }),
			"spec.cloud.simulated.endpoint"},
		"negative rate": {account(func(a *infrav1.DroverAccountSpec) {
			a.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "-1", Burst: 1}}
		}), "spec.rateLimits.create.perSecond"},
		"endpoint of somebody else's beside one of Drover's": {&infrav1.DroverCluster{ObjectMeta: s.meta("x"), Spec: infrav1.DroverClusterSpec{
			DroverClusterFields: infrav1.DroverClusterFields{
				Endpoint: infrav1.Endpoint{LoadBalancer: infrav1.LoadBalancer{AccountRef: infrav1.LocalReference{Name: "prod"}}}},
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "a", Port: 443},
		}}, "Drover sets it"},
		"endpoint with scheme": {&infrav1.DroverCluster{ObjectMeta: s.meta("x"), Spec: infrav1.DroverClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "https://a", Port: 443},
		}}, "spec.controlPlaneEndpoint.host: Invalid value"},
		"endpoint without port": {&infrav1.DroverCluster{ObjectMeta: s.meta("x"), Spec: infrav1.DroverClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "a"},
		}}, "spec.controlPlaneEndpoint.port: Required value"},
		"adopted endpoint": {&controlplanev1.AdoptedControlPlane{ObjectMeta: s.meta("x"), Spec: controlplanev1.AdoptedControlPlaneSpec{
			KubeconfigRef:        controlplanev1.KubeconfigReference{Name: "a"},
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "a:6443", Port: 6443},
		}}, "spec.controlPlaneEndpoint.host"},
		"adopted version": {&controlplanev1.AdoptedControlPlane{ObjectMeta: s.meta("x"), Spec: controlplanev1.AdoptedControlPlaneSpec{
			KubeconfigRef: controlplanev1.KubeconfigReference{Name: "a"}, Version: "1.36",
		}}, "spec.version"},
		"template without a cloud": {&infrav1.DroverMachineTemplate{ObjectMeta: s.meta("x"), Spec: infrav1.DroverMachineTemplateSpec{
			Template: infrav1.DroverMachineTemplateResource{Spec: infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "prod"}}},
		}}, "spec.template.spec.cloud: Required value"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(env.client.Create(t.Context(), test.object)).To(MatchError(ContainSubstring(test.want)))
		})
	}
	s.create(openStack(func(m *infrav1.OpenStackMachine) {
		m.Ports, m.RootVolume.InMachineZone, m.Volumes[0].AvailabilityZone = []infrav1.OpenStackPort{{Network: "nodes"}},
			infrav1.FeatureEnabled, "nova"
	}))
}

// TestTemplatesAreImmutable tests that templates can't be changed, except in the dry run by which
// Cluster API checks whether a ClusterClass changed them.
func TestTemplatesAreImmutable(t *testing.T) {
	s := newTenant(t)
	machines := template(s, "small", infrav1.SimulatedMachine{})
	clusters := &infrav1.DroverClusterTemplate{ObjectMeta: s.meta("clusters")}
	controlPlanes := &controlplanev1.AdoptedControlPlaneTemplate{ObjectMeta: s.meta("control-planes"),
		Spec: controlplanev1.AdoptedControlPlaneTemplateSpec{
			Template: controlplanev1.AdoptedControlPlaneTemplateResource{Spec: controlplanev1.AdoptedControlPlaneSpec{
				KubeconfigRef: controlplanev1.KubeconfigReference{Name: "admin"},
			}},
		}}
	s.create(machines, clusters, controlPlanes)

	// The test uses patches, because the templates' controller may write their status at any time.
	try := func(o client.Object, change func(), options ...client.PatchOption) error {
		before := o.DeepCopyObject().(client.Object)
		change()
		return env.client.Patch(s.ctx, o, client.MergeFrom(before), options...)
	}
	tryMachines := func(annotations map[string]string, options ...client.PatchOption) error {
		m := read(s, machines.DeepCopy())
		return try(m, func() { m.Spec.Template.Spec.Cloud.Simulated.DiskGiB, m.Annotations = 99, annotations }, options...)
	}
	dry := map[string]string{clusterv1.TopologyDryRunAnnotation: ""}
	refused := MatchError(ContainSubstring("a template is immutable"))
	s.Expect(tryMachines(nil)).To(refused)
	s.Expect(tryMachines(nil, client.DryRunAll)).To(refused)
	c := read(s, clusters.DeepCopy())
	s.Expect(try(c, func() {
		c.Spec.Template.Spec.AccountRefs = []infrav1.LocalReference{{Name: "other"}}
	})).To(refused)
	for _, change := range []func(*controlplanev1.AdoptedControlPlaneTemplateResource){
		func(r *controlplanev1.AdoptedControlPlaneTemplateResource) { r.Spec.KubeconfigRef.Name = "other" },
		func(r *controlplanev1.AdoptedControlPlaneTemplateResource) { r.Spec.KubeconfigRef.Key = "config" },
		func(r *controlplanev1.AdoptedControlPlaneTemplateResource) {
			r.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
		},
		func(r *controlplanev1.AdoptedControlPlaneTemplateResource) {
			r.ObjectMeta.Labels = map[string]string{"team": "a"}
		},
	} {
		for _, options := range [][]client.PatchOption{nil, {client.DryRunAll}} {
			p := read(s, controlPlanes.DeepCopy())
			s.Expect(try(p, func() { change(&p.Spec.Template) }, options...)).To(refused)
		}
		p := read(s, controlPlanes.DeepCopy())
		s.Expect(try(p, func() { change(&p.Spec.Template); p.Annotations = dry }, client.DryRunAll)).To(Succeed())
	}
	update(s, controlPlanes, func(p *controlplanev1.AdoptedControlPlaneTemplate) { p.Labels = map[string]string{"team": "a"} })
	s.Expect(tryMachines(dry, client.DryRunAll)).To(Succeed())
	s.Expect(tryMachines(dry)).To(refused, "the annotation alone opens nothing")

	update(s, machines, func(m *infrav1.DroverMachineTemplate) { m.Labels = map[string]string{"team": "a"} })
	s.Expect(read(s, machines).Spec.Template.Spec.Cloud.Simulated.DiskGiB).To(BeZero(), "no default is in the object")
}

// TestAccountKeepsItsRegion tests that the region of an account can't be changed.
func TestAccountKeepsItsRegion(t *testing.T) {
	s := newTenant(t)
	account := s.Account()
	s.create(account)
	s.refusesChange(account, func() { account.Spec.Cloud.Simulated.Region = "sim-2" }, "region can't be changed")

	project := &infrav1.DroverAccount{ObjectMeta: s.meta("project"), Spec: infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "none"},
		Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{AuthURL: "https://keystone.example.test/v3", ProjectID: "p",
			RegionalProviderIDs: infrav1.FeatureEnabled}},
	}}
	s.Expect(env.client.Create(s.ctx, project)).To(MatchError(ContainSubstring("regionalProviderIDs needs a region")))
	project.Spec.Cloud.OpenStack.Region = "RegionOne"
	s.create(project)
	s.refusesChange(project, func() { project.Spec.Cloud.OpenStack.Region = "RegionTwo" }, "region can't be changed")
	moved := &infrav1.DroverAccount{ObjectMeta: s.meta("moved"), Spec: project.Spec}
	moved.Spec.Place = "openstack:p" // a move or a restore creates the object as it was
	s.create(moved)
	s.refusesChange(moved, func() { moved.Spec.Place = "openstack:elsewhere" }, "place is set once")
	s.refusesChange(project, func() { project.Spec.Cloud.OpenStack.RegionalProviderIDs = infrav1.FeatureDisabled },
		"regionalProviderIDs can't be changed")
}

// TestMachineIsImmutable tests that the cloud fields and the accountRef of a machine can't be
// changed.
func TestMachineIsImmutable(t *testing.T) {
	s := newTenant(t)
	machine := &infrav1.DroverMachine{ObjectMeta: s.meta("m"),
		Spec: infrav1.DroverMachineSpec{DroverMachineFields: infrav1.DroverMachineFields{
			AccountRef: infrav1.LocalReference{Name: "prod"}, Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{}},
		}}}
	s.create(machine)
	for want, change := range map[string]func(*infrav1.DroverMachine){
		"cloud can't be changed":      func(m *infrav1.DroverMachine) { m.Spec.Cloud.Simulated.DiskGiB = 99 },
		"accountRef can't be changed": func(m *infrav1.DroverMachine) { m.Spec.AccountRef.Name = "other" },
	} {
		s.refusesChange(machine, func() { change(machine) }, want)
	}
	update(s, machine, func(m *infrav1.DroverMachine) {
		m.Spec.Creation = infrav1.DroverMachineCreation{Token: "0123456789abcdef01234567", FailureDomain: "sim-1a", Attempt: 2}
	})
	s.refusesChange(machine, func() { machine.Spec.Creation.Token = "0123456789abcdef0123456f" }, "creation.token is set once")
	s.refusesChange(machine, func() { machine.Spec.Creation = infrav1.DroverMachineCreation{} }, "creation.token is set once")
	s.refusesChange(machine, func() { machine.Spec.Creation.Attempt = 1 }, "creation.attempt never falls")
	s.refusesChange(machine, func() { machine.Spec.Creation.Attempt = 0 }, "creation.attempt never falls")
	update(s, machine, func(m *infrav1.DroverMachine) { m.Spec.Creation.FailureDomain, m.Spec.Creation.Attempt = "sim-1b", 3 })
	update(s, machine, func(m *infrav1.DroverMachine) { m.Spec.ProviderID = "simulated:///sim-1a/i-1" })
	s.refusesChange(machine, func() { machine.Spec.Creation.Attempt = 4 }, "creation can't be changed once the VM is made")
	s.refusesChange(machine, func() { machine.Spec.ProviderID = "simulated:///sim-1a/i-2" }, "providerID is set once")
}

// TestCopyIsRefused tests that a copy of a DroverMachine is refused, because it would claim the
// original's VM. The API server itself selects by creation token.
func TestCopyIsRefused(t *testing.T) {
	s := newTenant(t)
	machine := func(name string, change func(*infrav1.DroverMachineSpec)) *infrav1.DroverMachine {
		m := &infrav1.DroverMachine{ObjectMeta: s.meta(name), Spec: infrav1.DroverMachineSpec{DroverMachineFields: infrav1.DroverMachineFields{
			AccountRef: infrav1.LocalReference{Name: "prod"}, Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{}},
		}}}
		change(&m.Spec)
		return m
	}
	s.create(machine("original", func(spec *infrav1.DroverMachineSpec) {
		spec.Creation.Token, spec.ProviderID = "0123456789abcdef01234567", "simulated:///sim-1a/i-1"
	}))
	err := env.client.Create(s.ctx, machine("copy",
		func(spec *infrav1.DroverMachineSpec) { spec.Creation.Token = "0123456789abcdef01234567" }))
	s.Expect(err).To(MatchError(ContainSubstring("spec.creation.token")))
	err = env.client.Create(s.ctx, machine("copy", func(spec *infrav1.DroverMachineSpec) { spec.ProviderID = "simulated:///sim-1a/i-1" }))
	s.Expect(err).To(MatchError(ContainSubstring("spec.providerID")))
	s.create(machine("other", func(spec *infrav1.DroverMachineSpec) { spec.Creation.Token = "0123456789abcdef01234568" }))
}

// TestTokenOfAnother tests that a tenant who writes the token of another tenant's machine into an
// object of their own, when it is created or while it is being deleted, blocks no import of the
// other.
func TestTokenOfAnother(t *testing.T) {
	s := newTenant(t)
	attacker := s.Namespace + "-attacker"
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: attacker}})
	fields := infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "prod"},
		Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{}}}
	theirs := func(name, token string) *infrav1.DroverMachine {
		m := &infrav1.DroverMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: attacker, Name: name, Finalizers: []string{"example.com/keep"}},
			Spec:       infrav1.DroverMachineSpec{DroverMachineFields: fields, Creation: infrav1.DroverMachineCreation{Token: token}},
		}
		s.create(m)
		t.Cleanup(func() {
			release := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			s.Expect(env.client.Patch(context.WithoutCancel(s.ctx), m, release)).To(Succeed())
		})
		return m
	}
	tokens := []string{"0123abcd-i-0a1b2c3d4e5f", "0123abcd-i-0a1b2c3d4e60"}
	theirs("created", tokens[0])
	deleted := theirs("deleted", "")
	s.Expect(env.client.Delete(s.ctx, deleted)).To(Succeed())
	token := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"creation":{"token":"`+tokens[1]+`"}}}`))
	_ = env.client.Patch(s.ctx, deleted, token) // whether it is refused does not matter
	for i, token := range tokens {
		s.create(&infrav1.DroverMachine{ObjectMeta: s.meta(fmt.Sprint("imported-", i)), Spec: infrav1.DroverMachineSpec{
			DroverMachineFields: fields, ProviderID: fmt.Sprint("simulated:///sim-1a/i-", i), Creation: infrav1.DroverMachineCreation{Token: token},
		}})
	}
}
