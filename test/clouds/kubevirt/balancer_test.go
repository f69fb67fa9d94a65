// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"io"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Nothing forwards connections here: there is no kube-proxy. The API server judges the objects.

func balancerFields(kind corev1.ServiceType, host string) *infrav1.LoadBalancerCloud {
	return &infrav1.LoadBalancerCloud{KubeVirt: &infrav1.KubeVirtLoadBalancer{Type: kind, Host: host}}
}

func clusterIP() *infrav1.LoadBalancerCloud { return balancerFields("ClusterIP", "") }

func balancerRequest(owner string, spec *infrav1.LoadBalancerCloud, targets ...string) cloud.BalancerRequest {
	return cloud.BalancerRequest{Token: newToken(), OwnershipID: owner, Namespace: "team-a", Name: "blue", Port: 6443, Targets: targets,
		Spec: spec}
}

// nameOf returns the name of a load balancer's objects.
func nameOf(req cloud.BalancerRequest) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: "lb-" + req.Token}
}

func ensure(t testing.TB, d cloud.Driver, req cloud.BalancerRequest) cloud.Resource {
	t.Helper()
	made, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return made
}

// describe returns the load balancer by a live read; an empty resource if there is none.
func describe(t testing.TB, d cloud.Driver, req cloud.BalancerRequest) cloud.Resource {
	t.Helper()
	found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(len(found)).To(BeNumerically("<=", 1))
	return append(found, cloud.Resource{})[0]
}

// TestBalancerTypes: each type of Service has its address. One of the type LoadBalancer is pending
// until a controller has given it one.
func TestBalancerTypes(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())

	req := balancerRequest(owner, clusterIP(), "10.64.0.1", "10.64.0.2")
	made := ensure(t, d, req)
	service, slice := &corev1.Service{}, &discoveryv1.EndpointSlice{}
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), service)).To(Succeed())
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), slice)).To(Succeed())
	g.Expect(made.State).To(Equal(cloud.StateRunning))
	g.Expect(made.Balancer.Address).To(Equal(service.Spec.ClusterIP))
	g.Expect(service.Spec.Selector).To(BeEmpty())
	g.Expect(service.Annotations).To(HaveKeyWithValue(cloud.TagMachine, "team-a/blue"))
	g.Expect(slice.Labels).To(HaveKeyWithValue(discoveryv1.LabelServiceName, service.Name))
	g.Expect(*slice.Ports[0].Name).To(Equal(service.Spec.Ports[0].Name))
	g.Expect(slice.OwnerReferences).To(ConsistOf(HaveField("UID", service.UID)))

	req = balancerRequest(owner, balancerFields("NodePort", "nodes.example.com"))
	req.Port = 30443
	made = ensure(t, d, req)
	g.Expect(made.Balancer.Address).To(Equal("nodes.example.com"))
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), service)).To(Succeed())
	g.Expect(service.Spec.Ports[0].NodePort).To(BeEquivalentTo(30443))
	shown := describe(t, d, req)
	g.Expect(shown.Balancer).To(Equal(made.Balancer))
	req.Token, req.Port = newToken(), 6443
	_, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("nodePort")))

	req = balancerRequest(owner, &infrav1.LoadBalancerCloud{
		KubeVirt: &infrav1.KubeVirtLoadBalancer{Annotations: map[string]string{"metallb.io/loadBalancerIPs": "192.0.2.10"}}})
	made = ensure(t, d, req)
	g.Expect(made.State).To(Equal(cloud.StatePending))
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), service)).To(Succeed())
	g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeLoadBalancer))
	g.Expect(service.Annotations).To(HaveKeyWithValue("metallb.io/loadBalancerIPs", "192.0.2.10"))
	for _, ingress := range []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}, {Hostname: "lb.example.com"}} {
		infra.giveAddress(t, nameOf(req), ingress)
		made = describe(t, d, req)
		g.Expect(made.State).To(Equal(cloud.StateRunning))
		g.Expect(made.Balancer.Address).To(Equal(ingress.IP + ingress.Hostname))
	}
}

