// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/kubeconfig"
	"github.com/drover-io/drover/internal/validation"
)

// Webhooks refuses objects for reasons that the CRDs' own rules can't check: rules that only a
// cloud's row of the registry knows, copies of DroverMachines, and changes of templates. It makes
// no cloud calls. Defaults are in the code that reads a field, so no webhook mutates objects.
type Webhooks struct {
	// Clouds are the registry's rows.
	Clouds []cloud.Cloud
	// Reader bypasses the cache, which may lag behind.
	Reader client.Reader
	// Namespace is the namespace that this manager works in; empty for all.
	Namespace string
}

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-droveraccount,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts,versions=v1beta1,name=validation.droveraccount.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-drovercluster,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=droverclusters,versions=v1beta1,name=validation.drovercluster.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-droverclustertemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=droverclustertemplates,versions=v1beta1,name=validation.droverclustertemplate.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create,path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-drovermachine,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,versions=v1beta1,name=validation.drovermachine.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1beta1-drovermachinetemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=drovermachinetemplates,versions=v1beta1,name=validation.drovermachinetemplate.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-controlplane-cluster-x-k8s-io-v1beta1-adoptedcontrolplane,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanes,versions=v1beta1,name=validation.adoptedcontrolplane.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-controlplane-cluster-x-k8s-io-v1beta1-adoptedcontrolplanetemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanetemplates,versions=v1beta1,name=validation.adoptedcontrolplanetemplate.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// SetupWithManager registers the webhooks with the manager's webhook server.
func (w Webhooks) SetupWithManager(mgr ctrl.Manager) error {
	return errors.Join(
		validation.Register(mgr, &infrav1.DroverAccount{}, validation.Rules[*infrav1.DroverAccount]{
			Spec:   func(o *infrav1.DroverAccount) any { return o.Spec },
			Check:  w.checkAccount,
			Change: w.checkAccountChange,
		}),
		validation.Register(mgr, &infrav1.DroverCluster{}, validation.Rules[*infrav1.DroverCluster]{
			Spec: func(o *infrav1.DroverCluster) any { return o.Spec },
			Check: func(o *infrav1.DroverCluster) field.ErrorList {
				return checkCluster(o, field.NewPath("spec"))
			},
			Create: w.checkUniqueCluster,
		}),
		validation.Register(mgr, &infrav1.DroverClusterTemplate{}, validation.Rules[*infrav1.DroverClusterTemplate]{
			Spec:     func(o *infrav1.DroverClusterTemplate) any { return o.Spec },
			Check:    func(*infrav1.DroverClusterTemplate) field.ErrorList { return nil },
			Template: true,
		}),
		validation.Register(mgr, &infrav1.DroverMachine{}, validation.Rules[*infrav1.DroverMachine]{
			Spec: func(o *infrav1.DroverMachine) any { return o.Spec.DroverMachineFields },
			Check: func(o *infrav1.DroverMachine) field.ErrorList {
				return w.checkMachine(&o.Spec.DroverMachineFields, field.NewPath("spec"))
			},
			Create: w.checkUnique,
		}),
		validation.Register(mgr, &infrav1.DroverMachineTemplate{}, validation.Rules[*infrav1.DroverMachineTemplate]{
			Spec: func(o *infrav1.DroverMachineTemplate) any { return o.Spec },
			Check: func(o *infrav1.DroverMachineTemplate) field.ErrorList {
				return w.checkMachine(&o.Spec.Template.Spec, field.NewPath("spec", "template", "spec"))
			},
			Template: true,
		}),
		validation.Register(mgr, &controlplanev1.AdoptedControlPlane{}, validation.Rules[*controlplanev1.AdoptedControlPlane]{
			Spec: func(o *controlplanev1.AdoptedControlPlane) any { return o.Spec },
			Check: func(o *controlplanev1.AdoptedControlPlane) field.ErrorList {
				return checkEndpoint(o.Spec.ControlPlaneEndpoint, field.NewPath("spec"))
			},
		}),
		validation.Register(mgr, &controlplanev1.AdoptedControlPlaneTemplate{}, validation.Rules[*controlplanev1.AdoptedControlPlaneTemplate]{
			Spec:     func(o *controlplanev1.AdoptedControlPlaneTemplate) any { return o.Spec },
			Check:    func(*controlplanev1.AdoptedControlPlaneTemplate) field.ErrorList { return nil },
			Template: true,
		}),
	)
}

func (w Webhooks) checkAccount(account *infrav1.DroverAccount) field.ErrorList {
	path := field.NewPath("spec")
	for _, row := range w.Clouds {
		if row.Union.InAccount(&account.Spec) {
			return row.Union.ValidateAccount(&account.Spec, path)
		}
	}
	return field.ErrorList{field.Required(path, "set the fields of one cloud that this manager supports: "+w.names())}
}

// checkAccountChange refuses to change an account's cloud, because its machines could be neither
// found nor deleted on another cloud.
func (w Webhooks) checkAccountChange(before, after *infrav1.DroverAccount) field.ErrorList {
	for _, row := range w.Clouds {
		if row.Union.InAccount(&before.Spec) && !row.Union.InAccount(&after.Spec) {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", row.Name),
				"the cloud of an account is immutable: create a new DroverAccount")}
		}
	}
	return nil
}

func (w Webhooks) checkMachine(fields *infrav1.DroverMachineFields, path *field.Path) field.ErrorList {
	for _, row := range w.Clouds {
		if row.Union.InMachine(fields) {
			return row.Union.ValidateMachine(fields, path)
		}
	}
	return field.ErrorList{field.Required(path, "set the fields of one cloud that this manager supports: "+w.names())}
}

