// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/record"
)

// confirmMissing passes the user's confirmation that the missing machines are gone to the account.
func confirmMissing(account *infrav1.DroverAccount, live *fleet.Account) {
	if digest := account.Annotations[infrav1.ConfirmMissingAnnotation]; digest != "" {
		live.Confirm(digest)
	}
}

const (
	// maxMissing is how many missing machines the status names. The log names all.
	maxMissing = 50
	// maxMissingInMessage is how many of them the message names.
	maxMissingInMessage = 5
)

// setMachinesFound sets MachinesFound. The condition is False while so many machines are missing at
// once that the account treats none of them as gone. Then the message of Ready says it, too: it is
// the one that tables show.
func (r *DroverAccountReconciler) setMachinesFound(ctx context.Context, account *infrav1.DroverAccount, state fleet.InventoryState) error {
	account.Status.Missing = nil
	if state.MassAbsence == nil {
		if !state.LastComplete.IsZero() {
			setCondition(account, infrav1.AccountMachinesFoundCondition, metav1.ConditionTrue, infrav1.MachinesFoundReason, "")
		}
		return nil
	}
	missing, err := r.missing(ctx, account, state.MassAbsence.Tokens)
	if err != nil {
		return err
	}
	message := fmt.Sprintf("%d of %d machines are missing from the cloud at the same time, without a record of their termination, so none of them is treated as gone: "+
		"check that the credentials can still read them; if they are really gone, run `kubectl -n %s annotate --overwrite droveraccount %s %s=%s`. Missing: %s",
		state.MassAbsence.Missing, state.MassAbsence.Of, account.Namespace, account.Name, infrav1.ConfirmMissingAnnotation,
		state.MassAbsence.Digest, enumerate(missing))
	if message != conditions.GetMessage(account, infrav1.AccountMachinesFoundCondition) {
		r.Log.Info("Machines are missing at the same time", record.Account, record.Key(account.Namespace, account.Name),
			"missing", state.MassAbsence.Missing, "of", state.MassAbsence.Of, "digest", state.MassAbsence.Digest, "machines", missing)
	}
	account.Status.Missing = missing[:min(len(missing), maxMissing)]
	setCondition(account, infrav1.AccountMachinesFoundCondition, metav1.ConditionFalse, infrav1.MassAbsenceReason, message)
	if conditions.IsTrue(account, clusterv1.ReadyCondition) {
		setCondition(account, clusterv1.ReadyCondition, metav1.ConditionTrue, infrav1.ReadyReason, message)
	}
	return nil
}

// missing returns the account's machines that have these tokens, by name.
func (r *DroverAccountReconciler) missing(ctx context.Context, account *infrav1.DroverAccount,
	tokens []string) ([]infrav1.MissingMachine, error) {
	list := &infrav1.DroverMachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(account.Namespace),
		client.MatchingFields{machineByAccount: account.Name}); err != nil {
		return nil, fmt.Errorf("listing the machines of the account: %w", err)
	}
	wanted := sets.New(tokens...)
	var missing []infrav1.MissingMachine
	for _, m := range list.Items {
		if wanted.Has(m.Spec.Creation.Token) {
			missing = append(missing, infrav1.MissingMachine{Name: m.Name, ProviderID: m.Spec.ProviderID})
		}
	}
	slices.SortFunc(missing, func(a, b infrav1.MissingMachine) int { return strings.Compare(a.Name, b.Name) })
	return missing, nil
}

// enumerate names the first missing machines, and says where the others are named.
func enumerate(missing []infrav1.MissingMachine) string {
	var names []string
	for _, m := range missing[:min(len(missing), maxMissingInMessage)] {
		names = append(names, fmt.Sprintf("%s (%s)", m.Name, cmp.Or(m.ProviderID, "no provider ID")))
	}
	text := strings.Join(names, ", ")
	if more := len(missing) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more: see status.missing", more)
	}
	return text
}