// giveAddress sets the status of a Service, as a controller of load balancers does.
func (c *cluster) giveAddress(t testing.TB, of client.ObjectKey, ingress corev1.LoadBalancerIngress) {
	t.Helper()
	service := &corev1.Service{}
	NewWithT(t).Expect(c.Admin.Get(t.Context(), of, service)).To(Succeed())
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{ingress}
	NewWithT(t).Expect(c.Admin.Status().Update(t.Context(), service)).To(Succeed())
}

// TestBalancerTargets: a target is healthy while the guest with its address runs and is ready. The
// watch tells a change of the guest, and what others change or delete.
func TestBalancerTargets(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	a := followAccount(t)
	vm := a.make(t, owner)
	until(t, "the guest runs", func() bool { return a.state(vm) == cloud.StateRunning })
	address := a.Observe(vm, true).Instance.Addresses[0].Address
	req := balancerRequest(owner, clusterIP(), address)
	ref := cloud.Reference{Token: req.Token, OwnershipID: owner, Balancer: true}
	target := func(healthy bool) func() bool {
		return func() bool {
			b := a.Observe(ref, req.Recorded).Balancer
			return b != nil && slices.Equal(b.Balancer.Targets, []cloud.BalancerTarget{{Address: address, Healthy: healthy}})
		}
	}
	g.Eventually(func() error { _, err := a.EnsureBalancer(t.Context(), req); return err }, "1m", "100ms").Should(Succeed())
	req.Recorded = true
	until(t, "the target is healthy", target(true))
	halt(t, vm.Token)
	until(t, "the target is not healthy", target(false))

	a.proxy.Reset()
	_, err := a.EnsureBalancer(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.proxy.Calls()).NotTo(ContainElement(HaveField("Verb", Not(Equal("watch")))), "nothing is to be changed")
	slice := &discoveryv1.EndpointSlice{}
	addEndpoint := func() {
		g.Expect(infra.Admin.Get(t.Context(), nameOf(req), slice)).To(Succeed())
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.64.0.99"}})
		g.Expect(infra.Admin.Update(t.Context(), slice)).To(Succeed())
		until(t, "another's endpoint is seen", func() bool { return len(a.Observe(ref, true).Balancer.Balancer.Targets) == 2 })
	}
	addEndpoint()
	made, err := a.EnsureBalancer(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.Balancer.Targets).To(HaveExactElements(HaveField("Address", address)))

	addEndpoint() // what the last call returned is replaced by what the watch has shown
	g.Expect(infra.Admin.Delete(t.Context(), slice)).To(Succeed())
	until(t, "the loss of the EndpointSlice is seen", func() bool { return len(a.Observe(ref, true).Balancer.Balancer.Targets) == 0 })
	_, err = a.EnsureBalancer(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())

	addEndpoint()
	g.Expect(infra.Admin.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: slice.Name}})).To(Succeed())
	g.Eventually(func() cloud.Code { _, err := a.EnsureBalancer(t.Context(), req); return cloud.CodeOf(err) }, "1m",
		"100ms").Should(Equal(cloud.NotFound), "it is lost")

	a.DeleteBalancer(ref, time.Now())
	until(t, "the rest is gone", func() bool { return a.DeleteBalancer(ref, time.Now()).Gone })
	a.Delete(vm, time.Now())
	until(t, "the machine is gone", func() bool { return a.Delete(vm, time.Now()).Gone })
	g.Expect(infra.left(t, owner)).To(BeEmpty())
}

