// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// TestMissingMachinesAreNamed: 60 of 100 machines are missing at once. The status names the first
// 50, the message some of them and the whole command, and the log all of them, once.
func TestMissingMachinesAreNamed(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	var tokens []string
	for i := range 100 {
		m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("blue-%02d", i)}}
		m.Spec.AccountRef.Name, m.Spec.Creation.Token = "prod", fmt.Sprintf("token-%02d", i)
		m.Spec.ProviderID = fmt.Sprintf("aws:///eu-central-1a/i-%02d", i)
		x.Expect(x.Client.Create(t.Context(), m)).To(Succeed())
		if i >= 40 {
			tokens = append(tokens, m.Spec.Creation.Token)
		}
	}
	slices.Reverse(tokens)
	var lines []string
	x.Log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	state := fleet.InventoryState{LastComplete: time.Now(),
		MassAbsence: &fleet.MassAbsence{Missing: 60, Of: 100, Tokens: tokens, Digest: "0a1b2c3d4e5f"}}

	setReady(x.account)
	x.Expect(x.setMachinesFound(t.Context(), x.account, state)).To(Succeed())
	missing := x.account.Status.Missing
	x.Expect(missing).To(HaveLen(50))
	x.Expect(missing[0]).To(Equal(infrav1.MissingMachine{Name: "blue-40", ProviderID: "aws:///eu-central-1a/i-40"}))
	x.Expect(missing[49].Name).To(Equal("blue-89"))
	for _, kind := range []string{infrav1.AccountMachinesFoundCondition, clusterv1.ReadyCondition} {
		x.Expect(conditions.GetMessage(x.account, kind)).To(And(
			HavePrefix("60 of 100 machines are missing"),
			ContainSubstring("`kubectl -n team annotate --overwrite droveraccount prod drover.io/confirm-missing=0a1b2c3d4e5f`"),
			ContainSubstring("Missing: blue-40 (aws:///eu-central-1a/i-40), blue-41 ("), HaveSuffix("and 55 more: see status.missing")), kind)
	}
	x.Expect(conditions.IsTrue(x.account, clusterv1.ReadyCondition)).To(BeTrue())
	x.Expect(conditions.GetReason(x.account, infrav1.AccountMachinesFoundCondition)).To(Equal(infrav1.MassAbsenceReason))

	x.Expect(x.setMachinesFound(t.Context(), x.account, state)).To(Succeed())
	x.Expect(lines).To(HaveLen(1), "it is logged once")
	x.Expect(lines[0]).To(And(ContainSubstring(`"account"="team/prod"`), ContainSubstring("blue-40"), ContainSubstring("blue-99"),
		ContainSubstring("i-99"), Not(ContainSubstring("blue-39"))))

	setReady(x.account)
	x.Expect(x.setMachinesFound(t.Context(), x.account, fleet.InventoryState{LastComplete: time.Now()})).To(Succeed())
	x.Expect(x.account.Status.Missing).To(BeEmpty())
	x.Expect(conditions.GetMessage(x.account, clusterv1.ReadyCondition)).To(BeEmpty())
}

// TestRefusedAccountIsAnEvent: an account whose credentials are refused, or may not be used, says
// so by one Warning, however often it is tried.
func TestRefusedAccountIsAnEvent(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	x.fill("another", "key")
	for range 3 {
		x.reconcile()
	}
	reason, message := x.ready()
	x.Expect(reason).To(Equal(infrav1.UnauthorizedReason))
	x.Expect(message).To(HavePrefix("the Secret lacks the key"), "the reason is not in the message again")
	x.Expect(x.events.Events).To(HaveLen(1))
	x.Expect(<-x.events.Events).To(Equal("Warning Unauthorized " + message))

	x.Expect(x.Client.Get(t.Context(), client.ObjectKeyFromObject(x.secret), x.secret)).To(Succeed())
	x.secret.Labels = nil
	x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
	for range 3 {
		x.reconcile()
	}
	x.Expect(x.events.Events).To(HaveLen(1))
	x.Expect(<-x.events.Events).To(HavePrefix("Warning SecretInvalid "))
}
