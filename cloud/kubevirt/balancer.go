// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// A load balancer is a Service without a selector and one EndpointSlice, which belongs to it. Both
// are named after the token, so that the API server itself ensures that there is only one of each.
// Kubernetes forwards connections to each endpoint that the slice calls ready, and does not check
// it. So a target counts as healthy while KubeVirt reports its guest as running and ready: that
// says nothing about the API server in it, unless the VM has a readiness probe.

const (
	// annotationHost holds the host of a Service of the type NodePort, which has no address.
	annotationHost = "drover-host"
	// portName is the name of the only port. That of the Service and that of its endpoints must be
	// the same.
	portName = "https"
)

var (
	createService = operation{"CreateService", cloud.ClassCreate, http.MethodPost, wholeObject, services.kind}
	getService    = operation{"GetService", cloud.ClassRead, http.MethodGet, wholeObject, services.kind}
	createSlice   = operation{"CreateEndpointSlice", cloud.ClassDelete, http.MethodPost, wholeObject, endpointSlices.kind}
	patchSlice    = operation{"PatchEndpointSlice", cloud.ClassDelete, http.MethodPatch, wholeObject, endpointSlices.kind}
)

// balancers are the load balancers that the driver knows, as last seen; nil: one may exist, and was
// not seen yet.
type balancers struct {
	driverkit.Known[*cloud.BalancerState]
}

// put records a load balancer. If is has no value, what was seen before stays.
func (b *balancers) put(token string, is *cloud.BalancerState) {
	b.Change(token, func(before *cloud.BalancerState, _ bool) (*cloud.BalancerState, bool) {
		return cmp.Or(is, before), true
	})
}

// saw records the load balancers among the resources, which it returns.
func (b *balancers) saw(resources []cloud.Resource) []cloud.Resource {
	for _, r := range resources {
		if r.Balancer != nil {
			b.put(r.Token, r.Balancer)
		}
	}
	return resources
}

// balancerName returns the name of a load balancer's Service and EndpointSlice. A Service's name
// must begin with a letter, and a token need not.
func balancerName(token string) string { return "lb-" + token }

// EnsureBalancer implements cloud.Balancer.
func (d *driver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	if err := checkBalancer(req); err != nil {
		return cloud.Resource{}, err
	}
	if err := d.place.check(); err != nil {
		return cloud.Resource{}, err
	}
	d.balancers.put(req.Token, nil)
	service, made, err := d.ensureService(ctx, req)
	if err != nil {
		return cloud.Resource{}, err
	}
	slice, err := d.setTargets(ctx, req, service, made)
	if err != nil {
		return cloud.Resource{}, err
	}
	r := balancer(service, []discoveryv1.EndpointSlice{*slice}, nil)
	if before, _ := d.balancers.Get(req.Token); before != nil {
		for i, t := range r.Balancer.Targets {
			r.Balancer.Targets[i].Healthy = slices.Contains(before.Targets, cloud.BalancerTarget{Address: t.Address, Healthy: true})
		}
	}
	d.balancers.put(req.Token, r.Balancer)
	return r, nil
}

// checkBalancer refuses, before anything is created, what can't be a name, a label value or an
// endpoint.
func checkBalancer(req cloud.BalancerRequest) error {
	if len(validation.IsDNS1035Label(balancerName(req.Token))) > 0 || len(validation.IsValidLabelValue(req.OwnershipID)) > 0 ||
		req.OwnershipID == "" {
		return cloud.Invalid("spec.creation.loadBalancerToken must be a DNS label of at most 60 characters, and the ownership ID a label value")
	}
	for _, address := range req.Targets {
		if ip, err := netip.ParseAddr(address); err != nil || !ip.IsGlobalUnicast() {
			return cloud.Errorf(cloud.InvalidSpec, "a machine's address %q can't be an endpoint", cloud.Clip(address, 64))
		}
	}
	return nil
}

// ensureService returns the Service, and whether this call has made it.
func (d *driver) ensureService(ctx context.Context, req cloud.BalancerRequest) (*corev1.Service, bool, error) {
	var service corev1.Service
	if !req.Recorded {
		err := d.call(ctx, createService, d.path(services, ""), strict(), newService(req, d.namespace), &service)
		if err == nil {
			return &service, true, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, false, err
		}
	}
	err := d.call(ctx, getService, d.path(services, balancerName(req.Token)), nil, nil, &service)
	isGone := req.Recorded && err == nil && !service.DeletionTimestamp.IsZero() // or about to be
	switch {
	case req.Recorded && cloud.CodeOf(err) == cloud.NotFound, isGone:
		d.balancers.Forget(req.Token)
		return nil, false, cloud.Errorf(cloud.NotFound, "Service %q in namespace %q does not exist any more", balancerName(req.Token),
			d.namespace)
	case err != nil:
		return nil, false, err
	case !has(&service.ObjectMeta, req):
		return nil, false, cloud.Errorf(cloud.Conflict, "Service %q in namespace %q does not belong to this cluster", service.Name, d.namespace)
	case !service.DeletionTimestamp.IsZero():
		return nil, false, cloud.Errorf(cloud.Conflict, "Service %q in namespace %q is being deleted", service.Name, d.namespace)
	}
	return &service, false, nil
}

