// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// TestRefuseAmbient: only the namespaces that the operator has listed may use the manager's own
// credentials, and only for VMs in the same namespace.
func TestRefuseAmbient(t *testing.T) {
	r := &DroverAccountReconciler{AmbientNamespaces: []string{"team-a"}}
	for name, test := range map[string]struct {
		namespace string
		spec      infrav1.DroverAccountSpec
		refused   bool
	}{
		"listed":     {"team-a", infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{}}}, false},
		"not listed": {"team-b", infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{}}}, true},
		"an endpoint of its own": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Endpoint: "https://example.com"}}}, true},
		"a custom Azure": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{Azure: &infrav1.AzureAccount{
				Custom: infrav1.AzureCustomCloud{Endpoint: "https://management.example"}}}}, true},
		"Google's own": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{UniverseDomain: "googleapis.com"}}}, false},
		"another universe": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{UniverseDomain: "example.com"}}}, true},
		"Google, an endpoint": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{Endpoint: "https://example.com"}}}, true},
		"Google, authorities": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{CABundle: "PEM"}}}, true},
		"VMs in its namespace": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{KubeVirt: &infrav1.KubeVirtAccount{Namespace: "team-a"}}}, false},
		"VMs in another one": {"team-a", infrav1.DroverAccountSpec{
			Cloud: infrav1.AccountCloud{KubeVirt: &infrav1.KubeVirtAccount{Namespace: "kube-system"}}}, true},
	} {
		account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace}, Spec: test.spec}
		NewWithT(t).Expect(r.refuseAmbient(account) != nil).To(Equal(test.refused), name)
	}
}

// TestEventStream: an account is connected once something was received. The same account in a new
// process stays connected, so that a restart writes nothing. A new spec has to prove itself.
func TestEventStream(t *testing.T) {
	g := NewWithT(t)
	account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	says := func(state fleet.InventoryState, status metav1.ConditionStatus, reason string) {
		t.Helper()
		setEventStream(account, state)
		is := conditions.Get(account, infrav1.AccountEventStreamConnectedCondition)
		g.Expect(is.Status).To(Equal(status))
		g.Expect(is.Reason).To(Equal(reason))
	}
	silent, heard := fleet.InventoryState{HasSource: true}, fleet.InventoryState{HasSource: true, Received: true}
	failed := fleet.InventoryState{HasSource: true, ReceiveErr: cloud.Errorf(cloud.Unavailable, "cut")}

	says(fleet.InventoryState{}, metav1.ConditionTrue, infrav1.NoEventStreamReason)
	says(silent, metav1.ConditionUnknown, infrav1.NotCheckedReason)
	says(heard, metav1.ConditionTrue, infrav1.EventStreamConnectedReason)
	before := account.DeepCopy()
	says(silent, metav1.ConditionTrue, infrav1.EventStreamConnectedReason)
	g.Expect(account).To(Equal(before))
	says(failed, metav1.ConditionFalse, infrav1.CloudUnavailableReason)
	says(silent, metav1.ConditionUnknown, infrav1.NotCheckedReason)
	says(heard, metav1.ConditionTrue, infrav1.EventStreamConnectedReason)
	account.Generation++
	says(silent, metav1.ConditionUnknown, infrav1.NotCheckedReason)
}