// TestLeftEndpointSlice: an EndpointSlice that no garbage collector deletes is deleted by Drover. A
// Service that waits for its load balancer's controller is deleted once, and stays shown.
func TestLeftEndpointSlice(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, calls := connect(t, account())
	req := balancerRequest(owner, clusterIP(), "10.64.0.1")
	made := ensure(t, d, req)
	slice, service := &discoveryv1.EndpointSlice{}, &corev1.Service{}
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), slice)).To(Succeed())
	slice.OwnerReferences = nil
	g.Expect(infra.Admin.Update(t.Context(), slice)).To(Succeed())
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), service)).To(Succeed())
	service.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	g.Expect(infra.Admin.Update(t.Context(), service)).To(Succeed())

	g.Expect(d.Delete(t.Context(), []cloud.Resource{made})).To(Equal([]error{nil}))
	shown := describe(t, d, req)
	g.Expect(shown.ID).To(Equal(made.ID))
	g.Expect(shown.State).To(Equal(cloud.StatePending))
	g.Expect(d.Delete(t.Context(), []cloud.Resource{shown})).To(Equal([]error{nil}))
	g.Expect(calls.count("DeleteService")).To(Equal(1))
	_, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "it is being deleted: %v", err)
	req.Recorded = true
	_, err = d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), "it is lost: %v", err)
	g.Expect(infra.Admin.Get(t.Context(), nameOf(req), service)).To(Succeed())
	service.Finalizers = nil
	g.Expect(infra.Admin.Update(t.Context(), service)).To(Succeed())

	left := describe(t, d, req)
	g.Expect(left.ID).NotTo(Equal(made.ID))
	g.Expect(d.Delete(t.Context(), []cloud.Resource{left})).To(Equal([]error{nil}))
	g.Expect(describe(t, d, req)).To(Equal(cloud.Resource{}))
	g.Expect(infra.left(t, owner)).To(BeEmpty())
}

// TestForeignService: a Service or an EndpointSlice that only has the name is neither used, changed
// nor deleted. A copy with the labels belongs to nobody.
func TestForeignService(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, _ := connect(t, account())
	foreign := func(o client.Object, req cloud.BalancerRequest) {
		o.SetName(nameOf(req).Name)
		o.SetNamespace(namespace)
		g.Expect(infra.Admin.Create(t.Context(), o)).To(Succeed())
		t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), o) })
		for _, req.Recorded = range []bool{false, true} {
			_, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
		}
		version := o.GetResourceVersion()
		g.Expect(infra.Admin.Get(t.Context(), nameOf(req), o)).To(Succeed())
		g.Expect(o.GetResourceVersion()).To(Equal(version))
	}
	req := balancerRequest(owner, clusterIP(), "10.64.0.1")
	foreign(&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, req)
	_, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: req.OwnershipID}})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "it may be ours, without its labels: %v", err)

	req = balancerRequest(owner, clusterIP(), "10.64.0.1")
	foreign(&discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{}}, req)
	g.Expect(describe(t, d, req).Balancer.Targets).To(BeEmpty())

	req = balancerRequest(owner, clusterIP(), "10.64.0.1")
	made := ensure(t, d, req)
	theirs := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	theirs.Namespace, theirs.Name, theirs.Labels = namespace, "copy-"+req.Token[:8],
		map[string]string{cloud.TagOwnership: "another", cloud.TagToken: req.Token}
	g.Expect(infra.Admin.Create(t.Context(), theirs)).To(Succeed())
	t.Cleanup(func() { _ = infra.Admin.Delete(withoutEnd(t), theirs) })
	g.Expect(describe(t, d, req).ID).To(Equal(made.ID))
	req.OwnershipID = "another"
	_, err = d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
}

// TestBadTargets: what can't be an endpoint is refused before anything is made.
func TestBadTargets(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	d, calls := connect(t, account())
	for _, address := range []string{"", "10.0.0.300", "127.0.0.1", "169.254.0.1", "node.example.com"} {
		_, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), balancerRequest(owner, clusterIP(), address))
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%s: %v", address, err)
	}
	g.Expect(calls.calls).To(BeEmpty())
	_, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), balancerRequest(owner, clusterIP(), "fd00::1"))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "of another family than the Service: %v", err)
}