func has(m *metav1.ObjectMeta, req cloud.BalancerRequest) bool {
	return m.UID != "" && m.Labels[cloud.TagToken] == req.Token && m.Labels[cloud.TagOwnership] == req.OwnershipID
}

// setTargets makes the EndpointSlice, or writes the targets into it. made is true if the Service
// was made just now, and has none.
func (d *driver) setTargets(ctx context.Context, req cloud.BalancerRequest, service *corev1.Service,
	made bool) (*discoveryv1.EndpointSlice, error) {
	want, err := newSlice(req, service)
	if err != nil {
		return nil, err
	}
	steps, err := patchOf(req.Token, req.OwnershipID, patchStep{"replace", "/endpoints", want.Endpoints},
		patchStep{"replace", "/ports", want.Ports})
	if err != nil {
		return nil, err
	}
	var now discoveryv1.EndpointSlice
	create := func() error { return d.call(ctx, createSlice, d.path(endpointSlices, ""), strict(), want, &now) }
	change := func() error { return d.call(ctx, patchSlice, d.path(endpointSlices, want.Name), nil, steps, &now) }
	if made {
		if err = create(); apierrors.IsAlreadyExists(err) {
			err = change()
		}
	} else if err = change(); cloud.CodeOf(err) == cloud.NotFound {
		err = create()
	}
	if apierrors.IsInvalid(err) {
		return nil, cloud.Errorf(cloud.Conflict, "EndpointSlice %q in namespace %q does not belong to this cluster", want.Name, d.namespace)
	}
	return &now, err
}

// metaOfBalancer returns what the metadata of Service and EndpointSlice have in common.
func metaOfBalancer(req cloud.BalancerRequest, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: balancerName(req.Token), Namespace: namespace,
		Labels:      map[string]string{cloud.TagOwnership: req.OwnershipID, cloud.TagToken: req.Token},
		Annotations: map[string]string{cloud.TagMachine: req.Namespace + "/" + req.Name},
	}
}

func newService(req cloud.BalancerRequest, namespace string) *corev1.Service {
	var spec infrav1.KubeVirtLoadBalancer
	if req.Spec != nil && req.Spec.KubeVirt != nil {
		spec = *req.Spec.KubeVirt
	}
	service := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: services.kind}, ObjectMeta: metaOfBalancer(req, namespace),
		Spec: corev1.ServiceSpec{
			Type:  cmp.Or(spec.Type, corev1.ServiceTypeLoadBalancer),
			Ports: []corev1.ServicePort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: req.Port, TargetPort: intstr.FromInt32(req.Port)}},
		},
	}
	own := service.Annotations
	if service.Spec.Type == corev1.ServiceTypeNodePort {
		service.Spec.Ports[0].NodePort = req.Port
		own[annotationHost] = spec.Host
	}
	service.Annotations = map[string]string{}
	maps.Copy(service.Annotations, spec.Annotations)
	maps.Copy(service.Annotations, own)
	return service
}

