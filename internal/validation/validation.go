// SPDX-License-Identifier: Apache-2.0

// Package validation serves the validating webhooks of all kinds. The rules of a kind are in the
// package that owns the kind. It imports no package of Drover.
package validation

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Rules are the rules of one kind.
type Rules[T client.Object] struct {
	// Spec returns the part that is checked. An update that does not change it always passes, so
	// that an object made under older rules can still be labeled, reported on and released.
	Spec func(T) any
	// Check validates an object by itself.
	Check func(T) field.ErrorList
	// Create validates a new object against the existing ones. nil means no such check.
	Create func(context.Context, T) (field.ErrorList, error)
	// Change validates an update against the old object. nil allows any change that Check accepts.
	Change func(before, after T) field.ErrorList
	// Template forbids every change of the spec, except in Cluster API's dry runs, by which it sees
	// whether a ClusterClass changed the template.
	Template bool
}

// Register registers the validating webhook of a kind with the manager's webhook server.
func Register[T client.Object](mgr ctrl.Manager, kind T, rules Rules[T]) error {
	gvk, err := apiutil.GVKForObject(kind, mgr.GetScheme())
	if err != nil {
		return fmt.Errorf("registering a webhook: %w", err)
	}
	err = ctrl.NewWebhookManagedBy(mgr, kind).WithValidator(&validator[T]{rules: rules, kind: gvk.GroupKind()}).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of %s: %w", gvk.Kind, err)
	}
	return nil
}

// validator implements admission.Validator with the rules of one kind.
type validator[T client.Object] struct {
	rules Rules[T]
	kind  schema.GroupKind
}

func (v *validator[T]) ValidateCreate(ctx context.Context, o T) (admission.Warnings, error) {
	errs := v.rules.Check(o)
	if v.rules.Create != nil {
		more, err := v.rules.Create(ctx, o)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		errs = append(errs, more...)
	}
	return nil, v.invalid(o, errs)
}

// ValidateUpdate accepts any object that is being deleted, because its finalizers must be
// removable.
func (v *validator[T]) ValidateUpdate(ctx context.Context, before, after T) (admission.Warnings, error) {
	if !after.GetDeletionTimestamp().IsZero() || equality.Semantic.DeepEqual(v.rules.Spec(before), v.rules.Spec(after)) {
		return nil, nil
	}
	if v.rules.Template {
		request, err := admission.RequestFromContext(ctx)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if !topology.IsDryRunRequest(request, after) {
			return nil, v.invalid(after, field.ErrorList{field.Forbidden(field.NewPath("spec"),
				"a template is immutable: create another one, and refer to that")})
		}
	}
	errs := v.rules.Check(after)
	if v.rules.Change != nil {
		errs = append(errs, v.rules.Change(before, after)...)
	}
	return nil, v.invalid(after, errs)
}

func (v *validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) {
	return nil, nil
}

func (v *validator[T]) invalid(o T, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v.kind, o.GetName(), errs)
}