// TestBalancerCrash: whichever call the process dies at while it makes, changes and deletes a load
// balancer, the next process goes on with it, makes no second one, and leaves nothing.
func TestBalancerCrash(t *testing.T) {
	died := 0
	for at, survived := 1, false; !survived; at++ {
		for _, after := range []bool{false, true} {
			g := NewWithT(t)
			owner := newOwner(t)
			req, deleting := balancerRequest(owner, clusterIP(), "10.64.0.1"), false
			made := map[string]bool{}
			live := func(at int) (ended bool) {
				d, transport := connect(t, account())
				calls, dead := 0, false
				transport.before = func(string) error {
					if calls++; dead || calls == at && !after {
						dead = true
						return io.ErrUnexpectedEOF
					}
					return nil
				}
				transport.after = func(string) error {
					if calls == at {
						dead = true
						return io.ErrUnexpectedEOF
					}
					return nil
				}
				for range 1000 {
					if dead {
						return false
					}
					found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token, OwnershipID: owner}})
					for _, r := range found {
						made[r.ID] = true
					}
					switch {
					case err != nil:
						continue
					case deleting && len(found) == 0:
						return true
					case deleting:
						d.Delete(t.Context(), found)
						continue
					}
					b, err := d.(cloud.Balancer).EnsureBalancer(t.Context(), req)
					if err != nil {
						continue
					}
					made[b.ID] = true
					deleting = req.Recorded && b.State == cloud.StateRunning
					req.Recorded, req.Targets = true, []string{"10.64.0.2"}
				}
				t.Errorf("call %d, after its effect: %t: it does not end", at, after)
				return true
			}
			if survived = live(at); !survived {
				died++
				live(0)
			}
			services := 0
			for id := range made {
				if id[:3] == "ser" {
					services++
				}
			}
			g.Expect(services).To(Equal(1), "call %d, after its effect: %t: %v", at, after, made)
			g.Expect(infra.left(t, owner)).To(BeEmpty(), "call %d, after its effect: %t", at, after)
		}
	}
	t.Logf("the process died at %d points", died)
	if died < 2*20 {
		t.Errorf("the process died at %d points, want %d", died, 2*20)
	}
}

// TestBalancersWithoutRight: a role that may not read Services lists machines all the same, and
// pays one call for it. Its load balancers are refused with the missing permission. The right is
// noticed when it comes.
func TestBalancersWithoutRight(t *testing.T) {
	g := NewWithT(t)
	owner := newOwner(t)
	role := &rbacv1.Role{}
	key := client.ObjectKey{Namespace: namespace, Name: "drover"}
	g.Expect(infra.Admin.Get(t.Context(), key, role)).To(Succeed())
	rules := role.Rules
	set := func(rules []rbacv1.PolicyRule) {
		g.Expect(infra.Admin.Get(withoutEnd(t), key, role)).To(Succeed())
		role.Rules = rules
		g.Expect(infra.Admin.Update(withoutEnd(t), role)).To(Succeed())
	}
	t.Cleanup(func() { set(rules) }) // the other tests need them in any case
	set(slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool {
		return r.Resources[0] == "services" || r.Resources[0] == "endpointslices"
	}))
	d, calls := connect(t, account())
	until(t, "the right is missed", func() bool {
		probe, _ := connect(t, account())
		_, err := probe.(cloud.Balancer).EnsureBalancer(t.Context(), balancerRequest(owner, clusterIP()))
		return cloud.CodeOf(err) == cloud.Unauthorized
	})
	_, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls.count("ListEndpointSlices") + calls.count("ListServices")).To(Equal(1))
	_, err = d.Describe(t.Context(), []cloud.Reference{{Token: "any-token"}})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.(cloud.Balancer).EnsureBalancer(t.Context(), balancerRequest(owner, clusterIP()))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("services")))
	_, err = d.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "one may exist now: %v", err)
	set(rules)
	until(t, "the right is back", func() bool { _, err := d.List(t.Context()); return err == nil })
}
