// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// confirmMissing passes the user's confirmation that the missing machines are gone to the account.
func confirmMissing(account *infrav1.DroverAccount, live *fleet.Account) {
	if digest := account.Annotations[infrav1.ConfirmMissingAnnotation]; digest != "" {
		live.Confirm(digest)
	}
}

// setMachinesFound sets MachinesFound. The condition is False while so many machines are missing at
// once that the account treats none of them as gone.
func setMachinesFound(account *infrav1.DroverAccount, state fleet.InventoryState) {
	switch {
	case state.MassAbsence != nil:
		setCondition(account, infrav1.AccountMachinesFoundCondition, metav1.ConditionFalse, infrav1.MassAbsenceReason, fmt.Sprintf(
			"%d of %d machines are missing from the cloud at the same time, without a record of their termination, so none of them is treated as gone: "+
				"check that the credentials can still read them; if they are really gone, annotate the DroverAccount with %s=%s",
			state.MassAbsence.Missing, state.MassAbsence.Of, infrav1.ConfirmMissingAnnotation, state.MassAbsence.Digest))
	case !state.LastComplete.IsZero():
		setCondition(account, infrav1.AccountMachinesFoundCondition, metav1.ConditionTrue, infrav1.MachinesFoundReason, "")
	}
}
