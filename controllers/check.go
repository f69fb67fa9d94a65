// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// Check connects the account under the same rules as Reconcile, and proves where its credentials
// lead. It writes nothing. An account that may not be used is Unauthorized.
func (r *DroverAccountReconciler) Check(ctx context.Context, account *infrav1.DroverAccount) (*fleet.Account, cloud.Info, error) {
	config, refusal, err := r.config(ctx, account)
	if err != nil {
		return nil, cloud.Info{}, err
	}
	if refusal != nil {
		return nil, cloud.Info{}, cloud.Errorf(cloud.Unauthorized, "%s", refusal.message)
	}
	live, err := r.Accounts.Set(client.ObjectKeyFromObject(account), config)
	if err != nil {
		return nil, cloud.Info{}, err
	}
	info, err := live.Probe(ctx)
	if err == nil {
		err = checkAccountID(account, info.Place)
	}
	if err == nil {
		config.Place = info.Place // the manager records it first; nothing is made here
		live, err = r.Accounts.Set(client.ObjectKeyFromObject(account), config)
	}
	return live, info, err
}

// checkAccountID returns Conflict if the user stated another AWS account than the proved one.
func checkAccountID(account *infrav1.DroverAccount, place string) error {
	if aws := account.Spec.Cloud.AWS; aws != nil && aws.AccountID != "" && !strings.Contains(place, ":"+aws.AccountID+":") {
		return cloud.Errorf(cloud.Conflict, "the credentials belong to %q, but spec.cloud.aws.accountID is %q, so Drover lists, creates and deletes nothing with them; "+
			"restore the credentials of that account, or create another DroverAccount", place, aws.AccountID)
	}
	return nil
}

// Check asks the API server of an adopted cluster for its version. It writes nothing.
func (r *AdoptedControlPlaneReconciler) Check(ctx context.Context,
	adopted *controlplanev1.AdoptedControlPlane) (version string, err error) {
	_, config, refused, err := r.kubeconfig(ctx, adopted)
	if err == nil && refused == nil {
		version, refused = apiServerProbe{config, r.Dial}.run(ctx, probeTimeout)
	}
	if refused != nil {
		return "", errors.New(refused.message)
	}
	return version, err
}