// newSlice returns the EndpointSlice of a Service, whose IP family the API server has chosen. The
// garbage collector deletes the slice after the Service.
func newSlice(req cloud.BalancerRequest, service *corev1.Service) (*discoveryv1.EndpointSlice, error) {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: endpointSlices.kind},
		ObjectMeta:  metaOfBalancer(req, service.Namespace),
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To(portName), Protocol: ptr.To(corev1.ProtocolTCP), Port: &req.Port}},
	}
	slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = service.Name, "drover"
	slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: services.kind, Name: service.Name, UID: service.UID}}
	if len(service.Spec.IPFamilies) > 0 && service.Spec.IPFamilies[0] == corev1.IPv6Protocol {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, address := range req.Targets {
		if strings.Contains(address, ":") != (slice.AddressType == discoveryv1.AddressTypeIPv6) {
			return nil, cloud.Errorf(cloud.InvalidSpec, "a machine's address %q can't be an endpoint of Service %q, which is of %s", address,
				service.Name, slice.AddressType)
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	return slice, nil
}

// checkLabels returns Conflict if a load balancer was not found by its labels, and its Service
// exists: it has lost them, and is not gone.
func (d *driver) checkLabels(ctx context.Context, token string, found *objects) error {
	name := balancerName(token)
	if slices.ContainsFunc(found.services, func(s corev1.Service) bool { return s.Name == name }) {
		return nil
	}
	var service corev1.Service
	err := d.call(ctx, getService, d.path(services, name), nil, nil, &service)
	switch {
	case isAbsent(err, name):
		return nil
	case err != nil:
		return err
	case service.Labels[cloud.TagToken] == token && service.Labels[cloud.TagOwnership] != "": // it was made just now
		return nil
	}
	return cloud.Errorf(cloud.Conflict, "Service %q in namespace %q exists without its labels %s and %s: set them again, or delete it", name,
		d.namespace, cloud.TagToken, cloud.TagOwnership)
}

// readBalancers adds the Services and EndpointSlices that the selector matches. Where it may not
// read them there are none, as the role that creates them may: unless the driver knows of one, or
// the creation of one was recorded.
func (d *driver) readBalancers(ctx context.Context, selector string, recorded bool, o *objects) (v versions, err error) {
	o.slices, v.slices, err = list[discoveryv1.EndpointSlice](ctx, d, endpointSlices, wholeObject, selector, pruneSlice)
	if err == nil {
		o.services, v.services, err = list[corev1.Service](ctx, d, services, wholeObject, selector, pruneService)
	}
	if isForbidden(err) && d.balancers.IsEmpty() && !recorded {
		o.services, o.slices = nil, nil
		return versions{}, nil
	}
	return v, err
}

// mayReadBalancers reports whether the role may read load balancers.
func (d *driver) mayReadBalancers(ctx context.Context) (bool, error) {
	v, err := d.readBalancers(ctx, ofDrover, false, &objects{})
	return v.services != "", err
}

// ofOwners selects every object of the clusters that the slices are of.
func ofOwners(all []discoveryv1.EndpointSlice) string {
	var owners []string
	for i := range all {
		owners = append(owners, all[i].Labels[cloud.TagOwnership])
	}
	return cloud.TagOwnership + " in (" + strings.Join(owners, ",") + ")," + cloud.TagToken
}

// balancers groups Services and EndpointSlices into load balancers.
func (o *objects) balancers() (all []cloud.Resource) {
	of := map[string][]discoveryv1.EndpointSlice{}
	for i := range o.slices {
		if s := &o.slices[i]; s.Name == balancerName(s.Labels[cloud.TagToken]) {
			of[s.Name] = append(of[s.Name], *s)
		}
	}
	for i := range o.services {
		if s := &o.services[i]; s.Name == balancerName(s.Labels[cloud.TagToken]) {
			all = append(all, balancer(s, of[s.Name], o.guests))
			delete(of, s.Name)
		}
	}
	for _, left := range of { // its Service is gone
		r := cloud.Resource{
			Kind: cloud.KindBalancer, ID: sliceID + string(left[0].UID), Token: left[0].Labels[cloud.TagToken],
			OwnershipID: left[0].Labels[cloud.TagOwnership],
			CreatedAt:   left[0].CreationTimestamp.Time, State: cloud.StatePending, Reason: "there is no Service, only its EndpointSlice",
			Balancer: &cloud.BalancerState{},
		}
		all = append(all, r)
	}
	return all
}

// balancer returns a Service as a load balancer. It is pending until it has an address.
func balancer(s *corev1.Service, of []discoveryv1.EndpointSlice, guests []kubevirtv1.VirtualMachineInstance) cloud.Resource {
	r := cloud.Resource{
		Kind: cloud.KindBalancer, ID: serviceID + string(s.UID), Token: s.Labels[cloud.TagToken], OwnershipID: s.Labels[cloud.TagOwnership],
		CreatedAt: s.CreationTimestamp.Time, State: cloud.StateRunning, Balancer: &cloud.BalancerState{Address: addressOf(s)},
	}
	for _, port := range s.Spec.Ports {
		r.Balancer.Port = port.Port
	}
	switch {
	case !s.DeletionTimestamp.IsZero():
		r.State, r.Reason = cloud.StatePending, beingDeleted
	case r.Balancer.Address == "":
		r.State, r.Reason = cloud.StatePending, "the Service has no address yet: a controller of load balancers must give it one"
	}
	for i := range of {
		for _, e := range of[i].Endpoints {
			for _, address := range e.Addresses {
				isHealthy := slices.ContainsFunc(guests, func(vmi kubevirtv1.VirtualMachineInstance) bool { return serves(&vmi, address) })
				r.Balancer.Targets = append(r.Balancer.Targets, cloud.BalancerTarget{Address: address, Healthy: isHealthy})
			}
		}
	}
	slices.SortFunc(r.Balancer.Targets, func(a, b cloud.BalancerTarget) int { return strings.Compare(a.Address, b.Address) })
	return r
}

// addressOf returns the address for the clients of a Service, or "".
func addressOf(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, i := range s.Status.LoadBalancer.Ingress {
			if address := cmp.Or(i.IP, i.Hostname); address != "" {
				return address
			}
		}
		return ""
	case corev1.ServiceTypeNodePort:
		return s.Annotations[annotationHost]
	}
	return s.Spec.ClusterIP
}

// serves reports whether a guest has the address, runs, and is ready.
func serves(vmi *kubevirtv1.VirtualMachineInstance, address string) bool {
	if vmi.Status.Phase != kubevirtv1.Running || !vmi.DeletionTimestamp.IsZero() ||
		isTrue(vmi, kubevirtv1.VirtualMachineInstanceReady) == nil {
		return false
	}
	all, _ := addresses(vmi)
	return slices.ContainsFunc(all, func(a clusterv1.MachineAddress) bool { return a.Address == address })
}
