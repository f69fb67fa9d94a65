// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/validation"
)

// +kubebuilder:webhook:verbs=create,path=/mutate-bootstrap-cluster-x-k8s-io-v1beta1-droverconfig,mutating=true,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=droverconfigs,versions=v1beta1,name=default.droverconfig.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-bootstrap-cluster-x-k8s-io-v1beta1-droverconfig,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=droverconfigs,versions=v1beta1,name=validation.droverconfig.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-bootstrap-cluster-x-k8s-io-v1beta1-droverconfigtemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=droverconfigtemplates,versions=v1beta1,name=validation.droverconfigtemplate.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// Webhooks validates DroverConfigs and their templates, and makes templates immutable. Only
// ConfigReconciler judges the operating system. Webhooks sets the finalizer of the configs that
// ConfigReconciler watches on creation, which saves a write per machine.
type Webhooks struct {
	// WatchFilterValue is the value of ConfigReconciler.
	WatchFilterValue string
	// Namespace is the only namespace in the manager's cache. "" means all.
	Namespace string
}

// SetupWithManager registers the webhooks with the manager's webhook server.
func (w Webhooks) SetupWithManager(mgr ctrl.Manager) error {
	return errors.Join(
		ctrl.NewWebhookManagedBy(mgr, &bootstrapv1.DroverConfig{}).WithDefaulter(w).Complete(),
		validation.Register(mgr, &bootstrapv1.DroverConfig{}, validation.Rules[*bootstrapv1.DroverConfig]{
			Spec:  func(o *bootstrapv1.DroverConfig) any { return o.Spec },
			Check: checkConfig,
		}),
		validation.Register(mgr, &bootstrapv1.DroverConfigTemplate{}, validation.Rules[*bootstrapv1.DroverConfigTemplate]{
			Spec:     func(o *bootstrapv1.DroverConfigTemplate) any { return o.Spec },
			Check:    checkTemplate,
			Template: true,
		}),
	)
}

// Default sets the finalizer on creation. It skips objects that no controller watches here, because
// they would never lose it.
func (w Webhooks) Default(ctx context.Context, config *bootstrapv1.DroverConfig) error {
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return apierrors.NewBadRequest("no admission request: " + err.Error())
	}
	watched := (w.Namespace == "" || w.Namespace == req.Namespace) && predicates.Watched(config, w.WatchFilterValue)
	if req.Operation == admissionv1.Create && watched {
		controllerutil.AddFinalizer(config, bootstrapv1.ConfigFinalizer)
	}
	return nil
}

func checkConfig(config *bootstrapv1.DroverConfig) field.ErrorList {
	return render.ValidateExceptSystem(&config.Spec, field.NewPath("spec"))
}

func checkTemplate(template *bootstrapv1.DroverConfigTemplate) field.ErrorList {
	at := field.NewPath("spec", "template")
	errs := template.Spec.Template.ObjectMeta.Validate(at.Child("metadata"))
	return append(errs, render.ValidateExceptSystem(&template.Spec.Template.Spec, at.Child("spec"))...)
}
