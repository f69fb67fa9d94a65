// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	"github.com/drover-io/drover/bootstrap/render"
)

// +kubebuilder:webhook:verbs=create,path=/mutate-bootstrap-cluster-x-k8s-io-v1alpha1-cloudinitconfig,mutating=true,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=cloudinitconfigs,versions=v1alpha1,name=default.cloudinitconfig.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-bootstrap-cluster-x-k8s-io-v1alpha1-cloudinitconfig,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=cloudinitconfigs,versions=v1alpha1,name=validation.cloudinitconfig.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-bootstrap-cluster-x-k8s-io-v1alpha1-cloudinitconfigtemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=cloudinitconfigtemplates,versions=v1alpha1,name=validation.cloudinitconfigtemplate.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// ConfigWebhook validates CloudInitConfigs. It sets the finalizer of those that ConfigReconciler
// watches on creation, which saves a write per machine.
type ConfigWebhook struct {
	// WatchFilterValue is the value of ConfigReconciler.
	WatchFilterValue string
	// Namespace is the only namespace in the manager's cache. "" means all.
	Namespace string
}

var (
	_ admission.Defaulter[*bootstrapv1.CloudInitConfig]         = ConfigWebhook{}
	_ admission.Validator[*bootstrapv1.CloudInitConfig]         = ConfigWebhook{}
	_ admission.Validator[*bootstrapv1.CloudInitConfigTemplate] = TemplateWebhook{}
)

// SetupWebhookWithManager registers the webhook.
func (w ConfigWebhook) SetupWebhookWithManager(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &bootstrapv1.CloudInitConfig{}).WithDefaulter(w).WithValidator(w).Complete()
}

// Default sets the finalizer on creation. It skips objects that no controller watches here, because
// they would never lose it.
func (w ConfigWebhook) Default(ctx context.Context, config *bootstrapv1.CloudInitConfig) error {
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return apierrors.NewBadRequest("no admission request: " + err.Error())
	}
	watched := (w.Namespace == "" || w.Namespace == req.Namespace) &&
		(w.WatchFilterValue == "" || w.WatchFilterValue == config.Labels[clusterv1.WatchLabel])
	if req.Operation == admissionv1.Create && watched {
		controllerutil.AddFinalizer(config, bootstrapv1.ConfigFinalizer)
	}
	return nil
}

// ValidateCreate validates a new config.
func (ConfigWebhook) ValidateCreate(_ context.Context, config *bootstrapv1.CloudInitConfig) (admission.Warnings, error) {
	errs := render.Validate(&config.Spec, field.NewPath("spec"))
	return nil, invalid("CloudInitConfig", config.Name, errs)
}

// ValidateUpdate validates a changed config. It accepts an unchanged spec, and any config that is
// being deleted, because that must be able to lose its finalizer.
func (ConfigWebhook) ValidateUpdate(_ context.Context, old, config *bootstrapv1.CloudInitConfig) (admission.Warnings, error) {
	if !config.DeletionTimestamp.IsZero() || equality.Semantic.DeepEqual(old.Spec, config.Spec) {
		return nil, nil
	}
	errs := render.Validate(&config.Spec, field.NewPath("spec"))
	return nil, invalid("CloudInitConfig", config.Name, errs)
}

// ValidateDelete permits every deletion.
func (ConfigWebhook) ValidateDelete(context.Context, *bootstrapv1.CloudInitConfig) (admission.Warnings, error) {
	return nil, nil
}

// TemplateWebhook validates CloudInitConfigTemplates and makes them immutable.
type TemplateWebhook struct{}

// SetupWebhookWithManager registers the webhook.
func (w TemplateWebhook) SetupWebhookWithManager(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &bootstrapv1.CloudInitConfigTemplate{}).WithValidator(w).Complete()
}

// ValidateCreate validates a new template.
func (TemplateWebhook) ValidateCreate(_ context.Context, template *bootstrapv1.CloudInitConfigTemplate) (admission.Warnings, error) {
	return nil, invalid("CloudInitConfigTemplate", template.Name, validateTemplate(template))
}

// ValidateUpdate refuses changes, but accepts the dry runs by which Cluster API's ClusterClass
// finds out whether a template would change.
func (TemplateWebhook) ValidateUpdate(ctx context.Context, old, template *bootstrapv1.CloudInitConfigTemplate) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(old.Spec, template.Spec) {
		return nil, nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest("no admission request: " + err.Error())
	}
	errs := validateTemplate(template)
	if !topology.IsDryRunRequest(req, template) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			fmt.Sprintf("a template is immutable: create another one, and change the MachineDeployment from %q to it", template.Name)))
	}
	return nil, invalid("CloudInitConfigTemplate", template.Name, errs)
}

// ValidateDelete permits every deletion.
func (TemplateWebhook) ValidateDelete(context.Context, *bootstrapv1.CloudInitConfigTemplate) (admission.Warnings, error) {
	return nil, nil
}

func validateTemplate(template *bootstrapv1.CloudInitConfigTemplate) field.ErrorList {
	at := field.NewPath("spec", "template")
	errs := template.Spec.Template.ObjectMeta.Validate(at.Child("metadata"))
	return append(errs, render.Validate(&template.Spec.Template.Spec, at.Child("spec"))...)
}

func invalid(kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(bootstrapv1.GroupVersion.WithKind(kind).GroupKind(), name, errs)
}
