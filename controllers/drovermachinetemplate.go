// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
)

// reconnectDelay is how soon a template checks again for an account that is Ready but not probed by
// this process: the manager has just started, and the account's own reconcile is in the queue.
const reconnectDelay = 2 * time.Second

// DroverMachineTemplateReconciler asks the cloud for the capacity of a template's machines, so that
// the cluster-autoscaler can scale from zero, and for their failure domains, so that a control
// plane gets only those. It asks once for each account, and again only when the account's report
// changes.
type DroverMachineTemplateReconciler struct {
	Client           client.Client
	Accounts         *fleet.Accounts
	WatchFilterValue string

	retries retries
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachinetemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachinetemplates/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=droveraccounts,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *DroverMachineTemplateReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		For(&infrav1.DroverMachineTemplate{}, builder.WithPredicates(predicates.SpecOrMetadataChanged())).
		Watches(&infrav1.DroverAccount{}, handler.EnqueueRequestsFromMapFunc(r.accountToTemplates),
			builder.WithPredicates(onUpdate(accountReportChanged))).
		WithOptions(options).
		Named("drovermachinetemplate").
		Complete(conflict.Retried(r))
}

// Reconcile brings one template up to date.
func (r *DroverMachineTemplateReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	template := &infrav1.DroverMachineTemplate{}
	if err := r.Client.Get(ctx, req.NamespacedName, template); err != nil {
		r.retries.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !predicates.Watched(template, r.WatchFilterValue) || !template.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	before := template.DeepCopy()
	result, err := r.describe(ctx, template)
	return result, errors.Join(err, patchStatus(ctx, r.Client, before, template))
}

// describe sets capacity, nodeInfo and failureDomains. Known values stay if the cloud can't be
// asked.
func (r *DroverMachineTemplateReconciler) describe(ctx context.Context, template *infrav1.DroverMachineTemplate) (reconcile.Result, error) {
	spec := &template.Spec.Template.Spec
	key := client.ObjectKey{Namespace: template.Namespace, Name: spec.AccountRef.Name}
	account := r.Accounts.Get(key)
	if account == nil || !account.Probed() {
		return r.waitForAccount(ctx, template, key)
	}
	if !account.Cloud().Union.InMachine(spec) {
		setNotReady(template, infrav1.InvalidSpecReason, fmt.Sprintf(
			"DroverAccount %q is for cloud %q, but the template has no fields of that cloud", key.Name, account.Cloud().Name))
		return reconcile.Result{}, nil
	}
	// Zones first: a control plane waits for them, and they may be known where a size is not.
	domains, err := account.FailureDomains(ctx, spec)
	var offering cloud.Offering
	if err == nil {
		template.Status.FailureDomains = domains[:min(len(domains), maxFailureDomains)]
		offering, err = account.Offering(ctx, spec)
	}
	if err != nil {
		var queued *cloud.Queued
		if errors.As(err, &queued) {
			setNotReady(template, infrav1.QueuedReason, err.Error())
		} else {
			setCloudError(template, err)
		}
		if after, again := r.retries.after(client.ObjectKeyFromObject(template), err); again {
			return reconcile.Result{RequeueAfter: after}, nil
		}
		return reconcile.Result{}, nil
	}
	r.retries.forget(client.ObjectKeyFromObject(template))
	template.Status.Capacity = offering.Capacity
	template.Status.NodeInfo = nodeInfo(offering)
	setReady(template)
	return reconcile.Result{}, nil
}

// waitForAccount says why the account can't be asked. Its next report enqueues the template.
func (r *DroverMachineTemplateReconciler) waitForAccount(ctx context.Context, template *infrav1.DroverMachineTemplate,
	key client.ObjectKey) (reconcile.Result, error) {
	account, err := readAccount(ctx, r.Client, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	problem := accountProblem(key.Name, account)
	if problem == "" {
		return reconcile.Result{RequeueAfter: jitter(reconnectDelay)}, nil // known values stay
	}
	setNotReady(template, infrav1.WaitingForAccountReason, problem)
	return reconcile.Result{}, nil
}

// nodeInfo returns the offering's node info, with only the architectures that Cluster API's
// contract defines.
func nodeInfo(offering cloud.Offering) infrav1.NodeInfo {
	info := infrav1.NodeInfo{OperatingSystem: offering.OperatingSystem}
	switch a := infrav1.NodeArchitecture(offering.Architecture); a {
	case infrav1.NodeArchitectureAMD64, infrav1.NodeArchitectureARM64, infrav1.NodeArchitectureS390X, infrav1.NodeArchitecturePPC64LE:
		info.Architecture = a
	}
	return info
}

func (r *DroverMachineTemplateReconciler) accountToTemplates(ctx context.Context, o client.Object) []reconcile.Request {
	ofAccount := func(t *infrav1.DroverMachineTemplate) bool {
		return t.Spec.Template.Spec.AccountRef.Name == o.GetName()
	}
	return listRequests(ctx, r.Client, &infrav1.DroverMachineTemplateList{}, ofAccount, client.InNamespace(o.GetNamespace()))
}
