// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/kubeconfig"
)

// Webhooks refuses objects for reasons that the CRDs' own rules can't check: rules that only a
// cloud's row of the registry knows, copies of CloudMachines, and changes of templates and of what
// Drover itself writes into spec. It makes no cloud calls. Defaults are in the CRDs, so no webhook mutates objects.
type Webhooks struct {
	// Clouds are the registry's rows.
	Clouds []cloud.Cloud
	// Reader bypasses the cache, which may lag behind.
	Reader client.Reader
	// Namespace is the namespace that this manager works in; empty for all.
	Namespace string
	// Managers are the users that this manager and others write with. Only they may change what
	// Drover writes into spec.
	Managers []string
}

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-cloudaccount,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=cloudaccounts,versions=v1alpha1,name=validation.cloudaccount.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-cloudcluster,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=cloudclusters,versions=v1alpha1,name=validation.cloudcluster.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-cloudclustertemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=cloudclustertemplates,versions=v1alpha1,name=validation.cloudclustertemplate.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-cloudmachine,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=cloudmachines,versions=v1alpha1,name=validation.cloudmachine.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-cloudmachinetemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=cloudmachinetemplates,versions=v1alpha1,name=validation.cloudmachinetemplate.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-controlplane-cluster-x-k8s-io-v1alpha1-adoptedcontrolplane,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=adoptedcontrolplanes,versions=v1alpha1,name=validation.adoptedcontrolplane.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// SetupWithManager registers the webhooks with the manager's webhook server.
func (w Webhooks) SetupWithManager(mgr ctrl.Manager) error {
	return errors.Join(
		register(mgr, &infrav1.CloudAccount{}, rules[*infrav1.CloudAccount]{
			spec:   func(o *infrav1.CloudAccount) any { return o.Spec },
			check:  w.checkAccount,
			change: w.checkAccountChange,
		}),
		register(mgr, &infrav1.CloudCluster{}, rules[*infrav1.CloudCluster]{
			spec: func(o *infrav1.CloudCluster) any { return o.Spec },
			check: func(o *infrav1.CloudCluster) field.ErrorList {
				return checkEndpoint(o.Spec.ControlPlaneEndpoint, field.NewPath("spec"))
			},
			managers: w.Managers,
			creation: func(o *infrav1.CloudCluster) any { return o.Spec.Creation },
		}),
		register(mgr, &infrav1.CloudClusterTemplate{}, rules[*infrav1.CloudClusterTemplate]{
			spec:     func(o *infrav1.CloudClusterTemplate) any { return o.Spec },
			check:    func(*infrav1.CloudClusterTemplate) field.ErrorList { return nil },
			template: true,
		}),
		register(mgr, &infrav1.CloudMachine{}, rules[*infrav1.CloudMachine]{
			spec: func(o *infrav1.CloudMachine) any { return o.Spec.CloudMachineFields },
			check: func(o *infrav1.CloudMachine) field.ErrorList {
				return w.checkMachine(&o.Spec.CloudMachineFields, field.NewPath("spec"))
			},
			create:   w.checkUnique,
			managers: w.Managers,
			creation: func(o *infrav1.CloudMachine) any { return o.Spec.Creation },
		}),
		register(mgr, &infrav1.CloudMachineTemplate{}, rules[*infrav1.CloudMachineTemplate]{
			spec: func(o *infrav1.CloudMachineTemplate) any { return o.Spec },
			check: func(o *infrav1.CloudMachineTemplate) field.ErrorList {
				return w.checkMachine(&o.Spec.Template.Spec, field.NewPath("spec", "template", "spec"))
			},
			template: true,
		}),
		register(mgr, &controlplanev1.AdoptedControlPlane{}, rules[*controlplanev1.AdoptedControlPlane]{
			spec: func(o *controlplanev1.AdoptedControlPlane) any { return o.Spec },
			check: func(o *controlplanev1.AdoptedControlPlane) field.ErrorList {
				return checkEndpoint(o.Spec.ControlPlaneEndpoint, field.NewPath("spec"))
			},
		}),
	)
}

func (w Webhooks) checkAccount(account *infrav1.CloudAccount) field.ErrorList {
	path := field.NewPath("spec")
	for _, row := range w.Clouds {
		if row.Union.InAccount(&account.Spec) {
			return row.Union.ValidateAccount(&account.Spec, path)
		}
	}
	return field.ErrorList{field.Required(path, "no cloud that this manager knows is set; it knows "+w.names())}
}

// checkAccountChange refuses to change an account's cloud, because its machines could be neither
// found nor deleted on another cloud.
func (w Webhooks) checkAccountChange(before, after *infrav1.CloudAccount) field.ErrorList {
	for _, row := range w.Clouds {
		if row.Union.InAccount(&before.Spec) && !row.Union.InAccount(&after.Spec) {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", row.Name),
				"an account can't change its cloud: make a new CloudAccount")}
		}
	}
	return nil
}

func (w Webhooks) checkMachine(fields *infrav1.CloudMachineFields, path *field.Path) field.ErrorList {
	for _, row := range w.Clouds {
		if row.Union.InMachine(fields) {
			return row.Union.ValidateMachine(fields, path)
		}
	}
	return field.ErrorList{field.Required(path, "no cloud that this manager knows is set; it knows "+w.names())}
}