// checkUnique refuses a copy of a DroverMachine, because it would claim the original's VM. An
// object from a move or a backup also has a token, but no other object claims the VM. An object of
// the same name is the original itself, and the API server decides about it.
func (w Webhooks) checkUnique(ctx context.Context, m *infrav1.DroverMachine) (field.ErrorList, error) {
	path := field.NewPath("spec")
	if m.Spec.Creation.Token != "" {
		ownershipID := "" // unknown if this manager may not read the object's namespace
		if w.Namespace == "" || w.Namespace == m.Namespace {
			var err error
			if ownershipID, err = ownershipIDOf(ctx, w.Reader, m); err != nil {
				return nil, err
			}
		}
		other, err := w.other(ctx, m, func(other *infrav1.DroverMachine) (bool, error) {
			return claimsVM(ctx, w.Reader, other, m.Namespace, ownershipID)
		}, client.InNamespace(w.Namespace), client.MatchingFields{machineByToken: m.Spec.Creation.Token})
		if err != nil || other != nil {
			return duplicateOf(path.Child("creation", "token"), other), err
		}
	}
	if m.Spec.ProviderID != "" && (w.Namespace == "" || w.Namespace == m.Namespace) {
		other, err := w.other(ctx, m, func(other *infrav1.DroverMachine) (bool, error) {
			return other.Spec.AccountRef == m.Spec.AccountRef, nil // provider IDs are unique within an account
		}, client.InNamespace(m.Namespace), client.MatchingFields{machineByProviderID: m.Spec.ProviderID})
		if err != nil || other != nil {
			return duplicateOf(path.Child("providerID"), other), err
		}
	}
	return nil, nil
}

// other returns a listed DroverMachine that has another name or namespace and claims the VM, or
// nil.
func (w Webhooks) other(
	ctx context.Context, m *infrav1.DroverMachine, claims func(*infrav1.DroverMachine) (bool, error), options ...client.ListOption,
) (*infrav1.DroverMachine, error) {
	list := &infrav1.DroverMachineList{}
	if err := w.Reader.List(ctx, list, options...); err != nil {
		return nil, fmt.Errorf("searching for copies of the DroverMachine: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == m.Name && other.Namespace == m.Namespace {
			continue
		}
		if claimed, err := claims(other); err != nil || claimed {
			return other, err
		}
	}
	return nil, nil
}

func duplicateOf(path *field.Path, other *infrav1.DroverMachine) field.ErrorList {
	if other == nil {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
		"DroverMachine %s has the same value, and a copy would claim its VM: leave out providerID and creation",
		client.ObjectKeyFromObject(other)))}
}

func (w Webhooks) names() string {
	var names []string
	for _, row := range w.Clouds {
		names = append(names, row.Name)
	}
	return strings.Join(names, ", ")
}

// checkCluster refuses an endpoint of somebody else's beside one that Drover creates, and a virtual
// IP that is none.
func checkCluster(o *infrav1.DroverCluster, spec *field.Path) field.ErrorList {
	errs := checkEndpoint(o.Spec.ControlPlaneEndpoint, spec)
	if address := o.Spec.Endpoint.VirtualIP.Address; address != "" {
		if ip, err := netip.ParseAddr(address); err != nil || !ip.IsGlobalUnicast() {
			errs = append(errs, field.Invalid(spec.Child("endpoint", "virtualIP", "address"), address,
				"must be an IP address that machines can have"))
		}
	}
	if o.Spec.Endpoint.HasLoadBalancer() && !o.Spec.ControlPlaneEndpoint.IsZero() && o.Spec.Creation.LoadBalancerToken == "" {
		errs = append(errs, field.Forbidden(spec.Child("controlPlaneEndpoint"),
			"must not be set together with spec.endpoint.loadBalancer: Drover sets it"))
	}
	return errs
}

// checkUniqueCluster refuses a copy of a DroverCluster with a load balancer, because it would claim
// the original's.
func (w Webhooks) checkUniqueCluster(ctx context.Context, o *infrav1.DroverCluster) (field.ErrorList, error) {
	if o.Spec.Creation.LoadBalancerToken == "" {
		return nil, nil
	}
	list := &infrav1.DroverClusterList{}
	if err := w.Reader.List(ctx, list, client.InNamespace(w.Namespace),
		client.MatchingFields{clusterByToken: o.Spec.Creation.LoadBalancerToken}); err != nil {
		return nil, fmt.Errorf("searching for copies of the DroverCluster: %w", err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; (other.Name != o.Name || other.Namespace != o.Namespace) && claimsBalancer(other, o) {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", "creation", "loadBalancerToken"), fmt.Sprintf(
				"DroverCluster %s has the same value, and a copy would claim its load balancer: leave out creation and controlPlaneEndpoint",
				client.ObjectKeyFromObject(other)))}, nil
		}
	}
	return nil, nil
}

// checkEndpoint requires that an endpoint has both host and port, and that the host is valid.
func checkEndpoint(endpoint clusterv1.APIEndpoint, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	path := spec.Child("controlPlaneEndpoint")
	switch {
	case endpoint.IsZero():
	case endpoint.Host == "":
		errs = append(errs, field.Required(path.Child("host"), "is required together with port"))
	case endpoint.Port == 0:
		errs = append(errs, field.Required(path.Child("port"), "is required together with host"))
	case !kubeconfig.IsHost(endpoint.Host):
		errs = append(errs, field.Invalid(path.Child("host"), endpoint.Host, "must be an IP address or a DNS name, without scheme and port"))
	}
	return errs
}
