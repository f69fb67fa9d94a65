// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// machineAccount is the part of fleet.Account that the reconciler uses. fleet.Account documents the
// methods. The tests have their own implementation.
type machineAccount interface {
	Cloud() cloud.Cloud
	FailureDomains(context.Context, *infrav1.CloudMachineFields) ([]string, error)
	Domain(*infrav1.CloudMachineFields, []string) (string, error)
	Ensure(context.Context, cloud.Request, []string) (cloud.Resource, error)
	SettleCreate(cloud.Reference) bool
	Observe(ref cloud.Reference, seen bool) fleet.Observation
	NodeJoined(token string)
	AckEvent(token string, seen *cloud.Resource)
	Console(context.Context, cloud.Reference) ([]byte, error)
	Delete(ref cloud.Reference, asked time.Time) fleet.Deletion
	Forget(token string)
}

// account returns the account that is connected under key, or nil.
func (r *CloudMachineReconciler) account(key client.ObjectKey) machineAccount {
	if a := r.Accounts.Get(key); a != nil {
		return a
	}
	return nil
}