// checkUnique refuses a copy of a CloudMachine, because it would claim the original's VM. An object
// from a move or a backup also has a token, but no other object has the same one. An object of the
// same name is the original itself, and the API server decides about it.
func (w Webhooks) checkUnique(ctx context.Context, m *infrav1.CloudMachine) (field.ErrorList, error) {
	path := field.NewPath("spec")
	if m.Spec.Creation.Token != "" {
		other, err := w.other(ctx, m, client.InNamespace(w.Namespace), client.MatchingFields{machineByToken: m.Spec.Creation.Token})
		if err != nil || other != nil {
			return duplicateOf(path.Child("creation", "token"), other), err
		}
	}
	if m.Spec.ProviderID != "" && (w.Namespace == "" || w.Namespace == m.Namespace) {
		// Provider IDs are unique within an account.
		other, err := w.other(ctx, m, client.InNamespace(m.Namespace), client.MatchingFields{machineByProviderID: m.Spec.ProviderID})
		if err != nil || other != nil && other.Spec.AccountRef == m.Spec.AccountRef {
			return duplicateOf(path.Child("providerID"), other), err
		}
	}
	return nil, nil
}

// other returns a listed CloudMachine with another name or namespace, or nil.
func (w Webhooks) other(ctx context.Context, m *infrav1.CloudMachine, options ...client.ListOption) (*infrav1.CloudMachine, error) {
	list := &infrav1.CloudMachineList{}
	if err := w.Reader.List(ctx, list, options...); err != nil {
		return nil, fmt.Errorf("looking for copies of the CloudMachine: %w", err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.Name != m.Name || other.Namespace != m.Namespace {
			return other, nil
		}
	}
	return nil, nil
}

func duplicateOf(path *field.Path, other *infrav1.CloudMachine) field.ErrorList {
	if other == nil {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
		"CloudMachine %s has the same: a copy would claim the original's VM; leave providerID and creation out", client.ObjectKeyFromObject(other)))}
}

func (w Webhooks) names() string {
	var names []string
	for _, row := range w.Clouds {
		names = append(names, row.Name)
	}
	return strings.Join(names, ", ")
}

// checkEndpoint requires that an endpoint has both host and port, and that the host is valid.
func checkEndpoint(endpoint clusterv1.APIEndpoint, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	path := spec.Child("controlPlaneEndpoint")
	switch {
	case endpoint.IsZero():
	case endpoint.Host == "":
		errs = append(errs, field.Required(path.Child("host"), "is needed together with port"))
	case endpoint.Port == 0:
		errs = append(errs, field.Required(path.Child("port"), "is needed together with host"))
	case !kubeconfig.IsHost(endpoint.Host):
		errs = append(errs, field.Invalid(path.Child("host"), endpoint.Host, "must be an IP address or a DNS name, without scheme and port"))
	}
	return errs
}

// rules are the rules of one kind.
type rules[T client.Object] struct {
	// spec returns the part that is checked. An update that does not change it always passes, so
	// that an object made under older rules can still be labelled, reported on and released.
	spec func(T) any
	// check validates an object by itself.
	check func(T) field.ErrorList
	// create validates a new object against the existing ones. nil means no such check.
	create func(context.Context, T) (field.ErrorList, error)
	// change validates an update against the old object. nil allows any change that check accepts.
	change func(before, after T) field.ErrorList
	// creation returns what only the managers may change. A new object may have any: a move or a
	// restore creates it as it was. nil means nothing.
	creation func(T) any
	managers []string
	// template forbids every change of spec, except in Cluster API's dry runs. They patch a copy of
	// the template that way to see whether a ClusterClass changed it.
	template bool
}

func register[T client.Object](mgr ctrl.Manager, kind T, r rules[T]) error {
	gvk, err := apiutil.GVKForObject(kind, mgr.GetScheme())
	if err != nil {
		return fmt.Errorf("registering a webhook: %w", err)
	}
	err = ctrl.NewWebhookManagedBy(mgr, kind).WithValidator(&validator[T]{rules: r, kind: gvk.GroupKind()}).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of %s: %w", gvk.Kind, err)
	}
	return nil
}

// validator implements admission.Validator with the rules of one kind.
type validator[T client.Object] struct {
	rules rules[T]
	kind  schema.GroupKind
}

func (v *validator[T]) ValidateCreate(ctx context.Context, o T) (admission.Warnings, error) {
	errs := v.rules.check(o)
	if v.rules.create != nil {
		more, err := v.rules.create(ctx, o)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		errs = append(errs, more...)
	}
	return nil, v.refuse(o, errs)
}

func (v *validator[T]) ValidateUpdate(ctx context.Context, before, after T) (admission.Warnings, error) {
	if !after.GetDeletionTimestamp().IsZero() {
		return nil, nil
	}
	if v.rules.creation != nil && !equality.Semantic.DeepEqual(v.rules.creation(before), v.rules.creation(after)) {
		request, err := admission.RequestFromContext(ctx)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if !slices.Contains(v.rules.managers, request.UserInfo.Username) {
			return nil, v.refuse(after, field.ErrorList{field.Forbidden(field.NewPath("spec", "creation"), "only Drover's manager may change it")})
		}
	}
	if equality.Semantic.DeepEqual(v.rules.spec(before), v.rules.spec(after)) {
		return nil, nil
	}
	if v.rules.template {
		request, err := admission.RequestFromContext(ctx)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if !topology.IsDryRunRequest(request, after) {
			return nil, v.refuse(after, field.ErrorList{field.Forbidden(field.NewPath("spec"),
				"a template can't be changed: make a new one and point what uses it at that")})
		}
	}
	errs := v.rules.check(after)
	if v.rules.change != nil {
		errs = append(errs, v.rules.change(before, after)...)
	}
	return nil, v.refuse(after, errs)
}

func (v *validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) {
	return nil, nil
}

func (v *validator[T]) refuse(o T, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v.kind, o.GetName(), errs)
}
